//! Questions about hosts that only the world can answer. Whatever depends on the answer is parked
//! whole, and decided again when it is there.

use std::time::Duration;

use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::parking::{About, Parked};
use crate::request::{ProbeAnswer, Question};
use crate::step::{Message, Refusal, Reply, Tested};
use crate::time::Time;
use crate::timer::Timer;

/// After this long nobody will answer any more.
const PROBE_MAX: Duration = Duration::from_secs(30);

impl Keeper {
    /// Holds a request back until a question about a host is answered.
    pub(crate) fn ask(&mut self, host: ClientId, question: Question, parked: Parked, now: Time) {
        // Waiters have a bound of their own, and nobody would ask again on their behalf.
        let bounded = !matches!(parked, Parked::Waiter(..));
        if bounded && self.parking.len() >= self.config.limits.parked {
            return self.turn_away(parked);
        }
        self.parking.await_probe(host, question, parked);
        let timer = Timer::Probe(host, question);
        if !self.timers.is_set(timer) {
            self.timers.set(timer, now.mono + PROBE_MAX);
            self.step.messages.push(Message::Probe(host, question));
        }
    }

    /// The answer to a `Message::Probe`.
    pub fn handle_probed(
        &mut self,
        client: ClientId,
        question: Question,
        answer: ProbeAnswer,
        now: Time,
    ) {
        let asked = self.timers.due(Timer::Probe(client, question));
        let asked = asked.map(|due| due.saturating_sub(PROBE_MAX));
        let seen = self.clients.get(client).and_then(|tracked| tracked.last_seen);
        let spoke = question == Question::Reachable && asked.is_some() && seen >= asked;
        let answer = match answer {
            // It did not answer us, and yet it reads and writes.
            ProbeAnswer::Silent if spoke => ProbeAnswer::Alive,
            answer => answer,
        };
        if matches!(answer, ProbeAnswer::Alive | ProbeAnswer::InState(_)) {
            self.hear_client(client, now);
        }
        self.use_answer(client, question, Some(answer), now);
    }

    /// Goes on with what was waiting for an answer; `None` if nobody could say. Then the safe side
    /// is that whoever holds something lives, and that whoever waits is not there.
    pub(crate) fn use_answer(
        &mut self,
        client: ClientId,
        question: Question,
        answer: Option<ProbeAnswer>,
        now: Time,
    ) {
        self.timers.stop(Timer::Probe(client, question));
        self.parking.answer(client, question);
        let lives = answer.unwrap_or(ProbeAnswer::Alive);
        // One at a time: what is decided for one may withdraw another.
        while let Some(parked) = self.parking.pop_answered(client, question) {
            match parked {
                Parked::Claim(claim) => match question {
                    Question::SameKernel(about) => {
                        self.judge_claim(client, claim, about, lives, now);
                    }
                    _ => self.judge_state(client, claim, lives, now),
                },
                Parked::Waiter(waiter, About::Waiter) => self.judge_waiter(waiter, answer, now),
                Parked::Waiter(waiter, About::Holder) => {
                    if let Some(wish) = self.waiters.wish(waiter) {
                        self.judge_holder(client, wish, lives, now);
                    }
                }
                Parked::Lock(request, mut asked) => {
                    if let Question::SameKernel(about) = question {
                        self.judge_incarnation(client, request, asked, about, lives, now);
                        continue;
                    }
                    let host = self.clients.find_host(&request.caller.host);
                    self.judge_holder(client, self.wish(host, &request), lives, now);
                    asked.holders.push(client);
                    self.decide_lock(request, asked, now);
                }
                Parked::Share(request, mut asked) => {
                    self.judge_sharer(client, &request, lives, now);
                    asked.holders.push(client);
                    self.decide_share(request, asked, now);
                }
                // TEST waits for grace only.
                Parked::Test(request) => self.decide_test(request, now),
            }
        }
        self.end_grace_if_complete(now);
    }

    /// There is no room to hold this back.
    fn turn_away(&mut self, parked: Parked) {
        let why = Refusal::TooManyParked;
        match parked {
            Parked::Lock(request, _) => self.refuse_lock(&request, None, why),
            Parked::Share(request, _) => self.refuse_share(&request, why),
            Parked::Test(request) => {
                self.reply(request.id, Reply::Test(Tested::Grace));
            }
            Parked::Claim(claim) => self.resolve(claim.request, false),
            Parked::Waiter(..) => {}
        }
    }
}
