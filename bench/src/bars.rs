//! What our server must reach beside the other one, in one and the same run.

use crate::compare::{Comparison, Row};
use crate::{Operation, Shape};

/// Calls without data, under load: so many times the other's throughput.
const SMALL_RATIO_MIN: f64 = 2.0;
/// READ and WRITE, under load.
const DATA_RATIO_MIN: f64 = 1.3;
/// One caller who waits for each reply: the best median, in parts of the other's.
const SINGLE_P50_MAX: f64 = 1.0;
const IDLE_RSS_MIB_MAX: f64 = 25.0;
const FIRST_ANSWER_MS_MAX: f64 = 100.0;

/// Every bar that is not reached, in words. What was not measured counts as not reached.
pub fn misses(found: &Comparison) -> Vec<String> {
    let mut misses: Vec<String> = found.rows.iter().filter_map(miss).collect();
    match found.servers.iter().find(|server| server.name == "lockkeeper") {
        Some(ours) => {
            if ours.idle_rss_mib > IDLE_RSS_MIB_MAX {
                let rss = ours.idle_rss_mib;
                misses.push(format!("idle memory {rss:.1} MiB, at most {IDLE_RSS_MIB_MAX}"));
            }
            if ours.start_to_first_answer_ms > FIRST_ANSWER_MS_MAX {
                let start = ours.start_to_first_answer_ms;
                misses.push(format!("first answer {start:.1} ms, at most {FIRST_ANSWER_MS_MAX}"));
            }
        }
        None => misses.push("our server was not measured".to_owned()),
    }
    misses
}

fn miss(row: &Row) -> Option<String> {
    let what = format!("{} {}", row.operation, row.shape);
    let Some(ours) = &row.ours else { return Some(format!("{what}: not measured")) };
    if row.shape == Shape::SINGLE {
        // Who waits for the disk cannot be judged by who does not.
        let ours = match row.operation {
            Operation::CreateRemove => row.ours_async.as_ref()?,
            _ => ours,
        };
        let (p50, max) = (ours.p50_us, row.ganesha.p50_us * SINGLE_P50_MAX);
        return (p50 > max).then(|| format!("{what}: median {p50:.1} us, at most {max:.1}"));
    }
    if row.shape != Shape::MEDIUM && row.shape != Shape::HIGH {
        return None;
    }
    let min = match row.operation {
        Operation::Null | Operation::GetAttr => SMALL_RATIO_MIN,
        Operation::Read(_) | Operation::Write(_) => DATA_RATIO_MIN,
        Operation::Lookup | Operation::CreateRemove => return None,
    };
    let ratio = row.ratio().unwrap_or(0.0);
    (ratio < min).then(|| format!("{what}: {ratio:.2} times, at least {min}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Measurement;
    use crate::compare::About;

    fn measured(operation: Operation, shape: Shape, ops: f64, p50_us: f64) -> Measurement {
        Measurement {
            operation,
            shape,
            ops_per_second: ops,
            p50_us,
            p99_us: p50_us,
            answered: 1,
            client_cpu_us: 0.0,
            server_cpu_us: None,
        }
    }

    fn row(operation: Operation, shape: Shape, ours: (f64, f64), ganesha: (f64, f64)) -> Row {
        Row {
            operation,
            shape,
            ours: Some(measured(operation, shape, ours.0, ours.1)),
            ours_async: None,
            ganesha: measured(operation, shape, ganesha.0, ganesha.1),
        }
    }

    fn comparison(rows: Vec<Row>, start: f64, rss: f64) -> Comparison {
        let name = "lockkeeper".to_owned();
        let about = About { name, start_to_first_answer_ms: start, idle_rss_mib: rss };
        Comparison { servers: vec![about], rows, others_share: 0.0 }
    }

    #[test]
    fn who_reaches_every_bar_exactly_misses_none() {
        let rows = vec![
            row(Operation::GetAttr, Shape::HIGH, (200.0, 9.0), (100.0, 1.0)),
            row(Operation::Read(1 << 20), Shape::MEDIUM, (130.0, 9.0), (100.0, 1.0)),
            row(Operation::Null, Shape::SINGLE, (1.0, 50.0), (100.0, 50.0)),
            row(Operation::CreateRemove, Shape::SINGLE, (1.0, 99.0), (100.0, 1.0)),
        ];
        assert_eq!(misses(&comparison(rows, 100.0, 25.0)), Vec::<String>::new());
    }

    #[test]
    fn every_bar_is_missed_by_its_own_name() {
        let mut rows = vec![
            row(Operation::GetAttr, Shape::HIGH, (199.0, 1.0), (100.0, 1.0)),
            row(Operation::Write(64 << 10), Shape::MEDIUM, (129.0, 1.0), (100.0, 1.0)),
            row(Operation::Lookup, Shape::SINGLE, (1.0, 50.1), (1.0, 50.0)),
        ];
        let mut create = row(Operation::CreateRemove, Shape::SINGLE, (1.0, 9.0), (1.0, 50.0));
        create.ours_async = Some(measured(Operation::CreateRemove, Shape::SINGLE, 1.0, 51.0));
        rows.push(create);
        let missed = misses(&comparison(rows, 100.1, 25.1));
        let names = [
            "getattr 8x16",
            "write-64K 4x8",
            "lookup 1x1",
            "create-remove 1x1",
            "idle memory",
            "first answer",
        ];
        assert_eq!(missed.len(), names.len(), "{missed:?}");
        for (missed, name) in missed.iter().zip(names) {
            assert!(missed.starts_with(name), "{missed}");
        }
    }

    #[test]
    fn what_was_not_measured_is_a_miss() {
        let mut alone = row(Operation::Null, Shape::HIGH, (9.0, 1.0), (1.0, 1.0));
        alone.ours = None;
        let found = Comparison { servers: Vec::new(), rows: vec![alone], others_share: 0.0 };
        assert_eq!(misses(&found).len(), 2);
    }
}
