//! How far the database can be trusted: decided from what was read of it, without I/O.
//!
//! A promotion of a replica begins a new timeline. Whether the replica had every acknowledged batch
//! cannot be seen in the database; what shows it is a token from outside: the memory of the leader, or
//! the mark in its run directory.

use keeper::change::Exactness;

use crate::store::Token;

/// What a start finds.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// What the last start recorded, until its grace has ended.
    pub(super) recorded: Exactness,
    /// The database acknowledged before it synced, and has crashed since.
    pub(super) crashed: bool,
    /// The rows were restored from a dump.
    pub(super) restored: bool,
    /// The timeline on which a leader vouched for the rows; `None` if none ever did, in the tables of
    /// an earlier version.
    pub(super) vouched: Option<String>,
    /// The present timeline.
    pub(super) timeline: String,
    /// The last batch that is stored.
    pub(super) token: Token,
    /// The last batch that was acknowledged, if that is known outside the database.
    pub(super) known: Option<Token>,
    /// The operator promises that only synchronous replicas are promoted, and nothing was seen to the
    /// contrary.
    pub(super) promised: bool,
}

impl Evidence {
    /// The store's judgement (B6.60).
    pub(super) fn exactness(&self) -> Exactness {
        let moved = self.vouched.as_ref().is_some_and(|vouched| *vouched != self.timeline);
        let lacks = self.known.is_some_and(|known| self.token < known);
        let unproven = moved && self.known.is_none() && !self.promised;
        // A replica replays whole transactions in order: one that has the last has them all. After a
        // crash that lost pages, a token proves nothing.
        let proven = moved && self.known.is_some();
        let own = match () {
            () if self.restored || lacks || unproven => Exactness::Open,
            () if self.crashed && !proven => Exactness::Roster,
            () => Exactness::Exact,
        };
        own.max(self.recorded)
    }
}

/// The recorded leader, seen by one that reconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Own,
    /// Another leader, that took the leadership on an earlier timeline: the database has lost that
    /// this server took it.
    Former,
    /// Another leader, that took the leadership on this timeline.
    Successor,
    /// Another leader, of this timeline, before this server: the tables were replaced.
    Predecessor,
}

/// The last batch in the database, compared with the last one that this leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Same,
    Earlier,
    /// A batch that this leader never wrote.
    Later,
}

/// What a leader finds when it reconnects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reconnected {
    pub(super) holder: Holder,
    pub(super) found: Found,
    /// The timeline differs from that of the take.
    pub(super) moved: bool,
    /// No other server can have led meanwhile on the former timeline: the last renewal there is
    /// younger than a lease, or this server is not one of a pair.
    pub(super) undisputed: bool,
    /// As in [`Evidence`].
    pub(super) promised: bool,
}

/// How a leader goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// It leads, and nothing is missing.
    Continue,
    /// Nothing is missing; the leadership of the former timeline is void and taken anew.
    Retake,
    /// Batches are missing: this server's memory has them, and replaces what is stored.
    WriteBack,
    /// Another server leads.
    Replaced,
    /// Batches are missing, perhaps also of a server that led meanwhile: the next start is open.
    Restart,
}

impl Reconnected {
    /// B6.61, B6.62
    pub(super) fn course(self) -> Course {
        match (self.holder, self.found) {
            (Holder::Successor, _) => Course::Replaced,
            (Holder::Predecessor, _) | (Holder::Own, Found::Later) => Course::Restart,
            (Holder::Own, Found::Same) if !self.moved => Course::Continue,
            (Holder::Own, Found::Same) if self.undisputed || self.promised => Course::Retake,
            (Holder::Former, _) | (Holder::Own, Found::Earlier) if self.undisputed => {
                Course::WriteBack
            }
            _ => Course::Restart,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [bool; 2] = [false, true];
    const ALL: [Exactness; 3] = [Exactness::Exact, Exactness::Roster, Exactness::Open];

    /// Every combination, against the rules one by one.
    #[test]
    fn exact_is_claimed_only_if_every_acknowledged_batch_is_there() {
        let mut counts = [0; 3];
        for recorded in ALL {
            for (crashed, restored) in BOTH.map(|a| BOTH.map(|b| (a, b))).concat() {
                for vouched in [None, Some("1"), Some("2")] {
                    for known in [None, Some(4), Some(5), Some(6)] {
                        for promised in BOTH {
                            let evidence = Evidence {
                                recorded,
                                crashed,
                                restored,
                                vouched: vouched.map(str::to_owned),
                                timeline: "2".into(),
                                token: Token(5),
                                known: known.map(Token),
                                promised,
                            };
                            let verdict = evidence.exactness();
                            counts[verdict as usize] += 1;
                            let moved = vouched == Some("1");
                            assert!(verdict >= recorded, "{evidence:?}");
                            if restored || known == Some(6) {
                                assert_eq!(verdict, Exactness::Open, "{evidence:?}");
                            } else if moved {
                                let proven = known.is_some() || promised;
                                let open = recorded == Exactness::Open || !proven;
                                assert_eq!(verdict == Exactness::Open, open, "{evidence:?}");
                            } else {
                                let own =
                                    if crashed { Exactness::Roster } else { Exactness::Exact };
                                assert_eq!(verdict, own.max(recorded), "{evidence:?}");
                            }
                        }
                    }
                }
            }
        }
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    }

    /// Every combination: what is lost is never treated as present, and no other leader is robbed.
    #[test]
    fn a_leader_that_reconnects_neither_lies_nor_robs() {
        let holders = [Holder::Own, Holder::Former, Holder::Successor, Holder::Predecessor];
        for holder in holders {
            for found in [Found::Same, Found::Earlier, Found::Later] {
                for moved in BOTH {
                    for undisputed in BOTH {
                        for promised in BOTH {
                            let at = Reconnected { holder, found, moved, undisputed, promised };
                            let course = at.course();
                            let complete = holder == Holder::Own && found == Found::Same;
                            let goes_on = matches!(course, Course::Continue | Course::Retake);
                            assert!(!goes_on || complete, "{at:?}: {course:?}");
                            assert!(course != Course::WriteBack || undisputed, "{at:?}");
                            assert!(course != Course::Continue || !moved, "{at:?}");
                            assert_eq!(
                                course == Course::Replaced,
                                holder == Holder::Successor,
                                "{at:?}"
                            );
                            if complete && moved {
                                assert_eq!(goes_on, undisputed || promised, "{at:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}
