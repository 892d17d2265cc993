//! The mark: how far batches were acknowledged since this machine started, in a directory that a
//! restart of the machine empties (tmpfs). A journal that reaches the mark has lost nothing to the
//! end of the process; without a mark of this boot nobody can say (design: exactness).
//!
//! ```text
//!  0  8  "LKmark\0" and the version 1
//!  8 16  the store's id
//! 24 16  the kernel's boot id
//! 40  8  the last batch that was acknowledged
//! 48  8  the last batch that was acknowledged as outliving the power
//! 56  8  1 if a sync has failed since, 0 otherwise
//! 64  8  check of the 64 before
//! ```
//!
//! It is written by one `pwrite` inside one page, which a kill does not cut in two, and never
//! synced: it need not outlive anything but the process.

use std::fs;
use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::frame::check;

const LENGTH: usize = 72;
const MAGIC: [u8; 8] = *b"LKmark\0\x01";

/// Which start of the machine this is. Two that differ are two starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// The kernel's own.
    pub fn of_this_machine() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        match u128::from_str_radix(&digits, 16) {
            Ok(number) if digits.len() == 32 => Ok(Self(number.to_be_bytes())),
            _ => Err(io::Error::other(format!("the kernel's boot id is {text:?}, no such id"))),
        }
    }
}

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub store: [u8; 16],
    pub boot: BootId,
    pub acknowledged: u64,
    pub synced: u64,
    pub sync_failed: bool,
}

impl Mark {
    pub fn name(store: &[u8; 16]) -> String {
        format!("{:032x}.mark", u128::from_be_bytes(*store))
    }

    /// The mark of this store and this boot. One that is missing, of another, or damaged says
    /// nothing, and nothing is a safe answer.
    pub fn read(run: &dyn Disk, store: &[u8; 16], boot: BootId) -> Option<Mark> {
        let mut bytes = [0; LENGTH];
        run.read(&Mark::name(store)).ok()?.read_exact(&mut bytes).ok()?;
        Mark::decode(&bytes).filter(|mark| mark.store == *store && mark.boot == boot)
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.store);
        bytes[24..40].copy_from_slice(&self.boot.0);
        bytes[40..48].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.synced.to_le_bytes());
        bytes[56..64].copy_from_slice(&u64::from(self.sync_failed).to_le_bytes());
        let check = check(&[0; 16], &bytes[..64]);
        bytes[64..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; LENGTH]) -> Option<Mark> {
        let number = |at: usize| {
            bytes[at..].first_chunk().map_or(0, |eight: &[u8; 8]| u64::from_le_bytes(*eight))
        };
        let good = bytes[0..8] == MAGIC && number(64) == check(&[0; 16], &bytes[..64]);
        let mark = Mark {
            store: *bytes[8..].first_chunk()?,
            boot: BootId(*bytes[24..].first_chunk()?),
            acknowledged: number(40),
            synced: number(48),
            sync_failed: number(56) != 0,
        };
        good.then_some(mark)
    }
}

/// A mark that is kept up to date.
pub struct Marker {
    file: Arc<dyn DiskFile>,
    mark: Mark,
}

impl Marker {
    pub fn new(run: &dyn Disk, mark: Mark) -> io::Result<Self> {
        let marker = Self { file: run.open(&Mark::name(&mark.store))?, mark };
        marker.write()?;
        Ok(marker)
    }

    pub fn acknowledge(&mut self, number: u64, synced: bool) -> io::Result<()> {
        self.mark.acknowledged = number;
        if synced {
            self.mark.synced = number;
        }
        self.write()
    }

    /// From here on the disk has who knows what; so says the mark to the next start.
    pub fn sync_failed(&mut self) {
        self.mark.sync_failed = true;
        if self.write().is_err() {
            // The next best: no mark that can be read.
            let _ = self.file.cut(0);
        }
    }

    fn write(&self) -> io::Result<()> {
        self.file.write(&self.mark.encode(), 0)
    }
}
