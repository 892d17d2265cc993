//! The simulated server process: start, stop and death, packets in, one commit at a time, and only
//! then messages out.

use std::net::IpAddr;
use std::rc::Rc;

use keeper::Keeper;
use keeper::event::Event as Happening;
use keeper::identity::{Epoch, HostKey, Transport};
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{Message, Reply, Step};
use keeper::time::Time;
use store::{Committed, Store, Token};

use crate::disk::Fault;
use crate::driver::{Answered, Batch, Driver, Input, Outgoing, STALL_MAX};
use crate::network::DELAY_MAX;
use crate::packet::{Answer, Call, Request, ToHost};
use crate::plant::Plant;
use crate::queue::{Ms, SECOND};
use crate::replay::Seen;
use crate::scenario::Kind;
use crate::world::{Event, Phase, World};

#[derive(Clone, Copy, Debug)]
pub enum CommitFault {
    Slow(Ms),
    NotWritten,
    Unknown { written: bool },
}

/// How long one attempt to tell somebody something may take (R2.2).
const ATTEMPT: Ms = 5 * SECOND;

impl World {
    pub fn start_server(&mut self, life: u32) {
        if life != self.server.life || self.server.driver.is_some() {
            return;
        }
        let saved = match self.disk.load() {
            Ok(saved) => saved,
            Err(error) => return self.violate("store", || error.to_string()),
        };
        let token = self.disk.last_token().unwrap_or(Token(0));
        let mut epoch = Epoch::after(saved.epoch, None, 0);
        if self.options.plant == Plant::EpochNotAdvanced && saved.epoch > Epoch(1) {
            epoch = saved.epoch;
        }
        let time = Time { mono: std::time::Duration::ZERO, wall_ms: self.wall_ms() };
        let mut config = self.scenario.config.clone();
        config.seed ^= u64::from(life);
        let keeper = Keeper::restore(saved.clone(), epoch, config, time);
        let mut driver = Driver::new(keeper, self.now, token);
        driver.hosts_by_port = self.options.plant == Plant::HostByPort;
        let step = driver.take_step();
        self.tell(|_| {
            format!(
                "server starts, epoch {}, {:?}, {} hosts, {} locks",
                epoch.0,
                saved.exactness,
                saved.clients.len(),
                saved.locks.len()
            )
        });
        self.judge_start(&driver.keeper, &saved, epoch, &step);
        let mut batch = Batch::default();
        self.gather_step(&mut batch, step);
        self.server.driver = Some(driver);
        self.begin_commit(batch);
    }

    pub fn crash_server(&mut self, power: bool) {
        let Some(driver) = self.server.driver.take() else { return };
        self.fault(if power { "power loss" } else { "server kill" });
        if let Some(grace) = driver.keeper.grace() {
            self.tally.reach("double restart in grace");
            if grace.exactness == keeper::change::Exactness::Roster {
                self.tally.reach("kill inside a roster grace");
            }
        }
        if driver.committing.as_ref().is_some_and(|b| self.disk.written_token() == b.token) {
            self.tally.reach("crash between write and reply");
        }
        let lost = if power { self.disk.lose_power(&mut self.random) } else { 0 };
        self.tell(|_| match power {
            true => format!("the server loses its power, and {lost} batches"),
            false => "the server is killed".to_owned(),
        });
        self.server_is_down();
    }

    fn server_is_down(&mut self) {
        self.server.driver = None;
        self.server.open = false;
        self.server.life += 1;
        self.disk.next_fault = None;
        self.model.server_died();
        let life = self.server.life;
        let outage = DELAY_MAX + self.random.between(500, 15 * SECOND);
        self.later(outage, Event::StartServer { life });
        // Accidents come in pairs.
        if self.random.percent(25) {
            let pause = outage + self.random.between(1, 30 * SECOND);
            let power = self.random.percent(20);
            self.later(pause, Event::CrashServer { life, power });
        }
    }

