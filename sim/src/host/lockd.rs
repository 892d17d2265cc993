//! The lock client of a kernel, after Linux 6.1: one call at a time per process, retransmitted until
//! answered; a blocked lock is polled, and granted by callback; a refusal for grace is retried after
//! five seconds; a signal cancels and then unlocks.

use std::rc::Rc;

use keeper::identity::{NoticeId, Transport};
use keeper::range::Range;
use keeper::request::{GrantAnswer, Mode};
use keeper::step::{CancelOutcome, Grant, Outcome, Reply};

use super::{Activity, WantedLock};
use crate::cells::{self, FILES, strength};
use crate::engine::AttemptKey;
use crate::packet::{Answer, Call, GroundTruth, Request, ToHost};
use crate::queue::{MINUTE, Ms, SECOND};
use crate::scenario::HostKind;
use crate::world::{Event, World};

impl World {
    /// A process decides what to do next.
    pub(crate) fn think(&mut self, process: usize) {
        if !matches!(self.processes[process].doing, Activity::Idle) {
            return;
        }
        let host = self.processes[process].host;
        // The reclaimer excludes other lock requests while it runs.
        if self.hosts[host].reclaim.is_some() {
            return self.rest(process, SECOND);
        }
        if self.hosts[host].kind == HostKind::Windows {
            return self.think_of_shares(process);
        }
        if self.winding_down() {
            return self.finish(process);
        }
        let file = self.random.index(FILES);
        let range = cells::draw_range(&mut self.random);
        let mode = if self.random.percent(55) { Mode::Exclusive } else { Mode::Shared };
        match self.random.below(20) {
            0..=10 => {
                let wait = self.random.percent(55);
                self.lock(process, file, range, mode, wait);
            }
            11..=12 => {
                self.processes[process].doing = Activity::Testing;
                self.call(process, Call::Test { file, range, mode }, 0);
            }
            13 => self.unlock(process, file, Range::ALL),
            _ => match self.something_held(process) {
                Some((file, held)) => {
                    let range = if self.random.percent(70) { held } else { range };
                    self.unlock(process, file, range);
                }
                None => self.unlock(process, file, range),
            },
        }
    }

    /// Unlocks everything, one file after the other.
    fn finish(&mut self, process: usize) {
        match (0..FILES).find(|file| self.processes[process].believes_anything(*file)) {
            Some(file) => self.unlock(process, file, Range::ALL),
            None => self.processes[process].doing = Activity::Finished,
        }
    }

    fn something_held(&mut self, process: usize) -> Option<(usize, Range)> {
        let held: Vec<(usize, Range)> = (0..FILES)
            .flat_map(|file| {
                let stretches = cells::stretches(&self.processes[process].belief[file]);
                stretches.into_iter().map(move |(range, _)| (file, range))
            })
            .collect();
        if held.is_empty() { None } else { Some(*self.random.pick(&held)) }
    }

    fn lock(&mut self, process: usize, file: usize, range: Range, mode: Mode, wait: bool) {
        self.blocks += 1;
        let generation = self.hosts[self.processes[process].host].generation;
        let want = WantedLock {
            file,
            range,
            mode,
            wait,
            block: self.blocks,
            generation,
            blocked: false,
            granted: None,
        };
        self.request_lock(process, want);
    }

    /// Sends a LOCK, for the first time or again with a new transaction id.
    fn request_lock(&mut self, process: usize, want: WantedLock) {
        let host = &self.hosts[self.processes[process].host];
        // A callback from before a restart of the server no longer counts.
        let want = WantedLock { generation: host.generation, granted: None, ..want };
        let call = Call::Lock {
            file: want.file,
            range: want.range,
            mode: want.mode,
            wait: want.wait,
            reclaim: false,
            state: host.state,
        };
        self.processes[process].doing = Activity::Locking(want);
        self.call(process, call, want.block);
        if want.wait
            && !self.winding_down()
            && self.random.per_mille(80)
            && let Some(request) = self.processes[process].call.clone()
        {
            let pause = self.random.between(500, 4 * SECOND);
            self.later(pause, Event::InterruptCall { request });
        }
    }

    /// The kernel drops the lock first and then tells the server.
    fn unlock(&mut self, process: usize, file: usize, range: Range) {
        self.processes[process].forget(file, range);
        self.processes[process].doing = Activity::Unlocking;
        self.call(process, Call::Unlock { file, range }, 0);
    }

