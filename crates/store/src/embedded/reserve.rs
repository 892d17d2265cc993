//! Space for starts on a full disk (B5.65): preallocated files, each of which becomes the journal of one
//! start that finds no space. They are renamed, not removed, so that no other program gets the space
//! first. Ordinary batches never use them: on a full disk locks wait, and the server can still be
//! started again.

use std::io;

use super::disk::Disk;
use super::files::UNFINISHED;

/// Files in the reserve. A start on a full disk uses one, or two if its first batch is large.
pub(super) const FILES: u64 = 8;
/// Free space, in lengths of the whole reserve, above which missing files are made again.
const ROOM: u64 = 2;

fn file_name(number: u64) -> String {
    format!("reserve.{number}")
}

fn is_reserve(name: &str) -> bool {
    let number = name.strip_prefix("reserve.").and_then(|number| number.parse().ok());
    number.is_some_and(|number| file_name(number) == name)
}

/// Makes the missing files of `bytes` each, if there is room. Returns how many are missing still.
pub(super) fn replenish(disk: &dyn Disk, bytes: u64) -> io::Result<u64> {
    let names = disk.names()?;
    let missing = (1..=FILES).map(file_name).filter(|name| !names.contains(name));
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() || bytes == 0 {
        return Ok(0);
    }
    for (made, name) in missing.iter().enumerate() {
        if disk.free_bytes()? < bytes.saturating_mul(FILES * ROOM) {
            return Ok((missing.len() - made) as u64);
        }
        let unfinished = format!("{name}{UNFINISHED}");
        let file = disk.open(&unfinished)?;
        let zeros = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        let made = file.write(&zeros, 0).and_then(|()| file.sync());
        if let Err(error) = made.and_then(|()| disk.rename(&unfinished, name)) {
            let _ = disk.remove(&unfinished);
            return Err(error);
        }
    }
    disk.sync_names().map(|()| 0)
}

/// Renames a file of the reserve, which is all zeros, to `name`, and returns its length; `None` if there
/// is none.
pub(super) fn take(disk: &dyn Disk, name: &str) -> io::Result<Option<u64>> {
    let Some(reserve) = disk.names()?.into_iter().find(|name| is_reserve(name)) else {
        return Ok(None);
    };
    let length = disk.length(&reserve)?;
    disk.rename(&reserve, name).map(|()| Some(length))
}

/// Whether an operation failed for want of space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
