//! A comparison as a page of documentation: tables, and charts beside it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::chart::{self, Curve, GANESHA, Group, LIMIT, OURS};
use crate::compare::Comparison;
use crate::limit::Loop;
use crate::link::Link;
use crate::lockkeeper::Variant;
use crate::ratio::Ratio;
use crate::row::{Ours, Row};
use crate::rows::{GETATTR, LOCK};
use load::{Measurement, Operation};

const PAGE: &str = "performance.md";
const CHARTS: &str = "performance";

/// Writes the page into `dir`, with its charts in a directory beside it.
pub(crate) fn write(dir: &Path, found: &[Comparison]) -> Result<()> {
    let first = found.first().context("nothing was compared")?;
    let charts = dir.join(CHARTS);
    fs::create_dir_all(&charts).with_context(|| charts.display().to_string())?;
    let mut page = introduction(first);
    for comparison in found {
        for (name, drawing) in charts_of(comparison) {
            fs::write(charts.join(name), drawing)?;
        }
        page.push_str(&section(comparison));
    }
    page.push_str(METHOD);
    let path = dir.join(PAGE);
    fs::write(&path, page).with_context(|| path.display().to_string())
}

const METHOD: &str = "\
## How it is measured

Servers and load generator share the machine, in namespaces of their own. Each server in turn is given the
same load for half a second, round after round, and every second round backwards, so that what else the machine does
hits all of them. Numbers are medians over the rounds; a ratio is the median of the ratios of each round, with
the spread that covers the true one with 95 % probability. Every call has a transaction id of its own, since a
duplicate request cache would answer a repeated one without doing the work. 8x16 is 8 connections with 16 calls under
way on each; LOCK and UNLOCK count as a call each.

Processor time is that of the server, of NFS-Ganesha with its rpcbind and rpc.statd. The limit is a loop
that moves the same bytes between socket and file and does nothing else: recv and pwrite, pread and send
(copy), or splice and sendfile (splice). What moves no data has no such limit; locks are compared with GETATTR, the
least that a call costs. NFS-Ganesha keeps no lock through a power failure, so that row compares a stronger
promise with a weaker one.
";

fn introduction(first: &Comparison) -> String {
    let version = |name: &str| {
        let server = first.servers.iter().find(|server| server.name == name);
        server.and_then(|server| server.version.clone()).unwrap_or_else(|| "unknown".to_owned())
    };
    let machine = &first.machine;
    format!(
        "# Performance\n\n\
         Lockkeeper beside NFS-Ganesha, and beside what the machine can do. Written by\n\
         `cargo xtask bench --report`, which measures it anew.\n\n\
         | | |\n|---|---|\n\
         | date | {} |\n\
         | Lockkeeper | {} |\n\
         | NFS-Ganesha | {} |\n\
         | processor | {}, {} processors for servers and load generator together |\n\
         | memory | {} GiB |\n\
         | kernel | {} |\n\n",
        machine.date,
        version("lockkeeper"),
        version("ganesha"),
        machine.processor,
        machine.processors,
        machine.memory_gib,
        machine.kernel,
    )
}