    pub fn stop_server(&mut self) {
        self.tell(|_| "the server is asked to stop".to_owned());
        self.input(Input::Stop);
    }

    pub fn arrive(&mut self, request: Rc<Request>) {
        if !self.server.open {
            return;
        }
        let now = self.now;
        let Some(driver) = &mut self.server.driver else { return };
        let seen = match self.options.plant {
            Plant::NoReplay => Seen::New,
            _ => driver.replay.see(&request, now),
        };
        match seen {
            Seen::InProgress => {}
            Seen::Answered(answer, decided) => {
                self.tally.reach("repeat answered from the replay cache");
                let Request { truth, .. } = *request;
                let message = ToHost::Answer { request, answer, decided };
                self.send_to_host(truth.host, truth.life, message);
            }
            Seen::New => {
                self.note_connection(&request);
                let Some(driver) = &mut self.server.driver else { return };
                let id = driver.new_id();
                if !driver.enqueue(Input::Request(id, request.clone()), now) {
                    driver.replay.forget(&request);
                    return self.fault("queue full");
                }
                if driver.committing.is_some() {
                    let life = self.server.life;
                    self.later(STALL_MAX, Event::Expire { life });
                }
                self.wake_driver();
            }
        }
    }

    /// The server sees that a connection is there; the world notes whose kernel it leads to.
    fn note_connection(&mut self, request: &Request) {
        if request.lane.transport() != Transport::Tcp || request.truth.process.is_none() {
            return;
        }
        let key = (request.from, request.name.clone());
        let Some(driver) = &mut self.server.driver else { return };
        let lives = driver.connections.entry(key).or_default();
        let life = request.truth.life;
        if lives.contains(&life) {
            return;
        }
        let had_another = !lives.is_empty();
        lives.push(life);
        // A segment on the old connection of a rebooted host is answered by a reset; the server may
        // come to see that before the first request of the new life.
        let host = HostKey::new(request.from, request.name.clone());
        let client = driver.keeper.host(&host).map(|client| client.id);
        let chance = if self.hosts[request.truth.host].kind == Kind::Netboot { 85 } else { 20 };
        if let Some(client) = client
            && had_another
            && self.random.percent(chance)
        {
            self.tally.reach("reset seen");
            self.input(Input::Reset(client));
        }
    }

    pub fn input(&mut self, input: Input) {
        let now = self.now;
        if let Some(driver) = &mut self.server.driver {
            driver.enqueue(input, now);
            self.wake_driver();
        }
    }

    fn wake_driver(&mut self) {
        let plant = self.options.plant;
        let life = self.server.life;
        if let Some(driver) = &mut self.server.driver
            && !driver.gathering
            && (driver.committing.is_none() || plant == Plant::EntersWhileStalled)
            && driver.has_input()
        {
            driver.gathering = true;
            let pause = self.random.below(3);
            self.later(pause, Event::Gather { life });
        }
    }

    /// Hands in what has gathered, takes the step, commits it.
    pub fn gather(&mut self) {
        let wall_ms = self.wall_ms();
        let now = self.now;
        let Some(mut driver) = self.server.driver.take() else { return };
        driver.gathering = false;
        let waits = self.options.plant != Plant::EntersWhileStalled;
        if driver.committing.is_some() && waits {
            self.server.driver = Some(driver);
            return;
        }
        let time = driver.time(now, wall_ms);
        let inputs = driver.drain();
        let mut batch = Batch::default();
        for together in
            inputs.chunks(if self.scenario.one_by_one { 1 } else { inputs.len().max(1) })
        {
            for input in together {
                self.tell_input(input);
                batch.stops |= matches!(input, Input::Stop);
                driver.hand_in(input, time);
            }
            if together.iter().any(|input| matches!(input, Input::Timeout)) {
                self.judge_timer(&driver.keeper, time);
            }
            let step = driver.take_step();
            self.judge(&driver.keeper, together, &step, time);
            self.forget_replays(&mut driver, &step);
            self.gather_step(&mut batch, step);
        }
        self.server.driver = Some(driver);
        self.begin_commit(batch);
    }

