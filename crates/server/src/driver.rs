//! The one who works with the keeper: one at a time, commit before telling (I2).
//!
//! There is one [`Desk`] with the keeper and the store on it. Whoever brings work and finds the
//! desk free takes it, does what has gathered, and puts it back: so a lock costs no change of
//! threads. The committer thread takes over whatever may wait for a disk, whatever is large, and
//! whatever has gathered meanwhile: so a network thread never waits, and many requests share one
//! commit when there are many.

mod clock;
pub mod core;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

use keeper::Keeper;
use keeper::event::Event;
use keeper::identity::{ClientId, RequestId};
use keeper::request::Question;
use keeper::step::{Grant, Message, Notice, Reply};
use store::{Committed, Store, StoreError};

pub use clock::Clock;

use self::core::{Ask, Batch, Core, Input, Next, Queue};
use crate::meters::Meters;
use crate::tenure::Tenure;
use crate::transport::Mailbag;

/// Whom a reply goes to.
pub trait Ticket: Send {
    fn answer(self: Box<Self>, reply: Reply, mail: &mut Mailbag);

    /// The store has not worked for so long that the request was never looked at (I11).
    fn stalled(self: Box<Self>, ask: &Ask, mail: &mut Mailbag);

    /// Whether it takes back what was held before a restart, which is counted by itself.
    fn is_reclaim(&self) -> bool {
        false
    }
}

/// Who carries out what is not a reply.
pub trait Hands: Send + Sync {
    fn grant(&self, grant: Grant);
    fn notice(&self, notice: Notice);
    fn probe(&self, keeper: &Keeper, client: ClientId, question: Question);
    fn happened(&self, keeper: &Keeper, event: Event);
}

type Inputs = Queue<Box<dyn Ticket>>;

/// What the one who works has before him.
struct Desk {
    core: Core<Box<dyn Ticket>>,
    store: Box<dyn Store>,
}

struct Line {
    queue: Inputs,
    /// Free to be taken; nobody can before [`Driver::begin`].
    desk: Option<Box<Desk>>,
}

/// Work for the committer thread: a desk, and perhaps a batch that is not told yet, with what is
/// to be done about it.
type Job = (Box<Desk>, Option<(Batch, Next)>);

struct Shared {
    line: Mutex<Line>,
    /// The desk before the beginning.
    prepared: Mutex<Option<Box<Desk>>>,
    /// Something is in the queue; looked at without the lock.
    waiting: AtomicBool,
    committer: mpsc::Sender<Job>,
    ids: AtomicU64,
    clock: Clock,
    hands: OnceLock<Box<dyn Hands>>,
    /// When the keeper wants to be woken, in nanoseconds of the clock.
    alarm: AtomicU64,
    alarm_moved: Notify,
    /// Since when the store has not worked, in nanoseconds; 0 if it works.
    stalled_since: AtomicU64,
    ended: watch::Sender<Option<End>>,
    tenure: Tenure,
    meters: Option<Arc<Meters>>,
    /// Where errands are run from whatever thread they are sent on.
    runtime: Option<Handle>,
}

/// Why nothing enters the keeper any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The clean stop is durable.
    Stopped,
    /// The store failed in a way that trying again would only make worse (I11).
    Failed(String),
    /// Left as by a crash, see [`Driver::abandon`].
    Abandoned,
}

#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
}

/// For those whom the driver itself holds: they do not keep it alive.
#[derive(Clone)]
pub struct Reporter(Weak<Shared>);

impl Reporter {
    pub fn report(&self, input: Input<Box<dyn Ticket>>) {
        if let Some(shared) = self.0.upgrade() {
            Driver { shared }.report(input);
        }
    }
}

const NEVER: u64 = u64::MAX;
/// How often requests are looked for that have waited too long.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two attempts to write.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often a store that does not work is complained about.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

