//! The only random source: xoshiro256**, seeded by splitmix64. Implemented here so that a seed means
//! the same run with every toolchain and dependency version. A fuzzer chooses the first draws itself.

#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
    /// The high bits of the next draws, the last first.
    choices: Vec<u16>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut x = seed;
        let state = std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state, choices: Vec::new() }
    }

    /// The first draws are those of `choices`, two bytes each; the others follow from the length and
    /// the last of them.
    pub(crate) fn chosen(choices: &[u8]) -> Self {
        let chosen = choices.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let choices: Vec<u16> = chosen.rev().collect();
        let seed = choices.first().map_or(0, |last| u64::from(*last)) << 32 | choices.len() as u64;
        Self { choices, ..Self::new(seed) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= t;
        self.state[3] = self.state[3].rotate_left(45);
        match self.choices.pop() {
            Some(high) => u64::from(high) << 48 | result >> 16,
            None => result,
        }
    }

    /// Uniform below `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64 }
    }

    /// Uniform; both ends included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn per_mille(&mut self, chance: u64) -> bool {
        self.below(1000) < chance
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_sequence() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..5).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn choices_come_first() {
        let mut random = Random::chosen(&[0, 0, 0xff, 0xff, 0, 0x80]);
        assert_eq!([random.below(100), random.below(100), random.below(100)], [0, 99, 50]);
        let mut again = Random::chosen(&[1, 0, 0xff, 0xff, 0, 0x80]);
        assert_eq!([again.below(100), again.below(100), again.below(100)], [0, 99, 50]);
        assert_eq!(random.below(1 << 40), again.below(1 << 40));
    }
}
