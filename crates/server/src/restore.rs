//! The start of the lock service: loads the store, judges it by the copy of the roster, commits the
//! next epoch and builds the engine around the restored keeper. Sockets open only afterwards (I3).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keeper::Keeper;
use keeper::change::Exactness;
use keeper::identity::{ClientId, Epoch};
use store::StoreError;
use store::transfer::is_unfinished;
use tracing::warn;

use crate::engine::batch::{Decider, DurableBatch, DurableEpoch, Progress};
use crate::engine::{Clock, Engine};
use crate::fences::Fences;
use crate::lock_config::LockConfig;
use crate::metrics::Metrics;
use crate::peer::own_addresses::own_addresses;
use crate::roster_copy::{
    CopyError, CopyHealth, Refusal, RosterCopy, RosterFile, StorePosition, entry, judge, open_epoch,
};
use crate::server_names;
use crate::service_lease::ServiceLease;

/// Why the locks were not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot keep the epoch in {}: {error}", path.display())]
    Epoch { path: PathBuf, error: io::Error },
    #[error(transparent)]
    RosterCopy(#[from] CopyError),
    #[error(
        "the lock store is new, although this server had one before: {} has {} at epoch {}. If the \
         disk of the store is not mounted, mount it; if the store was moved, configure its new \
         place, or copy it with: lockkeeper store copy FROM TO. If it is lost, start the server once \
         with --store-lost: it then notifies these clients, and any client may reclaim its locks",
        path.display(),
        clients(*hosts),
        epoch.0
    )]
    StoreMissing { path: PathBuf, hosts: usize, epoch: Epoch },
    #[error("cannot start the committer thread: {0}")]
    Thread(io::Error),
    #[error("the store committed the start without its epoch")]
    NoEpoch,
}

fn clients(count: usize) -> String {
    match count {
        1 => "1 client".into(),
        count => format!("{count} clients"),
    }
}

/// Why the store was taken to be open at the start, other than by its own judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenReason {
    /// [`LockConfig::store_lost`].
    DeclaredLost,
    /// The copy of the roster is newer than the store.
    OlderThanCopy,
}

/// An engine that waits for [`Engine::begin`]. Its epoch is durable.
pub(crate) struct RestoredEngine {
    pub(crate) engine: Engine,
    /// The batch of the start, to be passed to [`Engine::begin`].
    pub(crate) first: DurableBatch,
    pub(crate) epoch: DurableEpoch,
    pub(crate) fences: Fences,
    pub(crate) lease: ServiceLease,
    pub(crate) open_reason: Option<OpenReason>,
    pub(crate) roster_copy: Option<(RosterFile, CopyHealth)>,
}

