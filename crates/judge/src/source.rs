//! The source of sample values: a seed determines the sequence.

use bytes::Bytes;

/// A type whose values can be generated.
pub trait Any: Sized {
    fn any(source: &mut Source) -> Self;
}

/// A seeded sequence (splitmix64).
#[derive(Debug, Clone)]
pub struct Source(u64);

impl Source {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn any<T: Any>(&mut self) -> T {
        T::any(self)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; zero if `bound` is.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A length up to `max`: mostly short, so that every padding occurs often, sometimes `max`.
    pub fn length(&mut self, max: usize) -> usize {
        match self.below(64) {
            0 => max,
            1 => self.below(max + 1),
            _ => self.below(max.min(13) + 1),
        }
    }

    /// Any bytes, at most `max` of them.
    pub fn bytes(&mut self, max: usize) -> Bytes {
        let length = self.length(max);
        (0..length).map(|_| self.word() as u8).collect()
    }

    /// Bytes other than NUL, at most `max` of them.
    pub fn name(&mut self, max: usize) -> Bytes {
        let length = self.length(max);
        (0..length).map(|_| (self.word() as u8).max(1)).collect()
    }

    /// Letters and digits, at most `max` of them.
    pub fn text(&mut self, max: usize) -> Bytes {
        const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789-_.";
        let length = self.length(max);
        (0..length).map(|_| LETTERS[self.below(LETTERS.len())]).collect()
    }
}

impl Any for () {
    fn any(_: &mut Source) -> Self {}
}

impl Any for bool {
    fn any(source: &mut Source) -> Self {
        source.one_in(2)
    }
}

/// Small numbers and the ends of the range are as likely as all others.
impl Any for u64 {
    fn any(source: &mut Source) -> Self {
        match source.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::from(u32::MAX),
            3 => source.word() & 0xff,
            _ => source.word(),
        }
    }
}

impl Any for u32 {
    fn any(source: &mut Source) -> Self {
        match source.below(8) {
            0 => 0,
            1 => u32::MAX,
            2 => source.word() as u32 & 0xff,
            _ => source.word() as u32,
        }
    }
}

impl Any for i32 {
    fn any(source: &mut Source) -> Self {
        source.any::<u32>().cast_signed()
    }
}

impl<const N: usize> Any for [u8; N] {
    fn any(source: &mut Source) -> Self {
        std::array::from_fn(|_| source.word() as u8)
    }
}

impl<T: Any> Any for Option<T> {
    fn any(source: &mut Source) -> Self {
        source.any::<bool>().then(|| source.any())
    }
}

/// Lists of none, one or a few.
impl<T: Any> Any for Vec<T> {
    fn any(source: &mut Source) -> Self {
        let length = source.below(5);
        (0..length).map(|_| source.any()).collect()
    }
}
