//! The simulated server process: start, stop and crash, its timers, and the loop of taking the inbox,
//! deciding and committing. Incoming packets are in `server/reception.rs`, commits in
//! `server/commit.rs`, outgoing messages in `server/outgoing.rs`.

mod commit;
mod outgoing;
mod reception;

use keeper::Keeper;
use keeper::change::Exactness;
use keeper::identity::Epoch;
use keeper::step::{Message, Step};
use keeper::time::Time;
use server::engine::batch::Batch;
use server::roster_copy::{self, StorePosition};
use store::{Store, Token};

pub(crate) use self::commit::CommitFault;

use crate::engine::{DecidedBatch, Engine, Input, MessageTruth};
use crate::judge::input::ObservedInput;
use crate::network::DELAY_MAX;
use crate::queue::{Ms, SECOND};
use crate::world::{Event, Phase, World};

impl World {
    pub(crate) fn start_server(&mut self, life: u32) {
        if life != self.server.life || self.server.engine.is_some() {
            return;
        }
        let mut saved = match self.disk.load() {
            Ok(saved) => saved,
            Err(error) => return self.violate("store", || error.to_string()),
        };
        let token = self.disk.last_token().unwrap_or(Token(0));
        let position = StorePosition::of(&saved, token);
        match roster_copy::judge(position, self.copy.as_ref(), self.disk.is_declared_lost()) {
            Ok(judged) => saved.exactness = saved.exactness.max(judged),
            Err(refusal) => return self.violate("store", || format!("{refusal:?}")),
        }
        let copied = self.copy.as_ref().map(|copy| copy.epoch);
        let mut epoch = Epoch::after(saved.epoch, copied, 0);
        if saved.exactness == Exactness::Open {
            epoch = roster_copy::open_epoch(epoch, self.random.next());
        }
        let time = Time { mono: std::time::Duration::ZERO, wall_ms: self.wall_ms() };
        let mut config = self.scenario.config.clone();
        config.seed ^= u64::from(life);
        self.renumber(saved.epoch, &mut config);
        config.roster = self.copy.as_ref().map_or_else(Vec::new, |copy| copy.hosts.clone());
        let keeper = Keeper::restore(saved.clone(), epoch, config, time);
        let mut engine = Engine::new(keeper, self.now, token, self.scenario.duplicates);
        let batch = engine.decider.take_batch();
        let step = step_of(&batch);
        self.trace(|_| {
            format!(
                "server starts, epoch {}, {:?}, {} hosts, {} locks",
                epoch.0,
                saved.exactness,
                saved.clients.len(),
                saved.locks.len()
            )
        });
        self.judge_start(&engine.decider.keeper, &saved, epoch, &step);
        let mut decided = DecidedBatch::default();
        let truths = self.ground_truths(&step);
        decided.join(batch, truths);
        self.server.engine = Some(engine);
        self.begin_commit(decided);
    }

    pub(crate) fn crash_server(&mut self, power: bool) {
        let Some(engine) = self.server.engine.take() else { return };
        self.fault(if power { "power loss" } else { "server kill" });
        if let Some(grace) = engine.decider.keeper.grace() {
            self.coverage.reach("double restart in grace");
            match grace.exactness {
                Exactness::Exact => {}
                Exactness::Roster => self.coverage.reach("kill inside a roster grace"),
                Exactness::Open => self.coverage.reach("kill inside an open grace"),
            }
        }
        let written = self.disk.written_token();
        if engine.stage.as_ref().is_some_and(|(stage, _)| stage.batch().token() == written) {
            self.coverage.reach("crash between write and reply");
        }
        let lost = if power { self.disk.lose_power(&mut self.random) } else { 0 };
        self.trace(|_| match power {
            true => format!("the server loses power, and {lost} batches"),
            false => "the server is killed".to_owned(),
        });
        self.server_is_down();
    }

    /// The server dies together with the last transactions of its store, or with all of it.
    pub(crate) fn lose_store(&mut self) {
        if self.server.engine.take().is_none() {
            return;
        }
        let copied = self.copy.as_ref().map_or(Token(0), |copy| copy.token);
        let (what, lost) = match self.random.below(5) {
            0 => ("store lost", self.disk.lose_everything()),
            1 | 2 => ("backup restored", self.disk.restore_backup(self.now, copied)),
            _ => ("store failed over", self.disk.lose_suffix(&mut self.random)),
        };
        self.fault(what);
        self.trace(|_| format!("the server is killed, {what}: {lost} batches are lost"));
        self.model.token = Token(u64::MAX);
        self.server_is_down();
    }

    /// The store fails over, and loses its last transactions, while the server lives.
    pub(crate) fn fail_over(&mut self) {
        if self.server.open {
            let lost = self.disk.fail_over(&mut self.random);
            self.fault("store failed over under the server");
            self.trace(|_| format!("the store fails over: {lost} batches are lost"));
            self.model.token = Token(u64::MAX);
        }
    }

