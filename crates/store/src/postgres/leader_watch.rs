//! Decides whether a standby may take over, from successive reads of the leadership. It has no clock
//! and no connection of its own.
//!
//! Clocks of different machines are never compared: a leader is dead when its heartbeat counter has
//! stood still for the leader's own lease, while the database was available. An outage of the
//! database does not count, and the lease begins anew after it: the leader could not write either.

use std::time::{Duration, Instant};

use super::leadership::Leadership;
use super::process::ProcessIdentity;

/// What a standby may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeoverDecision {
    /// A node leads, or that is unknown.
    Wait,
    /// No node leads: there never was a leader, or the last one stopped cleanly.
    Vacant,
    /// The leader has died.
    LeaderDead,
}

/// When the leadership was queried and when the answer came. What was read was true at some moment
/// between the two.
#[derive(Clone, Copy, Debug)]
pub struct QueryTimes {
    /// Before the query was sent.
    pub sent: Instant,
    /// After the answer was received.
    pub answered: Instant,
}

impl QueryTimes {
    /// A query that took no time.
    pub fn at(instant: Instant) -> Self {
        Self { sent: instant, answered: instant }
    }
}

/// Watches the leader's heartbeat.
pub struct LeaderWatch {
    has_exited: fn(&ProcessIdentity) -> bool,
    last: Option<Observation>,
}

/// The last successful read, and for how long the counter has stood still.
struct Observation {
    nonce: u64,
    heartbeat: u64,
    connection: u64,
    answered: Instant,
    still: Duration,
}

impl Default for LeaderWatch {
    fn default() -> Self {
        Self::new(ProcessIdentity::has_exited)
    }
}

impl LeaderWatch {
    /// `has_exited` returns whether a process has certainly ended.
    pub fn new(has_exited: fn(&ProcessIdentity) -> bool) -> Self {
        Self { has_exited, last: None }
    }

