//! The file that keeps the inode map: appended to, and rewritten when most of it is outdated.
//!
//! Several processes may serve one directory: each appends, holds a shared `flock`, and reads what
//! the others appended. The file is rewritten only under an exclusive `flock`.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::{
    super::state,
    record::{Record, TYPICAL},
    table::Table,
};

/// A smaller file is not worth rewriting.
const REWRITE_FROM: u64 = 1 << 20;

pub(super) struct MapFile {
    /// `None`: the map ends with the process.
    kept: Option<KeptFile>,
    /// Lacks records that could not be written, or that are in `older`.
    is_incomplete: bool,
    /// Files whose records were applied, to be removed when this one has them.
    older: Vec<PathBuf>,
}

struct KeptFile {
    path: PathBuf,
    file: File,
    /// The end of what was read, or written by this process.
    read_to: u64,
    /// Its length when this process wrote it anew: it is not written anew before it has doubled, so
    /// that clients cause at most as many bytes of that as of records (B1.89).
    rewritten: u64,
}

impl MapFile {
    /// Opens the file, or creates it, and applies its records and those of `older` files. A torn
    /// record at its end is removed.
    pub(super) fn open(path: &Path, older: Vec<PathBuf>, table: &Table) -> io::Result<Self> {
        let mut map = Self { kept: None, is_incomplete: !older.is_empty(), older };
        for path in &map.older {
            KeptFile { path: path.clone(), file: File::open(path)?, read_to: 0, rewritten: 0 }
                .catch_up(table)?;
        }
        let (file, alone) = open_locked(path)?;
        let mut kept = KeptFile { path: path.to_owned(), file, read_to: 0, rewritten: 0 };
        kept.catch_up(table)?;
        if alone {
            // Records appended behind a torn one would be unreadable.
            kept.file.set_len(kept.read_to)?;
        }
        map.kept = Some(kept);
        Ok(map)
    }

    /// A file that takes no records.
    pub(super) fn none() -> Self {
        Self { kept: None, is_incomplete: false, older: Vec::new() }
    }

    /// Applies the records that other processes appended, up to the first incomplete one.
    pub(super) fn catch_up(&mut self, table: &Table) -> io::Result<()> {
        self.kept.as_mut().map_or(Ok(()), |kept| kept.catch_up(table))
    }

    /// Appends encoded records, which `table` already contains.
    pub(super) fn append(&mut self, records: &[u8], table: &Table) -> io::Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        kept.append(records, table).inspect_err(|_| self.is_incomplete = true)
    }

    /// To be called if records were discarded instead of appended.
    pub(super) fn has_gap(&mut self) {
        self.is_incomplete = true;
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// A second descriptor of the file, to sync it while others append.
    pub(super) fn to_sync(&self) -> io::Result<Option<File>> {
        self.kept.as_ref().map(|kept| kept.file.try_clone()).transpose()
    }

    /// Writes the file anew if most of it is outdated or part of it is missing, unless another
    /// process uses it. Records that are in `table` but not appended yet may be appended afterwards.
    pub(super) fn rewrite_if_due(&mut self, table: &Table) -> io::Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        if !self.is_incomplete && !kept.is_outdated(table)? {
            return Ok(());
        }
        if flock(&kept.file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return kept.lock_again(table);
        }
        kept.rewrite(table)?;
        self.is_incomplete = false;
        for path in self.older.drain(..) {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}

impl KeptFile {
    fn catch_up(&mut self, table: &Table) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        self.read_up_to(end, table)
    }

    fn read_up_to(&mut self, end: u64, table: &Table) -> io::Result<()> {
        if end <= self.read_to {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(self.read_to))?;
        Read::by_ref(&mut self.file).take(end - self.read_to).read_to_end(&mut bytes)?;
        let mut rest = &bytes[..];
        while let Some((record, length)) = Record::decode(rest) {
            table.apply(&record, || ());
            self.read_to += length as u64;
            rest = &rest[length..];
        }
        Ok(())
    }

    fn append(&mut self, records: &[u8], table: &Table) -> io::Result<()> {
        self.file.write_all(records)?;
        let end = self.file.stream_position()?;
        // Own records are not read back: the table may have moved on since.
        self.read_up_to(end.saturating_sub(records.len() as u64), table)?;
        self.read_to = end;
        Ok(())
    }

    fn is_outdated(&self, table: &Table) -> io::Result<bool> {
        let length = self.file.metadata()?.len();
        let is_long = length >= REWRITE_FROM && length >= 2 * self.rewritten;
        Ok(is_long && length >= 4 * table.len() as u64 * TYPICAL)
    }

    /// A failed upgrade has released the shared lock, so another process may have replaced the file.
    fn lock_again(&mut self, table: &Table) -> io::Result<()> {
        flock(&self.file, FlockOperation::LockShared)?;
        if is_at(&self.file, &self.path) {
            return Ok(());
        }
        self.file = open_locked(&self.path)?.0;
        self.read_to = 0;
        self.catch_up(table)
    }

    /// Under the exclusive `flock`.
    fn rewrite(&mut self, table: &Table) -> io::Result<()> {
        self.catch_up(table)?;
        let mut content = Vec::new();
        table.encode(&mut content);
        state::replace(&self.path, &content)?;
        self.file = open_locked(&self.path)?.0;
        self.read_to = content.len() as u64;
        self.rewritten = self.read_to;
        Ok(())
    }
}

/// Opens the file under a shared `flock`; `true` if no other process had it locked.
fn open_locked(path: &Path) -> io::Result<(File, bool)> {
    loop {
        let file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let alone = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        flock(&file, FlockOperation::LockShared)?;
        // Replaced between opening and locking?
        if is_at(&file, path) {
            return Ok((file, alone));
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|f| f.ino() == now.ino()))
}