    fn forget_replays(&mut self, driver: &mut Driver, step: &Step) {
        for event in &step.events {
            if let Happening::Rebooted { client, .. } = event
                && let Some(view) = driver.keeper.client(*client)
            {
                driver.replay.forget_host(view.client.address, &view.client.name, self.now);
            }
        }
    }

    fn gather_step(&mut self, batch: &mut Batch, step: Step) {
        batch.changes.extend(step.changes);
        for message in step.messages {
            let decided = self.model.serial;
            let (block, life) = match &message {
                Message::Grant(grant) => self.model.block_of(grant),
                _ => (0, 0),
            };
            batch.outgoing.push(Outgoing { message, decided, block, life });
        }
    }

    fn begin_commit(&mut self, mut batch: Batch) {
        let planted = self.options.plant;
        let Some(driver) = &mut self.server.driver else { return };
        if let Some(committing) = &mut driver.committing {
            // A planted bug: what came meanwhile joins what is under way, or is told at once.
            committing.changes.extend(batch.changes);
            return self.send(batch.outgoing, None);
        }
        if batch.changes.is_empty() {
            let stops = batch.stops;
            self.send(batch.outgoing, None);
            return self.committed(stops);
        }
        driver.token = Token(driver.token.0 + 1);
        batch.token = driver.token;
        if planted == Plant::ReplyBeforeCommit {
            let early = std::mem::take(&mut batch.outgoing);
            driver.committing = Some(batch);
            self.send(early, None);
        } else {
            driver.committing = Some(batch);
        }
        let fault = self.commit_fault.take();
        let mut pause = self.random.below(4);
        match fault {
            None => {}
            Some(CommitFault::Slow(ms)) => {
                pause = ms;
                self.fault("slow commit");
            }
            Some(CommitFault::NotWritten) => {
                self.disk.next_fault = Some(Fault::NotWritten);
                self.fault("commit not written");
            }
            Some(CommitFault::Unknown { written }) => {
                self.disk.next_fault = Some(Fault::Unknown { written });
                self.fault("lost COMMIT outcome");
            }
        }
        let life = self.server.life;
        self.later(pause, Event::Write { life });
    }

    pub fn write(&mut self) {
        let Some(batch) = self.server.driver.as_ref().and_then(|d| d.committing.as_ref()) else {
            return;
        };
        let outcome = self.disk.commit(&batch.changes, batch.token);
        if self.disk.written_token() == batch.token {
            let changes = batch.changes.clone();
            self.check_ids(&changes);
            self.model.durable = self.model.table.clone();
            self.check_disk();
        }
        let life = self.server.life;
        let pause = self.random.below(4);
        self.later(pause, Event::Written { life, outcome });
    }

    pub fn written(&mut self, outcome: Committed) {
        let life = self.server.life;
        match outcome {
            Committed::Done => self.tell_committed(),
            Committed::NotWritten(_) => {
                self.tell(|_| "the commit was not written; again".to_owned());
                let pause = self.random.between(200, 8 * SECOND);
                self.later(pause, Event::Write { life });
            }
            Committed::Unknown(_) => {
                self.tell(|_| "the outcome of the commit is lost".to_owned());
                let pause = self.random.between(200, 8 * SECOND);
                self.later(pause, Event::Settle { life });
            }
        }
    }

    /// Reads the token back.
    pub fn settle(&mut self) {
        let token = self.disk.last_token().unwrap_or(Token(0));
        let Some(batch) = self.server.driver.as_ref().and_then(|d| d.committing.as_ref()) else {
            return;
        };
        if token == batch.token || self.options.plant == Plant::UnknownIsDone {
            self.tell_committed();
        } else if self.options.plant == Plant::UnknownIsNotWritten {
            self.give_up_batch();
        } else {
            let life = self.server.life;
            self.later(1, Event::Write { life });
        }
    }

