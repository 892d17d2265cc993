//! The store in a directory: a journal of checksummed batches, and snapshots that replace old
//! journals.
//!
//! ```text
//! journal.N     batches in order; only the newest journal is written to
//! snapshot.N    the state before the first batch of journal.N
//! reserve.N     space for starts on a full disk
//! *.unfinished  a file under construction; renamed when it is complete and synced
//! ```
//!
//! The bytes of these files are drawn in `frame.rs` (files and frames), `record.rs` (rows) and
//! `mark.rs` (the high-water mark beside the store).
//!
//! The state is the newest snapshot and all journals from its generation on. Every start begins a
//! new journal, whose header says with which batch the one before ends: a torn end is never
//! overwritten, and its remains are never read again. Batches are numbered without gaps, and each
//! carries the number up to which all were synced before it. What neither the end of a process nor
//! a power loss can explain is damage (`replay.rs`), and the store is refused.
//!
//! Whether the locks are exact is decided once, at the start (`exactness.rs`), written into the
//! header of the new journal, and repeated in every batch until grace has ended.

mod background;
mod body;
pub mod disk;
mod exactness;
mod files;
mod frame;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod log;
mod mark;
mod reader;
mod replay;
mod reserve;

#[cfg(test)]
mod simulated_disk;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::{Change, Exactness, Snapshot};

use crate::boot_id::BootId;
use crate::durability::Durability;
use crate::error::StoreError;
use crate::health::StoreHealth;
use crate::store::{CommitOutcome, Store, Token, may_clear};
use background::{Compactor, Reserve, Syncer};
use body::Body;
use disk::{Directory, Disk};
use exactness::Judgement;
use frame::{FileHeader, FileKind};
use log::Log;
use mark::{Mark, MarkFile};
pub use reader::EmbeddedReader;
use replay::{LogContents, LogPosition, damaged, replay, unreadable};
use reserve::is_full;

/// The time until an acknowledged batch that was not synced is synced in the background.
const SYNC_DELAY: Duration = Duration::from_secs(1);
/// How long to wait for another process to release the directory.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// A journal that has reached this length is followed by the next.
const JOURNAL_BYTES: u64 = 64 << 20;
/// The length of each file of the reserve: as a journal it takes thousands of batches.
const RESERVE_BYTES: u64 = 512 << 10;
/// More journals than this are compacted regardless of their length: a server that crashes again
/// and again at its start leaves many short ones.
const JOURNALS_MAX: u64 = 16;

/// Where an embedded store is, and how it behaves.
#[derive(Clone)]
pub struct EmbeddedSettings {
    /// What an acknowledged batch survives.
    pub durability: Durability,
    /// Keeps the store.
    #[doc(hidden)]
    pub disk: Arc<dyn Disk>,
    /// Keeps the high-water mark; a restart of the machine must empty it.
    #[doc(hidden)]
    pub run: Arc<dyn Disk>,
    /// The present start of the machine.
    #[doc(hidden)]
    pub boot: BootId,
    /// The time until a batch that was not synced is synced in the background.
    pub sync_delay: Duration,
    /// The length at which a journal is followed by the next.
    pub journal_bytes: u64,
    /// The length of each of the files that are kept for starts on a full disk; 0 for none.
    pub reserve_bytes: u64,
}

impl EmbeddedSettings {
    /// `directory` keeps the store; `run_directory` is on tmpfs and keeps the high-water mark. Both
    /// are created if they do not exist.
    pub fn new(
        directory: impl Into<PathBuf>,
        run_directory: impl Into<PathBuf>,
        durability: Durability,
    ) -> Result<Self, StoreError> {
        let open = |path: PathBuf| -> Result<Arc<dyn Disk>, StoreError> {
            let location = path.display().to_string();
            let directory = Directory::new(path)
                .map_err(|error| StoreError::Unwritable(format!("{location}: {error}")))?;
            Ok(Arc::new(directory))
        };
        Ok(Self {
            durability,
            disk: open(directory.into())?,
            run: open(run_directory.into())?,
            boot: BootId::of_this_machine()
                .map_err(|error| StoreError::Unreadable(error.to_string()))?,
            sync_delay: SYNC_DELAY,
            journal_bytes: JOURNAL_BYTES,
            reserve_bytes: RESERVE_BYTES,
        })
    }
}

