//! One operation in one shape, measured of every server.

use serde::Serialize;

use crate::limit::Loop;
use crate::lockkeeper::Variant;
use crate::ratio::{Better, Ratio};
use load::{Measurement, Operation, Shape};

#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub operation: Operation,
    pub shape: Shape,
    /// Our server in each variant that was measured; none if it was not compared.
    pub ours: Vec<Ours>,
    /// `None` if it was left out.
    pub ganesha: Option<Measurement>,
    /// What the machine can do; none of what moves no data.
    pub limits: Vec<Limit>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Limit {
    pub by: Loop,
    pub measured: Measurement,
}

#[derive(Debug, Clone, Serialize)]
pub struct Ours {
    pub variant: Variant,
    pub measured: Measurement,
    pub to_ganesha: Option<Ratios>,
    pub to_limits: Vec<(Loop, Ratios)>,
    pub before: Option<Before>,
}

/// The same variant of the older binary, and how ours compares with it.
#[derive(Debug, Clone, Serialize)]
pub struct Before {
    pub measured: Measurement,
    pub ratios: Ratios,
}

/// Ours to another server, over the rounds in which both were measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Ratios {
    /// Calls per second.
    pub throughput: Option<Ratio>,
    /// Processor time of the server per call.
    pub server_cpu: Option<Ratio>,
    pub p50: Option<Ratio>,
}

impl Row {
    pub fn ours(&self, variant: Variant) -> Option<&Ours> {
        self.ours.iter().find(|ours| ours.variant == variant)
    }

    pub fn limit(&self, by: Loop) -> Option<&Measurement> {
        self.limits.iter().find(|limit| limit.by == by).map(|limit| &limit.measured)
    }
}

impl Ours {
    pub fn to_limit(&self, by: Loop) -> Option<&Ratios> {
        self.to_limits.iter().find(|(named, _)| *named == by).map(|(_, ratios)| ratios)
    }
}

impl Ratios {
    /// From the measurements of each round, of as many rounds.
    pub(crate) fn of(ours: &[Measurement], other: &[Measurement]) -> Self {
        let ratio = |of: fn(&Measurement) -> f64, better| {
            let pairs = ours.iter().zip(other).map(|(ours, other)| (of(ours), of(other)));
            Ratio::of(pairs, better)
        };
        Self {
            throughput: ratio(|m| m.ops_per_second, Better::Higher),
            server_cpu: ratio(|m| m.server_cpu_us.unwrap_or(0.0), Better::Lower),
            p50: ratio(|m| m.p50_us, Better::Lower),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Significance;

    fn measured(ops_per_second: f64, server_cpu_us: Option<f64>) -> Measurement {
        Measurement {
            operation: Operation::Null,
            shape: Shape::SINGLE,
            ops_per_second,
            p50_us: 1e6 / ops_per_second,
            p99_us: 1.0,
            answered: 1,
            client_cpu_us: 0.0,
            server_cpu_us,
        }
    }

    #[test]
    fn more_calls_and_less_time_are_both_better() {
        let ours = [measured(110.0, Some(9.0)), measured(240.0, Some(4.0))];
        let other = [measured(100.0, Some(10.0)), measured(200.0, Some(5.0))];
        let Ratios { throughput, server_cpu, p50 } = Ratios::of(&ours, &other);
        let (throughput, cpu) = (throughput.unwrap(), server_cpu.unwrap());
        assert_eq!((throughput.rounds, throughput.verdict), (vec![1.1, 1.2], Significance::Better));
        assert_eq!((cpu.rounds, cpu.verdict), (vec![0.9, 0.8], Significance::Better));
        assert_eq!(p50.unwrap().verdict, Significance::Better);
    }

    #[test]
    fn without_processor_times_the_other_ratios_remain() {
        let rounds = [measured(1.0, None), measured(1.0, None)];
        let ratios = Ratios::of(&rounds, &rounds);
        assert!(ratios.server_cpu.is_none() && ratios.throughput.is_some());
        assert!(Ratios::of(&[], &[]).throughput.is_none());
    }
}