    pub(crate) fn rest(&mut self, process: usize, pause: Ms) {
        self.processes[process].doing = Activity::Idle;
        let turn = self.processes[process].turn;
        self.later(pause, Event::Think { process, turn });
    }

    pub(crate) fn rest_a_while(&mut self, process: usize) {
        let pause = if self.winding_down() {
            self.random.between(1, 200)
        } else {
            self.random.between(50, 12 * SECOND)
        };
        self.rest(process, pause);
    }

    pub(crate) fn call(&mut self, process: usize, call: Call, block: u64) {
        let request = self.request_of(process, call, block);
        self.processes[process].call = Some(request.clone());
        self.processes[process].answered = false;
        self.post(request);
    }

    pub(crate) fn request_of(&mut self, process: usize, call: Call, block: u64) -> Rc<Request> {
        let it = &mut self.processes[process];
        it.turn += 1;
        let host = &mut self.hosts[it.host];
        host.xid = host.xid.wrapping_add(1);
        let state_matters = matches!(call, Call::Lock { .. });
        Rc::new(Request {
            call,
            xid: host.xid,
            from: host.address,
            name: host.name.clone(),
            namespace: host.namespaces[it.namespace],
            number: it.number,
            tag: it.tag.clone(),
            form: host.kind.form(),
            monitored: host.monitored,
            stateless: state_matters && host.kind == HostKind::Netboot,
            truth: GroundTruth {
                host: it.host,
                life: host.life,
                process: Some(process),
                block,
                honest: true,
            },
        })
    }

    /// Sends a request, and retransmits it until it is answered.
    pub(crate) fn post(&mut self, request: Rc<Request>) {
        let patience = self.hosts[request.truth.host].kind.retransmit_after();
        self.send_to_server(&request);
        self.later(patience, Event::Retransmit { request });
    }

    pub(crate) fn retransmit(&mut self, request: Rc<Request>) {
        let host = &self.hosts[request.truth.host];
        let same = |other: &Rc<Request>| Rc::ptr_eq(other, &request);
        let waited_for = request.truth.process.is_some_and(|process| {
            let it = &self.processes[process];
            !it.answered && it.call.as_ref().is_some_and(same)
        });
        let reclaimed = host
            .reclaim
            .as_ref()
            .and_then(|reclaim| reclaim.current.as_ref())
            .is_some_and(|(_, current)| same(current));
        if host.up && host.life == request.truth.life && (waited_for || reclaimed) {
            self.post(request);
        }
    }

    pub(crate) fn deliver(&mut self, host: usize, life: u32, message: ToHost) {
        if !self.hosts[host].up || self.hosts[host].life != life {
            return;
        }
        match message {
            ToHost::Answer { request, answer, decided } => {
                self.take_answer(host, request, answer, decided);
            }
            ToHost::Grant { grant, block, decided } => {
                let what = AttemptKey::Grant(grant.id, grant.attempt);
                let known = self.hosts[host].granted.iter().find(|(known, _)| *known == what);
                let answer = match known {
                    Some((_, answer)) => *answer,
                    None => self.answer_grant(host, &grant, block, decided),
                };
                self.hosts[host].granted.push((what, answer));
                if self.hosts[host].granted.len() > 20 {
                    self.hosts[host].granted.remove(0);
                }
                self.send_grant_answer(host, grant.id, grant.attempt, answer);
            }
            ToHost::Notice { notice, attempt, state } => {
                self.take_notice(host, state);
                self.send_notice_answer(host, notice, attempt);
            }
        }
    }

