//! Performance targets, relative to nfs-ganesha in the same run.

use crate::compare::Comparison;
use crate::lockkeeper::{Build, Variant};
use crate::row::Row;
use load::{Operation, Shape};

const OURS: &str = "lockkeeper";

/// Calls without data, under load: throughput relative to nfs-ganesha's.
const SMALL_RATIO_MIN: f64 = 2.0;
/// READ and WRITE, under load.
const DATA_RATIO_MIN: f64 = 1.3;
/// One call at a time: the median relative to nfs-ganesha's.
const SINGLE_P50_MAX: f64 = 1.0;
/// Locks, under load, that survive a crash of the server process, as nfs-ganesha's do.
const LOCK_RATIO_MIN: f64 = 3.0;
/// Locks, under load, that survive a power failure; nfs-ganesha's do not.
const LOCK_POWER_RATIO_MIN: f64 = 1.5;
/// Locks in PostgreSQL, under the heaviest load: per second, or relative to nfs-ganesha's.
const LOCK_POSTGRES_OPS_MIN: f64 = 20_000.0;
const LOCK_POSTGRES_RATIO_MIN: f64 = 0.8;
/// One lock at a time.
const LOCK_SINGLE_P50_US_MAX: f64 = 100.0;
/// From the start after a kill to the first reclaim, with up to a million locks held.
const FIRST_RECLAIM_MS_MAX: f64 = 3_000.0;
/// The same, with the locks in PostgreSQL.
const FIRST_RECLAIM_POSTGRES_MS_MAX: f64 = 10_000.0;
/// A page of 100 locks, while others are taken and released.
const LOOK_P99_MS_MAX: f64 = 20.0;
const SCRAPE_MS_MAX: f64 = 50.0;
/// Lock throughput lost to a monitor.
const WATCHED_LOSS_MAX: f64 = 0.05;
const IDLE_RSS_MIB_MAX: f64 = 25.0;
const FIRST_ANSWER_MS_MAX: f64 = 100.0;

