//! How much is on the disk before a reply leaves: the `durability` setting.

use keeper::change::Change;

/// What an acknowledged batch survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Locks and shares survive the end of the process, everything else a power loss.
    #[default]
    Process,
    /// Everything survives a power loss.
    Power,
}

impl Durability {
    /// Whether a batch must be synced before it is `Done`. Only locks and shares may stay in the
    /// page cache, because clients can reclaim them; nothing restores a registration, a reboot, an
    /// epoch or an id that was handed out.
    pub fn must_sync(self, changes: &[Change]) -> bool {
        self == Durability::Power || !changes.iter().all(can_be_reclaimed)
    }
}

fn can_be_reclaimed(change: &Change) -> bool {
    matches!(
        change,
        Change::Lock(_) | Change::LockGone(_) | Change::Share(_) | Change::ShareGone(_)
    )
}
