//! Two servers measured in the same rounds: the ratio of one to the other, and its spread.

use serde::Serialize;

/// A spread leaves out at most this much of the probability on either side.
const TAIL_MAX: f64 = 0.025;

/// The ratio ours/before over paired rounds.
///
/// The spread is the interval between order statistics that covers the true median with 95 %
/// probability, whatever the distribution of the noise. Up to eight rounds that is min..max, the
/// widest interval the rounds can give; with more it narrows, so that more rounds show smaller
/// differences, where min..max would only widen. An interquartile range of a few rounds would be
/// too narrow. Rounds share the server processes, so what a process keeps for its life (the layout
/// of its memory, of its files) is not part of the spread: a small difference needs a second run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub verdict: Significance,
    /// Of each round, in order.
    pub rounds: Vec<f64>,
}

/// Which direction of a ratio is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Significance {
    /// The spread contains 1: no difference is shown.
    WithinSpread,
    Better,
    Worse,
}

impl Ratio {
    /// Each pair is `(ours, before)` of one round. Rounds in which either is zero are left out;
    /// `None` if fewer than two remain, which have no spread.
    pub(crate) fn of(pairs: impl IntoIterator<Item = (f64, f64)>, better: Better) -> Option<Self> {
        let pairs = pairs.into_iter().filter(|(ours, before)| *ours > 0.0 && *before > 0.0);
        let rounds: Vec<f64> = pairs.map(|(ours, before)| ours / before).collect();
        if rounds.len() < 2 {
            return None;
        }
        let sorted = sorted(rounds.clone());
        let cut = cut(sorted.len());
        let (low, high) = (sorted[cut], sorted[sorted.len() - 1 - cut]);
        let verdict = match (low > 1.0, high < 1.0, better) {
            (false, false, _) => Significance::WithinSpread,
            (true, _, Better::Higher) | (_, true, Better::Lower) => Significance::Better,
            _ => Significance::Worse,
        };
        Some(Self { median: middle(&sorted), low, high, verdict, rounds })
    }
}

/// More are not computed correctly: the probability of one outcome must be a normal `f64`.
pub(crate) const ROUNDS_MAX: u64 = 1_000;

/// How probable it is that two equal servers are found different after so many rounds, if the
/// rounds are independent.
pub(crate) fn false_verdict_probability(rounds: usize) -> f64 {
    2.0 * tail(rounds, cut(rounds))
}

/// How many of the sorted ratios lie outside the spread on either side.
fn cut(rounds: usize) -> usize {
    (1..rounds / 2).take_while(|cut| tail(rounds, *cut) <= TAIL_MAX).last().unwrap_or(0)
}

/// The probability that at most `count` of `rounds` fair coins show heads: that the true median
/// lies outside, on one side, if so many ratios are cut off there.
fn tail(rounds: usize, count: usize) -> f64 {
    let mut exactly = 0.5_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX));
    let mut sum = exactly;
    for heads in 1..=count {
        exactly *= (rounds + 1 - heads) as f64 / heads as f64;
        sum += exactly;
    }
    sum
}

/// Of an even number, the mean of the two in the middle. There must be at least one.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    middle(&sorted(values))
}

fn middle(sorted: &[f64]) -> f64 {
    let (lower, upper) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    f64::midpoint(sorted[lower], sorted[upper])
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throughput(pairs: &[(f64, f64)]) -> Ratio {
        Ratio::of(pairs.iter().copied(), Better::Higher).unwrap()
    }

    #[test]
    fn rounds_are_paired_before_the_median_is_taken() {
        // The machine was three times as fast in the second round. Both sides have the same median;
        // only the pairs show that ours was slower in two rounds of three.
        let found = throughput(&[(90.0, 100.0), (270.0, 300.0), (100.0, 90.0)]);
        assert_eq!(found.median, 0.9);
        assert_eq!((found.low, found.high), (0.9, 100.0 / 90.0));
        assert_eq!(found.rounds, [0.9, 0.9, 100.0 / 90.0]);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let found = throughput(&[(8.0, 1.0), (1.0, 1.0), (3.0, 1.0), (2.0, 1.0)]);
        assert_eq!((found.median, found.low, found.high), (2.5, 1.0, 8.0));
    }

    #[test]
    fn a_spread_that_reaches_1_shows_no_difference() {
        for pairs in [
            [(0.5, 1.0), (0.9, 1.0), (1.0, 1.0)],
            [(1.0, 1.0), (1.1, 1.0), (9.0, 1.0)],
            [(0.5, 1.0), (0.6, 1.0), (1.1, 1.0)],
        ] {
            assert_eq!(throughput(&pairs).verdict, Significance::WithinSpread, "{pairs:?}");
        }
    }

    #[test]
    fn a_spread_on_one_side_of_1_is_a_difference() {
        let (above, below) = ([(1.01, 1.0), (1.5, 1.0)], [(0.99, 1.0), (0.5, 1.0)]);
        for (pairs, better, verdict) in [
            (above, Better::Higher, Significance::Better),
            (below, Better::Higher, Significance::Worse),
            (above, Better::Lower, Significance::Worse),
            (below, Better::Lower, Significance::Better),
        ] {
            let found = Ratio::of(pairs, better).unwrap();
            assert_eq!(found.verdict, verdict, "{pairs:?} {better:?}");
        }
    }

    #[test]
    fn one_outlier_hides_a_difference_in_eight_rounds_but_not_in_nine() {
        let mut pairs = vec![(0.9, 1.0); 7];
        pairs.push((1.2, 1.0));
        let found = throughput(&pairs);
        assert_eq!((found.high, found.verdict), (1.2, Significance::WithinSpread));
        pairs.push((0.8, 1.0));
        let found = throughput(&pairs);
        assert_eq!((found.low, found.high, found.verdict), (0.9, 0.9, Significance::Worse));
    }

    #[test]
    fn the_cut_is_that_of_the_sign_test() {
        // As in tables of the sign test, two-sided, 5 %.
        let table = [(2, 0), (5, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)];
        for (rounds, expected) in table {
            assert_eq!(cut(rounds), expected, "{rounds}");
        }
    }

    #[test]
    fn three_rounds_find_equal_servers_different_once_in_four_times() {
        assert_eq!(false_verdict_probability(3), 0.25);
        assert_eq!(false_verdict_probability(5), 0.0625);
        assert_eq!(false_verdict_probability(9), 20.0 / 512.0);
        let many = false_verdict_probability(ROUNDS_MAX as usize);
        assert!((0.04..=0.05).contains(&many), "{many}");
    }

    #[test]
    fn without_two_rounds_there_is_no_spread() {
        assert_eq!(Ratio::of([(1.0, 1.0)], Better::Higher), None);
        // A server whose processor time did not tick.
        assert_eq!(Ratio::of([(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)], Better::Lower), None);
    }
}