impl Driver {
    /// The first batch of `core`, the start itself, must be committed already (I3).
    pub fn new(
        core: Core<Box<dyn Ticket>>,
        store: Box<dyn Store>,
        clock: Clock,
        queue_max: usize,
        tenure: Tenure,
        meters: Option<Arc<Meters>>,
    ) -> std::io::Result<Self> {
        let (committer, jobs) = mpsc::channel();
        let desk = Box::new(Desk { core, store });
        let shared = Arc::new(Shared {
            line: Mutex::new(Line { queue: Queue::new(queue_max), desk: None }),
            prepared: Mutex::new(Some(desk)),
            waiting: AtomicBool::new(false),
            committer,
            ids: AtomicU64::new(1),
            clock,
            hands: OnceLock::new(),
            alarm: AtomicU64::new(NEVER),
            alarm_moved: Notify::new(),
            stalled_since: AtomicU64::new(0),
            ended: watch::channel(None).0,
            tenure,
            meters,
            runtime: Handle::try_current().ok(),
        });
        let weak = Arc::downgrade(&shared);
        thread::Builder::new().name("committer".into()).spawn(move || {
            while let Ok((desk, batch)) = jobs.recv() {
                let Some(shared) = weak.upgrade() else { return };
                shared.go_on(desk, batch);
            }
        })?;
        Ok(Self { shared })
    }

