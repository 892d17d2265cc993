//! Performance targets, relative to nfs-ganesha and to the limit of the machine in the same run.

use crate::compare::{Comparison, Plan};
use crate::limit::Loop;
use crate::link::Link;
use crate::lockkeeper::{Build, Variant};
use crate::ratio::Ratio;
use crate::row::{Ours, Row};
use crate::rows::*;
use load::{Operation, Shape};

const OURS: &str = "lockkeeper";

/// What a row must reach; all of it. Ratios are medians over the rounds.
struct Bar {
    operation: Operation,
    shape: Shape,
    variant: Variant,
    needs: &'static [Need],
}

/// One of these alternatives suffices.
type Need = &'static [Measure];

enum Measure {
    /// Calls per second, to nfs-ganesha.
    ThroughputMin(f64),
    /// Calls per second, to the loop that copies.
    ThroughputToLimitMin(f64),
    /// Processor time of the server per call, to nfs-ganesha.
    CpuMax(f64),
    /// Processor time of the server per call, to the loop that copies.
    CpuToLimitMax(f64),
    CpuUsMax(f64),
    /// Processor time of the server per call, to that of ours in another shape.
    CpuToShapeMax(f64, Shape),
    /// The median, to nfs-ganesha.
    P50Max(f64),
}

use Measure::*;

const READ_CPU: Need = &[CpuMax(0.5), CpuToLimitMax(1.4)];
const READ_1M_NEEDS: &[Need] = &[&[ThroughputMin(1.3)], READ_CPU];
const WRITE_CPU: Need = &[CpuMax(0.8)];
const WRITE_1M_NEEDS: &[Need] = &[&[ThroughputMin(1.2), ThroughputToLimitMin(0.85)], WRITE_CPU];
const NOT_WORSE: &[Need] = &[&[P50Max(1.0)]];

const fn bar(operation: Operation, shape: Shape, needs: &'static [Need]) -> Bar {
    Bar { operation, shape, variant: Variant::Default, needs }
}

const BARS: [Bar; 16] = [
    bar(READ_64K, Shape::MEDIUM, &[&[ThroughputMin(2.0)], READ_CPU]),
    bar(READ_1M, FEW, READ_1M_NEEDS),
    bar(READ_1M, Shape::MEDIUM, READ_1M_NEEDS),
    bar(WRITE_64K, Shape::MEDIUM, &[&[ThroughputMin(1.6)], WRITE_CPU]),
    bar(WRITE_1M, FEW, WRITE_1M_NEEDS),
    bar(WRITE_1M, Shape::MEDIUM, WRITE_1M_NEEDS),
    bar(LOCK, Shape::HIGH, &[&[ThroughputMin(5.0)], &[CpuUsMax(8.0)]]),
    Bar { variant: Variant::Power, ..bar(LOCK, Shape::HIGH, &[&[ThroughputMin(3.5)]]) },
    bar(LOCK, WIDE, &[&[ThroughputMin(3.0)], &[CpuUsMax(15.0)]]),
    bar(GETATTR, Shape::HIGH, &[&[ThroughputMin(5.0)]]),
    bar(GETATTR, MANY, &[&[CpuToShapeMax(2.0, Shape::HIGH)]]),
    bar(NULL, Shape::SINGLE, NOT_WORSE),
    bar(GETATTR, Shape::SINGLE, NOT_WORSE),
    bar(LOOKUP, Shape::SINGLE, NOT_WORSE),
    bar(LOCK, Shape::SINGLE, NOT_WORSE),
    // Each with changes of directories that may be lost in a power failure.
    Bar { variant: Variant::Async, ..bar(Operation::CreateRemove, Shape::SINGLE, NOT_WORSE) },
];

/// Locks in PostgreSQL, under the heaviest load: per second, or relative to nfs-ganesha's.
const LOCK_POSTGRES_OPS_MIN: f64 = 20_000.0;
const LOCK_POSTGRES_RATIO_MIN: f64 = 0.8;
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