fn section(found: &Comparison) -> String {
    let mut out = format!("## Over {}\n\n", found.link.name());
    let _ = writeln!(
        out,
        "{} rounds; other programs took {:.0} % of the machine.\n",
        found.rounds,
        found.others_share * 100.0
    );
    let chart = |out: &mut String, name: &str, what: &str| {
        let file = chart_name(found.link, name);
        let _ = writeln!(out, "![{what}]({CHARTS}/{file})\n");
    };
    chart(&mut out, "ratios", "Throughput, as a multiple of NFS-Ganesha's");
    out.push_str(
        "| | | calls/s | NFS-Ganesha | ratio | of the limit, copy | splice |\n\
         |---|---|---:|---:|---|---:|---:|\n",
    );
    for (row, ours) in lines(&found.rows) {
        let share = |by| ours.to_limit(by).and_then(|to| to.throughput.as_ref());
        let to_ganesha = ours.to_ganesha.as_ref().and_then(|to| to.throughput.as_ref());
        let of_getattr = found.share_of_getattr(row, ours.variant);
        let copy = match of_getattr {
            Some(share) => format!("{share:.2} of GETATTR"),
            None => median(share(Loop::Copy)),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {copy} | {} |",
            name(row, ours),
            row.shape,
            rate(Some(&ours.measured)),
            rate(row.ganesha.as_ref()),
            spread(to_ganesha),
            median(share(Loop::Splice)),
        );
    }
    out.push_str("\n### Processor time of the server per call\n\n");
    chart(&mut out, "cpu", "Processor time of the server per call");
    out.push_str(
        "In microseconds.\n\n\
         | | | ours | NFS-Ganesha | ratio | limit, copy | splice |\n\
         |---|---|---:|---:|---|---:|---:|\n",
    );
    for (row, ours) in lines(&found.rows) {
        let to_ganesha = ours.to_ganesha.as_ref().and_then(|to| to.server_cpu.as_ref());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            name(row, ours),
            row.shape,
            cpu(Some(&ours.measured)),
            cpu(row.ganesha.as_ref()),
            spread(to_ganesha),
            cpu(row.limit(Loop::Copy)),
            cpu(row.limit(Loop::Splice)),
        );
    }
    out.push_str("\n### Latency\n\n");
    for operation in [GETATTR, LOCK] {
        let what = format!("Latency of {} against load", title(operation));
        chart(&mut out, &operation.to_string(), &what);
    }
    out.push_str(
        "In microseconds.\n\n\
         | | | p50 | NFS-Ganesha | ratio | p99 | NFS-Ganesha |\n\
         |---|---|---:|---:|---|---:|---:|\n",
    );
    for (row, ours) in lines(&found.rows) {
        let to_ganesha = ours.to_ganesha.as_ref().and_then(|to| to.p50.as_ref());
        let (mine, other) = (&ours.measured, row.ganesha.as_ref());
        let of = |number: fn(&Measurement) -> f64| other.map_or_else(none, |m| micros(number(m)));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            name(row, ours),
            row.shape,
            micros(mine.p50_us),
            of(|m| m.p50_us),
            spread(to_ganesha),
            micros(mine.p99_us),
            of(|m| m.p99_us),
        );
    }
    out.push('\n');
    out
}

/// File names and drawings.
fn charts_of(found: &Comparison) -> Vec<(String, String)> {
    let over = format!("over {}", found.link.name());
    let label = |row: &Row, ours: &Ours| format!("{} {}", name(row, ours), row.shape);
    let mut ratios = Vec::new();
    let mut times = Vec::new();
    for (row, ours) in lines(&found.rows) {
        let name = label(row, ours);
        let to_ganesha = ours.to_ganesha.as_ref().and_then(|to| to.throughput.as_ref());
        if let Some(ratio) = to_ganesha {
            let written = format!("{:.2}", ratio.median);
            ratios.push(Group { name: name.clone(), bars: vec![(OURS, ratio.median, written)] });
        }
        let limit = row.limit(Loop::Copy);
        let bars = [(OURS, Some(&ours.measured)), (GANESHA, row.ganesha.as_ref()), (LIMIT, limit)];
        let bar = |(colour, measured): (_, Option<&Measurement>)| {
            let us = measured?.server_cpu_us?;
            Some((colour, us, micros(us)))
        };
        times.push(Group { name, bars: bars.into_iter().filter_map(bar).collect() });
    }
    let title = |what: &str| format!("{what}, {over}");
    let legend = [(OURS, "Lockkeeper"), (GANESHA, "NFS-Ganesha"), (LIMIT, "loop that copies")];
    let named = |name: &str| chart_name(found.link, name);
    let mut charts = vec![
        (
            named("ratios"),
            chart::bars(&title("Throughput, NFS-Ganesha = 1"), &legend[..1], 1.0, &ratios),
        ),
        (
            named("cpu"),
            chart::bars(&title("Processor time of the server per call, us"), &legend, 1.0, &times),
        ),
    ];
    for operation in [GETATTR, LOCK] {
        let what = format!("{} at 8 connections with 1 to 64 calls each", self::title(operation));
        let drawing =
            chart::curves(&title(&what), "calls/s", "latency, us", &curves(found, operation));
        charts.push((named(&operation.to_string()), drawing));
    }
    charts
}

