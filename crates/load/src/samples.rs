//! Call latencies. All are kept, so that percentiles are exact.

use std::time::Duration;

#[derive(Debug, Default)]
pub struct Samples {
    nanoseconds: Vec<u32>,
}

impl Samples {
    pub fn with_capacity(calls: usize) -> Self {
        Self { nanoseconds: Vec::with_capacity(calls) }
    }

    pub fn len(&self) -> usize {
        self.nanoseconds.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nanoseconds.is_empty()
    }

    /// Records one latency, capped at 4.29 s.
    pub fn record(&mut self, took: Duration) {
        self.nanoseconds.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
    }

    pub fn append(&mut self, mut other: Self) {
        self.nanoseconds.append(&mut other.nanoseconds);
    }

    /// The smallest time that at least `share` (0 to 1) of the calls did not exceed.
    pub fn percentile(&mut self, share: f64) -> Option<Duration> {
        let count = self.nanoseconds.len();
        let rank = (share.clamp(0.0, 1.0) * count as f64).ceil() as usize;
        let index = rank.max(1).checked_sub(1).filter(|index| *index < count)?;
        let (_, found, _) = self.nanoseconds.select_nth_unstable(index);
        Some(Duration::from_nanos(u64::from(*found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(nanoseconds: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        for ns in nanoseconds {
            samples.record(Duration::from_nanos(ns));
        }
        samples
    }

    #[test]
    fn percentiles_are_exact_whatever_the_order() {
        let mut hundred = samples((1..=100).rev());
        for (share, expected) in
            [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
        {
            assert_eq!(hundred.percentile(share), Some(Duration::from_nanos(expected)), "{share}");
        }
    }

    #[test]
    fn one_slow_call_in_two_hundred_moves_the_99_9th_percentile_and_not_the_99th() {
        let mut calls = samples((0..199).map(|_| 10).chain([1_000_000]));
        assert_eq!(calls.percentile(0.99), Some(Duration::from_nanos(10)));
        assert_eq!(calls.percentile(0.999), Some(Duration::from_nanos(1_000_000)));
    }

    #[test]
    fn percentiles_of_few_or_no_calls() {
        assert_eq!(samples([]).percentile(0.5), None);
        assert_eq!(samples([7]).percentile(0.99), Some(Duration::from_nanos(7)));
        assert_eq!(samples([7, 9]).percentile(0.5), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn two_connections_make_one_distribution() {
        let mut all = samples([1, 2, 3]);
        all.append(samples([4, 5]));
        assert_eq!((all.len(), all.percentile(0.5)), (5, Some(Duration::from_nanos(3))));
    }
}
