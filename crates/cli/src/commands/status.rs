//! `lockkeeper status`: as in `zpool status`, `status`, `action` and `see` appear only with a problem.

use std::fmt::Write as _;

use admin::api::{self, Counts, Exactness, ServerState, Severity, StoreStatus};
use clap::Args;

use super::Session;
use super::tables::{age, many, moment};
use super::terminal::{self, Paint, clean};
use super::watch;
use crate::daemon::CommandError;

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Refresh every second until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Exit with 0 if clients are served, 1 if not or if locks wait for the store, 3 if no server answers
    #[arg(long, conflicts_with = "watch")]
    exit_code: bool,
}

impl Status {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let read = async || session.daemon.get::<api::Status>("/v1/status").await;
        if self.exit_code {
            let status = read().await?;
            let printed = match self.json {
                true => terminal::print_json(&status),
                false => terminal::print(&shown(&status, session.colour)),
            };
            return match printed {
                // Also if the output is not read.
                Ok(()) | Err(CommandError::BrokenPipe) if !is_ready(&status) => {
                    Err(CommandError::NotServing)
                }
                printed => printed,
            };
        }
        if self.json {
            return watch::repeat(self.watch, async || terminal::print_json(&read().await?)).await;
        }
        watch::show(self.watch, async || Ok(shown(&read().await?, session.colour).into())).await
    }
}

/// As `/ready` says.
fn is_ready(status: &api::Status) -> bool {
    status.state.serves() && status.state != ServerState::Stalled
}

fn shown(status: &api::Status, colour: bool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, rest: &str| {
        let _ = writeln!(text, "{name:>7}: {rest}");
    };
    line("state", &state(status, colour));
    // Explain an unusual state, unless a finding does.
    if status.health.is_empty() && status.state != ServerState::Serving {
        line("status", &clean(&status.summary));
    }
    for finding in &status.health {
        let text = clean(&finding.status);
        let paint = match finding.severity {
            Severity::Info => None,
            Severity::Warning => Some(Paint::Notable),
            Severity::Error => Some(Paint::Bad),
        };
        line("status", &paint.map_or(text.clone(), |paint| paint.on_if(colour, &text)));
        line("action", &clean(&finding.action));
        line("see", &clean(&finding.see));
    }
    if status.state.serves() {
        line("locks", &format!("{}      store: {}", locks(status), store(&status.store)));
    } else {
        line("store", &store(&status.store));
    }
    line("server", &server(status));
    text
}

fn state(status: &api::Status, colour: bool) -> String {
    let stalled = status.store.stalled_seconds.map(|seconds| format!(" for {seconds:.0} s"));
    let (word, more, paint) = match status.state {
        ServerState::Serving => ("SERVING", None, Paint::Good),
        ServerState::Grace => {
            let left = status.grace.as_ref().map(|grace| match grace.began {
                true => format!(", {:.0} s left", grace.remaining_seconds),
                false => ", waiting for the first client call".into(),
            });
            ("GRACE", left, Paint::Notable)
        }
        ServerState::Stalled => ("STALLED", stalled, Paint::Bad),
        ServerState::Standby => ("STANDBY", None, Paint::Notable),
        ServerState::Starting => ("STARTING", None, Paint::Notable),
    };
    paint.on_if(colour, word) + &more.unwrap_or_default()
}

/// While the store fails, the numbers are the last known ones.
fn locks(status: &api::Status) -> String {
    match (status.counts_age_seconds, status.epoch) {
        (None, None) => "not known while the store fails".into(),
        (None, Some(_)) => held(&status.counts),
        (Some(seconds), _) => format!("{} ({} ago)", held(&status.counts), age(seconds)),
    }
}

fn held(counts: &Counts) -> String {
    // Shares are held and recovered like locks.
    let held = (counts.locks + counts.shares).saturating_sub(counts.unconfirmed);
    let Counts { unconfirmed, waiting, shares, .. } = counts;
    let shares = match shares {
        0 => String::new(),
        _ => format!(", including {}", many(*shares, "share")),
    };
    let longest = match counts.longest_wait_seconds {
        Some(seconds) => format!(" (longest {})", age(seconds)),
        None => String::new(),
    };
    format!("{held} held, {unconfirmed} unconfirmed, {waiting} waiting{longest}{shares}")
}

fn store(store: &StoreStatus) -> String {
    let mut text = clean(&store.kind);
    if let Some(seconds) = store.commit_p99_seconds {
        let _ = write!(text, ", commit p99 {} ms", milliseconds(seconds));
    }
    match (store.exact, store.exactness) {
        (true, _) => {}
        (false, Exactness::Open) => text += ", open at start",
        (false, _) => text += ", not exact",
    }
    text
}

/// At most two significant decimals: 0.02, 0.2, 12.5, 340.
fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms {
        _ if ms < 0.1 => format!("{ms:.2}"),
        _ if ms < 100.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

fn server(status: &api::Status) -> String {
    let mut text = format!(
        "{}, since {} ({})",
        clean(&status.node),
        moment(&status.started_at),
        age(status.uptime_seconds)
    );
    let counts = &status.counts;
    if status.state.serves() {
        let _ = write!(text, ", {}", many(counts.clients, "client"));
    }
    for (count, word) in [
        (counts.fenced, "fenced"),
        (counts.crashed, "crashed"),
        (counts.suspect, "suspect"),
        (counts.reboot_pending, "with a pending reboot"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {word}");
        }
    }
    text
}
