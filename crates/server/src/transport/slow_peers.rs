//! Which connections are closed while others wait for memory (B7.91): those whose peers would take the
//! longest to send or read what is held for them. No I/O and no clock.

use std::collections::HashMap;
use std::time::Duration;

use super::budget::ALLOWANCE;

/// A peer that releases what is held for it within this time, at the speed that it shows, is not slow.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// What is held for one direction of a connection, and the bytes that it has moved so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Direction {
    pub(crate) held: usize,
    pub(crate) moved: u64,
}

/// One connection at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) connection: u64,
    /// A record that is not complete. Nothing is held for a connection that is not being read.
    pub(crate) incoming: Direction,
    /// Replies that are not written.
    pub(crate) outgoing: Direction,
}

impl Sample {
    fn held(&self) -> usize {
        self.incoming.held + self.outgoing.held
    }
}

/// The connections to close so that `excess` bytes are released, the slowest first, by two samples taken
/// `apart`. May release less, if there are not so many slow ones.
pub(crate) fn slowest(
    earlier: &HashMap<u64, Sample>,
    later: &[Sample],
    apart: Duration,
    excess: usize,
) -> Vec<u64> {
    let mut slow: Vec<(f64, &Sample)> = later
        .iter()
        .filter(|sample| sample.held() > ALLOWANCE)
        .filter_map(|now| {
            let before = earlier.get(&now.connection)?;
            let incoming = drain_seconds(before.incoming, now.incoming, apart);
            let outgoing = drain_seconds(before.outgoing, now.outgoing, apart);
            Some((incoming.max(outgoing), now))
        })
        .filter(|(seconds, _)| *seconds > DRAIN_MAX.as_secs_f64())
        .collect();
    slow.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(other.held().cmp(&one.held())));
    let mut released = 0;
    let enough = slow.iter().position(|(_, sample)| {
        released += sample.held();
        released >= excess
    });
    slow.truncate(enough.map_or(slow.len(), |last| last + 1));
    slow.into_iter().map(|(_, sample)| sample.connection).collect()
}

/// How long the peer will need, if it goes on as between the two. Nothing held before is no time: it had
/// just begun.
fn drain_seconds(before: Direction, now: Direction, apart: Duration) -> f64 {
    let held = before.held.min(now.held);
    if held <= ALLOWANCE {
        return 0.0;
    }
    let speed = now.moved.saturating_sub(before.moved) as f64 / apart.as_secs_f64();
    now.held as f64 / speed
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MIB: usize = 1 << 20;

    fn sample(connection: u64, incoming: (usize, u64), outgoing: (usize, u64)) -> Sample {
        let direction = |(held, moved)| Direction { held, moved };
        Sample { connection, incoming: direction(incoming), outgoing: direction(outgoing) }
    }

    fn chosen(before: &[Sample], after: &[Sample], excess: usize) -> Vec<u64> {
        let before = before.iter().map(|sample| (sample.connection, *sample)).collect();
        slowest(&before, after, SECOND, excess)
    }

    #[test]
    fn who_moves_nothing_goes_first_and_no_more_go_than_needed() {
        let none = (0, 0);
        let before = [
            sample(1, none, (MIB, 0)),
            sample(2, none, (MIB, 0)),
            sample(3, (2 * MIB, 50), none),
            sample(4, none, (MIB, 0)),
        ];
        let after = [
            sample(1, none, (MIB, 10_000)),
            sample(2, none, (MIB, 0)),
            sample(3, (2 * MIB, 50), none),
            sample(4, none, (MIB, MIB as u64)),
        ];
        assert_eq!(chosen(&before, &after, 1), [3], "the largest of those that stand still");
        assert_eq!(chosen(&before, &after, 3 * MIB), [3, 2]);
        assert_eq!(chosen(&before, &after, 100 * MIB), [3, 2, 1], "4 reads fast enough");
    }

    #[test]
    fn who_trickles_is_slow_and_who_has_just_begun_is_not() {
        let before = [sample(1, (MIB, 0), (0, 0)), sample(2, (0, 0), (0, 0))];
        let after = [sample(1, (MIB, 4_000), (0, 0)), sample(2, (MIB, 0), (0, 0))];
        assert_eq!(chosen(&before, &after, 100 * MIB), [1]);
        let third = [sample(3, (MIB, 0), (0, 0))];
        assert!(chosen(&before, &third, 100 * MIB).is_empty(), "not seen before");
    }

    #[test]
    fn an_allowance_is_not_worth_a_connection() {
        let one = [sample(1, (0, 0), (ALLOWANCE, 0))];
        assert!(chosen(&one, &one, MIB).is_empty());
    }
}