/// The embedded store, open for writing and locked against other processes. Dropping it syncs the
/// journal.
pub struct Embedded {
    settings: EmbeddedSettings,
    running: Running,
    /// The state read at the start, until it is returned or a batch is written.
    loaded: Option<Snapshot>,
    token: Token,
    exactness: Exactness,
    /// The last batch that was `Done`.
    last_done: u64,
    /// No batch of this run is `Done` yet. The first one is always synced, so a journal without a
    /// batch is one in which nothing was acknowledged.
    is_first: bool,
    /// The last commit was `Unknown` and is not settled.
    is_unsettled: bool,
    body: Body,
    health: StoreHealth,
    /// Dropped last, when nothing writes any more.
    _lock: Box<dyn Send>,
}

/// The current journal and its background threads. Dropped in this order.
struct Running {
    syncer: Syncer,
    compactor: Compactor,
    log: Arc<Log>,
    /// Bytes of earlier journals that are in no snapshot yet.
    ended_bytes: u64,
}

impl Embedded {
    /// Opens the store, or creates it if the directory has none. Waits up to a second for another
    /// process to release it, then fails with [`StoreError::InUse`].
    pub fn open(settings: EmbeddedSettings) -> Result<Self, StoreError> {
        let lock = lock(&settings)?;
        let health = StoreHealth::default();
        health.set("file system", network_warning(&*settings.disk));
        let (running, contents) = start(&settings, None, &health)?;
        Ok(Self {
            running,
            token: contents.token,
            exactness: contents.exactness,
            last_done: contents.last_batch,
            loaded: Some(contents.snapshot),
            is_first: true,
            is_unsettled: false,
            body: Body::default(),
            health,
            settings,
            _lock: lock,
        })
    }

    /// Whether `directory` has an embedded store. Creates nothing.
    pub fn exists(directory: &Path) -> Result<bool, StoreError> {
        if !directory.is_dir() {
            return Ok(false);
        }
        let disk = Directory::existing(directory.to_owned());
        let names = disk.names().map_err(|error| unreadable(&disk, "", &error))?;
        let is_file = |kind: FileKind| names.iter().any(|name| kind.generation(name).is_some());
        Ok(is_file(FileKind::Snapshot) || is_file(FileKind::Journal))
    }

    /// Settles an unknown commit by starting anew from the files.
    fn settle(&mut self) -> Result<(), StoreError> {
        self.running.log.ensure_healthy()?;
        if !self.is_unsettled {
            return Ok(());
        }
        self.running.compactor.wait();
        self.running.syncer.stop();
        self.running.log.ensure_healthy()?;
        let (running, contents) = start(&self.settings, Some(self.last_done), &self.health)?;
        self.running = running;
        (self.token, self.exactness) = (contents.token, contents.exactness);
        self.last_done = contents.last_batch;
        (self.loaded, self.is_first, self.is_unsettled) = (Some(contents.snapshot), true, false);
        Ok(())
    }

    /// Writes the records in `self.body` as one batch.
    fn write(&mut self, token: Token, exactness: Exactness, sync: bool) -> CommitOutcome {
        self.loaded = None;
        self.rotate_if_long();
        let log = &self.running.log;
        if let Err(error) = log.ensure_healthy() {
            return CommitOutcome::NotWritten(error);
        }
        let append = || log.append(self.body.bytes(), token.0, exactness);
        let number = match append() {
            Err(error) if self.is_first && is_full(&error) => {
                // The journal of this start is still empty: the next one is in the reserve.
                let moved = log.rotate(files::create_journal_from_reserve);
                moved.map_err(|_| error).and_then(|_| append())
            }
            other => other,
        };
        let number = match number {
            Ok(number) => number,
            Err(error) => {
                return CommitOutcome::NotWritten(files::unwritable(&*self.settings.disk, &error));
            }
        };
        let sync = sync || self.is_first;
        if sync && let Err(error) = log.sync() {
            return CommitOutcome::Unknown(error);
        }
        if let Err(error) = log.acknowledge(number, sync) {
            self.is_unsettled = true;
            return CommitOutcome::Unknown(files::unwritable(&*self.settings.run, &error));
        }
        (self.token, self.exactness) = (token, exactness);
        (self.last_done, self.is_first) = (number, false);
        CommitOutcome::Done
    }