/// Loads the store and commits the next epoch, which is larger than that of the store and that of
/// [`LockConfig::epoch_copy`]. Blocks on the store and on name look-ups.
pub(crate) fn restore(
    locks: LockConfig,
    requests_max: usize,
    metrics: Option<Arc<Metrics>>,
) -> Result<RestoredEngine, RestoreError> {
    let LockConfig { mut store, mut config, epoch_copy, lease, writes, store_lost, .. } = locks;
    let roster_file = locks.roster_copy.map(RosterFile::new);
    let mut saved = store.load()?;
    if is_unfinished(&saved) {
        return Err(StoreError::Unfinished.into());
    }
    let last = store.last_token()?;
    let roster = roster_file.as_ref().map(RosterFile::read).transpose()?.flatten();
    let position = StorePosition::of(&saved, last);
    let judged = match judge(position, roster.as_ref(), store_lost) {
        Ok(judged) => judged,
        Err(Refusal::StoreMissing) => return Err(missing(roster_file.as_ref(), roster)),
    };
    let open_reason = match judged {
        Exactness::Exact | Exactness::Roster => None,
        Exactness::Open if store_lost => Some(OpenReason::DeclaredLost),
        Exactness::Open => Some(OpenReason::OlderThanCopy),
    };
    if let Some(reason) = open_reason {
        log_open(reason, position, roster.as_ref());
    }
    saved.exactness = saved.exactness.max(judged);
    let copy = epoch_copy.as_deref().map(read_epoch).transpose()?.flatten();
    let copy = copy.max(roster.as_ref().map(|roster| roster.epoch));
    let mut epoch = Epoch::after(saved.epoch, copy, minutes_since_2020());
    if saved.exactness == Exactness::Open {
        epoch = open_epoch(epoch, seed());
        config.roster = roster.map(|roster| roster.hosts).unwrap_or_default();
    }
    if let Some(path) = epoch_copy.as_deref() {
        keep_epoch(path, epoch)?;
    }
    config.seed = seed();
    config.addresses = config.addresses.or_else(own_addresses);
    config.host_name = server_names::host_name();
    server_names::add_host_names(&mut config.names, &config.host_name);
    let used = saved.clients.values().flat_map(|client| client.used.iter().copied());
    config.reverse_names.extend(server_names::reverse(used.collect()));
    let clock = Clock::start();
    let mut decider = Decider::new(Keeper::restore(saved, epoch, config, clock.now()), last);
    let first = decider.take_batch().commit(clock.elapsed());
    let first = match first.attempt(&mut *store, &decider.keeper) {
        Progress::Durable(first) => first,
        Progress::Failed(_, error) => return Err(error.into()),
    };
    let epoch = first.epoch().ok_or(RestoreError::NoEpoch)?;
    // After the commit, so that the copy is never ahead of the store.
    let roster_copy = roster_file.map(|file| {
        let clients = decider.keeper.clients(ClientId(0));
        let hosts = clients.filter_map(|view| entry(view.client)).collect();
        let health = CopyHealth::new();
        let token = first.batch().token();
        health.write(&file, &RosterCopy { epoch: epoch.get(), token, hosts });
        (file, health)
    });
    let fences = Fences::default();
    for view in decider.keeper.clients(ClientId(0)).filter(|view| view.client.fenced) {
        fences.update(&decider.keeper, view.client.address, &view.client.name);
    }
    let lease = ServiceLease::new(lease).with_writes(writes);
    let engine = Engine::new(decider, store, clock, requests_max, lease.clone(), metrics);
    let engine = engine.map_err(RestoreError::Thread)?;
    Ok(RestoredEngine { engine, first, epoch, fences, lease, open_reason, roster_copy })
}

fn missing(file: Option<&RosterFile>, roster: Option<RosterCopy>) -> RestoreError {
    let path = file.map(|file| file.path().to_owned()).unwrap_or_default();
    let roster = roster.unwrap_or_default();
    RestoreError::StoreMissing { path, hosts: roster.hosts.len(), epoch: roster.epoch }
}

fn log_open(reason: OpenReason, store: StorePosition, roster: Option<&RosterCopy>) {
    let known = clients(roster.map_or(0, |roster| roster.hosts.len()));
    match reason {
        OpenReason::DeclaredLost => warn!(
            "started with --store-lost: any client may reclaim its locks, new ones wait for the \
             recovery window; {known} from the copy of the roster are notified. Remove the option \
             before the next start"
        ),
        OpenReason::OlderThanCopy => {
            let copy = roster.map(|copy| (copy.epoch.0, copy.token.0)).unwrap_or_default();
            warn!(
                "the store is older than what it had acknowledged (epoch {} batch {}, the copy of \
                 the roster has epoch {} batch {}): it was restored from a backup, or its database \
                 failed over with lost transactions. Any client may reclaim its locks, new ones \
                 wait for the recovery window; {known} from the copy are notified",
                store.epoch.0, store.token.0, copy.0, copy.1
            );
        }
    }
}

fn minutes_since_2020() -> u64 {
    const START_OF_2020: u64 = 1_577_836_800;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now.saturating_sub(START_OF_2020) / 60
}

fn read_epoch(path: &Path) -> Result<Option<Epoch>, RestoreError> {
    let failed = |error| RestoreError::Epoch { path: path.to_owned(), error };
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

/// On a full disk the old copy stays: it is needed only if the store is replaced by a backup, and the
/// server must start (B5.65).
fn keep_epoch(path: &Path, epoch: Epoch) -> Result<(), RestoreError> {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    match write_epoch(path, epoch) {
        Err(RestoreError::Epoch { error, .. })
            if matches!(error.kind(), StorageFull | QuotaExceeded) =>
        {
            tracing::warn!(
                "cannot keep the epoch in {}: {error}; free space there",
                path.display()
            );
            let _ = fs::remove_file(path.with_extension("new"));
            Ok(())
        }
        other => other,
    }
}

/// Replaces the file by a rename: a truncated number would be a smaller epoch.
fn write_epoch(path: &Path, epoch: Epoch) -> Result<(), RestoreError> {
    let write = || {
        let fresh = path.with_extension("new");
        fs::write(&fresh, format!("{}\n", epoch.0))?;
        fs::File::open(&fresh)?.sync_all()?;
        fs::rename(&fresh, path)?;
        path.parent().map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all())
    };
    write().map_err(|error| RestoreError::Epoch { path: path.to_owned(), error })
}

