//! The end of the journal, where batches are appended and synced. The committing thread appends;
//! that thread and the background thread sync, one at a time, because the kernel reports a failed
//! write only once.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use keeper::change::Exactness;

use super::disk::{Disk, DiskFile};
use super::files::{self, NewJournal};
use super::frame::{FILE_HEADER_BYTES, FileHeader, FileKind, FrameFields, encode_frame};
use super::mark::MarkFile;
use super::replay::LogPosition;
use crate::durability::Durability;
use crate::error::StoreError;

/// How the next journal is created.
pub(super) type CreateJournal = fn(&dyn Disk, FileHeader) -> io::Result<NewJournal>;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

pub(super) struct Log {
    disk: Arc<dyn Disk>,
    tail: Mutex<Tail>,
    /// Held during a sync. Taken before `tail`.
    syncing: Mutex<()>,
    /// The last batch that is known to survive a power loss.
    synced: AtomicU64,
    sync_error: OnceLock<String>,
    mark: Mutex<MarkFile>,
}

/// Where the next batch goes.
struct Tail {
    file: Arc<dyn DiskFile>,
    header: FileHeader,
    end: u64,
    /// The file is written up to here, with zeros from `end` on: a sync is cheaper if the file does
    /// not grow.
    allocated: u64,
    /// The last batch that was written.
    number: u64,
    token: u64,
    exactness: Exactness,
    /// The last batch is an empty one, which says that all others are synced.
    is_sealed: bool,
    zeros: &'static [u8],
    frame: Vec<u8>,
}

