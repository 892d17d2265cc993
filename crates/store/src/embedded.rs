//! The store that needs nothing but a directory: a journal of batches with checksums, and snapshots
//! that take the place of old journals.
//!
//! ```text
//! journal.N     batches, one after another; only the newest one is ever written to
//! snapshot.N    all that was in the files before journal.N
//! *.unfinished  a file that is not complete yet; it gets its name when it is, and synced
//! ```
//!
//! Reading it back is the newest snapshot and the journals from the same generation on. Every start
//! begins a new journal, whose head says how far the one before counts, so a torn end is never
//! written over, and its remains are never read again. Batches are numbered without a gap, and each
//! says up to which number all were synced before it: what the end of a process or of the power
//! cannot explain is damage (`replay.rs`), and is refused.
//!
//! How far the locks can be trusted is decided once, at the start (`verdict.rs`), written into the
//! head of the new journal, and repeated in every batch until grace has ended.

mod background;
mod body;
pub mod disk;
mod frame;
mod image;
mod log;
pub mod mark;
mod replay;
mod verdict;

#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::{Change, Exactness, Snapshot};

use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::{Committed, Store, Token, may_clear};
use background::{Condenser, Syncer};
use body::Body;
use disk::{Directory, Disk};
use frame::{FileHead, Kind};
use log::Log;
use mark::{BootId, Mark, Marker};
use replay::{Found, Until, replay, unreadable};

/// How long what may wait for its sync does wait.
const SYNC_DELAY: Duration = Duration::from_secs(1);
/// How long a store that is in use is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// A journal of this length ends, and the next begins.
const JOURNAL_BYTES: u64 = 64 << 20;
/// So many journals are put into a snapshot whatever their length: a server that starts and dies
/// again and again leaves many.
const JOURNALS: u64 = 16;

/// Where the store is, and how it behaves.
#[derive(Clone)]
pub struct Settings {
    pub durability: Durability,
    pub disk: Arc<dyn Disk>,
    /// What a start of the machine empties.
    pub run: Arc<dyn Disk>,
    pub boot: BootId,
    pub sync_delay: Duration,
    pub journal_bytes: u64,
}

impl Settings {
    /// `directory` keeps the store; `run_directory` is on tmpfs, and keeps only the mark.
    pub fn new(
        directory: impl Into<PathBuf>,
        run_directory: impl Into<PathBuf>,
        durability: Durability,
    ) -> Result<Self, StoreError> {
        let open = |path: PathBuf| -> Result<Arc<dyn Disk>, StoreError> {
            let place = path.display().to_string();
            let made = Directory::new(path);
            Ok(Arc::new(made.map_err(|error| StoreError::Unwritable(format!("{place}: {error}")))?))
        };
        Ok(Self {
            durability,
            disk: open(directory.into())?,
            run: open(run_directory.into())?,
            boot: BootId::of_this_machine()
                .map_err(|error| StoreError::Unreadable(error.to_string()))?,
            sync_delay: SYNC_DELAY,
            journal_bytes: JOURNAL_BYTES,
        })
    }
}

pub struct Embedded {
    settings: Settings,
    running: Running,
    /// What the start has read, until somebody wants it or it is no longer true.
    loaded: Option<Snapshot>,
    token: Token,
    roster: bool,
    /// The last batch that was `Done`.
    done: u64,
    /// The first batch of a run is synced whatever it is: a journal without a batch is then one in
    /// which nothing was ever acknowledged.
    first: bool,
    /// The last batch ended in `Unknown`, and nobody has asked yet.
    unsettled: bool,
    body: Body,
    /// Released last, when nothing writes any more.
    _lock: Box<dyn Send>,
}

/// One journal under way, with its helpers. Dropped in this order.
struct Running {
    syncer: Syncer,
    condenser: Condenser,
    log: Arc<Log>,
    /// Bytes of journals that have ended and are in no snapshot.
    ended_bytes: u64,
}

