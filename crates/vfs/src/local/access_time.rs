//! Whether reading a file makes the kernel write an access time. To do so it may wait for the disk, also in a
//! call that must not (`RWF_NOWAIT` is no exception), although all that is read is in memory.

use std::{
    os::fd::AsFd,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::{StatVfsMountFlags, fstatvfs};

use super::kind::Kind;
use crate::Attributes;

/// Linux, with `relatime`.
const DAY_S: i64 = 24 * 60 * 60;

/// When a mount writes access times, as of the time when the export was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessTimes {
    /// Or only in memory.
    Never,
    /// If the last one is older than the last change, or than a day.
    Relative,
    Always,
}

impl AccessTimes {
    pub(super) fn of(mount: impl AsFd, kind: Kind) -> Self {
        let flags = fstatvfs(mount).map_or(StatVfsMountFlags::empty(), |found| found.f_flag);
        match kind.has_disk {
            true => Self::by_flags(flags),
            false => Self::Never,
        }
    }

    fn by_flags(flags: StatVfsMountFlags) -> Self {
        if flags.intersects(StatVfsMountFlags::NOATIME | StatVfsMountFlags::RDONLY) {
            Self::Never
        } else if flags.contains(StatVfsMountFlags::RELATIME) {
            Self::Relative
        } else {
            Self::Always
        }
    }

    /// Whether a read of a file with these attributes writes one.
    pub(super) fn are_written(self, attributes: &Attributes) -> bool {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        match self {
            Self::Never => false,
            Self::Relative => is_due(attributes, now() as i64),
            Self::Always => true,
        }
    }
}

fn is_due(attributes: &Attributes, now_s: i64) -> bool {
    let Attributes { accessed, modified, changed, .. } = *attributes;
    accessed <= modified || accessed <= changed || now_s - accessed.seconds >= DAY_S
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;

    #[test]
    fn the_rules_are_those_of_the_mount() {
        use StatVfsMountFlags as Flag;
        for (flags, expected) in [
            (Flag::RELATIME, AccessTimes::Relative),
            (Flag::RELATIME | Flag::NODIRATIME, AccessTimes::Relative),
            (Flag::RELATIME | Flag::RDONLY, AccessTimes::Never),
            (Flag::NOATIME, AccessTimes::Never),
            (Flag::empty(), AccessTimes::Always),
        ] {
            assert_eq!(AccessTimes::by_flags(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn a_relative_time_is_written_after_a_change_and_once_a_day() {
        let at = |seconds| Time { seconds, nanoseconds: 0 };
        let mut attributes = Attributes::regular(1, 1);
        for (accessed, modified, changed, now, expected) in [
            (100, 90, 90, 200, false),
            (100, 100, 90, 200, true),
            (100, 90, 100, 200, true),
            (100, 90, 90, 100 + DAY_S - 1, false),
            (100, 90, 90, 100 + DAY_S, true),
        ] {
            (attributes.accessed, attributes.modified, attributes.changed) =
                (at(accessed), at(modified), at(changed));
            assert_eq!(is_due(&attributes, now), expected, "{accessed} {modified} {changed} {now}");
        }
    }
}
