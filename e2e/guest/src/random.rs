//! A seeded random source (splitmix64), the same on every machine.

#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent stream for each (seed, a, b), so that a turn can be repeated without the others.
    pub fn stream(seed: u64, a: u64, b: u64) -> Self {
        let mut random = Self(seed);
        for part in [a, b] {
            random = Self(random.next() ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        }
        random
    }

    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut one, mut two) = (Random::stream(1, 2, 3), Random::stream(1, 2, 3));
        assert_eq!(one.bytes(37), two.bytes(37));
        assert_ne!(Random::stream(1, 2, 3).next(), Random::stream(1, 3, 2).next());
    }
}
