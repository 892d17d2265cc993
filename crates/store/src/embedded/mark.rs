//! The high-water mark: how far batches were acknowledged since this machine started, in a directory
//! that a restart of the machine empties (tmpfs). A journal that reaches its mark has lost nothing to
//! the end of the process; without a mark of this boot that names the journal, it is unknown
//! (`exactness.rs`).
//!
//! ```text
//! name: the store's id, and the device and inode of its directory, so that a copy of the directory
//!       has a mark of its own: ID-DEVICE-INODE.mark
//!
//! offset, length
//!  0  8  "LKmark\0" and the version 2
//!  8 16  the store's id
//! 24 16  the kernel's boot id
//! 40  8  the last batch that was acknowledged
//! 48  8  the last batch that was acknowledged after a sync
//! 56  8  1 if a sync has failed since, 0 otherwise
//! 64 16  the key of the journal in which these batches are
//! 80  8  checksum of the 80 bytes before
//! ```
//!
//! Written by one `pwrite` within one page, which a kill does not split, and never synced: it need
//! survive only the process. Version 1 has no key of a journal, its checksum in place of it, and the
//! name ID.mark; it is believed of journals that were written with it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::disk::{DirectoryId, Disk, DiskFile};
use super::frame::checksum;
use crate::boot_id::BootId;

const MAGIC: [u8; 7] = *b"LKmark\0";
const LENGTH: usize = 88;
const LENGTH_1: usize = 72;
const SUFFIX: &str = ".mark";
/// A mark of this boot that has not been written for so long, and is not in use, is removed. Its
/// store is no longer exact then, if the server was killed.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The contents of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) store_id: [u8; 16],
    pub(super) boot: BootId,
    pub(super) acknowledged: u64,
    pub(super) synced: u64,
    pub(super) sync_failed: bool,
    /// The key of the last journal; `None` in version 1.
    pub(super) journal: Option<[u8; 16]>,
}

impl Mark {
    /// The name of the mark of the store with this id in this directory.
    pub(super) fn file_name(store_id: &[u8; 16], directory: DirectoryId) -> String {
        let id = u128::from_be_bytes(*store_id);
        format!("{id:032x}-{:x}-{:x}{SUFFIX}", directory.device, directory.inode)
    }

    fn file_name_1(store_id: &[u8; 16]) -> String {
        format!("{:032x}{SUFFIX}", u128::from_be_bytes(*store_id))
    }

    /// The mark of this store and this boot. `None`, the safe answer, if it is missing or damaged,
    /// or of another store or boot.
    pub(super) fn read(
        run: &dyn Disk,
        store_id: &[u8; 16],
        directory: DirectoryId,
        boot: BootId,
    ) -> Option<Mark> {
        let names = [Mark::file_name(store_id, directory), Mark::file_name_1(store_id)];
        let mark = names.iter().find_map(|name| Mark::read_file(run, name))?;
        (mark.store_id == *store_id && mark.boot == boot).then_some(mark)
    }

    fn read_file(run: &dyn Disk, name: &str) -> Option<Mark> {
        let mut bytes = Vec::new();
        run.read(name).ok()?.read_to_end(&mut bytes).ok()?;
        Mark::decode(&bytes)
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0..7].copy_from_slice(&MAGIC);
        bytes[7] = 2;
        bytes[8..24].copy_from_slice(&self.store_id);
        bytes[24..40].copy_from_slice(&self.boot.0);
        bytes[40..48].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.synced.to_le_bytes());
        bytes[56..64].copy_from_slice(&u64::from(self.sync_failed).to_le_bytes());
        bytes[64..80].copy_from_slice(&self.journal.unwrap_or_default());
        let checksum = checksum(&[0; 16], &bytes[..80]);
        bytes[80..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Mark> {
        let number = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes);
        let length = match bytes.get(7)? {
            1 => LENGTH_1,
            2 => LENGTH,
            _ => return None,
        };
        let body = bytes.get(..length - 8)?;
        let good = bytes.starts_with(&MAGIC)
            && bytes.len() == length
            && number(length - 8)? == checksum(&[0; 16], body);
        let mark = Mark {
            store_id: *bytes[8..].first_chunk()?,
            boot: BootId(*bytes[24..].first_chunk()?),
            acknowledged: number(40)?,
            synced: number(48)?,
            sync_failed: number(56)? != 0,
            journal: if length == LENGTH { bytes[64..].first_chunk().copied() } else { None },
        };
        good.then_some(mark)
    }
}

