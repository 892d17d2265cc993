//! The engine: keeper and store, entered by one thread at a time; commit, then send (I2).
//!
//! A request goes into the inbox. The calling thread then enters if the engine is idle and runs the
//! whole batch, so an uncontended lock costs no thread switch. Batches that are large or must wait
//! for a disk run on the committer thread; requests that arrive meanwhile form the next batch (group
//! commit). While the store fails or the lease is not fresh, nothing enters the keeper (I11).

pub mod batch;
mod clock;
pub mod inbox;
pub mod request;
mod tasks;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tracing::{error, info, warn};

use keeper::Keeper;
use keeper::event::Event;
use keeper::identity::{ClientId, RequestId};
use keeper::request::Question;
use keeper::step::{Grant, Message, Notice, Reply};
use store::{Store, StoreError};

pub use clock::Clock;

use self::batch::{Committing, Decider, DurableBatch, Progress};
use self::inbox::Inbox;
use self::request::{Request, WhenStalled};
use crate::meters::Meters;
use crate::tenure::Tenure;
use crate::transport::ReplyBatch;

/// What a request came to.
#[derive(Debug)]
pub enum Decision {
    Reply(Reply),
    /// The store has not worked for so long that the request was never looked at (I11).
    Stalled(WhenStalled),
}

/// Where the decision on a request goes. Dropped uncalled if the engine ends before it decides.
pub type ReplySink = Box<dyn FnOnce(Decision, &mut ReplyBatch) + Send>;

pub type Input = inbox::Input<ReplySink>;

/// What the keeper wants done besides replies. Called in the order of the batch; must not block.
pub trait Effects: Send + Sync {
    fn grant(&self, grant: Grant);
    fn notice(&self, notice: Notice);
    fn probe(&self, keeper: &Keeper, client: ClientId, question: Question);
    fn event(&self, keeper: &Keeper, event: Event);
}

/// Keeper and store, owned by whichever thread is deciding.
struct Core {
    decider: Decider<ReplySink>,
    store: Box<dyn Store>,
}

struct Entrance {
    inbox: Inbox<ReplySink>,
    /// Present while the engine is idle; absent before [`Engine::begin`].
    core: Option<Box<Core>>,
}

/// Work for the committer thread: the core, and perhaps a batch that is not durable yet.
type Job = (Box<Core>, Option<Committing>);

struct Shared {
    entrance: Mutex<Entrance>,
    /// The core before the beginning.
    prepared: Mutex<Option<Box<Core>>>,
    /// The inbox is not empty; read without the lock.
    has_input: AtomicBool,
    committer: mpsc::Sender<Job>,
    ids: AtomicU64,
    clock: Clock,
    effects: OnceLock<Box<dyn Effects>>,
    /// When the keeper wants to be called, in nanoseconds of the clock.
    deadline: AtomicU64,
    deadline_moved: Notify,
    /// Since when the store has not worked, in nanoseconds; 0 if it works.
    stalled_since: AtomicU64,
    /// Since when the lease has not been fresh, in nanoseconds; 0 if it is.
    unfresh_since: AtomicU64,
    ended: watch::Sender<Option<End>>,
    tenure: Tenure,
    meters: Option<Arc<Meters>>,
    /// Where tasks are spawned, whatever thread sends.
    runtime: Option<Handle>,
}

/// Why nothing enters the keeper any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The clean stop is durable.
    Stopped,
    /// The store failed in a way that trying again would only make worse (I11).
    Failed(String),
    /// Left as by a crash, see [`Engine::abandon`].
    Abandoned,
}

/// Which thread runs a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    /// The one that brought a request: it must not wait.
    Caller,
    Committer,
}

#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// Reports to an engine without keeping it alive: for what the engine itself owns.
#[derive(Clone)]
pub struct Reporter(Weak<Shared>);

impl Reporter {
    pub fn report(&self, input: Input) {
        if let Some(shared) = self.0.upgrade() {
            Engine { shared }.report(input);
        }
    }
}

const NEVER: u64 = u64::MAX;
/// Between two attempts to commit.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often a store that does not work is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

impl Engine {
    /// The first batch of `decider`, the start itself, must be durable already (I3).
    pub fn new(
        decider: Decider<ReplySink>,
        store: Box<dyn Store>,
        clock: Clock,
        requests_max: usize,
        tenure: Tenure,
        meters: Option<Arc<Meters>>,
    ) -> std::io::Result<Self> {
        let (committer, jobs) = mpsc::channel();
        let core = Box::new(Core { decider, store });
        let shared = Arc::new(Shared {
            entrance: Mutex::new(Entrance { inbox: Inbox::new(requests_max), core: None }),
            prepared: Mutex::new(Some(core)),
            has_input: AtomicBool::new(false),
            committer,
            ids: AtomicU64::new(1),
            clock,
            effects: OnceLock::new(),
            deadline: AtomicU64::new(NEVER),
            deadline_moved: Notify::new(),
            stalled_since: AtomicU64::new(0),
            unfresh_since: AtomicU64::new(0),
            ended: watch::channel(None).0,
            tenure,
            meters,
            runtime: Handle::try_current().ok(),
        });
        let weak = Arc::downgrade(&shared);
        thread::Builder::new().name("committer".into()).spawn(move || {
            while let Ok((core, batch)) = jobs.recv() {
                let Some(shared) = weak.upgrade() else { return };
                shared.run(core, batch, Runner::Committer);
            }
        })?;
        Ok(Self { shared })
    }