impl Log {
    /// Appends to `journal`; the batch before its first is synced. Preallocates
    /// `zeros` bytes at a time, up to a limit.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        journal: NewJournal,
        token: u64,
        mark: MarkFile,
        zeros: usize,
    ) -> Self {
        let NewJournal { file, header, allocated } = journal;
        let number = header.first - 1;
        let tail = Tail {
            file,
            end: FILE_HEADER_BYTES as u64,
            allocated,
            number,
            token,
            exactness: header.exactness,
            is_sealed: true,
            zeros: &ZEROS[..zeros.min(ZEROS.len())],
            header,
            frame: Vec::new(),
        };
        Self {
            disk,
            tail: Mutex::new(tail),
            syncing: Mutex::new(()),
            synced: AtomicU64::new(number),
            sync_error: OnceLock::new(),
            mark: Mutex::new(mark),
        }
    }

    /// Appends a batch and returns its number. After an error no part of it counts: an incomplete
    /// frame is not a frame, and the next one overwrites it.
    pub(super) fn append(&self, body: &[u8], token: u64, exactness: Exactness) -> io::Result<u64> {
        let mut tail = lock(&self.tail);
        tail.append(body, token, exactness, self.synced.load(Ordering::Acquire))?;
        tail.is_sealed = false;
        Ok(tail.number)
    }

    /// Syncs every batch that was appended before. A failure is permanent (I11).
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let guard = lock(&self.syncing);
        self.sync_locked(&guard)
    }

    fn sync_locked(&self, _syncing: &MutexGuard<'_, ()>) -> Result<(), StoreError> {
        self.ensure_healthy()?;
        let (file, number) = {
            let tail = lock(&self.tail);
            (Arc::clone(&tail.file), tail.number)
        };
        match file.sync() {
            Ok(()) => {
                self.synced.fetch_max(number, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                let name = { lock(&self.tail).file_name() };
                lock(&self.mark).set_sync_failed();
                let _ = self.sync_error.set(format!("{}: {error}", self.disk.display_path(&name)));
                self.ensure_healthy()
            }
        }
    }

    /// Fails for ever once a sync has failed.
    pub(super) fn ensure_healthy(&self) -> Result<(), StoreError> {
        match self.sync_error.get() {
            None => Ok(()),
            Some(why) => Err(StoreError::SyncFailed(why.clone())),
        }
    }

    /// The last batch that was written.
    pub(super) fn number(&self) -> u64 {
        lock(&self.tail).number
    }

    /// The length of the journal, without zeros at its end.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.tail).end
    }

    pub(super) fn has_unsynced(&self) -> bool {
        self.number() > self.synced.load(Ordering::Acquire)
    }

    /// Appends an empty batch if every batch is synced and the last one is not empty already. It
    /// proves that the batch before it was on the disk, so that damage to that one cannot pass for a
    /// torn end.
    pub(super) fn seal(&self) -> Result<(), StoreError> {
        let guard = lock(&self.syncing);
        {
            let mut tail = lock(&self.tail);
            let synced = self.synced.load(Ordering::Acquire);
            if tail.is_sealed || tail.number > synced {
                return Ok(());
            }
            let (token, exactness) = (tail.token, tail.exactness);
            if tail.append(&[], token, exactness, synced).is_err() {
                return Ok(());
            }
            tail.is_sealed = true;
        }
        self.sync_locked(&guard)
    }

    /// Raises the high-water mark to a batch that is about to be acknowledged (I2).
    pub(super) fn acknowledge(&self, number: u64, synced: bool) -> io::Result<()> {
        lock(&self.mark).acknowledge(number, synced)
    }

    /// Syncs and ends this journal, continues in the one that `create` makes, and returns where this one ends. After an
    /// error that is not fatal this journal continues.
    pub(super) fn rotate(&self, create: CreateJournal) -> Result<LogPosition, StoreError> {
        let guard = lock(&self.syncing);
        self.sync_locked(&guard)?;
        let mut tail = lock(&self.tail);
        let end = LogPosition { generation: tail.header.generation, number: tail.number };
        let header = files::random_bytes().map(|key| FileHeader {
            generation: tail.header.generation + 1,
            first: tail.number + 1,
            exactness: tail.exactness,
            key,
            ..tail.header.clone()
        });
        let created = header.and_then(|header| create(&*self.disk, header));
        let NewJournal { file, header, allocated } = match created {
            Ok(created) => created,
            Err(error) if self.may_exist(end.generation + 1) => {
                // The next journal ends this one: replay would ignore what is appended here.
                let _ = self.sync_error.set(format!("{}: {error}", self.disk.display_path("")));
                return self.ensure_healthy().map(|()| end);
            }
            Err(error) => return Err(files::unwritable(&*self.disk, &error)),
        };
        // Before the first batch in it: the mark always names the journal of the last one.
        lock(&self.mark).set_journal(header.key);
        (tail.file, tail.header) = (file, header);
        (tail.end, tail.allocated) = (FILE_HEADER_BYTES as u64, allocated);
        tail.is_sealed = true;
        Ok(end)
    }

    /// Whether the journal exists, or that cannot be found out.
    fn may_exist(&self, generation: u64) -> bool {
        let name = FileKind::Journal.file_name(generation);
        self.disk.names().map_or(true, |names| names.contains(&name))
    }
}

impl Tail {
    /// Writes zeros ahead of the batches if every batch is synced: a fifth to two thirds more
    /// batches per second, measured. On a full disk the write of the batch itself reports the error.
    fn preallocate(&mut self, end: u64) {
        if self.header.durability == Durability::Power && end > self.allocated {
            let from = self.allocated.max(self.end);
            if self.file.write(self.zeros, from).is_ok() {
                self.allocated = from + self.zeros.len() as u64;
            }
        }
    }

    fn file_name(&self) -> String {
        FileKind::Journal.file_name(self.header.generation)
    }

    fn append(
        &mut self,
        body: &[u8],
        token: u64,
        exactness: Exactness,
        synced: u64,
    ) -> io::Result<()> {
        let fields = FrameFields {
            exactness,
            last: false,
            mark_names_journal: true,
            number: self.number + 1,
            token,
            synced,
        };
        self.frame.clear();
        encode_frame(fields, body, &self.header.key, &mut self.frame);
        let end = self.end + self.frame.len() as u64;
        self.preallocate(end);
        if let Err(error) = self.file.write(&self.frame, self.end) {
            // What was allocated stays allocated: on a full disk it may be all that is left.
            self.allocated = self.allocated.max(self.end);
            let _ = self.file.truncate(self.allocated);
            return Err(error);
        }
        self.end = end;
        self.allocated = self.allocated.max(end);
        (self.number, self.token, self.exactness) = (fields.number, token, exactness);
        Ok(())
    }
}

/// Ignores poisoning: no code panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