    /// From here on questions are decided, messages are carried out, and time passes; `first` are
    /// the messages of the start. What was asked before has waited for this.
    pub fn begin(&self, hands: Box<dyn Hands>, first: Batch) {
        // Set once, at the start.
        let _ = self.shared.hands.set(hands);
        let shared = &self.shared;
        let prepared = shared.prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut desk) = prepared {
            shared.tell(&mut desk, first);
            shared.put_back(desk);
        }
        tokio::spawn(ring(self.shared.clone()));
        tokio::spawn(look(self.shared.clone()));
        self.wake();
    }

    pub fn reporter(&self) -> Reporter {
        Reporter(Arc::downgrade(&self.shared))
    }

    pub fn new_id(&self) -> RequestId {
        RequestId(self.shared.ids.fetch_add(1, Ordering::Relaxed))
    }

    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// A question of a peer; it is looked at when [`flush`](Self::flush) is called. Without room it
    /// is dropped, and its sender asks again.
    pub fn ask(&self, ask: Ask, ticket: Box<dyn Ticket>) {
        self.shared.push(Input::Ask(ask, ticket));
    }

    /// Works on what was asked, or leaves it to who is at it.
    pub fn flush(&self) {
        if !self.shared.waiting.load(Ordering::Acquire) || !self.shared.tenure.may_decide() {
            return;
        }
        let mut line = self.shared.lock();
        if line.queue.is_empty() {
            return;
        }
        let Some(desk) = line.desk.take() else { return };
        let light = line.queue.is_light();
        drop(line);
        match light {
            true => self.shared.work(desk),
            false => self.shared.hand_over(desk, None),
        }
    }

    /// Something that is not a question of a peer.
    pub fn report(&self, input: Input<Box<dyn Ticket>>) {
        self.shared.push(input);
        self.wake();
    }

    /// Looks at the keeper between two steps, on the thread of who asks if nobody is at it. `None`
    /// if the server ends meanwhile, or too many want to look already. While the store does not
    /// work it waits.
    pub async fn read<R: Send + 'static>(
        &self,
        look: impl FnOnce(&Keeper) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answered) = oneshot::channel();
        self.shared.push(Input::Read(Box::new(move |keeper| {
            // Whoever asked may have gone away.
            if !answer.is_closed() {
                let _ = answer.send(look(keeper));
            }
        })));
        self.flush();
        tokio::select! {
            biased;
            answer = answered => answer.ok(),
            _ = self.ended() => None,
        }
    }

    /// Since when the store does not work, or has not let us decide about locks.
    pub fn stalled_for(&self) -> Option<Duration> {
        let since = self.shared.stalled_since.load(Ordering::Relaxed);
        let now = self.shared.clock.elapsed();
        let stalled = (since != 0).then(|| now.saturating_sub(Duration::from_nanos(since)));
        stalled.or_else(|| self.shared.tenure.waits_for())
    }

    /// Resolves when nothing enters the keeper any more.
    pub async fn ended(&self) -> End {
        let mut ended = self.shared.ended.subscribe();
        let found = ended.wait_for(Option::is_some).await;
        match found {
            Ok(end) => end.clone().unwrap_or(End::Stopped),
            Err(_) => End::Stopped,
        }
    }

    pub fn has_ended(&self) -> bool {
        self.shared.is_over()
    }

    /// Ends as a crash does: nothing more is decided or told, and the store is let go. After an
    /// end it changes nothing.
    pub fn abandon(&self) {
        let shared = &self.shared;
        shared.ended.send_if_modified(|end| match end {
            Some(_) => false,
            None => {
                *end = Some(End::Abandoned);
                true
            }
        });
        // Who is at work puts the desk away.
        let desk = shared.lock().desk.take();
        let prepared = shared.prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop((desk, prepared));
    }

    /// Lets the committer thread work on what has gathered.
    fn wake(&self) {
        if !self.shared.tenure.may_decide() {
            return;
        }
        let mut line = self.shared.lock();
        if !line.queue.is_empty()
            && let Some(desk) = line.desk.take()
        {
            drop(line);
            self.shared.hand_over(desk, None);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, input: Input<Box<dyn Ticket>>) {
        let now = self.clock.elapsed();
        self.lock().queue.push(input, now);
        self.waiting.store(true, Ordering::Release);
    }

    /// One round on the thread of who brought the work; what comes meanwhile, and what may wait
    /// for a disk, is the committer's.
    fn work(&self, mut desk: Box<Desk>) {
        let _careful = Careful(self);
        let batch = self.decide(&mut desk);
        if !batch.changes.is_empty() {
            if !desk.store.is_quick(&batch.changes) {
                return self.hand_over(desk, Some((batch, Next::CommitAgain)));
            }
            let outcome = self.measure_commit(&mut *desk.store, &batch);
            let next = batch.after(&outcome);
            if let Committed::NotWritten(error) | Committed::Unknown(error) = outcome {
                self.stall(&error);
                return self.hand_over(desk, Some((batch, next)));
            }
        }
        self.tell(&mut desk, batch);
        let line = self.lock();
        if line.queue.is_empty() {
            return self.leave(line, desk);
        }
        drop(line);
        self.hand_over(desk, None);
    }

    /// The committer's part: goes on until nothing is left.
    fn go_on(&self, mut desk: Box<Desk>, mut begun: Option<(Batch, Next)>) {
        let _careful = Careful(self);
        loop {
            let (batch, next) = match begun.take() {
                Some(begun) => begun,
                None if !self.tenure.may_decide() => return self.put_back(desk),
                None => (self.decide(&mut desk), Next::CommitAgain),
            };
            if !batch.changes.is_empty()
                && let Err(failed) = self.commit(&mut *desk.store, &batch, next)
            {
                return self.give_up(&failed);
            }
            let stops = batch.stops;
            self.tell(&mut desk, batch);
            if stops {
                desk.store.leave();
                self.ended.send_replace(Some(End::Stopped));
                return;
            }
            let line = self.lock();
            if line.queue.is_empty() {
                return self.leave(line, desk);
            }
        }
    }

    fn give_up(&self, failed: &StoreError) {
        if !self.is_over() {
            error!("{failed}");
            self.ended.send_replace(Some(End::Failed(failed.to_string())));
        }
    }

    fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Puts the desk back; mostly nothing is left to do.
    fn leave(&self, mut line: MutexGuard<'_, Line>, desk: Box<Desk>) {
        if self.is_over() {
            return;
        }
        let alarm = desk.core.keeper.poll_timeout();
        self.waiting.store(!line.queue.is_empty(), Ordering::Release);
        line.desk = Some(desk);
        self.set_alarm(alarm);
    }

    /// Puts the desk where whoever brings the next work takes it.
    fn put_back(&self, desk: Box<Desk>) {
        let line = self.lock();
        self.leave(line, desk);
    }

    fn hand_over(&self, desk: Box<Desk>, batch: Option<(Batch, Next)>) {
        // The thread ends with the last driver only.
        let _ = self.committer.send((desk, batch));
    }

    fn decide(&self, desk: &mut Desk) -> Batch {
        let inputs = self.lock().queue.take();
        let now = self.clock.now();
        for input in inputs {
            desk.core.hand_in(input, now);
        }
        desk.core.take_batch()
    }

    fn measure_commit(&self, store: &mut dyn Store, batch: &Batch) -> Committed {
        let Some(meters) = &self.meters else { return store.commit(&batch.changes, batch.token) };
        let since = Instant::now();
        let outcome = store.commit(&batch.changes, batch.token);
        meters.commits.observe(since.elapsed());
        outcome
    }

    /// Until it is certain that the store has the batch.
    fn commit(
        &self,
        store: &mut dyn Store,
        batch: &Batch,
        mut next: Next,
    ) -> Result<(), StoreError> {
        let mut pause = RETRY_FIRST;
        let mut complained: Option<Instant> = None;
        loop {
            let failed = match next {
                Next::Tell => {
                    self.works_again();
                    return Ok(());
                }
                Next::CommitAgain => {
                    let outcome = self.measure_commit(store, batch);
                    next = batch.after(&outcome);
                    match outcome {
                        Committed::Done => continue,
                        Committed::NotWritten(error) | Committed::Unknown(error) => error,
                    }
                }
                Next::Settle => match store.last_token() {
                    Ok(last) => {
                        next = batch.settled(last);
                        continue;
                    }
                    Err(error) => error,
                },
            };
            if let Some(meters) = &self.meters {
                meters.store_failed();
            }
            if failed.is_fatal() || self.is_over() {
                return Err(failed);
            }
            if complained.is_none_or(|then| then.elapsed() > COMPLAIN_EVERY) {
                complained = Some(Instant::now());
                self.stall(&failed);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    fn stall(&self, error: &StoreError) {
        let now = self.clock.elapsed().as_nanos() as u64;
        let _ = self.stalled_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        warn!("locks wait: {error}");
    }

    fn works_again(&self) {
        let since = self.stalled_since.swap(0, Ordering::Relaxed);
        if since != 0 {
            let after = self.clock.elapsed().saturating_sub(Duration::from_nanos(since));
            info!("the store works again after {:.1} s; locks go on", after.as_secs_f64());
        }
    }

    fn tell(&self, desk: &mut Desk, batch: Batch) {
        let mut mail = Mailbag::default();
        let _inside = self.runtime.as_ref().map(Handle::enter);
        let hands = self.hands.get();
        // What happened comes first: it may concern how the replies are kept.
        for event in batch.events {
            if let Some(hands) = hands {
                hands.happened(&desk.core.keeper, event);
            }
        }
        for message in batch.messages {
            match (message, hands) {
                (Message::Reply(id, reply), _) => {
                    if let Some(ticket) = desk.core.ticket(id) {
                        if let Some(meters) = &self.meters {
                            meters.replied(&reply, ticket.is_reclaim());
                        }
                        ticket.answer(reply, &mut mail);
                    }
                }
                (Message::Grant(grant), Some(hands)) => hands.grant(grant),
                (Message::Notice(notice), Some(hands)) => hands.notice(notice),
                (Message::Probe(client, question), Some(hands)) => {
                    hands.probe(&desk.core.keeper, client, question);
                }
                (_, None) => {}
            }
        }
        mail.send();
    }

    fn set_alarm(&self, at: Option<Duration>) {
        let at = at.map_or(NEVER, |at| at.as_nanos() as u64);
        let before = self.alarm.swap(at, Ordering::Relaxed);
        if at < before {
            self.alarm_moved.notify_one();
        }
    }
}

/// A defect while the desk is taken leaves a keeper that nobody can trust: the server ends, and the
/// next start takes up what is in the store.
struct Careful<'a>(&'a Shared);

impl Drop for Careful<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = "a defect in the lock service; start the server again, no lock is lost";
            self.0.ended.send_replace(Some(End::Failed(why.into())));
        }
    }
}

