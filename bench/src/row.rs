//! One operation in one shape, measured of every server.

use serde::Serialize;

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
}

#[derive(Debug, Clone, Serialize)]
pub struct Ours {
    pub variant: Variant,
    pub measured: Measurement,
    pub before: Option<Before>,
}

/// The same variant of the older binary, and how ours compares with it.
#[derive(Debug, Clone, Serialize)]
pub struct Before {
    pub measured: Measurement,
    /// Calls per second, ours/before.
    pub throughput: Option<Ratio>,
    /// Processor time of the server per call, ours/before.
    pub server_cpu: Option<Ratio>,
}

impl Row {
    pub fn ours(&self, variant: Variant) -> Option<&Measurement> {
        self.ours.iter().find(|ours| ours.variant == variant).map(|ours| &ours.measured)
    }

    /// How many times the throughput of nfs-ganesha ours is.
    pub fn ratio(&self, variant: Variant) -> Option<f64> {
        Some(self.ours(variant)?.ops_per_second / self.ganesha.as_ref()?.ops_per_second)
    }
}

impl Ours {
    /// From the measurements of each round. `before` has as many as `ours`, of the same rounds, or
    /// none. `None` if nothing was measured.
    pub(crate) fn merge(
        variant: Variant,
        ours: &[Measurement],
        before: &[Measurement],
    ) -> Option<Self> {
        let measured = Measurement::merge(ours)?;
        Some(Self { variant, measured, before: Before::merge(ours, before) })
    }
}

impl Before {
    fn merge(ours: &[Measurement], before: &[Measurement]) -> Option<Self> {
        let pairs = |of: fn(&Measurement) -> f64| {
            ours.iter().zip(before).map(move |(ours, before)| (of(ours), of(before)))
        };
        Some(Self {
            measured: Measurement::merge(before)?,
            throughput: Ratio::of(pairs(|m| m.ops_per_second), Better::Higher),
            server_cpu: Ratio::of(pairs(|m| m.server_cpu_us.unwrap_or(0.0)), Better::Lower),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Significance;

    fn measured(ops_per_second: f64, server_cpu_us: f64) -> Measurement {
        Measurement {
            operation: Operation::Null,
            shape: Shape::SINGLE,
            ops_per_second,
            p50_us: 1.0,
            p99_us: 1.0,
            answered: 1,
            client_cpu_us: 0.0,
            server_cpu_us: Some(server_cpu_us),
        }
    }

    #[test]
    fn more_calls_and_less_processor_time_are_both_better() {
        let ours = [measured(110.0, 9.0), measured(240.0, 4.0)];
        let before = [measured(100.0, 10.0), measured(200.0, 5.0)];
        let merged = Ours::merge(Variant::Default, &ours, &before).unwrap();
        assert_eq!(merged.measured.ops_per_second, 175.0);
        let before = merged.before.unwrap();
        assert_eq!(before.measured.ops_per_second, 150.0);
        let (throughput, cpu) = (before.throughput.unwrap(), before.server_cpu.unwrap());
        assert_eq!((throughput.rounds, throughput.verdict), (vec![1.1, 1.2], Significance::Better));
        assert_eq!((cpu.rounds, cpu.verdict), (vec![0.9, 0.8], Significance::Better));
    }

    #[test]
    fn without_an_older_binary_there_is_no_ratio() {
        let merged = Ours::merge(Variant::Default, &[measured(1.0, 1.0)], &[]).unwrap();
        assert!(merged.before.is_none());
        assert!(Ours::merge(Variant::Default, &[], &[]).is_none());
    }
}