    /// Ignores a failed rotation: the batch still fits into this journal, the next batch tries
    /// again, and a fatal error is kept by the log.
    fn rotate_if_long(&mut self) {
        let Running { log, compactor, ended_bytes, .. } = &mut self.running;
        let limit = self.settings.journal_bytes;
        let bytes = log.bytes();
        if bytes < limit {
            return;
        }
        if let Ok(end) = log.rotate(files::create_journal) {
            *ended_bytes += bytes;
            if compactor.begin(&self.settings.disk, end, *ended_bytes, limit) {
                *ended_bytes = 0;
            }
        }
    }
}

impl Store for Embedded {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.settle()?;
        let saved = match self.loaded.take() {
            Some(saved) => saved,
            None => {
                self.running.compactor.wait();
                let disk = &*self.settings.disk;
                replay(disk, None)?.map(|contents| contents.snapshot).unwrap_or_default()
            }
        };
        Ok(Snapshot { exactness: self.exactness, ..saved })
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        if self.is_unsettled {
            let why = "the outcome of the last batch is unknown and must be settled first";
            return CommitOutcome::NotWritten(StoreError::Unwritable(why.into()));
        }
        self.body.clear();
        changes.iter().for_each(|change| self.body.push(change));
        let exactness = changes.iter().fold(self.exactness, exactness_after);
        self.write(token, exactness, self.settings.durability.must_sync(changes))
    }

    fn is_quick(&self, changes: &[Change]) -> bool {
        let ordinary = !self.is_first && !self.is_unsettled;
        let fits = self.running.log.bytes() < self.settings.journal_bytes;
        ordinary && fits && !self.settings.durability.must_sync(changes)
    }

    fn health(&self) -> StoreHealth {
        self.health.clone()
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.settle()?;
        Ok(self.token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        may_clear(&self.load()?, force)?;
        self.body.clear();
        self.body.push_cleared();
        match self.write(self.token, Exactness::Exact, true) {
            CommitOutcome::Done => Ok(()),
            CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => Err(error),
        }
    }
}