/// A sentence for every target that was missed, or not measured although the plan asks for it.
pub fn misses(found: &Comparison, plan: &Plan) -> Vec<String> {
    let mut misses = Vec::new();
    for row in &found.rows {
        let of_row = |bar: &&Bar| (bar.operation, bar.shape) == (row.operation, row.shape);
        for bar in BARS.iter().filter(of_row) {
            misses.extend(bar.misses(row, found));
        }
        if plan.postgres && (row.operation, row.shape) == (LOCK, Shape::HIGH) {
            misses.extend(postgres_miss(row));
        }
    }
    if found.rows.iter().any(|row| row.operation.locks()) {
        if found.link == Link::Loopback {
            misses.extend(handover_miss(found));
        }
        if plan.locks > 0 {
            misses.extend(restart_miss(found, Variant::Many, FIRST_RECLAIM_MS_MAX));
            misses.extend(watched_misses(found));
        }
        if plan.locks > 0 && plan.postgres {
            let postgres = Variant::PostgresMany;
            misses.extend(restart_miss(found, postgres, FIRST_RECLAIM_POSTGRES_MS_MAX));
        }
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

impl Bar {
    fn misses(&self, row: &Row, found: &Comparison) -> Vec<String> {
        let what = named(row, self.variant);
        let Some(ours) = row.ours(self.variant) else {
            return vec![format!("{what}: not measured")];
        };
        let missed = |need: &Need| {
            let all: Option<Vec<String>> =
                need.iter().map(|measure| measure.miss(ours, found)).collect();
            all.map(|all| format!("{what}: {}", all.join(", or ")))
        };
        self.needs.iter().filter_map(missed).collect()
    }
}

impl Measure {
    /// By how much it is missed, if it is.
    fn miss(&self, ours: &Ours, found: &Comparison) -> Option<String> {
        let ganesha = ours.to_ganesha.as_ref();
        let limit = ours.to_limit(Loop::Copy);
        let median = |ratio: Option<&Ratio>| ratio.map(|ratio| ratio.median);
        let cpu = ours.measured.server_cpu_us;
        let least = |found: Option<f64>, min: f64, of: &str| match found {
            Some(found) if found >= min => None,
            Some(found) => {
                let short = (1.0 - found / min) * 100.0;
                Some(format!("{found:.2} times {of}, at least {min}: {short:.0} % short"))
            }
            None => Some(format!("{of}: not measured")),
        };
        let most = |found: Option<f64>, max: f64, of: &str| match found {
            Some(found) if found <= max => None,
            Some(found) => {
                let over = (found / max - 1.0) * 100.0;
                Some(format!("{found:.2} {of}, at most {max}: {over:.0} % over"))
            }
            None => Some(format!("{of}: not measured")),
        };
        match *self {
            ThroughputMin(min) => {
                let found = median(ganesha.and_then(|to| to.throughput.as_ref()));
                least(found, min, "the throughput of nfs-ganesha")
            }
            ThroughputToLimitMin(min) => {
                let found = median(limit.and_then(|to| to.throughput.as_ref()));
                least(found, min, "the throughput of the copying loop")
            }
            CpuMax(max) => {
                let found = median(ganesha.and_then(|to| to.server_cpu.as_ref()));
                most(found, max, "times the processor time of nfs-ganesha")
            }
            CpuToLimitMax(max) => {
                let found = median(limit.and_then(|to| to.server_cpu.as_ref()));
                most(found, max, "times the processor time of the copying loop")
            }
            CpuUsMax(max) => most(cpu, max, "us of processor time"),
            CpuToShapeMax(max, shape) => {
                let other = found.row(ours.measured.operation, shape);
                let other = other.and_then(|row| row.ours(ours.variant)?.measured.server_cpu_us);
                let found = cpu.zip(other).map(|(cpu, other)| cpu / other);
                most(found, max, &format!("times the processor time of {shape}"))
            }
            P50Max(max) => {
                let found = median(ganesha.and_then(|to| to.p50.as_ref()));
                most(found, max, "times the median latency of nfs-ganesha")
            }
        }
    }
}

fn named(row: &Row, variant: Variant) -> String {
    let what = format!("{} {} {}", row.operation, row.shape, variant.label());
    what.trim_end().to_owned()
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

/// Either suffices: on a slow machine nfs-ganesha is slow, too.
fn postgres_miss(row: &Row) -> Option<String> {
    let what = named(row, Variant::Postgres);
    let ours = row.ours(Variant::Postgres);
    let ratio = ours.and_then(|ours| ours.to_ganesha.as_ref()?.throughput.as_ref());
    let (Some(ours), Some(ratio)) = (ours, ratio) else {
        return Some(format!("{what}: not measured"));
    };
    let (ops, ratio) = (ours.measured.ops_per_second, ratio.median);
    (ops < LOCK_POSTGRES_OPS_MIN && ratio < LOCK_POSTGRES_RATIO_MIN).then(|| {
        format!(
            "{what}: {ops:.0} in a second, at least {LOCK_POSTGRES_OPS_MIN}, \
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
pub(crate) mod tests;
