//! The lock service put together: a keeper restored from its store, the driver around it, and who
//! carries out what it wants.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keeper::Keeper;
use keeper::event::Event;
use keeper::identity::{ClientId, Epoch, HostKey, Lane, Transport};
use keeper::request::Question;
use keeper::step::{Grant, Notice};
use store::transfer::is_unfinished;
use store::{Lease, Memory, Store, StoreError};
use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use crate::callbacks::Callbacks;
use crate::chronicle::Chronicle;
use crate::engine::batch::{Decider, DurableBatch, DurableEpoch, Progress};
use crate::engine::{Clock, Effects, Engine, Input, Reporter};
use crate::files::Files;
use crate::liveness::{Inquiry, Liveness};
use crate::meters::Meters;
use crate::news;
use crate::our_names;
use crate::rpc::dispatch::Dispatcher;
use crate::tenure::Tenure;

/// Where locks are kept, and how they behave.
pub struct Locks {
    pub store: Box<dyn Store>,
    pub config: keeper::config::Config,
    /// A copy of the epoch beside the store, so that a restored backup of the store repeats none
    /// (R1.7).
    pub epoch_copy: Option<PathBuf>,
    /// Of a store that is shared with a standby: without it, nothing is said.
    pub lease: Option<Lease>,
    /// Lock and status calls that concern no export must come from a reserved port (R6.3).
    pub reserved_ports: bool,
}