    /// Takes one read of the leadership, `None` if it failed. To be called about every sixth of a
    /// lease.
    pub fn observe(
        &mut self,
        times: QueryTimes,
        leadership: Option<&Leadership>,
    ) -> TakeoverDecision {
        let Some(leadership) = leadership else {
            self.last = None;
            return TakeoverDecision::Wait;
        };
        let Some(leader) = leadership.leader.as_ref().filter(|leader| !leader.has_released) else {
            self.last = None;
            return TakeoverDecision::Vacant;
        };
        if leader.process.as_ref().is_some_and(self.has_exited) {
            return TakeoverDecision::LeaderDead;
        }
        let still = match &self.last {
            Some(last)
                if (last.nonce, last.heartbeat, last.connection)
                    == (leader.nonce, leader.heartbeat, leadership.connection) =>
            {
                // This process may have been paused, and the database unavailable meanwhile: a long
                // interval between two reads proves no more than a short one.
                let interval = times.sent.saturating_duration_since(last.answered);
                last.still + interval.min(leader.lease / 3)
            }
            _ => Duration::ZERO,
        };
        self.last = Some(Observation {
            nonce: leader.nonce,
            heartbeat: leader.heartbeat,
            connection: leadership.connection,
            answered: times.answered,
            still,
        });
        if still >= leader.lease { TakeoverDecision::LeaderDead } else { TakeoverDecision::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::super::leadership::Leader;
    use super::*;
    use crate::boot_id::BootId;

    const LEASE: Duration = Duration::from_secs(3);
    const STEP: Duration = Duration::from_millis(500);

    /// A standby that reads the leadership every sixth of a lease.
    struct World {
        watch: LeaderWatch,
        now: Instant,
        leadership: Leadership,
    }

    impl World {
        fn new() -> Self {
            let leader = Leader {
                node: "a".into(),
                since: String::new(),
                writer: 4,
                nonce: 40,
                timeline: None,
                heartbeat: 100,
                lease: LEASE,
                has_released: false,
                process: None,
            };
            let leadership = Leadership {
                leader: Some(leader),
                standbys: Vec::new(),
                unfenced: Vec::new(),
                connection: 1,
                timeline: String::new(),
            };
            Self { watch: LeaderWatch::new(|_| false), now: Instant::now(), leadership }
        }

        fn leader(&mut self) -> &mut Leader {
            self.leadership.leader.as_mut().unwrap()
        }

        fn observe(&mut self) -> TakeoverDecision {
            self.now += STEP;
            self.watch.observe(QueryTimes::at(self.now), Some(&self.leadership))
        }

        fn fail(&mut self) -> TakeoverDecision {
            self.now += STEP;
            self.watch.observe(QueryTimes::at(self.now), None)
        }

        /// The time from the first of these reads to the decision.
        fn until_dead(&mut self) -> Duration {
            let began = self.now;
            for _ in 0..100 {
                if self.observe() == TakeoverDecision::LeaderDead {
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
                assert_eq!(world.observe(), TakeoverDecision::Wait);
            }
            world.leader().heartbeat += 1;
        }
        // Also one that goes back, as after a crash of the database that lost the last heartbeats.
        world.leader().heartbeat = 3;
        assert_eq!(world.until_dead(), LEASE);
    }

    #[test]
    fn an_outage_of_the_database_is_no_death() {
        let mut world = World::new();
        for _ in 0..5 {
            assert_eq!(world.observe(), TakeoverDecision::Wait);
        }
        for _ in 0..60 {
            assert_eq!(world.fail(), TakeoverDecision::Wait);
        }
        assert_eq!(world.until_dead(), LEASE);
    }

    #[test]
    fn an_outage_between_two_reads_shows_as_a_new_connection() {
        let mut world = World::new();
        for _ in 0..5 {
            assert_eq!(world.observe(), TakeoverDecision::Wait);
        }
        world.leadership.connection = 2;
        assert_eq!(world.until_dead(), LEASE);
    }

    #[test]
    fn a_standby_that_was_paused_reads_again_before_it_decides() {
        let mut world = World::new();
        world.observe();
        world.now += 100 * LEASE;
        assert_eq!(world.observe(), TakeoverDecision::Wait);
    }

    #[test]
    fn the_time_that_a_slow_answer_took_does_not_count() {
        let mut world = World::new();
        for _ in 0..20 {
            let sent = world.now;
            world.now += STEP;
            let times = QueryTimes { sent, answered: world.now };
            assert_eq!(world.watch.observe(times, Some(&world.leadership)), TakeoverDecision::Wait);
        }
    }

    #[test]
    fn another_leader_has_a_lease_of_its_own() {
        let mut world = World::new();
        for _ in 0..5 {
            world.observe();
        }
        world.leader().nonce += 1;
        world.leader().lease = 2 * LEASE;
        assert_eq!(world.until_dead(), 2 * LEASE);
    }

    #[test]
    fn a_leadership_that_is_empty_or_released_is_vacant() {
        let mut world = World::new();
        assert_eq!(world.observe(), TakeoverDecision::Wait);
        world.leader().has_released = true;
        assert_eq!(world.observe(), TakeoverDecision::Vacant);
        world.leadership.leader = None;
        assert_eq!(world.observe(), TakeoverDecision::Vacant);
    }

    #[test]
    fn a_process_that_has_exited_is_not_waited_for() {
        let mut world = World::new();
        world.watch = LeaderWatch::new(|process| process.pid == 77);
        let process = |pid| ProcessIdentity {
            boot: BootId([1; 16]),
            namespaces: String::new(),
            pid,
            started: 5,
        };
        world.leader().process = Some(process(76));
        assert_eq!(world.observe(), TakeoverDecision::Wait);
        world.leader().process = Some(process(77));
        assert_eq!(world.observe(), TakeoverDecision::LeaderDead);
    }
}