    /// A planted bug: whoever asked is refused, and the keeper goes on as if it had been written.
    fn give_up_batch(&mut self) {
        let Some(batch) = self.server.driver.as_mut().and_then(|d| d.committing.take()) else {
            return;
        };
        self.server.open = true;
        for outgoing in batch.outgoing {
            if let Message::Reply(id, _) = outgoing.message
                && let Some(driver) = &mut self.server.driver
                && let Some(request) = driver.asked.remove(&id)
            {
                let truth = request.truth;
                let decided = outgoing.decided;
                let message = ToHost::Answer { request, answer: Answer::NoLocks, decided };
                self.send_to_host(truth.host, truth.life, message);
            }
        }
        self.committed(false);
    }

    fn tell_committed(&mut self) {
        let Some(batch) = self.server.driver.as_mut().and_then(|d| d.committing.take()) else {
            return;
        };
        if !self.server.open && !batch.stops {
            self.server.open = true;
            self.model.epoch_told = self.model.epoch;
        }
        self.send(batch.outgoing, Some((batch.token, &batch.changes)));
        self.committed(batch.stops);
    }

    fn committed(&mut self, stops: bool) {
        if stops {
            self.check_clean_stop();
            self.tell(|_| "the server has stopped cleanly".to_owned());
            self.tally.reach("clean stop");
            if self.random.percent(30) {
                // The machine is switched off afterwards.
                self.disk.lose_power(&mut self.random);
            }
            return self.server_is_down();
        }
        self.check_snapshot();
        self.set_timer();
        self.wake_driver();
    }

    fn set_timer(&mut self) {
        let life = self.server.life;
        let now = self.now;
        let Some(driver) = &mut self.server.driver else { return };
        let Some(at) = driver.keeper.poll_timeout() else { return };
        // A timer that wants the fraction of a millisecond gets the whole.
        let at = driver.started + at.as_nanos().div_ceil(1_000_000) as Ms;
        let at = at.max(now);
        if driver.timer.is_none_or(|timer| at < timer || timer < now) {
            driver.timer = Some(at);
            self.later(at - now, Event::KeeperTimer { life });
        }
    }

    pub fn keeper_timer(&mut self) {
        let now = self.now;
        let Some(driver) = &mut self.server.driver else { return };
        if driver.timer.is_some_and(|timer| timer <= now) {
            driver.timer = None;
        }
        let started = driver.started;
        let due = driver.keeper.poll_timeout().map(|at| started + at.as_millis() as Ms);
        if due.is_some_and(|due| due <= now) {
            self.input(Input::Timeout);
        } else if driver.committing.is_none() {
            self.set_timer();
        }
    }

    /// What comes while the store stalls does not enter the keeper (I11).
    pub fn expire(&mut self) {
        let now = self.now;
        let Some(driver) = &mut self.server.driver else { return };
        if driver.committing.is_none() {
            return;
        }
        for request in driver.expired(now) {
            let refusable = matches!(
                request.call,
                Call::Lock { .. } | Call::Share { .. } | Call::Monitor { .. } | Call::Test { .. }
            );
            let Some(driver) = &mut self.server.driver else { return };
            if !refusable {
                driver.replay.forget(&request);
                continue;
            }
            let decided = self.model.serial;
            driver.replay.answered(&request, &Answer::NoLocks, decided, now);
            self.tally.reach("refused while the store stalls");
            let truth = request.truth;
            let message = ToHost::Answer { request, answer: Answer::NoLocks, decided };
            self.send_to_host(truth.host, truth.life, message);
        }
    }