impl Locks {
    /// Locks that end with the process: for trials and tests.
    pub fn in_memory() -> Self {
        Self {
            store: Box::new(Memory::new()),
            config: keeper::config::Config::default(),
            epoch_copy: None,
            lease: None,
            reserved_ports: false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LocksError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot keep the epoch in {}: {error}", path.display())]
    Epoch { path: PathBuf, error: io::Error },
    #[error("cannot start the committer thread: {0}")]
    Thread(io::Error),
    #[error("the store took the start without its epoch")]
    NoEpoch,
}

/// A keeper whose start is durable, and what it wants told.
pub struct Restored {
    pub engine: Engine,
    pub first: DurableBatch,
    pub epoch: DurableEpoch,
    pub fenced: Vec<std::net::IpAddr>,
    pub tenure: Tenure,
}

/// Takes up what the store has. When this returns, the new epoch is durable and sockets may open
/// (I3).
pub fn restore(
    locks: Locks,
    queue_max: usize,
    meters: Option<Arc<Meters>>,
) -> Result<Restored, LocksError> {
    let Locks { mut store, mut config, epoch_copy, lease, .. } = locks;
    let saved = store.load()?;
    if is_unfinished(&saved) {
        return Err(StoreError::Unfinished.into());
    }
    let last = store.last_token()?;
    let copy = epoch_copy.as_deref().map(read_epoch).transpose()?.flatten();
    let epoch = Epoch::after(saved.epoch, copy, minutes_since_2020());
    if let Some(path) = epoch_copy.as_deref() {
        write_epoch(path, epoch)?;
    }
    config.seed = seed();
    our_names::add_host_names(&mut config.names);
    let used = saved.clients.values().flat_map(|client| client.used.iter().copied());
    config.reverse_names.extend(our_names::reverse(used.collect()));
    let fenced = saved.clients.values().filter(|client| client.fenced);
    let fenced = fenced.map(|client| client.address).collect();
    let clock = Clock::start();
    let mut decider = Decider::new(Keeper::restore(saved, epoch, config, clock.now()), last);
    let first = match decider.take_batch().commit(clock.elapsed()).attempt(&mut *store) {
        Progress::Durable(first) => first,
        Progress::Failed(_, error) => return Err(error.into()),
    };
    let epoch = first.epoch().ok_or(LocksError::NoEpoch)?;
    let tenure = Tenure::new(lease);
    let engine = Engine::new(decider, store, clock, queue_max, tenure.clone(), meters);
    let engine = engine.map_err(LocksError::Thread)?;
    Ok(Restored { engine, first, epoch, fenced, tenure })
}

/// One who carries out what the keeper wants, and tells people what happened.
pub struct Carrier {
    pub reporter: Reporter,
    pub callbacks: Callbacks,
    pub liveness: Liveness,
    pub files: Arc<Files>,
    pub dispatcher: Weak<Dispatcher>,
    pub chronicle: Arc<Chronicle>,
    pub meters: Option<Arc<Meters>>,
    pub clock: Clock,
}

impl Effects for Carrier {
    fn grant(&self, grant: Grant) {
        if let Some(meters) = &self.meters
            && grant.attempt == 1
        {
            meters.lock_wait.observe(self.clock.elapsed().saturating_sub(grant.since));
        }
        self.callbacks.send_grant(grant);
    }

    fn notice(&self, notice: Notice) {
        self.callbacks.send_notice(notice);
    }

    fn probe(&self, keeper: &Keeper, client: ClientId, question: Question) {
        let Some(view) = keeper.client(client) else { return };
        let inquiry = Inquiry { host: view.client.key(), question, asked: Instant::now() };
        let (liveness, reporter) = (self.liveness.clone(), self.reporter.clone());
        tokio::spawn(async move {
            let answer = liveness.probe(&inquiry).await;
            debug!("{:?} of {:?}: {answer:?}", question, inquiry.host);
            reporter.report(Input::Probed(client, question, answer));
        });
    }

    fn event(&self, keeper: &Keeper, event: Event) {
        match &event {
            Event::Rebooted { client, .. } => {
                if let Some(view) = keeper.client(*client)
                    && let Some(dispatcher) = self.dispatcher.upgrade()
                {
                    dispatcher.forget_host(view.client.address, view.client.name.bytes());
                }
            }
            Event::Fenced { client, .. } | Event::Unfenced { client, .. } => {
                if let Some(view) = keeper.client(*client) {
                    let address = view.client.address;
                    self.files.fences.set(address, keeper.is_fenced(address));
                }
            }
            _ => {}
        }
        if let Some(meters) = &self.meters {
            meters.happened(&event);
        }
        if let Some(news) = news::describe(keeper, &event) {
            news.log();
            self.chronicle.write(self.clock.now().wall_ms, news);
        }
    }
}

/// How often it is looked who holds nothing any more.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Keeps the witnesses in step with who holds locks, recovered ones too.
pub async fn watch_holders(engine: Engine, liveness: Liveness) {
    let mut every = interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = engine.ended() => return,
        }
        let at = Instant::now();
        let Some(holders) = engine.read(holders).await else { return };
        for (host, lane) in &holders {
            liveness.watch(host, *lane);
        }
        liveness.unwatch_except(&holders.into_iter().map(|(host, _)| host).collect(), at);
    }
}

/// Hosts that hold or await something, and a way to them.
pub fn holders(keeper: &Keeper) -> Vec<(HostKey, Lane)> {
    let hosts = keeper.clients(ClientId(0)).filter(|view| view.client.registrant.is_none());
    let holders = hosts.filter(|view| view.locks + view.shares + view.waiting > 0);
    holders
        .filter_map(|view| {
            let ours = view.client.used.last()?;
            Some((view.client.key(), Lane::new(*ours, Transport::Tcp, 4)))
        })
        .collect()
}

fn minutes_since_2020() -> u64 {
    const START_OF_2020: u64 = 1_577_836_800;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now.saturating_sub(START_OF_2020) / 60
}

