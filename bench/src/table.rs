//! A comparison as a person reads it.

use std::fmt::Write;

use crate::compare::{Comparison, Row, ratio};
use crate::waiting::Latency;
use load::Measurement;

impl Comparison {
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<27} | {:>28} | {:>19} | {:>19} | {:>17}\n",
            "", "ops/s", "p50 us", "p99 us", "server cpu us"
        );
        let _ = writeln!(
            out,
            "{:<20} {:>6} | {:>10} {:>10} {:>6} | {:>9} {:>9} | {:>9} {:>9} | {:>8} {:>8}",
            "operation",
            "shape",
            "ours",
            "ganesha",
            "ratio",
            "ours",
            "ganesha",
            "ours",
            "ganesha",
            "ours",
            "ganesha"
        );
        for row in &self.rows {
            line(&mut out, row.operation.to_string(), row.ours.as_ref(), row);
            if row.ours_async.is_some() {
                line(&mut out, format!("{} async", row.operation), row.ours_async.as_ref(), row);
            }
            if row.ours_power.is_some() {
                line(&mut out, format!("{} power", row.operation), row.ours_power.as_ref(), row);
            }
            if row.ours_postgres.is_some() {
                let name = format!("{} postgres", row.operation);
                line(&mut out, name, row.ours_postgres.as_ref(), row);
            }
        }
        out.push('\n');
        for server in &self.servers {
            let _ = writeln!(
                out,
                "{:<24} first answer after {:>7.1} ms, {:>6.1} MiB when idle",
                server.name, server.start_to_first_answer_ms, server.idle_rss_mib
            );
        }
        self.write_locks(&mut out);
        let _ = writeln!(out, "others used {:.0} % of the machine", self.others_share * 100.0);
        out
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

fn line(out: &mut String, name: String, ours: Option<&Measurement>, row: &Row) {
    let show = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let other = &row.ganesha;
    let _ = writeln!(
        out,
        "{:<20} {:>6} | {:>10} {:>10.0} {:>6} | {:>9} {:>9.1} | {:>9} {:>9.1} | {:>8} {:>8}",
        name,
        row.shape,
        show(ours.map(|m| m.ops_per_second), 0),
        other.ops_per_second,
        show(ratio(ours, other), 2),
        show(ours.map(|m| m.p50_us), 1),
        other.p50_us,
        show(ours.map(|m| m.p99_us), 1),
        other.p99_us,
        show(ours.and_then(|m| m.server_cpu_us), 1),
        show(other.server_cpu_us, 1),
    );
}