    fn send(
        &mut self,
        outgoing: Vec<Outgoing>,
        committed: Option<(Token, &[keeper::change::Change])>,
    ) {
        for Outgoing { message, decided, block, life } in outgoing {
            match message {
                Message::Reply(id, reply) => {
                    let now = self.now;
                    let Some(driver) = &mut self.server.driver else { return };
                    let Some(request) = driver.asked.remove(&id) else { continue };
                    let answer = Answer::Keeper(reply.clone());
                    if reply == Reply::Nothing {
                        driver.replay.forget(&request);
                        continue;
                    }
                    driver.replay.answered(&request, &answer, decided, now);
                    self.check_durable(&request, &reply, decided, committed);
                    let truth = request.truth;
                    let message = ToHost::Answer { request, answer, decided };
                    self.send_to_host(truth.host, truth.life, message);
                }
                Message::Grant(grant) => {
                    self.check_grant_durable(&grant);
                    let what = Answered::Grant(grant.id, grant.attempt);
                    let host = self.host_of(grant.owner.host);
                    self.begin_attempt(what, grant.to);
                    if let Some(host) = host {
                        let grant = Rc::new(grant);
                        self.send_to_host(host, life, ToHost::Grant { grant, block, decided });
                    }
                }
                Message::Notice(notice) => {
                    let what = Answered::Notice(notice.id, notice.attempt);
                    if self.random.per_mille(self.chaos_per_mille(30)) {
                        self.fault("notice could not be sent");
                        self.input(Input::Noticed(notice.id, NoticeResult::Unsent));
                        continue;
                    }
                    self.begin_attempt(what, notice.to);
                    let over_tcp = self.options.plant == Plant::NoticesOverTcpOnly;
                    if let Some(host) = self.host_of(notice.client)
                        && !(over_tcp && self.hosts[host].kind == Kind::MacOs)
                    {
                        let life = self.hosts[host].life;
                        let (attempt, state) = (notice.attempt, notice.state);
                        let message = ToHost::Notice { notice: notice.id, attempt, state };
                        self.send_to_host(host, life, message);
                    }
                }
                Message::Probe(client, question) => self.begin_probe(client, question),
            }
        }
    }

    fn begin_attempt(&mut self, what: Answered, to: IpAddr) {
        let life = self.server.life;
        if let Some(driver) = &mut self.server.driver {
            driver.attempts.insert(what, to);
            self.later(ATTEMPT, Event::AttemptTimedOut { life, what });
        }
    }

    /// Exactly one result for each attempt: the first answer in time, or none.
    pub fn answered(&mut self, life: u32, host: usize, what: Answered, answer: GrantAnswer) {
        if life != self.server.life {
            return;
        }
        let Some(driver) = &mut self.server.driver else { return };
        match driver.attempts.get(&what) {
            None => return self.tally.reach("answer to an attempt that was over"),
            // Nobody answers for another (R6.3).
            Some(to) if *to != self.hosts[host].address => {
                return self.tally.reach("forged grant answer");
            }
            Some(_) => driver.attempts.remove(&what),
        };
        self.attempt_ends(what, Some(answer));
    }

    pub fn attempt_timed_out(&mut self, life: u32, what: Answered) {
        if life != self.server.life {
            return;
        }
        let Some(driver) = &mut self.server.driver else { return };
        if driver.attempts.remove(&what).is_some() {
            self.attempt_ends(what, None);
        }
    }

    fn attempt_ends(&mut self, what: Answered, answer: Option<GrantAnswer>) {
        match what {
            Answered::Grant(grant, _) => {
                let refused = self.options.plant == Plant::SilenceIsRefusal;
                let answer = answer.or(refused.then_some(GrantAnswer::Denied));
                self.input(Input::Granted(grant, answer.unwrap_or(GrantAnswer::Unclear)));
            }
            Answered::Notice(notice, _) => {
                let result = match answer {
                    Some(_) => NoticeResult::Answered,
                    None => NoticeResult::Failed,
                };
                self.input(Input::Noticed(notice, result));
            }
        }
    }

    /// One more restart while nothing else goes wrong: everybody must get everything back.
    pub fn restart_once(&mut self) {
        if self.server.driver.is_none() {
            return;
        }
        if self.phase == Phase::Calm {
            let power = self.random.percent(30);
            let stop = self.random.percent(20);
            self.model.calm_restart = true;
            if stop { self.stop_server() } else { self.crash_server(power) }
        }
    }
}
