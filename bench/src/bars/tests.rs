use super::*;
use crate::compare::About;
use crate::lockkeeper::Variant;
use crate::machine::Machine;
use crate::monitoring::MonitoringCost;
use crate::restart::Restart;
use crate::row::{Limit, Ratios};
use crate::waiting::{Handover, Latency};
use load::Measurement;

/// Calls per second, median latency, processor time per call.
type Numbers = (f64, f64, f64);

fn measured(operation: Operation, shape: Shape, (ops, p50_us, cpu): Numbers) -> Measurement {
    Measurement {
        operation,
        shape,
        ops_per_second: ops,
        p50_us,
        p99_us: p50_us,
        answered: 1,
        client_cpu_us: 0.0,
        server_cpu_us: Some(cpu),
    }
}

/// Beside nfs-ganesha with 100 calls per second, 100 us and 100 us of processor time, and a loop
/// with 400 calls per second and 25 us of processor time.
fn row(operation: Operation, shape: Shape, ours: Numbers) -> Row {
    let ganesha = Some(measured(operation, shape, (100.0, 100.0, 100.0)));
    let limit = Limit { by: Loop::Copy, measured: measured(operation, shape, (400.0, 1.0, 25.0)) };
    let mut row = Row { operation, shape, ours: Vec::new(), ganesha, limits: vec![limit] };
    set(&mut row, Variant::Default, ours);
    row
}

fn set(row: &mut Row, variant: Variant, numbers: Numbers) {
    row.ours.retain(|ours| ours.variant != variant);
    let measured = measured(row.operation, row.shape, numbers);
    let ratios = |other: &Measurement| {
        Ratios::of(&[measured.clone(), measured.clone()], &[other.clone(), other.clone()])
    };
    let to_limits = row.limits.iter().map(|limit| (limit.by, ratios(&limit.measured))).collect();
    let to_ganesha = row.ganesha.as_ref().map(ratios);
    row.ours.push(Ours { variant, measured, to_ganesha, to_limits, before: None });
}

fn comparison(rows: Vec<Row>) -> Comparison {
    let about = About {
        name: "lockkeeper".to_owned(),
        version: None,
        start_to_first_answer_ms: 100.0,
        idle_rss_mib: 25.0,
    };
    Comparison {
        machine: Machine::this().unwrap(),
        link: Link::Loopback,
        rounds: 2,
        servers: vec![about],
        rows,
        curves: Vec::new(),
        curve_error: None,
        handovers: Vec::new(),
        restarts: Vec::new(),
        restart_error: None,
        watched: None,
        instructions: Vec::new(),
        others_share: 0.0,
    }
}

fn plan(postgres: bool, locks: usize) -> Plan {
    Plan {
        lockkeeper: None,
        before: None,
        ganesha: None,
        cache: Default::default(),
        links: vec![Link::Loopback],
        limits: true,
        instructions: false,
        async_metadata: false,
        power: true,
        postgres,
        locks,
        parent: None,
        rounds: 2,
        load: crate::rows::plan(),
        curves: Vec::new(),
    }
}

/// Every row with a bar, which it reaches exactly.
pub(crate) fn exact() -> Comparison {
    let mut rows = vec![
        row(READ_64K, Shape::MEDIUM, (200.0, 1e6, 50.0)),
        // By the loop, 35 of 25.
        row(READ_1M, FEW, (130.0, 1e6, 35.0)),
        row(READ_1M, Shape::MEDIUM, (130.0, 1e6, 50.0)),
        row(WRITE_64K, Shape::MEDIUM, (160.0, 1e6, 80.0)),
        row(WRITE_1M, FEW, (120.0, 1e6, 80.0)),
        row(WRITE_1M, Shape::MEDIUM, (120.0, 1e6, 80.0)),
        row(LOCK, Shape::HIGH, (500.0, 1e6, 8.0)),
        row(LOCK, WIDE, (300.0, 1e6, 15.0)),
        row(GETATTR, Shape::HIGH, (500.0, 1e6, 4.0)),
        row(GETATTR, MANY, (1.0, 1e6, 8.0)),
        row(NULL, Shape::SINGLE, (1.0, 100.0, 1e6)),
        row(GETATTR, Shape::SINGLE, (1.0, 100.0, 1e6)),
        row(LOOKUP, Shape::SINGLE, (1.0, 100.0, 1e6)),
        row(LOCK, Shape::SINGLE, (1.0, 100.0, 1e6)),
    ];
    set(&mut rows[6], Variant::Power, (350.0, 1e6, 1e6));
    let mut found = comparison(rows);
    let latency = Some(Latency { p50_us: 1e6, p99_us: 1e6, rounds: 1 });
    found.handovers.push(Handover { server: OURS.to_owned(), latency });
    found
}

