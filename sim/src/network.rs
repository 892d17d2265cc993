//! One link for each host: it loses, repeats, delays, reorders, and can be cut in one direction.
//! No packet is older than `DELAY_MAX`, and every outage of a machine lasts longer than that, so
//! what was sent to a former life of a machine never reaches a later one. (Real UDP ghosts across a
//! restart are what the protocol cannot tell apart; they stay out of this world on purpose.)

use crate::queue::Ms;
use crate::random::Random;

pub const DELAY_MAX: Ms = 3000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToHost,
}

#[derive(Clone, Debug, Default)]
pub struct Link {
    pub cut_to_server: bool,
    pub cut_to_host: bool,
    /// Chances in a thousand.
    pub lose: u64,
    pub repeat: u64,
    pub delay: u64,
}

#[derive(Debug, Default)]
pub struct Sent {
    /// After how long each copy arrives.
    pub copies: [Option<Ms>; 2],
    pub faults: u64,
}

impl Link {
    pub fn is_cut(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.cut_to_server,
            Direction::ToHost => self.cut_to_host,
        }
    }

    /// A packet and its answer both get through.
    pub fn carries_both_ways(&self) -> bool {
        !self.cut_to_server && !self.cut_to_host
    }

    pub fn heal(&mut self) {
        *self = Self::default();
    }

    pub fn send(&self, direction: Direction, random: &mut Random) -> Sent {
        let mut sent = Sent::default();
        if self.is_cut(direction) || random.per_mille(self.lose) {
            sent.faults = 1;
            return sent;
        }
        sent.copies[0] = Some(self.time_under_way(random, &mut sent.faults));
        if random.per_mille(self.repeat) {
            sent.faults += 1;
            sent.copies[1] = Some(self.time_under_way(random, &mut sent.faults));
        }
        sent
    }

    fn time_under_way(&self, random: &mut Random, faults: &mut u64) -> Ms {
        if random.per_mille(self.delay) {
            *faults += 1;
            random.between(20, DELAY_MAX)
        } else {
            random.between(1, 5)
        }
    }
}
