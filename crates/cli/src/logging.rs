//! The log: to standard error as text or JSON, or to the systemd journal with priorities and fields.
//!
//! Fields that begin with `event.` are the parts of an event whose sentence is the message. Programs
//! read them; the text leaves them out.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use tracing::error;
use tracing::field::{Field, Visit};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::Layer;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::ConfigError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text for each message
    Text,
    /// One JSON object for each message
    Json,
    /// The systemd journal, with fields such as LOCKKEEPER_EVENT_KIND
    Journald,
}

/// Logs at `LOCKKEEPER_LOG`: a level, or levels by module. Without a format it is that of the journal if
/// standard error is what systemd has connected to it; the format in use is returned.
pub(crate) fn start(format: Option<LogFormat>) -> Result<LogFormat> {
    let wanted = std::env::var("LOCKKEEPER_LOG").unwrap_or_default();
    let filter = match wanted.as_str() {
        "" => Targets::new().with_default(LevelFilter::INFO),
        wanted => filter(wanted)?,
    };
    let (format, layer) = match format {
        Some(LogFormat::Text) => (LogFormat::Text, text().boxed()),
        Some(LogFormat::Json) => (LogFormat::Json, json().boxed()),
        Some(LogFormat::Journald) => (LogFormat::Journald, journal()?.boxed()),
        None => match is_journal().then(journal) {
            Some(Ok(journal)) => (LogFormat::Journald, journal.boxed()),
            // A container may have the stream of the journal, but not its socket.
            Some(Err(_)) | None => (LogFormat::Text, text().boxed()),
        },
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    Ok(format)
}

/// Tells the error that ends the program.
pub(crate) fn report(format: LogFormat, error: &anyhow::Error) {
    if format != LogFormat::Text {
        error!(event.kind = "failed", "{error:#}");
    }
    // A journal that was asked for on a command line is not what its user looks at.
    if format == LogFormat::Text || format == LogFormat::Journald && !is_journal() {
        eprintln!("error: {error:#}");
    }
}

/// A word without `=` must be a level: the parser would take a misspelt one for a module.
fn filter(text: &str) -> Result<Targets, ConfigError> {
    let is_level = |word: &str| {
        // The parser takes nothing at all for a level, and numbers.
        word.contains(|c: char| c.is_ascii_alphabetic())
            && word.trim().parse::<LevelFilter>().is_ok()
    };
    let is_known = |word: &str| {
        word.split_once('=').map_or_else(|| is_level(word), |(_, level)| is_level(level))
    };
    let parsed = text.parse().ok().filter(|_| text.split(',').all(is_known));
    parsed.ok_or_else(|| {
        ConfigError(format!(
            "LOCKKEEPER_LOG: {text:?} is neither a level (error, warn, info, debug, trace) nor levels of \
             modules, as in info,lockkeeper_server=debug"
        ))
    })
}

fn text() -> impl Layer<Registry> + Send + Sync {
    tracing_subscriber::fmt::layer()
        .fmt_fields(Sentence)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(colour())
        // A closed stderr must not stop the server, and cannot be reported on stderr.
        .log_internal_errors(false)
}

/// The message, then the fields that are not parts of it.
struct Sentence;

impl<'writer> FormatFields<'writer> for Sentence {
    fn format_fields<R: RecordFields>(&self, to: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = SentenceVisitor { to, is_empty: true, written: Ok(()) };
        fields.record(&mut visitor);
        visitor.written
    }
}

struct SentenceVisitor<'writer> {
    to: Writer<'writer>,
    is_empty: bool,
    written: fmt::Result,
}

impl Visit for SentenceVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let name = field.name();
        if self.written.is_err() || name.starts_with("event.") {
            return;
        }
        let space = if std::mem::take(&mut self.is_empty) { "" } else { " " };
        self.written = match name {
            "message" => write!(self.to, "{space}{value:?}"),
            name => write!(self.to, "{space}{name}={value:?}"),
        };
    }
}

fn json() -> impl Layer<Registry> + Send + Sync {
    tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
}

fn journal() -> Result<impl Layer<Registry> + Send + Sync> {
    let layer = tracing_journald::layer().context("cannot log to the journal of systemd")?;
    let priorities = PriorityMappings { info: Priority::Informational, ..PriorityMappings::new() };
    Ok(layer
        .with_syslog_identifier("lockkeeper".into())
        .with_field_prefix(Some("LOCKKEEPER".into()))
        .with_priority_mappings(priorities))
}

/// Whether standard error is what systemd has connected to the journal.
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|found| named == format!("{}:{}", found.dev(), found.ino()))
}

fn colour() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_refused() {
        for right in ["info", "debug", "warn,lockkeeper_server=trace", "lockkeeper_keeper=off"] {
            assert!(filter(right).is_ok(), "{right}");
        }
        for wrong in
            ["infoo", "debug,foo", "lockkeeper_server=loud", "a=b=c", ",", " ", "3", "info,"]
        {
            let error = filter(wrong).unwrap_err().to_string();
            assert!(error.contains("lockkeeper_server=debug"), "{error}");
        }
    }
}
