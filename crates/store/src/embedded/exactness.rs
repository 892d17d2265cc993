//! Decides at the start whether the locks that were read are exact, or whether acknowledged ones may
//! be missing, so that they are only a roster of hosts (B4.11 to B4.15 build on it).

use super::disk::Disk;
use super::mark::Mark;
use super::replay::{LogContents, damaged};
use crate::durability::Durability;
use crate::error::StoreError;

/// Sets `contents.roster`, or refuses a log that lost batches it had on the disk. `mark` belongs to
/// this store and this boot; `last_done` is the last batch that this process acknowledged.
pub(super) fn assess(
    disk: &dyn Disk,
    contents: LogContents,
    mark: Option<Mark>,
    last_done: Option<u64>,
) -> Result<LogContents, StoreError> {
    let synced = mark.map_or(0, |mark| mark.synced).max(last_done.unwrap_or(0));
    if contents.last_batch < synced {
        let what = format!(
            "it ends with batch {}, but batch {synced} was synced since this machine started. If \
             an older copy was put there on purpose, remove the mark {}",
            contents.last_batch,
            Mark::file_name(&contents.store_id),
        );
        return Err(damaged(disk, "", what));
    }
    let roster = contents.roster || (last_done.is_none() && may_miss_locks(&contents, mark));
    Ok(LogContents { roster, ..contents })
}

/// Whether acknowledged locks may be missing.
fn may_miss_locks(contents: &LogContents, mark: Option<Mark>) -> bool {
    let all_synced = contents.durability == Durability::Power || contents.last_batch == 0;
    match mark {
        _ if all_synced => false,
        Some(mark) => mark.sync_failed || contents.last_batch < mark.acknowledged,
        None => !contents.at_rest,
    }
}