/// A sentence for every target that was missed or not measured.
pub fn misses(found: &Comparison) -> Vec<String> {
    let mut misses = Vec::new();
    for row in &found.rows {
        match row.operation.locks() {
            true => misses.extend(lock_misses(row)),
            false => misses.extend(miss(row)),
        }
    }
    if found.rows.iter().any(|row| row.operation.locks()) {
        misses.extend(handover_miss(found));
        misses.extend(restart_miss(found, Variant::Many, FIRST_RECLAIM_MS_MAX));
        let postgres = Variant::PostgresMany;
        misses.extend(restart_miss(found, postgres, FIRST_RECLAIM_POSTGRES_MS_MAX));
        misses.extend(watched_misses(found));
    }
    match found.servers.iter().find(|server| server.name == OURS) {
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

fn watched_misses(found: &Comparison) -> Vec<String> {
    let Some(watched) = &found.watched else { return vec!["watched: not measured".to_owned()] };
    let bars = [
        ("a look, ms", watched.look_p99_ms, LOOK_P99_MS_MAX),
        ("a scrape, ms", watched.scrape_max_ms, SCRAPE_MS_MAX),
        ("lost to looking", watched.loss, WATCHED_LOSS_MAX),
    ];
    let missed = bars.into_iter().filter(|(_, found, max)| found > max);
    missed.map(|(what, found, max)| format!("{what}: {found:.3}, at most {max}")).collect()
}

fn miss(row: &Row) -> Option<String> {
    let what = format!("{} {}", row.operation, row.shape);
    let (Some(ours), Some(ganesha)) = (row.ours(Variant::Default), &row.ganesha) else {
        return Some(format!("{what}: not measured"));
    };
    if row.shape == Shape::SINGLE {
        // nfs-ganesha does not wait for the disk here.
        let ours = match row.operation {
            Operation::CreateRemove => row.ours(Variant::Async)?,
            _ => ours,
        };
        let (p50, max) = (ours.p50_us, ganesha.p50_us * SINGLE_P50_MAX);
        return (p50 > max).then(|| format!("{what}: median {p50:.1} us, at most {max:.1}"));
    }
    if row.shape != Shape::MEDIUM && row.shape != Shape::HIGH {
        return None;
    }
    let min = match row.operation {
        Operation::Null | Operation::GetAttr => SMALL_RATIO_MIN,
        Operation::Read(_) | Operation::Write(_) => DATA_RATIO_MIN,
        Operation::Lookup | Operation::CreateRemove | Operation::LockUnlock => return None,
    };
    let ratio = row.ratio(Variant::Default).unwrap_or(0.0);
    (ratio < min).then(|| format!("{what}: {ratio:.2} times, at least {min}"))
}

fn lock_misses(row: &Row) -> Vec<String> {
    let what = format!("{} {}", row.operation, row.shape);
    if row.shape == Shape::SINGLE {
        return match row.ours(Variant::Default).map(|ours| ours.p50_us) {
            Some(p50) if p50 <= LOCK_SINGLE_P50_US_MAX => Vec::new(),
            Some(p50) => {
                vec![format!("{what}: median {p50:.1} us, at most {LOCK_SINGLE_P50_US_MAX}")]
            }
            None => vec![format!("{what}: not measured")],
        };
    }
    if row.shape != Shape::MEDIUM && row.shape != Shape::HIGH {
        return Vec::new();
    }
    let ratios = [
        ("", row.ratio(Variant::Default), LOCK_RATIO_MIN),
        (" power", row.ratio(Variant::Power), LOCK_POWER_RATIO_MIN),
    ];
    let miss = |(kind, ratio, min): (&str, Option<f64>, f64)| match ratio {
        Some(ratio) if ratio >= min => None,
        Some(ratio) => Some(format!("{what}{kind}: {ratio:.2} times, at least {min}")),
        None => Some(format!("{what}{kind}: not measured")),
    };
    let mut misses: Vec<String> = ratios.into_iter().filter_map(miss).collect();
    if row.shape == Shape::HIGH {
        misses.extend(postgres_miss(row, &what));
    }
    misses
}

/// Either suffices: on a slow machine nfs-ganesha is slow, too.
fn postgres_miss(row: &Row, what: &str) -> Option<String> {
    let postgres = Variant::Postgres;
    let (Some(ours), Some(ratio)) = (row.ours(postgres), row.ratio(postgres)) else {
        return Some(format!("{what} postgres: not measured"));
    };
    let ops = ours.ops_per_second;
    (ops < LOCK_POSTGRES_OPS_MIN && ratio < LOCK_POSTGRES_RATIO_MIN).then(|| {
        format!(
            "{what} postgres: {ops:.0} in a second, at least {LOCK_POSTGRES_OPS_MIN}, \
             or {ratio:.2} times, at least {LOCK_POSTGRES_RATIO_MIN}"
        )
    })
}

/// The only target is that waiters are called back.
fn handover_miss(found: &Comparison) -> Option<String> {
    let ours = found.handovers.iter().find(|handover| handover.server.starts_with(OURS));
    let told = ours.is_some_and(|ours| ours.latency.is_some());
    (!told).then(|| "from UNLOCK to GRANTED: the waiter was not told".to_owned())
}

fn restart_miss(found: &Comparison, many: Variant, max: f64) -> Option<String> {
    let name = Build::Current.name(many);
    let Some(ours) = found.restarts.iter().find(|restart| restart.server == name) else {
        return Some(format!("restart with locks, {name}: not measured"));
    };
    let what = format!("restart with {} locks, {name}", ours.locks);
    match ours.first_reclaim_ms {
        Some(ms) if ms <= max => None,
        Some(ms) => Some(format!("{what}: first reclaim {ms:.0} ms, at most {max}")),
        None => Some(format!("{what}: no reclaim was answered")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::About;
    use crate::monitoring::MonitoringCost;
    use crate::restart::Restart;
    use crate::row::Ours;
    use crate::waiting::{Handover, Latency};
    use load::Measurement;

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
        let ganesha = Some(measured(operation, shape, ganesha.0, ganesha.1));
        let mut row = Row { operation, shape, ours: Vec::new(), ganesha };
        set(&mut row, Variant::Default, ours.0, ours.1);
        row
    }

    fn set(row: &mut Row, variant: Variant, ops: f64, p50_us: f64) {
        row.ours.retain(|ours| ours.variant != variant);
        let measured = measured(row.operation, row.shape, ops, p50_us);
        row.ours.push(Ours { variant, measured, before: None });
    }

    fn comparison(rows: Vec<Row>, start: f64, rss: f64) -> Comparison {
        let name = "lockkeeper".to_owned();
        let about = About { name, start_to_first_answer_ms: start, idle_rss_mib: rss };
        let (handovers, restarts) = (Vec::new(), Vec::new());
        Comparison {
            servers: vec![about],
            rows,
            handovers,
            restarts,
            watched: None,
            instructions: Vec::new(),
            others_share: 0.0,
        }
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
        set(&mut create, Variant::Async, 1.0, 51.0);
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
        alone.ours.clear();
        let mut found = comparison(vec![alone], 1.0, 1.0);
        found.servers.clear();
        assert_eq!(misses(&found).len(), 2);
    }

    /// Locks in all shapes, which reach every bar exactly.
    fn locks() -> Comparison {
        let lock = |shape, ours| row(Operation::LockUnlock, shape, ours, (100.0, 1.0));
        let mut rows = vec![
            lock(Shape::HIGH, (300.0, 9.0)),
            lock(Shape::MEDIUM, (300.0, 9.0)),
            lock(Shape::SINGLE, (1.0, 100.0)),
        ];
        set(&mut rows[0], Variant::Power, 150.0, 1.0);
        set(&mut rows[1], Variant::Power, 150.0, 1.0);
        set(&mut rows[0], Variant::Postgres, 80.0, 1.0);
        let mut found = comparison(rows, 1.0, 1.0);
        let latency = Some(Latency { p50_us: 1e6, p99_us: 1e6, rounds: 1 });
        found.handovers.push(Handover { server: OURS.to_owned(), latency });
        for (many, ms) in [(Variant::Many, 3_000.0), (Variant::PostgresMany, 10_000.0)] {
            found.restarts.push(Restart {
                server: Build::Current.name(many),
                locks: 1_000_000,
                rss_mib: 1.0,
                first_reclaim_ms: Some(ms),
                all_reclaimed_ms: None,
                new_lock_ms: None,
            });
        }
        found.watched = Some(MonitoringCost {
            locks: 1_000_000,
            clients: 10_000,
            looks: 100,
            look_p99_ms: 20.0,
            scrapes: 10,
            scrape_max_ms: 50.0,
            alone_ops: 100.0,
            watched_ops: 95.0,
            loss: 0.05,
        });
        found
    }

    #[test]
    fn locks_that_reach_every_bar_exactly_miss_none() {
        assert_eq!(misses(&locks()), Vec::<String>::new());
    }

    #[test]
    fn every_bar_of_locks_is_missed_by_its_own_name() {
        let mut found = locks();
        set(&mut found.rows[0], Variant::Default, 299.0, 1.0);
        set(&mut found.rows[0], Variant::Postgres, 79.0, 1.0);
        set(&mut found.rows[1], Variant::Power, 149.0, 1.0);
        set(&mut found.rows[2], Variant::Default, 1e6, 100.1);
        found.handovers[0].latency = None;
        found.restarts[0].first_reclaim_ms = Some(3_001.0);
        found.restarts[1].first_reclaim_ms = Some(10_001.0);
        if let Some(watched) = &mut found.watched {
            (watched.look_p99_ms, watched.scrape_max_ms) = (20.1, 50.1);
            watched.loss = 0.051;
        }
        let missed = misses(&found);
        let names = [
            "lock-unlock 8x16: 2.99",
            "lock-unlock 8x16 postgres: 79 in a second",
            "lock-unlock 4x8 power: 1.49",
            "lock-unlock 1x1: median 100.1",
            "from UNLOCK to GRANTED",
            "restart with 1000000 locks, lockkeeper-many: first reclaim 3001",
            "restart with 1000000 locks, lockkeeper-postgres-many: first reclaim 10001",
            "a look, ms: 20.1",
            "a scrape, ms: 50.1",
            "lost to looking: 0.051",
        ];
        assert_eq!(missed.len(), names.len(), "{missed:?}");
        for (missed, name) in missed.iter().zip(names) {
            assert!(missed.starts_with(name), "{missed}");
        }
    }

    #[test]
    fn enough_locks_in_postgres_are_enough_however_fast_the_other_is() {
        let mut found = locks();
        let row = &mut found.rows[0];
        for (ops, missed) in [(20_000.0, false), (19_999.0, true)] {
            set(row, Variant::Postgres, ops, 1.0);
            row.ganesha = Some(measured(row.operation, row.shape, 100_000.0, 1.0));
            assert_eq!(postgres_miss(row, "locks").is_some(), missed, "{ops}");
        }
    }

    #[test]
    fn of_locks_too_what_was_not_measured_is_a_miss() {
        let mut found = locks();
        for row in &mut found.rows {
            row.ours.clear();
        }
        found.handovers.clear();
        found.restarts.clear();
        found.watched = None;
        assert_eq!(misses(&found).len(), 10);
        // No target for locks applies if they were not measured.
        found.rows.clear();
        assert_eq!(misses(&found), Vec::<String>::new());
    }
}
