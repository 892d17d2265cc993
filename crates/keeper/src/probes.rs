//! Probes: questions about a host that only the network can answer. Whatever depends on the answer
//! is parked as a whole and decided again when it arrives.

use std::time::Duration;

use crate::identity::{ClientId, Incarnation};
use crate::keeper::Keeper;
use crate::parking::{Parked, ProbeOutcome, ReadyRequest};
use crate::request::{ProbeAnswer, Question};
use crate::step::{Message, Refusal, Reply, TestResult};
use crate::time::Time;
use crate::timer::Timer;
use crate::waiter_probes::ProbeSubject;
use crate::waiters::WaiterId;

/// A probe without an answer is over after this.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

impl Keeper {
    /// Parks a request until a question about a host is answered; sends the probe unless one is
    /// outstanding.
    pub(crate) fn ask(&mut self, host: ClientId, question: Question, parked: Parked, now: Time) {
        if let Err(why) = self.has_room_to_park(&parked) {
            return self.refuse_parked_full(parked, why);
        }
        self.parking.await_probe(host, question, parked);
        self.send_probe(host, question, now);
    }

    /// Asks on behalf of a waiter whether a host can be reached. Bounded by the limit of waiters.
    pub(crate) fn ask_for_waiter(
        &mut self,
        host: ClientId,
        waiter: WaiterId,
        of: ProbeSubject,
        now: Time,
    ) {
        if self.waiter_probes.insert(host, waiter, of) {
            self.send_probe(host, Question::Reachable, now);
        }
    }

    fn send_probe(&mut self, host: ClientId, question: Question, now: Time) {
        let timer = Timer::Probe(host, question);
        if !self.timers.is_set(timer) {
            self.timers.set(timer, now.mono + PROBE_TIMEOUT);
            self.step.messages.push(Message::Probe(host, question));
        }
    }

    /// Asks whether the kernel that took the host's oldest locks is alive, not counting those of
    /// the kernel that reports or asks now.
    pub(crate) fn ask_same_kernel(&mut self, host: ClientId, parked: Parked, now: Time) {
        let now_up = match &parked {
            Parked::RebootReport(report) => report.to,
            Parked::Lock(request, _) if request.stateless => None,
            Parked::Lock(request, _) => Some(request.incarnation).filter(|it| it.is_known()),
            _ => None,
        };
        let tracked = self.clients.get(host);
        let oldest = tracked.map_or(Incarnation::UNKNOWN, |tracked| tracked.oldest(now_up));
        self.ask(host, Question::SameKernel(oldest), parked, now);
    }

    pub(crate) fn use_probe_answer(
        &mut self,
        client: ClientId,
        question: Question,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let asked_at = self.timers.due(Timer::Probe(client, question));
        let asked_at = asked_at.map(|due| due.saturating_sub(PROBE_TIMEOUT));
        let seen = self.clients.get(client).and_then(|tracked| tracked.last_seen);
        let spoke = question == Question::Reachable && asked_at.is_some() && seen >= asked_at;
        let answer = match answer {
            // Silent to the probe, but active since it was sent.
            ProbeAnswer::Silent if spoke => ProbeAnswer::Alive,
            answer => answer,
        };
        if matches!(answer, ProbeAnswer::Alive | ProbeAnswer::InState(_)) {
            self.hear_client(client, now);
        }
        self.timers.stop(Timer::Probe(client, question));
        self.use_outcome(ProbeOutcome { client, question, answer: Some(answer) }, now);
    }

    /// Judges all waiters that a probe concerns, so that each file is woken once, and makes the
    /// requests ready that waited for it. A probe that timed out counts as "alive" for a holder and
    /// as "absent" for a waiter.
    pub(crate) fn use_outcome(&mut self, probe: ProbeOutcome, now: Time) {
        let ProbeOutcome { client, question, answer } = probe;
        if question == Question::Reachable {
            for (waiter, of) in self.waiter_probes.take_host(client) {
                let Some(wanted) = self.waiters.wanted_by(waiter) else { continue };
                let lives = answer.unwrap_or(ProbeAnswer::Alive);
                match of {
                    ProbeSubject::Waiter => self.judge_waiter(waiter, answer),
                    ProbeSubject::Holder => self.judge_holder(client, wanted, lives, now),
                }
            }
        }
        self.parking.answer(probe);
    }

    /// Continues a request whose wait is over. A probe that timed out counts as "alive".
    pub(crate) fn resume(&mut self, ready: ReadyRequest, now: Time) {
        let ReadyRequest { parked, probe: Some(ProbeOutcome { client, question, answer }) } = ready
        else {
            return self.decide_again(ready.parked, now);
        };
        let lives = answer.unwrap_or(ProbeAnswer::Alive);
        match parked {
            Parked::RebootReport(report) => match question {
                Question::SameKernel(about) => self.judge_report(client, report, about, lives, now),
                Question::Reachable => self.judge_roaming(client, report, lives, now),
                Question::State => self.judge_state(client, report, lives, now),
            },
            Parked::Lock(request, mut history) => {
                if let Question::SameKernel(about) = question {
                    return self.judge_kernel(client, request, history, about, lives, now);
                }
                let host = self.clients.find_host(&request.caller.host);
                self.judge_holder(client, self.wanted_lock(host, &request), lives, now);
                history.holders.push(client);
                self.parking.resume(Parked::Lock(request, history));
            }
            Parked::Share(request, mut history) => {
                self.judge_sharer(client, &request, lives, now);
                history.holders.push(client);
                self.parking.resume(Parked::Share(request, history));
            }
            // TEST is held back by grace only.
            Parked::Test(_) => {}
        }
    }

    fn decide_again(&mut self, parked: Parked, now: Time) {
        match parked {
            Parked::Lock(request, history) => self.decide_lock(request, history, now),
            Parked::Share(request, history) => self.decide_share(request, history, now),
            Parked::Test(request) => {
                let host = self.clients.find_host(&request.caller.host);
                self.decide_test(request, host, now);
            }
            Parked::RebootReport(_) => {}
        }
    }

    /// Answers a request that cannot be parked because the limit is reached.
    fn refuse_parked_full(&mut self, parked: Parked, why: Refusal) {
        match parked {
            Parked::Lock(request, _) => self.refuse_lock(&request, None, why),
            Parked::Share(request, _) => self.refuse_share(&request, why),
            Parked::Test(request) => {
                self.reply(request.id, Reply::Test(TestResult::Grace));
            }
            Parked::RebootReport(report) => self.resolve(report.request, false),
        }
    }
}
