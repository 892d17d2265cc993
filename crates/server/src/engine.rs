//! The engine: keeper and store, entered by one thread at a time; commit, then send (I2).
//!
//! A request goes into the inbox (`Engine::ask`). The calling thread then enters if the engine is
//! idle (`Engine::flush`) and runs a few batches, so a lock costs no thread switch. The
//! committer thread runs what the caller must not: batches with inputs that are not
//! [light](request::Request::is_light), commits that wait for a disk or are attempted again, reports
//! (`Engine::report`), and whatever arrived while a batch was running (group commit). Tasks of the
//! runtime act without a request: `tasks::run_timer` reports the keeper's deadlines,
//! `tasks::expire_stalled` answers requests that a failing store keeps waiting, and
//! `tasks::log_store_health` logs warnings of the store.
//!
//! While the store fails or the lease is not fresh, nothing enters the keeper (I11). The mutex around
//! the inbox is never held while a batch is decided, committed or sent.

pub mod batch;
mod clock;
mod durable_tokens;
pub mod inbox;
pub mod request;
mod stall;
mod tasks;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tracing::error;

use keeper::Keeper;
use keeper::change::{Change, Client};
use keeper::event::Event;
use keeper::identity::{ClientId, RequestId};
use keeper::request::Question;
use keeper::step::{Grant, Message, Notice, Reply};
use store::{Store, StoreError, StoreHealth};

pub use clock::Clock;

use self::batch::{Decider, DurableBatch, PendingCommit, Progress};
use self::durable_tokens::DurableTokens;
use self::inbox::Inbox;
use self::request::{Request, StallPolicy};
use self::stall::Stall;
use crate::metrics::Metrics;
use crate::service_lease::ServiceLease;
use crate::transport::ReplyBatch;

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Decision {
    Reply(Reply),
    /// The store failed for [`STALL_MAX`](request::STALL_MAX), and the request never entered the
    /// keeper (I11).
    Stalled(StallPolicy),
}

/// Called with the decision on a request; must not block. Dropped uncalled if the engine ends first, at
/// once if the request is still in the inbox.
pub(crate) type ReplySink = Box<dyn FnOnce(Decision, &mut ReplyBatch) + Send>;

pub(crate) type Input = inbox::Input<ReplySink>;

/// The keeper's messages and events that are not replies. Called once the batch is durable, in its
/// order, by the thread that runs the batch; must not block.
pub(crate) trait Effects: Send + Sync {
    fn grant(&self, grant: Grant);
    fn notice(&self, notice: Notice);
    fn probe(&self, keeper: &Keeper, client: ClientId, question: Question);
    fn event(&self, keeper: &Keeper, event: Event);
    /// A row of the client tracker was written.
    fn client_written(&self, row: &Client);
    /// A lock was written or removed.
    fn lock_changed(&self, change: &Change);
}

/// Keeper and store, owned by whichever thread is deciding.
struct Core {
    decider: Decider<ReplySink>,
    store: Box<dyn Store>,
}

struct EngineState {
    inbox: Inbox<ReplySink>,
    /// Present while the engine is idle. Absent while a thread runs a batch, and before
    /// [`Engine::begin`].
    core: Option<Box<Core>>,
}

/// Work for the committer thread: the core, and perhaps a batch that is not durable yet.
type CommitterJob = (Box<Core>, Option<PendingCommit>);

struct EngineShared {
    state: Mutex<EngineState>,
    /// The core until [`Engine::begin`] takes it.
    prepared: Mutex<Option<Box<Core>>>,
    /// The inbox may not be empty; read without the lock.
    has_input: AtomicBool,
    committer: mpsc::Sender<CommitterJob>,
    ids: AtomicU64,
    clock: Clock,
    effects: OnceLock<Box<dyn Effects>>,
    /// The keeper's next deadline, in nanoseconds of the clock; [`NEVER`] if it has none, or while
    /// its timeout is being handled.
    deadline: AtomicU64,
    deadline_moved: Notify,
    stall: Stall,
    tokens: DurableTokens,
    ended: watch::Sender<Option<End>>,
    lease: ServiceLease,
    store_health: StoreHealth,
    metrics: Option<Arc<Metrics>>,
    /// Effects spawn tasks here, also from the committer thread.
    runtime: Option<Handle>,
}

/// Why the engine accepts no more input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The clean stop is durable.
    Stopped,
    /// A store error that must not be retried (I11), or a panic while the keeper was being called.
    Failed(String),
    /// Dropped as by a crash, see `Engine::abandon`.
    Abandoned,
}

/// The kind of thread that runs a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    /// A network or worker thread that called `Engine::flush`: it must not block.
    Caller,
    Committer,
}

/// A shared reference to the engine, see the [module](self).
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineShared>,
}

