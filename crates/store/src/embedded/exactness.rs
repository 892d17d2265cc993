//! Decides at the start how far the state that was read can be trusted: whether acknowledged locks may
//! be missing, so that it is only a roster of hosts (B4.11 to B4.15 build on it), or whether it is an
//! older copy, in which hosts may be missing too.

use keeper::change::Exactness;

use super::mark::Mark;
use super::replay::LogContents;
use crate::durability::Durability;

/// What a start concludes from the log and the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The log goes on from here.
    Trusted {
        exactness: Exactness,
        /// No sync has failed in this boot, so what can be read can be synced.
        pages_intact: bool,
    },
    /// The journal ends before this batch, which it had on the disk.
    Truncated { synced: u64 },
}

/// `mark` belongs to this store, this directory and this boot; `last_done` is the last batch that this
/// process acknowledged, if it is not starting.
pub(super) fn judge(
    contents: &LogContents,
    mark: Option<Mark>,
    last_done: Option<u64>,
) -> Judgement {
    // A mark of another journal proves nothing about the batches of this one (B5.61): the store was
    // served elsewhere since. A mark that names no journal belongs to an earlier version, and counts
    // as long as only that version has written.
    let (mark, other) = match mark {
        Some(mark) if is_about(&mark, contents) => (Some(mark), None),
        other => (None, other),
    };
    let synced = mark.map_or(0, |mark| mark.synced).max(last_done.unwrap_or(0));
    if contents.last_batch < synced {
        return Judgement::Truncated { synced };
    }
    let own = match last_done {
        Some(_) => Exactness::Exact,
        // Batches that were on this disk are gone together with their journal: an older copy.
        None if other.is_some_and(|mark| mark.synced > contents.last_batch) => Exactness::Open,
        None if may_miss_locks(contents, mark) => Exactness::Roster,
        None => Exactness::Exact,
    };
    Judgement::Trusted {
        exactness: contents.exactness.max(own),
        pages_intact: mark.is_some_and(|mark| !mark.sync_failed),
    }
}

fn is_about(mark: &Mark, contents: &LogContents) -> bool {
    match &mark.journal {
        Some(key) => contents.journal_keys.contains(key),
        None => !contents.mark_names_journal,
    }
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

#[cfg(test)]
mod tests {
    use keeper::change::Snapshot;

    use super::*;
    use crate::boot_id::BootId;
    use crate::store::Token;

    const KEY: [u8; 16] = [7; 16];

    fn contents(last_batch: u64) -> LogContents {
        LogContents {
            store_id: [1; 16],
            generation: 3,
            snapshot: Snapshot::default(),
            last_batch,
            token: Token(last_batch),
            exactness: Exactness::Exact,
            journal_keys: vec![KEY],
            mark_names_journal: true,
            at_rest: false,
            durability: Durability::Process,
            snapshot_bytes: 0,
            journals: 1,
            journal_bytes: 0,
        }
    }

    fn mark(acknowledged: u64, synced: u64, journal: Option<[u8; 16]>) -> Option<Mark> {
        let (store_id, boot, sync_failed) = ([1; 16], BootId([2; 16]), false);
        Some(Mark { store_id, boot, acknowledged, synced, sync_failed, journal })
    }

    fn exactness(judgement: Judgement) -> Exactness {
        match judgement {
            Judgement::Trusted { exactness, .. } => exactness,
            Judgement::Truncated { .. } => panic!("{judgement:?}"),
        }
    }

    #[test]
    fn only_the_mark_of_the_last_journal_proves_that_locks_are_complete() {
        let own = mark(9, 5, Some(KEY));
        let judged = |last_batch, mark| judge(&contents(last_batch), mark, None);
        assert_eq!(exactness(judged(9, own)), Exactness::Exact);
        assert_eq!(exactness(judged(8, own)), Exactness::Roster);
        assert_eq!(judged(4, own), Judgement::Truncated { synced: 5 });
        let other = mark(9, 5, Some([8; 16]));
        assert_eq!(exactness(judged(9, other)), Exactness::Roster);
        assert_eq!(exactness(judged(9, None)), Exactness::Roster);
        assert_eq!(exactness(judged(4, other)), Exactness::Open, "an older copy");
    }

    #[test]
    fn an_older_copy_is_open_however_its_server_stopped() {
        let other = mark(9, 5, Some([8; 16]));
        let stopped = LogContents { at_rest: true, ..contents(4) };
        assert_eq!(exactness(judge(&stopped, other, None)), Exactness::Open);
        let power = LogContents { durability: Durability::Power, ..contents(4) };
        assert_eq!(exactness(judge(&power, other, None)), Exactness::Open);
    }

    #[test]
    fn a_mark_without_a_journal_counts_until_a_later_version_has_written() {
        let old = mark(9, 5, None);
        let before = LogContents { mark_names_journal: false, ..contents(9) };
        assert_eq!(exactness(judge(&before, old, None)), Exactness::Exact);
        assert_eq!(exactness(judge(&contents(9), old, None)), Exactness::Roster);
    }

    #[test]
    fn what_an_earlier_start_recorded_is_never_improved() {
        for recorded in [Exactness::Roster, Exactness::Open] {
            let contents = LogContents { exactness: recorded, ..contents(9) };
            assert_eq!(exactness(judge(&contents, mark(9, 9, Some(KEY)), None)), recorded);
        }
    }
}