impl Embedded {
    pub fn open(settings: Settings) -> Result<Self, StoreError> {
        let lock = lock(&settings)?;
        let (running, found) = start(&settings, None)?;
        Ok(Self {
            running,
            token: found.token,
            roster: found.roster,
            done: found.number,
            loaded: Some(found.snapshot),
            first: true,
            unsettled: false,
            body: Body::default(),
            settings,
            _lock: lock,
        })
    }

    /// What a person should know and no batch has failed for: old journals that could not be put
    /// into a snapshot, and take up space.
    pub fn trouble(&self) -> Option<&StoreError> {
        self.running.condenser.trouble()
    }

    /// Finds out what became of the last batch, by starting anew.
    fn settle(&mut self) -> Result<(), StoreError> {
        self.running.log.fine()?;
        if !self.unsettled {
            return Ok(());
        }
        self.running.condenser.wait();
        self.running.syncer.stop();
        self.running.log.fine()?;
        let (running, found) = start(&self.settings, Some(self.done))?;
        self.running = running;
        (self.token, self.roster, self.done) = (found.token, found.roster, found.number);
        (self.loaded, self.first, self.unsettled) = (Some(found.snapshot), true, false);
        Ok(())
    }

    /// Writes what is in `self.body` as one batch.
    fn write(&mut self, token: Token, roster: bool, sync: bool) -> Committed {
        self.loaded = None;
        self.rotate_if_long();
        let log = &self.running.log;
        if let Err(error) = log.fine() {
            return Committed::NotWritten(error);
        }
        let number = match log.add(self.body.bytes(), token.0, roster) {
            Ok(number) => number,
            Err(error) => {
                return Committed::NotWritten(image::unwritable(&*self.settings.disk, &error));
            }
        };
        let sync = sync || self.first;
        if sync && let Err(error) = log.sync() {
            return Committed::Unknown(error);
        }
        if let Err(error) = log.acknowledge(number, sync) {
            self.unsettled = true;
            return Committed::Unknown(image::unwritable(&*self.settings.run, &error));
        }
        (self.token, self.roster, self.done, self.first) = (token, roster, number, false);
        Committed::Done
    }

