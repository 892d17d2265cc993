//! How much is on the disk before a reply leaves.

use keeper::change::Change;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Locks outlive the process, registrations and facts outlive the power.
    #[default]
    Process,
    /// Everything outlives the power.
    Power,
}

impl Durability {
    /// Whether a batch must be on the disk, and not only in the page cache, before it is `Done`.
    /// Only locks and shares may wait, because a reclaim can bring them back; nothing brings back
    /// a registration, a reboot, a marker or an id that was given away.
    pub fn must_sync(self, changes: &[Change]) -> bool {
        self == Durability::Power || !changes.iter().all(comes_back_by_reclaim)
    }
}

fn comes_back_by_reclaim(change: &Change) -> bool {
    matches!(
        change,
        Change::Lock(_) | Change::LockGone(_) | Change::Share(_) | Change::ShareGone(_)
    )
}
