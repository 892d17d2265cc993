//! The end of the journal, where batches are added and synced. The committer adds; it and the
//! background thread sync, one at a time, because the kernel reports a failed write only once.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::disk::{Disk, DiskFile};
use super::frame::{FILE_HEAD, FileHead, Kind, Labels, encode_frame};
use super::image;
use super::mark::Marker;
use crate::durability::Durability;
use crate::error::StoreError;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

pub struct Log {
    disk: Arc<dyn Disk>,
    tail: Mutex<Tail>,
    /// Held while anything is synced. Taken before `tail`.
    syncing: Mutex<()>,
    /// The last batch that is known to outlive the power.
    synced: AtomicU64,
    failed: OnceLock<String>,
    mark: Mutex<Marker>,
}

/// Where the next batch goes.
struct Tail {
    file: Arc<dyn DiskFile>,
    head: FileHead,
    end: u64,
    /// Up to where the file has bytes already: a sync is cheaper when the file need not grow.
    room: u64,
    /// The last batch that was written.
    number: u64,
    token: u64,
    roster: bool,
    /// The last batch is an empty one that says the others are synced.
    sealed: bool,
    ahead: &'static [u8],
    frame: Vec<u8>,
}

impl Log {
    /// Goes on in the journal that `head` begins, after batch `head.first - 1`, which is synced.
    pub fn new(
        disk: Arc<dyn Disk>,
        file: Arc<dyn DiskFile>,
        head: FileHead,
        token: u64,
        mark: Marker,
        ahead: usize,
    ) -> Self {
        let number = head.first - 1;
        let tail = Tail {
            file,
            end: FILE_HEAD as u64,
            room: FILE_HEAD as u64,
            number,
            token,
            roster: head.roster,
            sealed: true,
            ahead: &ZEROS[..ahead.min(ZEROS.len())],
            head,
            frame: Vec::new(),
        };
        Self {
            disk,
            tail: Mutex::new(tail),
            syncing: Mutex::new(()),
            synced: AtomicU64::new(number),
            failed: OnceLock::new(),
            mark: Mutex::new(mark),
        }
    }

    /// Writes a batch behind the others and returns its number. After an error nothing of it counts:
    /// an incomplete frame is no frame, and the next one is written over it.
    pub fn add(&self, body: &[u8], token: u64, roster: bool) -> io::Result<u64> {
        let mut tail = held(&self.tail);
        tail.add(body, token, roster, self.synced.load(Ordering::Acquire))?;
        tail.sealed = false;
        Ok(tail.number)
    }

    /// Returns when all that was added before outlives the power. A failure is for ever (I11).
    pub fn sync(&self) -> Result<(), StoreError> {
        let one = held(&self.syncing);
        self.sync_alone(&one)
    }

    fn sync_alone(&self, _one: &MutexGuard<'_, ()>) -> Result<(), StoreError> {
        self.fine()?;
        let (file, number) = {
            let tail = held(&self.tail);
            (Arc::clone(&tail.file), tail.number)
        };
        match file.sync() {
            Ok(()) => {
                self.synced.fetch_max(number, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                let name = { held(&self.tail).name() };
                held(&self.mark).sync_failed();
                let _ = self.failed.set(format!("{}: {error}", self.disk.place(&name)));
                self.fine()
            }
        }
    }

    /// An error for ever after a sync has failed.
    pub fn fine(&self) -> Result<(), StoreError> {
        match self.failed.get() {
            None => Ok(()),
            Some(why) => Err(StoreError::SyncFailed(why.clone())),
        }
    }

    /// The last batch that was written.
    pub fn number(&self) -> u64 {
        held(&self.tail).number
    }

    /// How long the journal is.
    pub fn bytes(&self) -> u64 {
        held(&self.tail).end
    }

    pub fn has_unsynced(&self) -> bool {
        self.number() > self.synced.load(Ordering::Acquire)
    }

    /// Puts an empty batch behind the last one, once: proof that the last one was on the disk, so
    /// that damage to it is never taken for a torn end.
    pub fn seal(&self) -> Result<(), StoreError> {
        let one = held(&self.syncing);
        {
            let mut tail = held(&self.tail);
            let synced = self.synced.load(Ordering::Acquire);
            if tail.sealed || tail.number > synced {
                return Ok(());
            }
            let (token, roster) = (tail.token, tail.roster);
            if tail.add(&[], token, roster, synced).is_err() {
                return Ok(());
            }
            tail.sealed = true;
        }
        self.sync_alone(&one)
    }

    /// What is told from here on is in the log: says so where the next start looks (I2).
    pub fn acknowledge(&self, number: u64, synced: bool) -> io::Result<()> {
        held(&self.mark).acknowledge(number, synced)
    }

    /// Ends this journal, synced, and goes on in the next. Returns the generation that ended and its
    /// last batch. An error that is not fatal leaves everything as it was.
    pub fn rotate(&self) -> Result<(u64, u64), StoreError> {
        let one = held(&self.syncing);
        self.sync_alone(&one)?;
        let mut tail = held(&self.tail);
        let ended = (tail.head.generation, tail.number);
        let head = image::random().map(|key| FileHead {
            generation: tail.head.generation + 1,
            first: tail.number + 1,
            roster: tail.roster,
            key,
            ..tail.head.clone()
        });
        let (file, head) = match head.and_then(|head| Ok((image::begin(&*self.disk, &head)?, head)))
        {
            Ok(begun) => begun,
            Err(error) if self.is_there(ended.0 + 1) => {
                // A next journal ends this one: adding to this one would be adding to nothing.
                let _ = self.failed.set(format!("{}: {error}", self.disk.place("")));
                return self.fine().map(|()| ended);
            }
            Err(error) => return Err(image::unwritable(&*self.disk, &error)),
        };
        (tail.file, tail.head) = (file, head);
        (tail.end, tail.room) = (FILE_HEAD as u64, FILE_HEAD as u64);
        tail.sealed = true;
        Ok(ended)
    }
}

impl Log {
    /// Whether there is such a journal, or nobody can say.
    fn is_there(&self, generation: u64) -> bool {
        let name = Kind::Journal.name(generation);
        self.disk.names().map_or(true, |names| names.contains(&name))
    }
}

impl Tail {
    /// Zeros ahead of the batches, where every batch is synced: measured, a fifth to two thirds
    /// more batches in a second. If there is no room, the batch itself will say so.
    fn make_room(&mut self, end: u64) {
        if self.head.durability == Durability::Power && end > self.room {
            let from = self.room.max(self.end);
            if self.file.write(self.ahead, from).is_ok() {
                self.room = from + self.ahead.len() as u64;
            }
        }
    }

    fn name(&self) -> String {
        Kind::Journal.name(self.head.generation)
    }

    fn add(&mut self, body: &[u8], token: u64, roster: bool, synced: u64) -> io::Result<()> {
        let labels = Labels { roster, last: false, number: self.number + 1, token, synced };
        self.frame.clear();
        encode_frame(labels, body, &self.head.key, &mut self.frame);
        let end = self.end + self.frame.len() as u64;
        self.make_room(end);
        if let Err(error) = self.file.write(&self.frame, self.end) {
            let _ = self.file.cut(self.end);
            self.room = self.end;
            return Err(error);
        }
        self.end = end;
        self.room = self.room.max(end);
        (self.number, self.token, self.roster) = (labels.number, token, roster);
        Ok(())
    }
}

/// Nothing panics while it holds one of these, so a poisoned one is as good as any.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
