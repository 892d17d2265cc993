//! Whether the seat may be taken. Fed with looks at it, it says so; it has no clock and no
//! connection of its own.
//!
//! No clock of another machine is compared: a holder is dead when its heartbeat counter stood still
//! for a whole lease of *its own*, while the database was there to be read. A time in which it was
//! not does not count, and the lease begins anew after it: the holder could not write either.

use std::time::{Duration, Instant};

use super::process::Process;
use super::seat::Seat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Somebody serves, or nobody can know.
    Wait,
    /// Nobody serves: nobody ever did, or the last one stopped cleanly.
    Free,
    /// Whoever served does so no more.
    Dead,
}

/// When a look was asked for and when it was answered. What was read was true at some moment
/// between the two.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub asked: Instant,
    pub answered: Instant,
}

impl Moment {
    pub fn at(instant: Instant) -> Self {
        Self { asked: instant, answered: instant }
    }
}

pub struct Watch {
    is_gone: fn(&Process) -> bool,
    last: Option<Look>,
}

/// The last look that succeeded, and for how long the counter has stood as it was then.
struct Look {
    writer: u64,
    heartbeat: u64,
    connection: u64,
    answered: Instant,
    still: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(Process::is_gone)
    }
}

impl Watch {
    /// `is_gone` says whether it is certain that a process runs no more.
    pub fn new(is_gone: fn(&Process) -> bool) -> Self {
        Self { is_gone, last: None }
    }

    /// One look, about every sixth of a lease. `None` is a look that failed.
    pub fn look(&mut self, moment: Moment, seat: Option<&Seat>) -> Verdict {
        let Some(seat) = seat else {
            self.last = None;
            return Verdict::Wait;
        };
        let Some(holder) = seat.holder.as_ref().filter(|holder| !holder.left) else {
            self.last = None;
            return Verdict::Free;
        };
        if holder.process.as_ref().is_some_and(self.is_gone) {
            return Verdict::Dead;
        }
        let still = match &self.last {
            Some(last)
                if (last.writer, last.heartbeat, last.connection)
                    == (holder.writer, holder.heartbeat, seat.connection) =>
            {
                // We may have been stopped ourselves, and the database too in the meantime: a long
                // pause between two looks says no more than a short one.
                let pause = moment.asked.saturating_duration_since(last.answered);
                last.still + pause.min(holder.lease / 3)
            }
            _ => Duration::ZERO,
        };
        self.last = Some(Look {
            writer: holder.writer,
            heartbeat: holder.heartbeat,
            connection: seat.connection,
            answered: moment.answered,
            still,
        });
        if still >= holder.lease { Verdict::Dead } else { Verdict::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::super::seat::Holder;
    use super::*;
    use crate::embedded::mark::BootId;

    const LEASE: Duration = Duration::from_secs(3);
    const STEP: Duration = Duration::from_millis(500);

    /// A standby that looks every sixth of a lease.
    struct World {
        watch: Watch,
        now: Instant,
        seat: Seat,
    }

    impl World {
        fn new() -> Self {
            let holder = Holder {
                node: "a".into(),
                since: String::new(),
                writer: 4,
                heartbeat: 100,
                lease: LEASE,
                left: false,
                process: None,
            };
            let seat = Seat {
                holder: Some(holder),
                standbys: Vec::new(),
                unfenced: Vec::new(),
                connection: 1,
            };
            Self { watch: Watch::new(|_| false), now: Instant::now(), seat }
        }

        fn holder(&mut self) -> &mut Holder {
            self.seat.holder.as_mut().unwrap()
        }

        fn look(&mut self) -> Verdict {
            self.now += STEP;
            self.watch.look(Moment::at(self.now), Some(&self.seat))
        }

        fn fail(&mut self) -> Verdict {
            self.now += STEP;
            self.watch.look(Moment::at(self.now), None)
        }

        /// The time from the first of these looks to the verdict.
        fn until_dead(&mut self) -> Duration {
            let began = self.now;
            for _ in 0..100 {
                if self.look() == Verdict::Dead {
                    return self.now - began - STEP;
                }
            }
            Duration::MAX
        }
    }

    #[test]
    fn a_counter_that_stands_still_for_a_lease_is_a_death() {
        assert_eq!(World::new().until_dead(), LEASE);
    }

    #[test]
    fn a_counter_that_moves_is_life() {
        let mut world = World::new();
        for _ in 0..20 {
            for _ in 0..5 {
                assert_eq!(world.look(), Verdict::Wait);
            }
            world.holder().heartbeat += 1;
        }
        // Also one that goes back, as after a crash of the database that lost the last beats.
        world.holder().heartbeat = 3;
        assert_eq!(world.until_dead(), LEASE);
    }

    #[test]
    fn an_outage_of_the_database_is_no_death() {
        let mut world = World::new();
        for _ in 0..5 {
            assert_eq!(world.look(), Verdict::Wait);
        }
        for _ in 0..60 {
            assert_eq!(world.fail(), Verdict::Wait);
        }
        assert_eq!(world.until_dead(), LEASE);
    }

    #[test]
    fn an_outage_between_two_looks_shows_as_a_new_connection() {
        let mut world = World::new();
        for _ in 0..5 {
            assert_eq!(world.look(), Verdict::Wait);
        }
        world.seat.connection = 2;
        assert_eq!(world.until_dead(), LEASE);
    }

    #[test]
    fn a_standby_that_was_stopped_itself_looks_again_before_it_judges() {
        let mut world = World::new();
        world.look();
        world.now += 100 * LEASE;
        assert_eq!(world.look(), Verdict::Wait);
    }

    #[test]
    fn the_time_that_a_slow_answer_took_does_not_count() {
        let mut world = World::new();
        for _ in 0..20 {
            let asked = world.now;
            world.now += STEP;
            let moment = Moment { asked, answered: world.now };
            assert_eq!(world.watch.look(moment, Some(&world.seat)), Verdict::Wait);
        }
    }

    #[test]
    fn another_holder_has_a_lease_of_its_own() {
        let mut world = World::new();
        for _ in 0..5 {
            world.look();
        }
        world.holder().writer += 1;
        world.holder().lease = 2 * LEASE;
        assert_eq!(world.until_dead(), 2 * LEASE);
    }

    #[test]
    fn a_seat_that_is_empty_or_was_left_is_free() {
        let mut world = World::new();
        assert_eq!(world.look(), Verdict::Wait);
        world.holder().left = true;
        assert_eq!(world.look(), Verdict::Free);
        world.seat.holder = None;
        assert_eq!(world.look(), Verdict::Free);
    }

    #[test]
    fn a_process_that_is_known_to_be_gone_is_not_waited_for() {
        let mut world = World::new();
        world.watch = Watch::new(|process| process.pid == 77);
        let process =
            |pid| Process { boot: BootId([1; 16]), namespaces: String::new(), pid, started: 5 };
        world.holder().process = Some(process(76));
        assert_eq!(world.look(), Verdict::Wait);
        world.holder().process = Some(process(77));
        assert_eq!(world.look(), Verdict::Dead);
    }
}
