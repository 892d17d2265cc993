//! How far what was found can be trusted (design: exactness; R4.3 to R4.5 build on it).

use super::disk::Disk;
use super::mark::Mark;
use super::replay::{Found, damaged};
use crate::durability::Durability;
use crate::error::StoreError;

/// Sets `found.roster`, or refuses what nothing but damage can explain. `mark` is one of this store
/// and this boot.
pub fn judge(
    disk: &dyn Disk,
    found: Found,
    mark: Option<Mark>,
    done: Option<u64>,
) -> Result<Found, StoreError> {
    let promised = mark.map_or(0, |mark| mark.synced).max(done.unwrap_or(0));
    if found.number < promised {
        let what = format!(
            "it ends with batch {}, but batch {promised} was safely in it since this machine \
             started. If an older copy was put there on purpose, remove the mark {}",
            found.number,
            Mark::name(&found.store),
        );
        return Err(damaged(disk, "", what));
    }
    let roster = found.roster || (done.is_none() && may_miss_locks(&found, mark));
    Ok(Found { roster, ..found })
}

/// Whether locks that were acknowledged may be missing.
fn may_miss_locks(found: &Found, mark: Option<Mark>) -> bool {
    let nothing_waited_for_a_sync = found.durability == Durability::Power || found.number == 0;
    match mark {
        _ if nothing_waited_for_a_sync => false,
        Some(mark) => mark.sync_failed || found.number < mark.acknowledged,
        None => !found.at_rest,
    }
}
