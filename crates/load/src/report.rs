//! The result of a measurement, as a line of a table or as JSON.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::{Operation, Samples, Shape};

#[derive(Debug, Clone, Serialize)]
pub struct Measurement {
    pub operation: Operation,
    pub shape: Shape,
    pub ops_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// All answered calls, including those of the warm-up.
    pub answered: u64,
    /// CPU time of the load generator per call.
    pub client_cpu_us: f64,
    /// CPU time of the server per call, if its process is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_us: Option<f64>,
}

impl Measurement {
    /// `None` if no call was answered in the measured time.
    pub(crate) fn new(
        operation: Operation,
        shape: Shape,
        measured: Duration,
        mut samples: Samples,
        answered: u64,
        cpu: Duration,
    ) -> Option<Self> {
        Some(Self {
            operation,
            shape,
            ops_per_second: samples.len() as f64 / measured.as_secs_f64(),
            p50_us: micros(samples.percentile(0.50)?),
            p99_us: micros(samples.percentile(0.99)?),
            answered,
            client_cpu_us: micros(cpu) / answered.max(1) as f64,
            server_cpu_us: None,
        })
    }

    /// For READ and WRITE.
    pub fn mib_per_second(&self) -> Option<f64> {
        let bytes = self.operation.bytes();
        (bytes > 0).then(|| self.ops_per_second * f64::from(bytes) / f64::from(1 << 20))
    }

    /// Merges several rounds: of each number its median.
    pub fn merge(rounds: &[Self]) -> Option<Self> {
        let first = rounds.first()?;
        let of = |number: fn(&Self) -> f64| median(rounds.iter().map(number));
        Some(Self {
            operation: first.operation,
            shape: first.shape,
            ops_per_second: of(|m| m.ops_per_second)?,
            p50_us: of(|m| m.p50_us)?,
            p99_us: of(|m| m.p99_us)?,
            answered: rounds.iter().map(|m| m.answered).sum(),
            client_cpu_us: of(|m| m.client_cpu_us)?,
            server_cpu_us: median(rounds.iter().filter_map(|m| m.server_cpu_us)),
        })
    }
}

/// Of an even number, the mean of the two in the middle; `None` of none.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(sorted[(sorted.len() - 1) / 2], upper))
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// A table for people.
pub fn table(measurements: &[Measurement]) -> String {
    let mut out = format!(
        "{:<14} {:>6} {:>10} {:>10} {:>11} {:>11}\n",
        "operation", "shape", "ops/s", "MiB/s", "p50 us", "p99 us"
    );
    for m in measurements {
        let rate = m.mib_per_second().map_or(String::new(), |rate| format!("{rate:.0}"));
        let _ = writeln!(
            out,
            "{:<14} {:>6} {:>10.0} {:>10} {:>11.1} {:>11.1}",
            m.operation, m.shape, m.ops_per_second, rate, m.p50_us, m.p99_us
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(milliseconds: &[u64]) -> Measurement {
        let mut samples = Samples::default();
        milliseconds.iter().for_each(|ms| samples.record(Duration::from_millis(*ms)));
        let count = milliseconds.len() as u64;
        let second = Duration::from_secs(1);
        let cpu = Duration::from_millis(count);
        Measurement::new(Operation::Read(1 << 20), Shape::SINGLE, second, samples, count, cpu)
            .unwrap()
    }

    #[test]
    fn throughput_is_what_was_answered_per_second_of_measured_time() {
        let m = measured(&[1, 2, 3, 4]);
        assert_eq!((m.ops_per_second, m.p50_us, m.p99_us), (4.0, 2000.0, 4000.0));
        assert_eq!((m.mib_per_second(), m.client_cpu_us), (Some(4.0), 1000.0));
    }

    #[test]
    fn rounds_merge_to_their_medians() {
        let rounds = [measured(&[1, 1, 1, 9]), measured(&[2, 2]), measured(&[3])];
        let merged = Measurement::merge(&rounds).unwrap();
        assert_eq!((merged.ops_per_second, merged.p50_us, merged.p99_us), (2.0, 2000.0, 3000.0));
        assert_eq!((merged.answered, merged.server_cpu_us), (7, None));
        let merged = Measurement::merge(&rounds[..2]).unwrap();
        assert_eq!((merged.ops_per_second, merged.p50_us), (3.0, 1500.0));
        assert!(Measurement::merge(&[]).is_none());
    }
}