    /// From here on requests are decided, messages are sent, and time passes; `first` is the start.
    /// Requests that arrived before have waited for this.
    pub fn begin(&self, effects: Box<dyn Effects>, first: DurableBatch) {
        // Set once, at the start.
        let _ = self.shared.effects.set(effects);
        let shared = &self.shared;
        let prepared = shared.prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut core) = prepared {
            shared.send(&mut core, first);
            shared.put_back(core);
        }
        tokio::spawn(tasks::run_timer(self.shared.clone()));
        tokio::spawn(tasks::expire_stalled(self.shared.clone()));
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

    /// A request of a peer; it is decided when [`flush`](Self::flush) is called. Without room it is
    /// dropped, and its sender asks again.
    pub fn ask(&self, request: Request, sink: ReplySink) {
        self.shared.push(Input::Request(request, sink));
    }

    /// Decides what is in the inbox, or leaves it to the thread that is at it.
    pub fn flush(&self) {
        if !self.shared.has_input.load(Ordering::Acquire) || !self.shared.may_decide() {
            return;
        }
        let mut entrance = self.shared.lock();
        if entrance.inbox.is_empty() {
            return;
        }
        let Some(core) = entrance.core.take() else { return };
        let is_light = entrance.inbox.is_light();
        drop(entrance);
        match is_light {
            true => self.shared.run(core, None, Runner::Caller),
            false => self.shared.hand_over(core, None),
        }
    }

    /// Something that is not a request of a peer.
    pub fn report(&self, input: Input) {
        self.shared.push(input);
        self.wake();
    }