/// The mark's file, rewritten with every acknowledgement.
pub(super) struct MarkFile {
    file: Arc<dyn DiskFile>,
    mark: Mark,
    /// Keeps the file from being removed as unused; without it the file is only not protected.
    _held: Option<Box<dyn Send>>,
}

impl MarkFile {
    /// Replaces the mark of this store in this directory.
    pub(super) fn create(run: &dyn Disk, directory: DirectoryId, mark: Mark) -> io::Result<Self> {
        let name = Mark::file_name(&mark.store_id, directory);
        let file = run.open(&name)?;
        let mark_file = Self { file, mark, _held: run.hold(&name).ok() };
        mark_file.write()?;
        let _ = run.remove(&Mark::file_name_1(&mark.store_id));
        Ok(mark_file)
    }

    pub(super) fn acknowledge(&mut self, number: u64, synced: bool) -> io::Result<()> {
        self.mark.acknowledged = number;
        if synced {
            self.mark.synced = number;
        }
        self.write()
    }

    /// Names the journal to which batches go from here on. If that cannot be written, the next
    /// acknowledgement fails or writes it.
    pub(super) fn set_journal(&mut self, key: [u8; 16]) {
        self.mark.journal = Some(key);
        let _ = self.write();
    }

    /// Tells the next start that the disk's contents are unknown from here on.
    pub(super) fn set_sync_failed(&mut self) {
        self.mark.sync_failed = true;
        if self.write().is_err() {
            // An unreadable mark is as good.
            let _ = self.file.truncate(0);
        }
    }

    fn write(&self) -> io::Result<()> {
        self.file.write(&self.mark.encode(), 0)
    }
}

/// Removes marks that prove nothing any more: those of other boots, and those of this boot that are
/// old and not in use (B5.63).
pub(super) fn remove_stale(run: &dyn Disk, boot: BootId) {
    for name in run.names().unwrap_or_default() {
        if !name.ends_with(SUFFIX) {
            continue;
        }
        let (mark, age) = (Mark::read_file(run, &name), run.age(&name));
        if let (Some(mark), Ok(age)) = (mark, age)
            && is_stale(&mark, age, boot)
        {
            let _ = run.remove_unheld(&name);
        }
    }
}

/// A program that writes version 1 does not hold its mark, so the age of one proves nothing.
fn is_stale(mark: &Mark, age: Duration, boot: BootId) -> bool {
    mark.boot != boot || (mark.journal.is_some() && age > AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark {
        store_id: [1; 16],
        boot: BootId([2; 16]),
        acknowledged: 3,
        synced: 2,
        sync_failed: false,
        journal: Some([4; 16]),
    };

    #[test]
    fn a_mark_with_a_changed_byte_is_not_a_mark() {
        let bytes = MARK.encode();
        assert_eq!(Mark::decode(&bytes), Some(MARK));
        for at in 0..LENGTH {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Mark::decode(&damaged), None, "byte {at}");
            assert_eq!(Mark::decode(&bytes[..at]), None);
        }
    }

    #[test]
    fn a_mark_is_stale_in_another_boot_or_if_it_is_old() {
        let day = Duration::from_secs(24 * 3600);
        assert!(!is_stale(&MARK, day, MARK.boot));
        assert!(is_stale(&MARK, 8 * day, MARK.boot));
        assert!(is_stale(&MARK, Duration::ZERO, BootId([3; 16])));
        assert!(!is_stale(&Mark { journal: None, ..MARK }, 8 * day, MARK.boot));
    }
}