/// `exact` with locks in PostgreSQL, restarts and a monitor.
fn exact_of_all() -> Comparison {
    let mut found = exact();
    set(&mut found.rows[6], Variant::Postgres, (80.0, 1.0, 1.0));
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

fn assert_misses(missed: &[String], names: &[&str]) {
    assert_eq!(missed.len(), names.len(), "{missed:#?}");
    for (missed, name) in missed.iter().zip(names) {
        assert!(missed.starts_with(name), "{missed} instead of {name}");
    }
}

#[test]
fn who_reaches_every_bar_exactly_misses_none() {
    assert_misses(&misses(&exact(), &plan(false, 0)), &[]);
    assert_misses(&misses(&exact_of_all(), &plan(true, 1_000_000)), &[]);
}

#[test]
fn every_row_of_the_plan_but_one_has_a_bar() {
    let without: Vec<_> = crate::rows::plan()
        .steps
        .into_iter()
        .filter(|step| !BARS.iter().any(|bar| (bar.operation, bar.shape) == *step))
        .collect();
    assert_eq!(without, [(GETATTR, WIDE)]);
}

#[test]
fn every_bar_is_missed_by_its_own_name_and_says_by_how_much() {
    let mut found = exact();
    for (at, numbers) in [
        (0, (180.0, 1.0, 51.0)),
        (1, (129.0, 1.0, 35.0)),
        (2, (130.0, 1.0, 75.0)),
        (3, (159.0, 1.0, 81.0)),
        (4, (60.0, 1.0, 80.0)),
        (5, (120.0, 1.0, 81.0)),
        (6, (499.0, 1.0, 10.0)),
        (7, (299.0, 1.0, 15.1)),
        (8, (499.0, 1.0, 4.0)),
        (9, (1.0, 1.0, 12.0)),
        (10, (1.0, 101.0, 1.0)),
        (11, (1.0, 101.0, 1.0)),
        (12, (1.0, 101.0, 1.0)),
        (13, (1.0, 101.0, 1.0)),
    ] {
        set(&mut found.rows[at], Variant::Default, numbers);
    }
    set(&mut found.rows[6], Variant::Power, (349.0, 1.0, 1.0));
    found.handovers[0].latency = None;
    (found.servers[0].idle_rss_mib, found.servers[0].start_to_first_answer_ms) = (25.1, 100.1);
    let missed = misses(&found, &plan(false, 0));
    let names = [
        "read-64K 4x8: 1.80 times the throughput of nfs-ganesha, at least 2: 10 % short",
        "read-64K 4x8: 0.51 times the processor time of nfs-ganesha, at most 0.5: 2 % over, or 2.04",
        "read-1M 2x4: 1.29 times the throughput",
        "read-1M 4x8: 0.75 times the processor time of nfs-ganesha, at most 0.5: 50 % over, or 3.00",
        "write-64K 4x8: 1.59 times the throughput",
        "write-64K 4x8: 0.81 times the processor time",
        "write-1M 2x4: 0.60 times the throughput of nfs-ganesha, at least 1.2: 50 % short, or 0.15",
        "write-1M 4x8: 0.81 times the processor time",
        "lock-unlock 8x16: 4.99 times",
        "lock-unlock 8x16: 10.00 us of processor time, at most 8: 25 % over",
        "lock-unlock 8x16 power: 3.49 times",
        "lock-unlock 8x1: 2.99 times",
        "lock-unlock 8x1: 15.10 us",
        "getattr 8x16: 4.99 times",
        "getattr 64x2: 3.00 times the processor time of 8x16, at most 2: 50 % over",
        "null 1x1: 1.01 times the median latency",
        "getattr 1x1: 1.01 times the median latency",
        "lookup 1x1: 1.01 times the median latency",
        "lock-unlock 1x1: 1.01 times the median latency",
        "from UNLOCK to GRANTED",
        "idle memory",
        "first answer",
    ];
    assert_misses(&missed, &names);
}

#[test]
fn close_to_the_loop_is_enough_however_fast_the_other_is() {
    let mut found = exact();
    set(&mut found.rows[4], Variant::Default, (340.0, 1.0, 80.0));
    let to_ganesha = found.rows[4].ours[0].to_ganesha.as_mut().unwrap();
    to_ganesha.throughput.as_mut().unwrap().median = 0.5;
    assert_misses(&misses(&found, &plan(false, 0)), &[]);
}

#[test]
fn what_was_not_measured_is_a_miss() {
    let mut found = exact();
    found.rows.truncate(1);
    found.rows[0].ours[0].to_ganesha = None;
    found.rows[0].ours[0].to_limits.clear();
    let names =
        ["read-64K 4x8: the throughput of nfs-ganesha: not measured", "read-64K 4x8: times the"];
    assert_misses(&misses(&found, &plan(false, 0)), &names);
    found.rows[0].ours.clear();
    found.servers.clear();
    let names = ["read-64K 4x8: not measured", "our server was not measured"];
    assert_misses(&misses(&found, &plan(false, 0)), &names);
}

#[test]
fn changes_of_directories_are_compared_as_asynchronous_ones() {
    let mut create = row(Operation::CreateRemove, Shape::SINGLE, (1.0, 1e6, 1.0));
    set(&mut create, Variant::Async, (1.0, 100.0, 1.0));
    let mut found = comparison(vec![create]);
    assert_misses(&misses(&found, &plan(false, 0)), &[]);
    set(&mut found.rows[0], Variant::Async, (1.0, 101.0, 1.0));
    assert_misses(&misses(&found, &plan(false, 0)), &["create-remove 1x1 async: 1.01 times"]);
}

#[test]
fn restarts_and_monitors_have_bars_if_they_are_asked_for() {
    let mut found = exact_of_all();
    set(&mut found.rows[6], Variant::Postgres, (79.0, 1.0, 1.0));
    found.restarts[0].first_reclaim_ms = Some(3_001.0);
    found.restarts[1].first_reclaim_ms = Some(10_001.0);
    if let Some(watched) = &mut found.watched {
        (watched.look_p99_ms, watched.scrape_max_ms) = (20.1, 50.1);
        watched.loss = 0.051;
    }
    let names = [
        "lock-unlock 8x16 postgres: 79 in a second",
        "restart with 1000000 locks, lockkeeper-many: first reclaim 3001",
        "a look, ms: 20.1",
        "a scrape, ms: 50.1",
        "lost to looking: 0.051",
        "restart with 1000000 locks, lockkeeper-postgres-many: first reclaim 10001",
    ];
    assert_misses(&misses(&found, &plan(true, 1_000_000)), &names);
    assert_misses(&misses(&found, &plan(false, 0)), &[]);
    let none = exact();
    assert_eq!(misses(&none, &plan(true, 1_000_000)).len(), 4);
}

#[test]
fn enough_locks_in_postgres_are_enough_however_fast_the_other_is() {
    let mut found = exact_of_all();
    let row = &mut found.rows[6];
    row.ganesha = Some(measured(row.operation, row.shape, (100_000.0, 1.0, 1.0)));
    for (ops, missed) in [(20_000.0, false), (19_999.0, true)] {
        set(row, Variant::Postgres, (ops, 1.0, 1.0));
        assert_eq!(postgres_miss(row).is_some(), missed, "{ops}");
    }
}