    /// Looks at the keeper between two batches, on the calling thread if the engine is idle. `None`
    /// if the server ends meanwhile, or too many reads wait already. While the store does not work
    /// it waits.
    pub async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Keeper) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answered) = oneshot::channel();
        self.shared.push(Input::Read(Box::new(move |keeper| {
            // The reader may have gone away.
            if !answer.is_closed() {
                let _ = answer.send(read(keeper));
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

    /// Ends as a crash does: nothing more is decided or sent, and the store is let go. After an end
    /// it changes nothing.
    pub fn abandon(&self) {
        let shared = &self.shared;
        shared.ended.send_if_modified(|end| match end {
            Some(_) => false,
            None => {
                *end = Some(End::Abandoned);
                true
            }
        });
        // A thread that is deciding drops the core itself.
        let core = shared.lock().core.take();
        let prepared = shared.prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop((core, prepared));
    }

    /// Lets the committer thread decide what is in the inbox.
    fn wake(&self) {
        if !self.shared.may_decide() {
            return;
        }
        let mut entrance = self.shared.lock();
        if !entrance.inbox.is_empty()
            && let Some(core) = entrance.core.take()
        {
            drop(entrance);
            self.shared.hand_over(core, None);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Entrance> {
        self.entrance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the lease is fresh. How long it is not is no time for hosts that want to reclaim.
    fn may_decide(&self) -> bool {
        let fresh = self.tenure.may_decide();
        if !fresh {
            let now = self.clock.elapsed().as_nanos() as u64;
            let since = &self.unfresh_since;
            let _ = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        fresh
    }

    fn push(&self, input: Input) {
        let now = self.clock.elapsed();
        self.lock().inbox.push(input, now);
        self.has_input.store(true, Ordering::Release);
    }

    /// Decides, commits and sends until the inbox is empty. The caller's thread runs one batch that
    /// waits for nothing; the rest is handed over to the committer.
    fn run(&self, mut core: Box<Core>, mut begun: Option<Committing>, runner: Runner) {
        let _guard = PanicGuard(self);
        loop {
            let committing = match begun.take() {
                Some(begun) => begun,
                None if !self.may_decide() => return self.put_back(core),
                None => self.decide(&mut core),
            };
            let durable = match self.commit(&mut *core.store, committing, runner) {
                Ok(durable) => durable,
                Err(Undone::Waits(committing)) => return self.hand_over(core, Some(committing)),
                Err(Undone::Failed(failed)) => return self.give_up(&failed),
            };
            core.decider.committed(&durable, self.clock.elapsed());
            let stops = durable.batch().stops();
            self.send(&mut core, durable);
            if stops {
                core.store.leave();
                self.ended.send_replace(Some(End::Stopped));
                return;
            }
            let entrance = self.lock();
            if entrance.inbox.is_empty() {
                return self.leave(entrance, core);
            }
            if runner == Runner::Caller {
                drop(entrance);
                return self.hand_over(core, None);
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

    /// The engine is idle again.
    fn leave(&self, mut entrance: MutexGuard<'_, Entrance>, core: Box<Core>) {
        if self.is_over() {
            return;
        }
        let deadline = core.decider.keeper.poll_timeout();
        self.has_input.store(!entrance.inbox.is_empty(), Ordering::Release);
        entrance.core = Some(core);
        self.set_deadline(deadline);
    }

    fn put_back(&self, core: Box<Core>) {
        let entrance = self.lock();
        self.leave(entrance, core);
    }

    fn hand_over(&self, core: Box<Core>, batch: Option<Committing>) {
        // The thread ends with the last engine only.
        let _ = self.committer.send((core, batch));
    }

    fn decide(&self, core: &mut Core) -> Committing {
        let inputs = self.lock().inbox.take();
        let now = self.clock.now();
        // Before the inputs: a deadline among them may not have come yet.
        let since = self.unfresh_since.load(Ordering::Relaxed);
        if since != 0 {
            self.unfresh_since.store(0, Ordering::Relaxed);
            core.decider.stalled(now.mono.saturating_sub(Duration::from_nanos(since)));
        }
        for input in inputs {
            core.decider.handle(input, now);
        }
        core.decider.take_batch().commit(now.mono)
    }

    /// Attempts the commit until it is certain that the store has the batch; on the caller's thread
    /// at most once, and only if that waits for nothing.
    fn commit(
        &self,
        store: &mut dyn Store,
        mut committing: Committing,
        runner: Runner,
    ) -> Result<DurableBatch, Undone> {
        let changes = committing.batch().changes();
        if runner == Runner::Caller && !changes.is_empty() && !store.is_quick(changes) {
            return Err(Undone::Waits(committing));
        }
        let mut pause = RETRY_FIRST;
        let mut logged: Option<Instant> = None;
        loop {
            let error = match self.attempt(store, committing) {
                Progress::Durable(durable) => {
                    self.works_again();
                    return Ok(durable);
                }
                Progress::Failed(again, error) => {
                    committing = again;
                    error
                }
            };
            if let Some(meters) = &self.meters {
                meters.store_failed();
            }
            if error.is_fatal() || self.is_over() {
                return Err(Undone::Failed(error));
            }
            if logged.is_none_or(|then| then.elapsed() > LOG_EVERY) {
                logged = Some(Instant::now());
                self.stall(&error);
            }
            if runner == Runner::Caller {
                return Err(Undone::Waits(committing));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    fn attempt(&self, store: &mut dyn Store, committing: Committing) -> Progress {
        match &self.meters {
            Some(meters) if !committing.batch().changes().is_empty() => {
                let since = Instant::now();
                let progress = committing.attempt(store);
                meters.commits.observe(since.elapsed());
                progress
            }
            _ => committing.attempt(store),
        }
    }

    fn stall(&self, error: &StoreError) {
        let now = self.clock.elapsed().as_nanos() as u64;
        let _ = self.stalled_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        warn!("locks wait: {error}");
    }

    fn works_again(&self) {
        if self.stalled_since.load(Ordering::Relaxed) == 0 {
            return;
        }
        let since = self.stalled_since.swap(0, Ordering::Relaxed);
        let after = self.clock.elapsed().saturating_sub(Duration::from_nanos(since));
        info!("the store works again after {:.1} s; locks go on", after.as_secs_f64());
    }

    fn send(&self, core: &mut Core, durable: DurableBatch) {
        let mut replies = ReplyBatch::default();
        let _inside = self.runtime.as_ref().map(Handle::enter);
        let effects = self.effects.get();
        let (events, messages) = durable.into_messages();
        // Events come first: they may concern how the replies are remembered.
        for event in events {
            if let Some(effects) = effects {
                effects.event(&core.decider.keeper, event);
            }
        }
        for message in messages {
            match (message, effects) {
                (Message::Reply(id, reply), _) => {
                    if let Some(owed) = core.decider.take_owed(id) {
                        if let Some(meters) = &self.meters {
                            meters.replied(&reply, owed.is_reclaim);
                        }
                        (owed.sink)(Decision::Reply(reply), &mut replies);
                    }
                }
                (Message::Grant(grant), Some(effects)) => effects.grant(grant),
                (Message::Notice(notice), Some(effects)) => effects.notice(notice),
                (Message::Probe(client, question), Some(effects)) => {
                    effects.probe(&core.decider.keeper, client, question);
                }
                (_, None) => {}
            }
        }
        replies.send();
    }

    fn set_deadline(&self, at: Option<Duration>) {
        let at = at.map_or(NEVER, |at| at.as_nanos() as u64);
        let before = self.deadline.swap(at, Ordering::Relaxed);
        if at < before {
            self.deadline_moved.notify_one();
        }
    }
}

/// Why a batch is not durable yet.
enum Undone {
    /// It must wait for a disk or be attempted again: the committer's work.
    Waits(Committing),
    Failed(StoreError),
}

/// A panic while the core is taken leaves a keeper that cannot be trusted: the server ends, and the
/// next start takes up what is in the store.
struct PanicGuard<'a>(&'a Shared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = "a defect in the lock service; start the server again, no lock is lost";
            self.0.ended.send_replace(Some(End::Failed(why.into())));
        }
    }
}

#[cfg(test)]
mod tests;