    /// A failure is no failure of the batch that is about to be written: it is tried again with the
    /// next, and a fatal one is seen there.
    fn rotate_if_long(&mut self) {
        let Running { log, condenser, ended_bytes, .. } = &mut self.running;
        let limit = self.settings.journal_bytes;
        let bytes = log.bytes();
        if bytes < limit {
            return;
        }
        if let Ok((generation, number)) = log.rotate() {
            *ended_bytes += bytes;
            let until = Until { generation, number };
            if condenser.begin(&self.settings.disk, until, *ended_bytes, limit) {
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
                self.running.condenser.wait();
                let disk = &*self.settings.disk;
                replay(disk, None)?.map(|found| found.snapshot).unwrap_or_default()
            }
        };
        let exactness = if self.roster { Exactness::Roster } else { Exactness::Exact };
        Ok(Snapshot { exactness, ..saved })
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> Committed {
        if self.unsettled {
            let why = "what became of the last batch has not been asked".to_owned();
            return Committed::NotWritten(StoreError::Unwritable(why));
        }
        self.body.clear();
        changes.iter().for_each(|change| self.body.push(change));
        let roster = self.roster && !changes.iter().any(ends_a_roster);
        self.write(token, roster, self.settings.durability.must_sync(changes))
    }

    fn is_quick(&self, changes: &[Change]) -> bool {
        let ordinary = !self.first && !self.unsettled;
        let fits = self.running.log.bytes() < self.settings.journal_bytes;
        ordinary && fits && !self.settings.durability.must_sync(changes)
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.settle()?;
        Ok(self.token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        may_clear(&self.load()?, force)?;
        self.body.clear();
        self.body.push_cleared();
        match self.write(self.token, false, true) {
            Committed::Done => Ok(()),
            Committed::NotWritten(error) | Committed::Unknown(error) => Err(error),
        }
    }
}

/// The kernel may take a moment to notice that a killed process has no lock any more.
fn lock(settings: &Settings) -> Result<Box<dyn Send>, StoreError> {
    let disk = &*settings.disk;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match disk.lock().map_err(|error| unreadable(disk, "", &error))? {
            Some(lock) => return Ok(lock),
            None if Instant::now() > deadline => return Err(StoreError::InUse),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// From here on the locks are what the changes say: recovery is over, or there was nobody to wait
/// for.
fn ends_a_roster(change: &Change) -> bool {
    matches!(change, Change::GraceEnded | Change::Started { grace: false, .. })
}

/// Reads all, judges it, and begins a new journal behind it. `done` is the last batch that this very
/// process knows to be in the log.
fn start(settings: &Settings, done: Option<u64>) -> Result<(Running, Found), StoreError> {
    let disk = &*settings.disk;
    image::remove_unfinished(disk);
    let found = match replay(disk, None)? {
        Some(found) => found,
        None => {
            image::create(disk, settings.durability)
                .map_err(|error| image::unwritable(disk, &error))?;
            replay(disk, None)?.ok_or_else(|| {
                unreadable(disk, "", &io::Error::other("a new store is not there"))
            })?
        }
    };
    let mark = Mark::read(&*settings.run, &found.store, settings.boot);
    let found = verdict::judge(disk, found, mark, done)?;

    // A mark of this boot vouches that no sync has failed: then syncing once more is enough. Without
    // one, the kernel may have given up on a page and still show it: all is written anew.
    let vouched = mark.is_some_and(|mark| !mark.sync_failed);
    if vouched {
        sync_again(settings, &found)?;
    }
    let head = FileHead {
        kind: Kind::Journal,
        store: found.store,
        generation: found.generation + 1,
        first: found.number + 1,
        durability: settings.durability,
        roster: found.roster,
        key: image::random().map_err(|error| image::unwritable(disk, &error))?,
    };
    let file = image::begin(disk, &head).map_err(|error| image::unwritable(disk, &error))?;
    let (mut ended_bytes, mut snapshot_bytes) = (found.journal_bytes, found.snapshot_bytes);
    if !vouched && ended_bytes > 0 {
        snapshot_bytes =
            image::replace(disk, &found).map_err(|error| image::unwritable(disk, &error))?;
        ended_bytes = 0;
    }
    let marker = Marker::new(
        &*settings.run,
        Mark {
            store: found.store,
            boot: settings.boot,
            acknowledged: found.number,
            synced: found.number,
            sync_failed: false,
        },
    )
    .map_err(|error| image::unwritable(&*settings.run, &error))?;
    let ahead = settings.journal_bytes as usize;
    let log = Log::new(Arc::clone(&settings.disk), file, head, found.token.0, marker, ahead);
    let log = Arc::new(log);
    let syncer = Syncer::new(Arc::clone(&log), settings.sync_delay)
        .map_err(|error| image::unwritable(disk, &error))?;
    let mut condenser = Condenser::new(snapshot_bytes);
    let until = Until { generation: found.generation, number: found.number };
    let limit = if found.journals > JOURNALS { 0 } else { settings.journal_bytes };
    if ended_bytes > 0 && condenser.begin(&settings.disk, until, ended_bytes, limit) {
        ended_bytes = 0;
    }
    Ok((Running { syncer, condenser, log, ended_bytes }, found))
}

/// What a killed process has written may be in the page cache only.
fn sync_again(settings: &Settings, found: &Found) -> Result<(), StoreError> {
    let disk = &*settings.disk;
    let name = Kind::Journal.name(found.generation);
    disk.open(&name)
        .and_then(|file| file.sync())
        .map_err(|error| StoreError::SyncFailed(format!("{}: {error}", disk.place(&name))))
}