/// Median latency and 99th percentile of both servers, over the calls per second.
fn curves(found: &Comparison, operation: Operation) -> Vec<Curve> {
    let rows = found.rows.iter().chain(&found.curves);
    let mut rows: Vec<&Row> =
        rows.filter(|row| row.operation == operation && row.shape.connections == 8).collect();
    rows.sort_by_key(|row| row.shape.depth);
    let ours = |row: &Row| row.ours(Variant::Default).map(|ours| ours.measured.clone());
    let ganesha = |row: &Row| row.ganesha.clone();
    let points = |of: &dyn Fn(&Row) -> Option<Measurement>, up: fn(&Measurement) -> f64| {
        let measured = rows.iter().filter_map(|row| of(row));
        measured.map(|m| (m.ops_per_second, up(&m))).collect()
    };
    let curve = |colour, name: &str, points| Curve { colour, name: name.to_owned(), points };
    vec![
        curve(OURS, "Lockkeeper, p50", points(&ours, |m| m.p50_us)),
        curve(OURS_P99, "Lockkeeper, p99", points(&ours, |m| m.p99_us)),
        curve(GANESHA, "NFS-Ganesha, p50", points(&ganesha, |m| m.p50_us)),
        curve(GANESHA_P99, "NFS-Ganesha, p99", points(&ganesha, |m| m.p99_us)),
    ]
}

const OURS_P99: &str = "#7fb3c8";
const GANESHA_P99: &str = "#dba77f";

fn chart_name(link: Link, name: &str) -> String {
    match link {
        Link::Loopback => format!("{name}.svg"),
        Link::Veth => format!("{name}-veth.svg"),
    }
}

fn lines(rows: &[Row]) -> impl Iterator<Item = (&Row, &Ours)> {
    rows.iter().flat_map(|row| row.ours.iter().map(move |ours| (row, ours)))
}

fn name(row: &Row, ours: &Ours) -> String {
    match ours.variant.label() {
        "" => title(row.operation),
        label => format!("{}, {label}", title(row.operation)),
    }
}

/// As the protocol writes it.
fn title(operation: Operation) -> String {
    match operation {
        Operation::CreateRemove => "CREATE, REMOVE".to_owned(),
        Operation::LockUnlock => "LOCK, UNLOCK".to_owned(),
        Operation::Read(bytes) => format!("READ {}", size(bytes)),
        Operation::Write(bytes) => format!("WRITE {}", size(bytes)),
        small => small.to_string().to_uppercase(),
    }
}

fn size(bytes: u32) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    }
}

/// Calls per second, with the data that they move.
fn rate(measured: Option<&Measurement>) -> String {
    let Some(measured) = measured else { return none() };
    match measured.mib_per_second() {
        Some(rate) => format!("{:.0} ({rate:.0} MiB/s)", measured.ops_per_second),
        None => format!("{:.0}", measured.ops_per_second),
    }
}

fn cpu(measured: Option<&Measurement>) -> String {
    measured.and_then(|m| m.server_cpu_us).map_or_else(none, micros)
}

fn micros(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

fn median(ratio: Option<&Ratio>) -> String {
    ratio.map_or_else(none, |ratio| format!("{:.2}", ratio.median))
}

fn spread(ratio: Option<&Ratio>) -> String {
    let written =
        |ratio: &Ratio| format!("**{:.2}** ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high);
    ratio.map_or_else(none, written)
}

fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::tests::exact;
    use crate::svg::assert_well_formed;

    #[test]
    fn a_report_names_every_row_and_shows_every_chart() {
        let dir = tempfile::tempdir().unwrap();
        let (mut veth, loopback) = (exact(), exact());
        veth.link = Link::Veth;
        write(dir.path(), &[loopback, veth]).unwrap();
        let page = fs::read_to_string(dir.path().join(PAGE)).unwrap();
        for (row, ours) in lines(&exact().rows) {
            let row = format!("| {} | {} |", name(row, ours), row.shape);
            // Throughput, processor time and latency over both links.
            assert_eq!(page.matches(&row).count(), 6, "{row}");
        }
        let shown: Vec<&str> =
            page.split("](").skip(1).map(|rest| rest.split_once(')').unwrap().0).collect();
        assert_eq!(shown.len(), 8);
        for chart in shown {
            assert_well_formed(&fs::read_to_string(dir.path().join(chart)).unwrap());
        }
        assert!(
            page.contains("| LOCK, UNLOCK, power | 8x16 | 350 | 100 | **3.50** (3.50 to 3.50) |")
        );
    }

    #[test]
    fn a_curve_is_sorted_by_depth() {
        let mut found = exact();
        let mut deep = found.rows.remove(8);
        deep.shape.depth = 64;
        let mut shallow = deep.clone();
        shallow.shape.depth = 1;
        shallow.ours[0].measured.ops_per_second = 1.0;
        found.curves = vec![deep, shallow];
        let curves = curves(&found, GETATTR);
        let across: Vec<f64> = curves[0].points.iter().map(|point| point.0).collect();
        assert_eq!(across, [1.0, 500.0]);
        assert_eq!(curves.len(), 4);
    }
}
