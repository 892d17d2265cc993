//! The start of the lock service: loads the store, commits the next epoch and builds the engine
//! around the restored keeper. Sockets open only afterwards (I3).

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keeper::Keeper;
use keeper::identity::Epoch;
use store::transfer::is_unfinished;
use store::{Lease, Memory, Store, StoreError};

use crate::engine::batch::{Decider, DurableBatch, DurableEpoch, Progress};
use crate::engine::{Clock, Engine};
use crate::metrics::Metrics;
use crate::peer::own_addresses::own_addresses;
use crate::server_names;
use crate::service_lease::ServiceLease;

/// Where locks are stored, and the keeper's configuration.
pub struct LockConfig {
    pub store: Box<dyn Store>,
    pub config: keeper::config::Config,
    /// A file with a copy of the epoch, outside the store: after the store was restored from a
    /// backup, the next epoch is still larger than any before (B4.1).
    pub epoch_copy: Option<PathBuf>,
    /// The lease on a store that is shared with a standby. Without a held lease nothing is sent.
    pub lease: Option<Lease>,
    /// Lock and status calls that concern no export must come from a reserved port (B7.7).
    pub require_reserved_ports: bool,
}

impl LockConfig {
    /// Locks that end with the process.
    pub fn in_memory() -> Self {
        Self {
            store: Box::new(Memory::new()),
            config: keeper::config::Config::default(),
            epoch_copy: None,
            lease: None,
            require_reserved_ports: false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot keep the epoch in {}: {error}", path.display())]
    Epoch { path: PathBuf, error: io::Error },
    #[error("cannot start the committer thread: {0}")]
    Thread(io::Error),
    #[error("the store committed the start without its epoch")]
    NoEpoch,
}

/// An engine that waits for [`Engine::begin`]. Its epoch is durable.
pub(crate) struct RestoredEngine {
    pub(crate) engine: Engine,
    /// The batch of the start, to be passed to [`Engine::begin`].
    pub(crate) first: DurableBatch,
    pub(crate) epoch: DurableEpoch,
    /// Addresses that the store has as fenced.
    pub(crate) fenced: Vec<IpAddr>,
    pub(crate) lease: ServiceLease,
}

/// Loads the store and commits the next epoch, which is larger than that of the store and that of
/// [`LockConfig::epoch_copy`]. Blocks on the store and on name look-ups.
pub(crate) fn restore(
    locks: LockConfig,
    requests_max: usize,
    metrics: Option<Arc<Metrics>>,
) -> Result<RestoredEngine, RestoreError> {
    let LockConfig { mut store, mut config, epoch_copy, lease, .. } = locks;
    let saved = store.load()?;
    if is_unfinished(&saved) {
        return Err(StoreError::Unfinished.into());
    }
    let last = store.last_token()?;
    let copy = epoch_copy.as_deref().map(read_epoch).transpose()?.flatten();
    let epoch = Epoch::after(saved.epoch, copy, minutes_since_2020());
    if let Some(path) = epoch_copy.as_deref() {
        keep_epoch(path, epoch)?;
    }
    config.seed = seed();
    config.addresses = config.addresses.or_else(own_addresses);
    config.host_name = server_names::host_name();
    server_names::add_host_names(&mut config.names, &config.host_name);
    let used = saved.clients.values().flat_map(|client| client.used.iter().copied());
    config.reverse_names.extend(server_names::reverse(used.collect()));
    let fenced = saved.clients.values().filter(|client| client.fenced);
    let fenced = fenced.map(|client| client.address).collect();
    let clock = Clock::start();
    let mut decider = Decider::new(Keeper::restore(saved, epoch, config, clock.now()), last);
    let first = match decider.take_batch().commit(clock.elapsed()).attempt(&mut *store) {
        Progress::Durable(first) => first,
        Progress::Failed(_, error) => return Err(error.into()),
    };
    let epoch = first.epoch().ok_or(RestoreError::NoEpoch)?;
    let lease = ServiceLease::new(lease);
    let engine = Engine::new(decider, store, clock, requests_max, lease.clone(), metrics);
    let engine = engine.map_err(RestoreError::Thread)?;
    Ok(RestoredEngine { engine, first, epoch, fenced, lease })
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
}