/// A weak [`Engine`], for what the engine itself owns.
#[derive(Clone)]
pub(crate) struct Reporter(Weak<EngineShared>);

impl Reporter {
    pub(crate) fn report(&self, input: Input) {
        if let Some(shared) = self.0.upgrade() {
            Engine { shared }.report(input);
        }
    }
}

const NEVER: u64 = u64::MAX;
/// Batches that a caller's thread runs one after the other: what arrives meanwhile is mostly one more, and
/// to wake the committer takes longer than that.
const CALLER_BATCHES: usize = 4;
/// The pause between two attempts to commit; it doubles up to the maximum.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often a failing store is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

impl Engine {
    /// Starts the committer thread. The first batch of `decider`, which starts the epoch, must be
    /// durable already (I3).
    pub(crate) fn new(
        decider: Decider<ReplySink>,
        store: Box<dyn Store>,
        clock: Clock,
        requests_max: usize,
        lease: ServiceLease,
        metrics: Option<Arc<Metrics>>,
    ) -> std::io::Result<Self> {
        let (committer, jobs) = mpsc::channel();
        let store_health = store.health();
        let core = Box::new(Core { decider, store });
        let shared = Arc::new(EngineShared {
            state: Mutex::new(EngineState { inbox: Inbox::new(requests_max), core: None }),
            prepared: Mutex::new(Some(core)),
            has_input: AtomicBool::new(false),
            committer,
            ids: AtomicU64::new(1),
            clock,
            effects: OnceLock::new(),
            deadline: AtomicU64::new(NEVER),
            deadline_moved: Notify::new(),
            stall: Stall::default(),
            tokens: DurableTokens::default(),
            ended: watch::channel(None).0,
            lease,
            store_health,
            metrics,
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

    /// Sends `first`, the batch of the start, and begins to decide, including the requests that
    /// arrived before. To be called once, inside a runtime.
    pub(crate) fn begin(&self, effects: Box<dyn Effects>, first: DurableBatch) {
        let _ = self.shared.effects.set(effects);
        let shared = &self.shared;
        let prepared = shared.prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut core) = prepared {
            shared.send(&mut core, first);
            shared.put_back(core);
        }
        tokio::spawn(tasks::run_timer(self.shared.clone()));
        tokio::spawn(tasks::expire_stalled(self.shared.clone()));
        tokio::spawn(tasks::log_store_health(self.shared.clone()));
        self.wake();
    }

    pub(crate) fn reporter(&self) -> Reporter {
        Reporter(Arc::downgrade(&self.shared))
    }

    pub(crate) fn new_id(&self) -> RequestId {
        RequestId(self.shared.ids.fetch_add(1, Ordering::Relaxed))
    }

    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Puts a request into the inbox; [`flush`](Self::flush) decides it. If the inbox is full the
    /// request is dropped without a reply, and the client retransmits; likewise if the engine has ended.
    pub(crate) fn ask(&self, request: Request, sink: ReplySink) {
        self.shared.push(Input::Request(request, sink));
    }

    /// Whether the inbox may not be empty.
    pub(crate) fn has_input(&self) -> bool {
        self.shared.has_input.load(Ordering::Acquire)
    }

    /// Decides what is in the inbox on the calling thread if the engine is idle and the inputs are
    /// light; otherwise another thread does.
    pub(crate) fn flush(&self) {
        if !self.has_input() || !self.shared.may_decide() {
            return;
        }
        let mut state = self.shared.lock();
        if state.inbox.is_empty() {
            return;
        }
        let Some(core) = state.core.take() else { return };
        let is_light = state.inbox.is_light();
        drop(state);
        match is_light {
            true => self.shared.run(core, None, Runner::Caller),
            false => self.shared.hand_over(core, None),
        }
    }

    /// Puts an input other than a request into the inbox; the committer thread handles it.
    pub(crate) fn report(&self, input: Input) {
        self.shared.push(input);
        self.wake();
    }

    /// Calls `read` with the keeper, between two batches. `None` if the engine ends first or too many
    /// reads are waiting. Does not return while the store fails.
    pub async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Keeper) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answered) = oneshot::channel();
        self.shared.push(Input::Read(Box::new(move |keeper| {
            // The caller may have been cancelled.
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

    /// How long nothing has been decided because the store fails or the lease is not fresh; `None`
    /// if neither is so.
    pub fn stalled_for(&self) -> Option<Duration> {
        let stalled = self.shared.stall.lasts(self.shared.clock.elapsed());
        stalled.or_else(|| self.shared.lease.stale_for())
    }

    /// Standing warnings of the store, one sentence each.
    pub fn store_warnings(&self) -> Vec<String> {
        self.shared.store_health.warnings()
    }

    /// Resolves when the engine accepts no more input.
    pub async fn ended(&self) -> End {
        let mut ended = self.shared.ended.subscribe();
        let found = ended.wait_for(Option::is_some).await;
        match found {
            Ok(end) => end.clone().unwrap_or(End::Stopped),
            Err(_) => End::Stopped,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Why nothing is decided; `None` if it is not known, or nothing stalls.
    pub fn stall_reason(&self) -> Option<String> {
        self.shared.stall.reason().or_else(|| self.shared.lease.stale_reason())
    }

    /// The token of the last batch that is durable.
    pub(crate) fn last_token(&self) -> store::Token {
        self.shared.tokens.last()
    }

    /// The token of the last batch that is known to survive a power loss.
    pub(crate) fn last_synced_token(&self) -> store::Token {
        self.shared.tokens.last_synced()
    }

    /// Resolves when a client was registered, changed or removed since the last call.
    pub(crate) async fn roster_changed(&self) {
        self.shared.tokens.roster_changed().await;
    }

    /// Ends as by a crash: nothing more is decided, and the store is dropped without a clean stop,
    /// after the batch that is running. Has no effect on an engine that has ended.
    pub(crate) fn abandon(&self) {
        let shared = &self.shared;
        shared.end(End::Abandoned);
        // A thread that runs a batch drops the core itself, see `leave`.
        let core = shared.lock().core.take();
        let prepared = shared.prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop((core, prepared));
    }

    /// Whether another server is ready to take over.
    pub fn has_standby(&self) -> bool {
        self.shared.lease.has_standby()
    }

    /// Has the committer thread compare the store with the keeper, if the engine is idle and the lease
    /// is suspended until that was done.
    fn review_store(&self) {
        if !self.shared.lease.is_suspended() {
            return;
        }
        let core = self.shared.lock().core.take();
        if let Some(core) = core {
            let review = core.decider.last_batch().review(self.shared.clock.elapsed());
            self.shared.hand_over(core, Some(review));
        }
    }

    /// Hands what is in the inbox to the committer thread, if the engine is idle.
    fn wake(&self) {
        if !self.shared.may_decide() {
            return;
        }
        let mut state = self.shared.lock();
        if !state.inbox.is_empty()
            && let Some(core) = state.core.take()
        {
            drop(state);
            self.shared.hand_over(core, None);
        }
    }
}

impl EngineShared {
    fn lock(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the lease is fresh. Notes when it ceased to be, so that `decide` can extend the
    /// recovery window by the time lost.
    fn may_decide(&self) -> bool {
        let fresh = self.lease.may_decide();
        if !fresh {
            self.stall.note_unfresh(self.clock.elapsed());
        }
        fresh
    }

    fn push(&self, input: Input) {
        let now = self.clock.elapsed();
        let mut state = self.lock();
        if self.has_ended() {
            // Dropping an input ends its call, so the lock goes first.
            drop(state);
            return;
        }
        state.inbox.push(input, now);
        drop(state);
        self.has_input.store(true, Ordering::Release);
    }

    /// Decides, commits and sends until the inbox is empty. A caller's thread runs at most
    /// [`CALLER_BATCHES`] and never waits for a disk; the committer gets the rest.
    fn run(&self, mut core: Box<Core>, mut begun: Option<PendingCommit>, runner: Runner) {
        let _guard = PanicGuard(self);
        for turn in 1.. {
            let committing = match begun.take() {
                Some(begun) => begun,
                None if !self.may_decide() => return self.put_back(core),
                None => self.decide(&mut core),
            };
            let durable = match self.commit(&mut core, committing, runner) {
                Ok(durable) => durable,
                Err(CommitError::WouldBlock(committing)) => {
                    return self.hand_over(core, Some(committing));
                }
                Err(CommitError::Fatal(error)) => return self.fail(&error),
            };
            core.decider.committed(&durable, self.clock.elapsed());
            let stops = durable.batch().stops();
            self.send(&mut core, durable);
            if stops {
                core.store.release();
                return self.end(End::Stopped);
            }
            let state = self.lock();
            if state.inbox.is_empty() {
                return self.leave(state, core);
            }
            let is_done = turn == CALLER_BATCHES || !state.inbox.is_light();
            drop(state);
            if runner == Runner::Caller && is_done {
                return self.hand_over(core, None);
            }
        }
    }

    fn fail(&self, error: &StoreError) {
        if !self.has_ended() {
            error!("{error}");
            self.end(End::Failed(error.to_string()));
        }
    }

    /// Ends the engine, if it has not ended, and drops what is in the inbox: nothing will answer it, and
    /// no connection is to wait for that.
    fn end(&self, end: End) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(end);
            is_first
        });
        let inputs = self.lock().inbox.take();
        drop(inputs);
    }

    fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Makes the engine idle again; drops the core if the engine has ended meanwhile.
    fn leave(&self, mut state: MutexGuard<'_, EngineState>, core: Box<Core>) {
        if self.has_ended() {
            return;
        }
        let deadline = core.decider.keeper.poll_timeout();
        self.has_input.store(!state.inbox.is_empty(), Ordering::Release);
        state.core = Some(core);
        self.set_deadline(deadline);
    }

    fn put_back(&self, core: Box<Core>) {
        let state = self.lock();
        self.leave(state, core);
    }

    fn hand_over(&self, core: Box<Core>, batch: Option<PendingCommit>) {
        // Cannot fail: the thread receives for as long as `self` exists.
        let _ = self.committer.send((core, batch));
    }

    fn decide(&self, core: &mut Core) -> PendingCommit {
        let inputs = self.lock().inbox.take();
        let now = self.clock.now();
        // Before the inputs: this may move a deadline whose timeout is among them.
        if let Some(lasted) = self.stall.take_unfresh(now.mono) {
            core.decider.stalled(lasted);
        }
        for input in inputs {
            core.decider.handle(input, now);
        }
        core.decider.take_batch().commit(now.mono)
    }

    /// Attempts the commit until the batch is durable or the error is fatal; on a caller's thread at
    /// most once, and only if the store says that it is quick.
    fn commit(
        &self,
        core: &mut Core,
        mut committing: PendingCommit,
        runner: Runner,
    ) -> Result<DurableBatch, CommitError> {
        let changes = committing.batch().changes();
        if runner == Runner::Caller && !changes.is_empty() && !core.store.is_quick(changes) {
            return Err(CommitError::WouldBlock(committing));
        }
        let mut pause = RETRY_FIRST;
        let mut logged: Option<Instant> = None;
        loop {
            let error = match self.attempt(core, committing) {
                Progress::Durable(durable) => {
                    self.stall.end(|| self.clock.elapsed());
                    return Ok(durable);
                }
                Progress::Failed(again, error) => {
                    committing = again;
                    error
                }
            };
            if let Some(metrics) = &self.metrics {
                metrics.count_store_error();
            }
            if error.is_fatal() || self.has_ended() {
                return Err(CommitError::Fatal(error));
            }
            if logged.is_none_or(|then| then.elapsed() > LOG_EVERY) {
                logged = Some(Instant::now());
                self.stall.begin(self.clock.elapsed(), &error);
            }
            if runner == Runner::Caller {
                return Err(CommitError::WouldBlock(committing));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    fn attempt(&self, core: &mut Core, committing: PendingCommit) -> Progress {
        let (store, keeper) = (&mut *core.store, &core.decider.keeper);
        match &self.metrics {
            Some(metrics) if !committing.batch().changes().is_empty() => {
                let since = Instant::now();
                let progress = committing.attempt(store, keeper);
                metrics.commits.observe(since.elapsed());
                progress
            }
            _ => committing.attempt(store, keeper),
        }
    }

    fn send(&self, core: &mut Core, durable: DurableBatch) {
        self.tokens.note(durable.batch());
        let mut replies = ReplyBatch::default();
        let _inside = self.runtime.as_ref().map(Handle::enter);
        let effects = self.effects.get();
        if let Some(effects) = effects {
            for change in durable.batch().changes() {
                match change {
                    Change::Client(row) => effects.client_written(row),
                    Change::Lock(_) | Change::LockGone(_) => effects.lock_changed(change),
                    _ => {}
                }
            }
        }
        let (events, messages) = durable.into_messages();
        // Events first: a reboot clears the host's entries in the duplicate request cache before the
        // replies of this batch are added to it.
        for event in events {
            if let Some(effects) = effects {
                effects.event(&core.decider.keeper, event);
            }
        }
        for message in messages {
            match (message, effects) {
                (Message::Reply(id, reply), _) => {
                    if let Some(pending) = core.decider.take_pending_reply(id) {
                        if let Some(metrics) = &self.metrics {
                            metrics.count_reply(&reply, pending.is_reclaim);
                        }
                        (pending.sink)(Decision::Reply(reply), &mut replies);
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

/// Why a batch is not durable.
enum CommitError {
    /// The commit would wait for a disk or must be attempted again: a task for the committer.
    WouldBlock(PendingCommit),
    /// The store error must not be retried, or the engine has been abandoned.
    Fatal(StoreError),
}

/// Ends the engine if the thread that runs a batch panics: the state of the keeper is then unknown,
/// and the next start restores it from the store.
struct PanicGuard<'a>(&'a EngineShared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = "internal error in the lock service; restart the server, no lock is lost";
            self.0.end(End::Failed(why.into()));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
