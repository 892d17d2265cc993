//! A comparison as human-readable tables.

use std::fmt::Write;

use crate::compare::Comparison;
use crate::limit::Loop;
use crate::ratio::{Ratio, Significance, false_verdict_probability};
use crate::row::{Ours, Row};
use crate::waiting::Latency;
use load::Measurement;

impl Comparison {
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<22} {:>5} | {:^40} | {:^14} | {:^19} | {:^19} | {:^35} | {:^17}\n",
            "",
            "",
            "calls/s",
            "of the limit",
            "p50 us",
            "p99 us",
            "server cpu us per call",
            "limit's cpu us"
        );
        let _ = writeln!(
            out,
            "{:<22} {:>5} | {:>8} {:>8} {:>22} | {:>6} {:>7} | {:>9} {:>9} | {:>9} {:>9} | {:>7} {:>7} {:>19} | {:>8} {:>8}",
            "operation",
            "shape",
            "ours",
            "ganesha",
            "ratio",
            "copy",
            "splice",
            "ours",
            "ganesha",
            "ours",
            "ganesha",
            "ours",
            "ganesha",
            "ratio",
            "copy",
            "splice"
        );
        for row in &self.rows {
            if row.ours.is_empty() {
                self.write_row(&mut out, &row.operation.to_string(), row, None);
            }
            for ours in &row.ours {
                self.write_row(&mut out, &name(row, ours), row, Some(ours));
            }
        }
        let _ = writeln!(
            out,
            "medians of {} rounds over {}, ratios with the spread that covers the true median with \
             95 %; {:.0} % of the machine went to others\n",
            self.rounds,
            self.link.name(),
            self.others_share * 100.0
        );
        self.write_before(&mut out);
        for server in &self.servers {
            let version = server.version.as_deref().unwrap_or_default();
            let _ = writeln!(
                out,
                "{:<24} {version:<8} first answer after {:>7.1} ms, {:>6.1} MiB when idle",
                server.name, server.start_to_first_answer_ms, server.idle_rss_mib
            );
        }
        self.write_locks(&mut out);
        for row in self.rows.iter().filter(|row| row.operation.locks()) {
            for ours in &row.ours {
                if let Some(share) = self.share_of_getattr(row, ours.variant) {
                    let _ = writeln!(
                        out,
                        "{:<22} {:>5} reaches {:.0} % of the calls of GETATTR",
                        name(row, ours),
                        row.shape,
                        share * 100.0
                    );
                }
            }
        }
        out
    }

    fn write_row(&self, out: &mut String, name: &str, row: &Row, ours: Option<&Ours>) {
        let (measured, ganesha) = (ours.map(|ours| &ours.measured), row.ganesha.as_ref());
        let ops = |measured: Option<&Measurement>| show(measured.map(|m| m.ops_per_second), 0);
        let cpu = |measured: Option<&Measurement>| show(measured.and_then(|m| m.server_cpu_us), 1);
        let to_ganesha = ours.and_then(|ours| ours.to_ganesha.as_ref());
        let share = |by| {
            let ratio = ours.and_then(|ours| ours.to_limit(by)?.throughput.as_ref());
            show(ratio.map(|ratio| ratio.median), 2)
        };
        let _ = writeln!(
            out,
            "{:<22} {:>5} | {:>8} {:>8} {:>22} | {:>6} {:>7} | {:>9} {:>9} | {:>9} {:>9} | {:>7} {:>7} {:>19} | {:>8} {:>8}",
            name,
            row.shape,
            ops(measured),
            ops(ganesha),
            spread(to_ganesha.and_then(|to| to.throughput.as_ref())),
            share(Loop::Copy),
            share(Loop::Splice),
            show(measured.map(|m| m.p50_us), 1),
            show(ganesha.map(|m| m.p50_us), 1),
            show(measured.map(|m| m.p99_us), 1),
            show(ganesha.map(|m| m.p99_us), 1),
            cpu(measured),
            cpu(ganesha),
            spread(to_ganesha.and_then(|to| to.server_cpu.as_ref())),
            cpu(row.limit(Loop::Copy)),
            cpu(row.limit(Loop::Splice)),
        );
    }

    /// Each row beside that of the older binary.
    fn write_before(&self, out: &mut String) {
        let rows = self.rows.iter().flat_map(|row| row.ours.iter().map(move |ours| (row, ours)));
        let rows: Vec<_> =
            rows.filter_map(|(row, ours)| Some((row, ours, ours.before.as_ref()?))).collect();
        let Some((_, _, first)) = rows.first() else { return };
        let _ = writeln!(
            out,
            "{:<20} {:>6} | {:>10} {:>10} {:<38} | {:>8} {:>8} {:<38}",
            "ours/before", "shape", "ours/s", "before/s", "ratio", "cpu us", "before", "ratio"
        );
        for (row, ours, before) in &rows {
            let cpu = |measured: &Measurement| show(measured.server_cpu_us, 1);
            let _ = writeln!(
                out,
                "{:<20} {:>6} | {:>10.0} {:>10.0} {:<38} | {:>8} {:>8} {:<38}",
                name(row, ours),
                row.shape,
                ours.measured.ops_per_second,
                before.measured.ops_per_second,
                judged(before.ratios.throughput.as_ref(), ["faster", "slower"]),
                cpu(&ours.measured),
                cpu(&before.measured),
                judged(before.ratios.server_cpu.as_ref(), ["less", "more"]),
            );
        }
        let rounds = first.ratios.throughput.as_ref().map_or(0, |ratio| ratio.rounds.len());
        let _ = writeln!(
            out,
            "median and spread of {rounds} paired rounds; noise alone puts {:.0} % of the ratios of \
             equal servers outside",
            false_verdict_probability(rounds) * 100.0
        );
        for counted in &self.instructions {
            let _ = writeln!(
                out,
                "{:<20} instructions per call: ours {:.0}, before {:.0}, ratio {}",
                counted.operation,
                counted.ours,
                counted.before,
                judged(Some(&counted.ratio), ["fewer", "more"])
            );
        }
        out.push('\n');
    }

    fn write_locks(&self, out: &mut String) {
        for handover in &self.handovers {
            let said = match &handover.latency {
                Some(found) => {
                    let Latency { p50_us, p99_us, rounds } = found;
                    format!("p50 {p50_us:>7.1} us, p99 {p99_us:>9.1} us, {rounds} times")
                }
                None => "the waiter was not told".to_owned(),
            };
            let _ = writeln!(out, "{:<24} from UNLOCK to GRANTED: {said}", handover.server);
        }
        let after = |ms: Option<f64>| match ms {
            Some(ms) => format!("after {ms:.1} ms"),
            None => "not within two minutes".to_owned(),
        };
        for restart in &self.restarts {
            let _ = writeln!(
                out,
                "{:<24} killed with {} locks ({:.1} MiB): first reclaim {}, all {}, new lock {}",
                restart.server,
                restart.locks,
                restart.rss_mib,
                after(restart.first_reclaim_ms),
                after(restart.all_reclaimed_ms),
                after(restart.new_lock_ms)
            );
        }
        for error in self.curve_error.iter().chain(&self.restart_error) {
            let _ = writeln!(out, "{error}");
        }
        if let Some(watched) = &self.watched {
            let _ = writeln!(
                out,
                "looked at with {} locks of {} clients: 100 locks in {:.1} ms (p99 of {}), scrape \
                 {:.1} ms (slowest of {}), lock-unlock {:.0}/s, unwatched {:.0}/s: {:.1} % lost \
                 (middle of the pairs)",
                watched.locks,
                watched.clients,
                watched.look_p99_ms,
                watched.looks,
                watched.scrape_max_ms,
                watched.scrapes,
                watched.watched_ops,
                watched.alone_ops,
                watched.loss * 100.0
            );
        }
    }
}