fn read_epoch(path: &Path) -> Result<Option<Epoch>, LocksError> {
    let failed = |error| LocksError::Epoch { path: path.to_owned(), error };
    match fs::read_to_string(path) {
        Ok(text) => match text.trim().parse() {
            Ok(epoch) => Ok(Some(Epoch(epoch))),
            Err(_) => Err(failed(io::Error::other(
                "it is not a number; delete it if the store itself is intact",
            ))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Written beside and renamed: half a number would be a smaller one.
fn write_epoch(path: &Path, epoch: Epoch) -> Result<(), LocksError> {
    let write = || {
        let fresh = path.with_extension("new");
        fs::write(&fresh, format!("{}\n", epoch.0))?;
        fs::File::open(&fresh)?.sync_all()?;
        fs::rename(&fresh, path)?;
        path.parent().map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all())
    };
    write().map_err(|error| LocksError::Epoch { path: path.to_owned(), error })
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness peers could shape our tables; that is all.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use keeper::bytes::{FileKey, Handle, Name, OwnerTag};
    use keeper::change::Snapshot;
    use keeper::identity::{Caller, Incarnation, RequestId};
    use keeper::range::Range;
    use keeper::request::{Form, LockRequest, Mode, OwnerName, UnlockRequest};
    use keeper::step::Message;
    use keeper::time::Time;

    use super::*;

    /// Somebody who wants all of a file, and would wait for it.
    pub(crate) fn wants(id: u64, name: &str, address: &str) -> LockRequest {
        let ours = "10.0.0.100".parse().unwrap();
        LockRequest {
            id: RequestId(id),
            caller: Caller {
                host: HostKey::new(address.parse().unwrap(), Name::from(name)),
                lane: Lane::new(ours, Transport::Tcp, 4),
            },
            owner: OwnerName { number: 7, tag: OwnerTag::from("7@host") },
            file: FileKey::new(b"a.db"),
            handle: Handle::new(b"a.db"),
            range: Range::ALL,
            mode: Mode::Exclusive,
            wait: true,
            reclaim: false,
            monitored: true,
            incarnation: Incarnation(3),
            form: Form::Call,
            stateless: false,
            connected: None,
        }
    }

    /// Wall clocks are set; what a waiter waited must not depend on that (I13).
    #[test]
    fn a_grant_says_since_when_by_the_clock_that_nobody_sets() {
        let at = |seconds, wall_ms| Time { mono: Duration::from_secs(seconds), wall_ms };
        let config = keeper::config::Config::default();
        let mut keeper = Keeper::restore(Snapshot::default(), Epoch(1), config, at(0, 1_000));
        let alice = wants(1, "alice", "10.0.0.1");
        keeper.handle_lock(alice.clone(), at(5, 6_000));
        keeper.handle_lock(wants(2, "bob", "10.0.0.2"), at(10, 11_000));
        let LockRequest { caller, owner, file, range, .. } = alice;
        let unlock = UnlockRequest { id: RequestId(3), caller, owner, file, range };
        keeper.handle_unlock(unlock, at(12, 3_600_000));
        let mut grants = Vec::new();
        while let Some(step) = keeper.poll_step() {
            grants.extend(step.messages.into_iter().filter_map(|message| match message {
                Message::Grant(grant) => Some(grant.since),
                _ => None,
            }));
        }
        assert_eq!(grants, [Duration::from_secs(10)]);
    }

    #[test]
    fn the_epoch_grows_even_if_the_store_is_an_old_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epoch");
        assert_eq!(read_epoch(&path).unwrap(), None);
        write_epoch(&path, Epoch(9_000_000_000)).unwrap();
        let locks = || Locks { epoch_copy: Some(path.clone()), ..Locks::in_memory() };
        let first = restore(locks(), 10, None).unwrap();
        let second = restore(locks(), 10, None).unwrap();
        assert_eq!(first.epoch.get().nsm_state(), (9_000_000_001u64 as u32).wrapping_mul(2) | 1);
        assert_eq!(second.epoch.get().nsm_state(), first.epoch.get().nsm_state().wrapping_add(2));
    }

    #[test]
    fn an_epoch_that_cannot_be_read_stops_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epoch");
        fs::write(&path, "many").unwrap();
        let locks = Locks { epoch_copy: Some(path), ..Locks::in_memory() };
        let error = restore(locks, 10, None).err().unwrap().to_string();
        assert!(error.contains("not a number"), "{error}");
    }
}