    fn take_answer(&mut self, host: usize, request: Rc<Request>, answer: Answer, decided: u64) {
        match request.call {
            Call::Notify { .. } => return self.announced(host, &request),
            Call::Lock { reclaim: true, .. } | Call::Share { reclaim: true, .. }
                if request.truth.honest =>
            {
                return self.reclaimed(host, &request, &answer, decided);
            }
            _ => {}
        }
        let Some(process) = request.truth.process else { return };
        let waits = self.processes[process].call.as_ref().is_some_and(|c| Rc::ptr_eq(c, &request));
        if !waits {
            return;
        }
        // The reclaimer owns the kernel's list of locks while it runs.
        if self.hosts[host].reclaim.is_some() {
            self.processes[process].answered = true;
            let life = self.hosts[host].life;
            let message = ToHost::Answer { request, answer, decided };
            return self.later(100, Event::ToHost { host, life, message });
        }
        self.processes[process].call = None;
        self.processes[process].turn += 1;
        match (self.processes[process].doing, answer) {
            (Activity::Locking(want), Answer::Keeper(Reply::Lock(outcome))) => {
                self.lock_answered(process, want, outcome, decided);
            }
            (Activity::Cancelling(want), Answer::Keeper(Reply::Cancel(cancelled))) => {
                // Some kernels always unlock after a cancel.
                if cancelled == CancelOutcome::TooLate || self.random.percent(50) {
                    self.unlock(process, want.file, want.range);
                } else {
                    self.rest_a_while(process);
                }
            }
            (Activity::Sharing { file, access, deny, .. }, answer) => {
                self.shared(process, file, (access, deny), &answer, decided);
            }
            (Activity::Locking(want), Answer::NoLocks) => self.abandon(process, want),
            (Activity::Finished, _) => {}
            _ => self.rest_a_while(process),
        }
    }

    fn lock_answered(&mut self, process: usize, want: WantedLock, outcome: Outcome, decided: u64) {
        match outcome {
            Outcome::Granted => self.locked(process, want, decided),
            Outcome::Blocked => match want.granted {
                Some(decided) => self.locked(process, want, decided),
                None => {
                    self.processes[process].doing =
                        Activity::Locking(WantedLock { blocked: true, ..want });
                    let host = self.processes[process].host;
                    let turn = self.processes[process].turn;
                    let poll = match self.hosts[host].waits_only {
                        true => 8 * MINUTE,
                        false => self.hosts[host].kind.poll_every(),
                    };
                    self.later(poll, Event::Poll { process, turn });
                    if self.random.percent(15) {
                        let pause = self.random.between(100, 40 * SECOND);
                        self.later(pause, Event::Signal { process, turn });
                    }
                }
            },
            Outcome::Grace => {
                self.processes[process].doing = Activity::Locking(want);
                let turn = self.processes[process].turn;
                self.later(5 * SECOND, Event::Poll { process, turn });
            }
            Outcome::Denied | Outcome::Deadlock | Outcome::Refused(_) => {
                self.abandon(process, want);
            }
        }
    }

    /// The program gets an error and the server is not told: a waiter may be left behind, or a lock
    /// whose reply was lost in a crash.
    fn abandon(&mut self, process: usize, want: WantedLock) {
        self.model.abandoned.insert((process, want.file));
        // A downgrade may have been committed before a crash in which its reply was lost.
        for cell in cells::cells(want.range) {
            let it = &mut self.processes[process];
            let kept = self.model.table[process][want.file][cell].strength;
            if it.belief[want.file][cell] > strength(want.mode) && kept == strength(want.mode) {
                it.tainted[want.file][cell] = true;
            }
        }
        self.rest_a_while(process);
    }

    fn locked(&mut self, process: usize, want: WantedLock, decided: u64) {
        let host = self.processes[process].host;
        // The server restarted while the reply was under way: the reclaimer does not know this lock.
        if want.generation != self.hosts[host].generation {
            return self.request_lock(process, want);
        }
        self.believe(process, want.file, want.range, strength(want.mode), decided);
        self.rest_a_while(process);
    }

    /// Requests again what is blocked or was refused for grace.
    pub(crate) fn poll(&mut self, process: usize) {
        if self.processes[process].call.is_none() {
            self.ask_for_share(process);
        }
        if let Activity::Locking(want) = self.processes[process].doing
            && self.processes[process].call.is_none()
        {
            self.request_lock(process, want);
        }
    }

    pub(crate) fn signal(&mut self, process: usize) {
        let Activity::Locking(want) = self.processes[process].doing else { return };
        if self.processes[process].call.is_some() || !want.blocked {
            return;
        }
        self.processes[process].doing = Activity::Cancelling(want);
        let WantedLock { file, range, mode, block, .. } = want;
        self.call(process, Call::Cancel { file, range, mode }, block);
    }