fn name(row: &Row, ours: &Ours) -> String {
    format!("{} {}", row.operation, ours.variant.label())
}

fn show(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

/// A ratio with its spread.
fn spread(ratio: Option<&Ratio>) -> String {
    let Some(ratio) = ratio else { return "-".to_owned() };
    format!("{:.2} ({:.2}..{:.2})", ratio.median, ratio.low, ratio.high)
}

/// A ratio with its spread and what it means; `words` are those for better and for worse.
fn judged(ratio: Option<&Ratio>, [better, worse]: [&str; 2]) -> String {
    let Some(ratio) = ratio else { return "-".to_owned() };
    let verdict = match ratio.verdict {
        Significance::WithinSpread => "within the spread",
        Significance::Better => better,
        Significance::Worse => worse,
    };
    format!("{:.3} ({:.3}..{:.3}) {verdict}", ratio.median, ratio.low, ratio.high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Better;

    #[test]
    fn a_ratio_is_shown_with_its_spread_and_verdict() {
        let shown = |pairs: [(f64, f64); 3]| {
            judged(Ratio::of(pairs, Better::Higher).as_ref(), ["faster", "slower"])
        };
        let (low, middle, high) = ((9.0, 10.0), (19.0, 20.0), (11.0, 10.0));
        assert_eq!(shown([low, high, middle]), "0.950 (0.900..1.100) within the spread");
        assert_eq!(shown([low, low, middle]), "0.900 (0.900..0.950) slower");
        assert_eq!(shown([high, high, high]), "1.100 (1.100..1.100) faster");
        assert_eq!(judged(None, ["faster", "slower"]), "-");
    }
}
