//! Links, one per host: packets are lost, duplicated, delayed and reordered, and a link can be cut
//! in one direction. No packet takes longer than `DELAY_MAX`, and every outage of a machine lasts
//! longer than that, so no packet reaches a later boot of its destination. (The protocol cannot
//! recognise such packets over UDP; the world excludes them on purpose.)

use crate::queue::Ms;
use crate::random::Random;

pub(crate) const DELAY_MAX: Ms = 3000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToHost,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub cut_to_server: bool,
    pub cut_to_host: bool,
    /// Per mille.
    pub lose: u64,
    pub repeat: u64,
    pub delay: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Transmission {
    /// The delay of each copy.
    pub copies: [Option<Ms>; 2],
    pub faults: u64,
}

impl Link {
    pub(crate) fn is_cut(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.cut_to_server,
            Direction::ToHost => self.cut_to_host,
        }
    }

    /// Whether a packet and its answer both get through.
    pub(crate) fn carries_both_ways(&self) -> bool {
        !self.cut_to_server && !self.cut_to_host
    }

    pub(crate) fn heal(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn send(&self, direction: Direction, random: &mut Random) -> Transmission {
        let mut sent = Transmission::default();
        if self.is_cut(direction) || random.per_mille(self.lose) {
            sent.faults = 1;
            return sent;
        }
        sent.copies[0] = Some(self.transit_time(random, &mut sent.faults));
        if random.per_mille(self.repeat) {
            sent.faults += 1;
            sent.copies[1] = Some(self.transit_time(random, &mut sent.faults));
        }
        sent
    }

    fn transit_time(&self, random: &mut Random, faults: &mut u64) -> Ms {
        if random.per_mille(self.delay) {
            *faults += 1;
            random.between(20, DELAY_MAX)
        } else {
            random.between(1, 5)
        }
    }
}
