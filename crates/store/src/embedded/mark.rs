//! The high-water mark: how far batches were acknowledged since this machine started, in a directory
//! that a restart of the machine empties (tmpfs). A journal that reaches the mark has lost nothing to
//! the end of the process; without a mark of this boot that is unknown (`exactness.rs`).
//!
//! ```text
//! offset, length
//!  0  8  "LKmark\0" and the version 1
//!  8 16  the store's id
//! 24 16  the kernel's boot id
//! 40  8  the last batch that was acknowledged
//! 48  8  the last batch that was acknowledged after a sync
//! 56  8  1 if a sync has failed since, 0 otherwise
//! 64  8  checksum of the 64 bytes before
//! ```
//!
//! Written by one `pwrite` within one page, which a kill does not split, and never synced: it need
//! survive only the process.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::frame::checksum;
use crate::boot_id::BootId;

const LENGTH: usize = 72;
const MAGIC: [u8; 8] = *b"LKmark\0\x01";

/// The contents of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) store_id: [u8; 16],
    pub(super) boot: BootId,
    pub(super) acknowledged: u64,
    pub(super) synced: u64,
    pub(super) sync_failed: bool,
}

impl Mark {
    pub(super) fn file_name(store_id: &[u8; 16]) -> String {
        format!("{:032x}.mark", u128::from_be_bytes(*store_id))
    }

    /// The mark of this store and this boot. `None`, the safe answer, if it is missing or damaged,
    /// or of another store or boot.
    pub(super) fn read(run: &dyn Disk, store_id: &[u8; 16], boot: BootId) -> Option<Mark> {
        let mut bytes = [0; LENGTH];
        run.read(&Mark::file_name(store_id)).ok()?.read_exact(&mut bytes).ok()?;
        Mark::decode(&bytes).filter(|mark| mark.store_id == *store_id && mark.boot == boot)
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.store_id);
        bytes[24..40].copy_from_slice(&self.boot.0);
        bytes[40..48].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.synced.to_le_bytes());
        bytes[56..64].copy_from_slice(&u64::from(self.sync_failed).to_le_bytes());
        let checksum = checksum(&[0; 16], &bytes[..64]);
        bytes[64..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; LENGTH]) -> Option<Mark> {
        let number = |at: usize| {
            bytes[at..].first_chunk().map_or(0, |eight: &[u8; 8]| u64::from_le_bytes(*eight))
        };
        let good = bytes[0..8] == MAGIC && number(64) == checksum(&[0; 16], &bytes[..64]);
        let mark = Mark {
            store_id: *bytes[8..].first_chunk()?,
            boot: BootId(*bytes[24..].first_chunk()?),
            acknowledged: number(40),
            synced: number(48),
            sync_failed: number(56) != 0,
        };
        good.then_some(mark)
    }
}

/// The mark's file, rewritten with every acknowledgement.
pub(super) struct MarkFile {
    file: Arc<dyn DiskFile>,
    mark: Mark,
}

impl MarkFile {
    pub(super) fn create(run: &dyn Disk, mark: Mark) -> io::Result<Self> {
        let mark_file = Self { file: run.open(&Mark::file_name(&mark.store_id))?, mark };
        mark_file.write()?;
        Ok(mark_file)
    }

    pub(super) fn acknowledge(&mut self, number: u64, synced: bool) -> io::Result<()> {
        self.mark.acknowledged = number;
        if synced {
            self.mark.synced = number;
        }
        self.write()
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
