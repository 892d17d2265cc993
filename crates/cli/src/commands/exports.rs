//! `lockkeeper exports`: what is exported, to whom, and whether it is served.

use std::fmt::Write as _;

use admin::api::{Export, ExportRule, ExportState};
use clap::Args;

use super::Session;
use super::tables::{Cell, Table, age, bytes};
use super::terminal::{self, Paint, clean};
use super::watch::{self, View};
use crate::daemon::CommandError;

const COLUMNS: &[(&str, usize)] = &[
    ("PATH", 0),
    ("STATE", 0),
    ("FS", 0),
    ("ID", 0),
    ("ACCESS", 0),
    ("SQUASH", 0),
    ("PORTS", 8),
    ("CLIENTS", 0),
];

#[derive(Debug, Args)]
pub(crate) struct Exports {
    /// Show this export in detail
    path: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Refresh every second until Ctrl-C
    #[arg(long)]
    watch: bool,
}

impl Exports {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let read = async || {
            let mut all = session.daemon.get::<Vec<Export>>("/v1/exports").await?;
            if let Some(path) = &self.path {
                let wanted = path.trim_end_matches('/');
                all.retain(|export| export.path.trim_end_matches('/') == wanted);
                if all.is_empty() {
                    let path = clean(path);
                    return Err(CommandError::Other(format!(
                        "{path} is not exported; see: lockkeeper exports"
                    )));
                }
            }
            Ok(all)
        };
        if self.json {
            return watch::repeat(self.watch, async || terminal::print_json(&read().await?)).await;
        }
        watch::show(self.watch, async || {
            let all = read().await?;
            if all.is_empty() {
                return Ok(View { remark: Some("no exports".into()), ..View::default() });
            }
            Ok(match self.path {
                Some(_) => all.iter().map(described).collect::<String>().into(),
                None => table(&all).draw(session.width(), session.colour).into(),
            })
        })
        .await
    }
}

/// A row for each rule.
fn table(exports: &[Export]) -> Table {
    let mut table = Table::new(COLUMNS);
    for export in exports {
        for rule in &export.rules {
            let paint = (export.state != ExportState::Served).then_some(Paint::Bad);
            table.row(vec![
                export.path.as_str().into(),
                Cell::from(word(export.state)).painted_if(paint),
                export.file_system.as_deref().unwrap_or("-").into(),
                u64::from(export.id).into(),
                rule.access.as_str().into(),
                rule.squash.as_str().into(),
                ports(rule).into(),
                networks(rule).into(),
            ]);
        }
    }
    table
}

fn described(export: &Export) -> String {
    let mut text = String::new();
    let mut line = |name: &str, rest: String| {
        let _ = writeln!(text, "{name:>11}: {rest}");
    };
    line("export", clean(&export.path));
    let waits = export.waiting_seconds.map(|waits| format!(", for {}", age(waits)));
    let why = match (export.state, &export.problem) {
        (ExportState::Opening, _) => ": its file system does not answer".into(),
        (ExportState::Unanswered, _) => ": its file system answers no call".into(),
        (_, Some(problem)) => format!(": {}", clean(problem)),
        (_, None) => String::new(),
    };
    line("state", format!("{}{}{why}", word(export.state), waits.unwrap_or_default()));
    if let Some(kind) = &export.file_system {
        line("file system", clean(kind));
    }
    let filesystem_id =
        export.filesystem_id.as_deref().map(|id| format!(", filesystem_id {}", clean(id)));
    line("handles", format!("id {}{}", export.id, filesystem_id.unwrap_or_default()));
    for rule in &export.rules {
        line("rule", rule_text(rule));
    }
    if let Some(io) = &export.io {
        let (read, written) = (bytes(io.bytes_read), bytes(io.bytes_written));
        line(
            "calls",
            format!(
                "{} NFS calls; {read} read, {written} written; {} errors",
                io.operations, io.errors
            ),
        );
    }
    text
}

/// In the words of the configuration.
fn rule_text(rule: &ExportRule) -> String {
    let mut text = format!(
        "{}: {}, squash {}, anonymous {}:{}, {} ports, exclusive_lock {}, mount_walk {}",
        networks(rule),
        clean(&rule.access),
        clean(&rule.squash),
        rule.anonymous_uid,
        rule.anonymous_gid,
        ports(rule),
        clean(&rule.exclusive_lock),
        clean(&rule.mount_walk)
    );
    if !rule.lock_auth {
        text += ", no lock_auth";
    }
    if rule.stateless_clients {
        text += ", stateless_clients";
    }
    text
}

fn networks(rule: &ExportRule) -> String {
    match rule.clients.is_empty() {
        true => "no clients".into(),
        false => clean(&rule.clients.join(" ")),
    }
}

fn ports(rule: &ExportRule) -> &'static str {
    if rule.reserved_ports { "reserved" } else { "any" }
}

fn word(state: ExportState) -> &'static str {
    match state {
        ExportState::Served => "served",
        ExportState::Unanswered => "does not answer",
        ExportState::Opening => "not served yet",
        ExportState::Failed => "not served",
    }
}