/// Wakes the keeper when it wants to be woken.
async fn ring(shared: Arc<Shared>) {
    let driver = Driver { shared: shared.clone() };
    loop {
        let at = shared.alarm.load(Ordering::Relaxed);
        let now = shared.clock.elapsed().as_nanos() as u64;
        if at <= now {
            // It is set again when the desk is put back.
            let rung =
                shared.alarm.compare_exchange(at, NEVER, Ordering::Relaxed, Ordering::Relaxed);
            if rung.is_ok() {
                driver.report(Input::Timeout);
            }
            continue;
        }
        // No longer than this, because what is never may come to be soon.
        let pause = Duration::from_nanos(at - now).min(Duration::from_secs(3600));
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.alarm_moved.notified() => {}
            _ = driver.ended() => return,
        }
    }
}

/// Answers what has waited too long for a store that does not work (I11).
async fn look(shared: Arc<Shared>) {
    let driver = Driver { shared: shared.clone() };
    let mut every = interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = driver.ended() => return,
        }
        let now = shared.clock.elapsed();
        let mut mail = Mailbag::default();
        let expired = {
            let mut line = shared.lock();
            let works = line.desk.is_some() && shared.tenure.may_decide();
            if works { Vec::new() } else { line.queue.expired(now) }
        };
        for (ask, ticket) in expired {
            if let Some(meters) = &shared.meters {
                meters.stalled(&ask, ticket.is_reclaim());
            }
            ticket.stalled(&ask, &mut mail);
        }
        mail.send();
        driver.wake();
    }
}

#[cfg(test)]
mod tests;