    /// A signal while the LOCK itself is unanswered: the kernel abandons the call, cancels and
    /// unlocks. Only if the server has received the LOCK: no server can handle one that arrives after
    /// the UNLOCK.
    pub(crate) fn interrupt_call(&mut self, request: &Rc<Request>) {
        let Some(process) = request.truth.process else { return };
        let host = &self.hosts[request.truth.host];
        let waits = self.processes[process].call.as_ref().is_some_and(|c| Rc::ptr_eq(c, request));
        let Some(engine) = &self.server.engine else { return };
        let held_back =
            self.model.pending_requests.values().any(|(asked, _)| Rc::ptr_eq(asked, request));
        let with_worker = engine.working.iter().any(|working| Rc::ptr_eq(working, request));
        let free = host.up && host.reclaim.is_none();
        let Activity::Locking(want) = self.processes[process].doing else { return };
        let has_it = with_worker || (held_back && engine.stage.is_none());
        if waits && has_it && free && want.wait {
            self.coverage.reach(match with_worker {
                true => "gave up a LOCK that waits for a worker",
                false => "gave up a LOCK that was held back",
            });
            self.processes[process].call = None;
            self.processes[process].doing = Activity::Cancelling(want);
            let WantedLock { file, range, mode, block, .. } = want;
            self.call(process, Call::Cancel { file, range, mode }, block);
        }
    }

    /// Delivers a late LOCK of a kernel that the server knows to be dead.
    pub(crate) fn deliver_stale_request(&mut self, request: &Rc<Request>) {
        let Call::Lock { state, .. } = request.call else { return };
        let host = request.truth.host;
        // A netboot client has the same state after each boot.
        if self.hosts[host].kind == HostKind::Netboot {
            return;
        }
        let gone = self.model.gone_states.get(&(host, state)).copied();
        // Over TCP it can only arrive on a connection that is open.
        let Some(engine) = &self.server.engine else { return };
        let mut namespaces = self.hosts[host].namespaces.iter();
        let namespace =
            namespaces.position(|namespace| *namespace == request.namespace).unwrap_or(0);
        // On a connection opened after the reboot was accepted, it would look like the new kernel's.
        let opened = engine.connections.carries(host, request.truth.life, namespace);
        let comes = request.namespace.transport() == Transport::Udp
            || opened.is_some_and(|opened| gone.is_some_and(|at| opened < at));
        if self.hosts[host].life > request.truth.life
            && comes
            && gone.is_some_and(|at| at + MINUTE > self.now)
        {
            self.fault("late packet of a dead kernel");
            let xid = request.xid ^ 0x5555_0000;
            self.arrive(Rc::new(Request { xid, ..(**request).clone() }));
        }
    }

    fn answer_grant(
        &mut self,
        host: usize,
        grant: &Rc<Grant>,
        block: u64,
        decided: u64,
    ) -> GrantAnswer {
        if self.random.per_mille(self.chaos_per_mille(20)) {
            self.fault("garbled grant answer");
            return GrantAnswer::Unclear;
        }
        let namespace = self.renumbering.outward(grant.namespace());
        let found = self.hosts[host].processes().find(|process| {
            let it = &self.processes[*process];
            let (Activity::Locking(want) | Activity::Cancelling(want)) = it.doing else {
                return false;
            };
            want.wait
                && self.file_of(&grant.handle) == Some(want.file)
                && want.range == grant.range
                && it.number == grant.owner.number
                && self.hosts[host].namespaces[it.namespace] == namespace
                && want.block == block
        });
        let Some(process) = found else { return GrantAnswer::Denied };
        if let Activity::Locking(want) = self.processes[process].doing {
            let want = WantedLock { granted: Some(decided), ..want };
            self.processes[process].doing = Activity::Locking(want);
            if !want.blocked {
                self.coverage.reach("GRANTED overtakes BLOCKED");
            }
            // While the reclaimer runs the process stays asleep; it requests the lock again later.
            if self.processes[process].call.is_none() && self.hosts[host].reclaim.is_none() {
                self.processes[process].turn += 1;
                self.locked(process, want, decided);
            }
        }
        GrantAnswer::Accepted
    }

    fn send_notice_answer(&mut self, host: usize, notice: NoticeId, attempt: u32) {
        self.send_small_answer(host, AttemptKey::Notice(notice, attempt));
    }
}