    pub(crate) fn server_is_down(&mut self) {
        self.server.engine = None;
        self.server.open = false;
        self.server.life += 1;
        self.disk.next_fault = None;
        self.disk.forget_server();
        self.model.server_died();
        let life = self.server.life;
        let outage = DELAY_MAX + self.random.between(500, 15 * SECOND);
        self.later(outage, Event::StartServer { life });
        // Sometimes it crashes again soon after the start.
        if self.random.percent(25) {
            let pause = outage + self.random.between(1, 30 * SECOND);
            let power = self.random.percent(20);
            self.later(pause, Event::CrashServer { life, power });
        }
    }

    pub(crate) fn stop_server(&mut self) {
        self.trace(|_| "the server is asked to stop".to_owned());
        self.input(Input::Stop);
    }

    /// One more restart, in the calm phase: every healthy client must get all its locks back.
    pub(crate) fn restart_once(&mut self) {
        if self.server.engine.is_none() {
            return;
        }
        if self.phase == Phase::Calm {
            let power = self.random.percent(30);
            let stop = self.random.percent(20);
            self.model.calm_restart = true;
            match self.random.below(4) {
                0 => self.lose_store(),
                _ if stop => self.stop_server(),
                _ => self.crash_server(power),
            }
        }
    }

    pub(crate) fn input(&mut self, input: Input) {
        let now = self.now;
        if let Some(engine) = &mut self.server.engine {
            engine.push(input, now);
            self.wake_engine();
        }
    }

    pub(crate) fn wake_engine(&mut self) {
        let life = self.server.life;
        if let Some(engine) = &mut self.server.engine
            && !engine.batch_due
            && engine.stage.is_none()
            && engine.unfresh_since.is_none()
            && !engine.inbox.is_empty()
        {
            engine.batch_due = true;
            let pause = self.random.below(3);
            self.later(pause, Event::RunBatch { life });
        }
    }

    /// Decides the inputs in the inbox, has each decision judged, and begins the commit.
    pub(crate) fn run_batch(&mut self) {
        let wall_ms = self.wall_ms();
        let now = self.now;
        let Some(mut engine) = self.server.engine.take() else { return };
        engine.batch_due = false;
        if engine.stage.is_some() || engine.unfresh_since.is_some() {
            self.server.engine = Some(engine);
            return;
        }
        let time = engine.time(now, wall_ms);
        let mut inputs = engine.inbox.take().into_iter().peekable();
        let together = if self.scenario.one_by_one { 1 } else { usize::MAX };
        let mut decided = DecidedBatch::default();
        let mut stops = false;
        while inputs.peek().is_some() {
            let mut notes = Vec::new();
            for input in inputs.by_ref().take(together) {
                if stops {
                    self.violate("B4.17", || {
                        "an input was handled after the clean stop".to_owned()
                    });
                }
                stops |= matches!(input, Input::Stop);
                if let Some(note) = ObservedInput::of(&input, &engine.decider.keeper) {
                    self.trace_input(&note);
                    notes.push(note);
                }
                engine.handle(input, time);
            }
            if notes.iter().any(|note| matches!(note, ObservedInput::Timeout)) {
                self.judge_timer(&engine.decider.keeper, time);
            }
            let batch = engine.decider.take_batch();
            let step = step_of(&batch);
            self.judge(&engine.decider.keeper, &notes, &step, time);
            let truths = self.ground_truths(&step);
            decided.join(batch, truths);
        }
        self.server.engine = Some(engine);
        self.begin_commit(decided);
    }

    fn ground_truths(&self, step: &Step) -> Vec<MessageTruth> {
        let decided = self.model.serial;
        let of = |message: &Message| {
            let (block, life) = match message {
                Message::Grant(grant) => self.model.block_of(grant),
                _ => (0, 0),
            };
            MessageTruth { decided, block, life }
        };
        step.messages.iter().map(of).collect()
    }

    pub(crate) fn set_timer(&mut self) {
        let life = self.server.life;
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let Some(at) = engine.decider.keeper.poll_timeout() else { return };
        // Rounded up to whole milliseconds.
        let at = engine.started + at.as_nanos().div_ceil(1_000_000) as Ms;
        let at = at.max(now);
        if engine.timer.is_none_or(|timer| at < timer || timer < now) {
            engine.timer = Some(at);
            self.later(at - now, Event::KeeperTimer { life });
        }
    }

    pub(crate) fn keeper_timer(&mut self) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        if engine.timer.is_some_and(|timer| timer <= now) {
            engine.timer = None;
        }
        let started = engine.started;
        let due = engine.decider.keeper.poll_timeout().map(|at| started + at.as_millis() as Ms);
        if due.is_some_and(|due| due <= now) {
            self.input(Input::Timeout);
        } else if engine.stage.is_none() {
            self.set_timer();
        }
    }
}

/// The content of a batch as a step of the keeper.
fn step_of(batch: &Batch) -> Step {
    Step {
        changes: batch.changes().to_vec(),
        messages: batch.messages().to_vec(),
        events: batch.events().to_vec(),
    }
}