/// The seed of the keeper's hash tables. If the kernel has no randomness it is 0, and peers could
/// only make the tables slower.
fn seed() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use store::{Memory, Store};

    use super::*;

    #[test]
    fn the_epoch_grows_even_if_the_store_is_an_old_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epoch");
        assert_eq!(read_epoch(&path).unwrap(), None);
        write_epoch(&path, Epoch(9_000_000_000)).unwrap();
        let locks = || LockConfig { epoch_copy: Some(path.clone()), ..LockConfig::in_memory() };
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
        let locks = LockConfig { epoch_copy: Some(path), ..LockConfig::in_memory() };
        let error = restore(locks, 10, None).err().unwrap().to_string();
        assert!(error.contains("not a number"), "{error}");
    }

    /// A store that several starts share.
    #[derive(Clone, Default)]
    struct Shared(Arc<std::sync::Mutex<Memory>>);

    impl Store for Shared {
        fn load(&mut self) -> Result<keeper::change::Snapshot, StoreError> {
            self.0.lock().unwrap().load()
        }
        fn commit(
            &mut self,
            changes: &[keeper::change::Change],
            token: store::Token,
        ) -> store::CommitOutcome {
            self.0.lock().unwrap().commit(changes, token)
        }
        fn last_token(&mut self) -> Result<store::Token, StoreError> {
            self.0.lock().unwrap().last_token()
        }
        fn clear(&mut self, force: bool) -> Result<(), StoreError> {
            self.0.lock().unwrap().clear(force)
        }
    }

    fn start(
        store: &Shared,
        state: &Path,
        store_lost: bool,
    ) -> Result<RestoredEngine, RestoreError> {
        let locks = LockConfig {
            store: Box::new(store.clone()),
            epoch_copy: Some(state.join("epoch")),
            roster_copy: Some(state.join("roster")),
            store_lost,
            ..LockConfig::in_memory()
        };
        restore(locks, 10, None)
    }

    fn copy(state: &Path) -> RosterCopy {
        RosterFile::new(state.join("roster")).read().unwrap().unwrap()
    }

    /// B4.100, B4.104
    #[test]
    fn the_copy_follows_the_first_commit_and_shows_that_a_store_is_older() {
        let dir = tempfile::tempdir().unwrap();
        let store = Shared::default();
        let first = start(&store, dir.path(), false).unwrap();
        assert_eq!(first.open_reason, None);
        let known = copy(dir.path());
        assert_eq!(known.epoch, first.epoch.get());
        assert_eq!(known.token, store.clone().last_token().unwrap());
        assert_eq!(start(&store, dir.path(), false).unwrap().open_reason, None);

        let newer = RosterCopy { token: store::Token(known.token.0 + 9), ..copy(dir.path()) };
        RosterFile::new(dir.path().join("roster")).write(&newer).unwrap();
        let opened = start(&store, dir.path(), false).unwrap();
        assert_eq!(opened.open_reason, Some(OpenReason::OlderThanCopy));
        let skipped = opened.epoch.get().0 - newer.epoch.0;
        assert!((2..=4097).contains(&skipped), "{skipped}");
        assert_eq!(copy(dir.path()).epoch, opened.epoch.get());
    }

    /// B4.101, B4.102
    #[test]
    fn a_new_store_beside_a_copy_is_refused_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        start(&Shared::default(), dir.path(), false).unwrap();
        let (before, lost) = (copy(dir.path()), Shared::default());
        let error = start(&lost, dir.path(), false).err().unwrap();
        assert!(matches!(error, RestoreError::StoreMissing { hosts: 0, .. }), "{error}");
        assert_eq!(copy(dir.path()), before);
        assert_eq!(lost.clone().load().unwrap(), Default::default());
        let opened = start(&lost, dir.path(), true).unwrap();
        assert_eq!(opened.open_reason, Some(OpenReason::DeclaredLost));
        assert!(opened.epoch.get().0 > before.epoch.0 + 1);
    }

    /// B4.103
    #[test]
    fn a_copy_that_cannot_be_written_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("roster.new")).unwrap();
        let started = start(&Shared::default(), dir.path(), false).unwrap();
        let (_, health) = started.roster_copy.unwrap();
        assert!(health.problem().is_some_and(|why| why.contains("directory")));
    }
}