/// Locks the directory. Waits a moment: the kernel may release the lock of a killed process late.
fn lock(settings: &EmbeddedSettings) -> Result<Box<dyn Send>, StoreError> {
    let disk = &*settings.disk;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match disk.lock().map_err(|error| unreadable(disk, "", &error))? {
            Some(lock) => return Ok(lock),
            None if Instant::now() > deadline => return Err(StoreError::InUse),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// `flock` on a network file system may exclude only processes of this machine (I12).
fn network_warning(disk: &dyn Disk) -> Option<String> {
    let kind = disk.network_kind().ok().flatten()?;
    let place = disk.display_path("");
    Some(format!(
        "the lock store {place} is on a network or user-space file system ({kind}), where a second \
         server on another machine may not be refused: keep it on a local disk, or share a \
         PostgreSQL store"
    ))
}

/// How far the state can be trusted after `change`: as the start recorded it until its grace has ended
/// (B5.60). `Snapshot::apply` has the same rule.
fn exactness_after(before: Exactness, change: &Change) -> Exactness {
    match change {
        Change::Started { grace, .. } => grace.unwrap_or_default(),
        Change::GraceEnded => Exactness::Exact,
        _ => before,
    }
}

/// Reads everything, decides its exactness, and begins a new journal after it. `last_done` is the
/// last batch that this process knows to be in the log.
fn start(
    settings: &EmbeddedSettings,
    last_done: Option<u64>,
    health: &StoreHealth,
) -> Result<(Running, LogContents), StoreError> {
    let disk = &*settings.disk;
    files::remove_unfinished(disk);
    let contents = match replay(disk, None)? {
        Some(contents) => contents,
        None => {
            files::create_store(disk, settings.durability)
                .map_err(|error| files::unwritable(disk, &error))?;
            replay(disk, None)?.ok_or_else(|| {
                unreadable(disk, "", &io::Error::other("the new store has vanished"))
            })?
        }
    };
    let directory = disk.id().map_err(|error| unreadable(disk, "", &error))?;
    if last_done.is_none() {
        mark::remove_stale(&*settings.run, settings.boot);
    }
    let mark = Mark::read(&*settings.run, &contents.store_id, directory, settings.boot);
    let (exactness, pages_intact) = match exactness::judge(&contents, mark, last_done) {
        Judgement::Trusted { exactness, pages_intact } => (exactness, pages_intact),
        Judgement::Truncated { synced } => {
            let what = format!(
                "it ends with batch {}, but batch {synced} was on the disk since this machine \
                 started",
                contents.last_batch
            );
            return Err(damaged(disk, "", what));
        }
    };
    let contents = LogContents { exactness, ..contents };

    // A mark of this boot proves that no sync has failed: syncing once more is enough. Without one
    // the kernel may have dropped a dirty page that it still shows: everything is written anew.
    if pages_intact {
        sync_again(settings, &contents)?;
    }
    let header = FileHeader {
        kind: FileKind::Journal,
        store_id: contents.store_id,
        generation: contents.generation + 1,
        first: contents.last_batch + 1,
        durability: settings.durability,
        exactness,
        key: files::random_bytes().map_err(|error| files::unwritable(disk, &error))?,
    };
    let journal = files::create_first_journal(disk, header)
        .map_err(|error| files::unwritable(disk, &error))?;
    let (mut ended_bytes, mut snapshot_bytes) = (contents.journal_bytes, contents.snapshot_bytes);
    let mut limit = if contents.journals > JOURNALS_MAX { 0 } else { settings.journal_bytes };
    if !pages_intact && ended_bytes > 0 {
        match files::replace_journals(disk, &contents) {
            Ok(bytes) => (snapshot_bytes, ended_bytes) = (bytes, 0),
            // Tried again in the background. Until then a page that the disk does not have would be
            // noticed as damage by a start after a power loss, not passed over.
            Err(error) if is_full(&error) => {
                sync_again(settings, &contents)?;
                limit = 0;
            }
            Err(error) => return Err(files::unwritable(disk, &error)),
        }
    }
    let mark = MarkFile::create(
        &*settings.run,
        directory,
        Mark {
            store_id: contents.store_id,
            boot: settings.boot,
            acknowledged: contents.last_batch,
            synced: contents.last_batch,
            sync_failed: false,
            journal: Some(journal.header.key),
        },
    )
    .map_err(|error| files::unwritable(&*settings.run, &error))?;
    let zeros = settings.journal_bytes as usize;
    let log = Log::new(Arc::clone(&settings.disk), journal, contents.token.0, mark, zeros);
    let log = Arc::new(log);
    let reserve = Reserve::new(Arc::clone(&settings.disk), settings.reserve_bytes, health.clone());
    let syncer = Syncer::start(Arc::clone(&log), settings.sync_delay, reserve)
        .map_err(|error| files::unwritable(disk, &error))?;
    let mut compactor = Compactor::new(snapshot_bytes, health.clone());
    let end = LogPosition { generation: contents.generation, number: contents.last_batch };
    if ended_bytes > 0 && compactor.begin(&settings.disk, end, ended_bytes, limit) {
        ended_bytes = 0;
    }
    Ok((Running { syncer, compactor, log, ended_bytes }, contents))
}

/// What a killed process has written may still be in the page cache only.
fn sync_again(settings: &EmbeddedSettings, contents: &LogContents) -> Result<(), StoreError> {
    let disk = &*settings.disk;
    let name = FileKind::Journal.file_name(contents.generation);
    disk.open(&name)
        .and_then(|file| file.sync())
        .map_err(|error| StoreError::SyncFailed(format!("{}: {error}", disk.display_path(&name))))
}
