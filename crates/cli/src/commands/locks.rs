//! `lockkeeper locks`: held locks, shares and waiters.

use admin::api::{Lock, LockKind, LockMode, LockState};
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use serde::Serialize;

use super::paged_list::{ListOptions, PagedList};
use super::tables::{Cell, Table, age};
use super::terminal::{Paint, clean};
use super::watch::{self, View};
use super::{Session, name_of};
use crate::daemon::CommandError;

/// Minimum widths fit common values, so that columns stay put under `--watch`.
const COLUMNS: &[(&str, usize)] = &[
    ("ID", 4),
    ("CLIENT", 0),
    ("OWNER", 7),
    ("MODE", 6),
    ("START", 0),
    ("END", 4),
    ("AGE", 5),
    ("STATE", 12),
    ("PATH", 0),
];

/// As in the API.
const STATES: [&str; 6] = ["held", "unconfirmed", "releasable", "suspect", "remembered", "waiting"];

#[derive(Debug, Args)]
pub(crate) struct Locks {
    /// List only locks of this client (id, name or address)
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// List only locks on this file or below this directory: an absolute path, one relative to an
    /// export, or the end of the path of one locked file
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    path: Option<String>,
    /// List only waiters
    #[arg(long, conflicts_with = "state")]
    waiting: bool,
    /// List only locks in this state
    #[arg(long, value_parser = PossibleValuesParser::new(STATES))]
    state: Option<String>,
    #[command(flatten)]
    options: ListOptions,
}

impl Locks {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let state = self.waiting.then(|| word(LockState::Waiting)).or(self.state);
        let listing = PagedList {
            daemon: &session.daemon,
            path: "/v1/locks",
            filter: vec![("client", self.client), ("path", self.path), ("state", state)],
            options: &self.options,
        };
        if self.options.json {
            return watch::repeat(self.options.watch, async || listing.print_json::<Lock>().await)
                .await;
        }
        watch::show(self.options.watch, async || {
            let page = listing.read::<Lock>().await?;
            let table = table(&page.items);
            if table.is_empty() {
                let remark = listing.remark(&page).unwrap_or_else(|| "no locks".into());
                return Ok(View { remark: Some(remark), ..View::default() });
            }
            let text = table.draw(session.width(), session.colour);
            Ok(View { text, remark: listing.remark(&page) })
        })
        .await
    }
}

/// An enum value of the API in its wire spelling.
pub(crate) fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn table(locks: &[Lock]) -> Table {
    let mut table = Table::new(COLUMNS);
    for lock in locks {
        let share = lock.kind == LockKind::Share;
        table.row(vec![
            lock.id.as_str().into(),
            name_of(&lock.client).into(),
            u64::from(lock.owner).into(),
            mode(lock).into(),
            if share { "-".into() } else { lock.start.into() },
            if share { "-".into() } else { end(lock).into() },
            age(lock.age_seconds).into(),
            state(lock),
            lock.file.shown.as_str().into(),
        ]);
    }
    table
}

/// `WRITE`; `WRITE*` for a waiter; `SHARE RW deny W`.
pub(crate) fn mode(lock: &Lock) -> String {
    let word = match lock.mode {
        LockMode::Read => "READ",
        LockMode::Write => "WRITE",
        LockMode::ReadWrite => "RW",
        LockMode::None => "NONE",
    };
    match lock.kind {
        LockKind::Lock => word.to_owned(),
        LockKind::Waiter => format!("{word}*"),
        LockKind::Share => {
            let denies = lock.denies.as_deref().unwrap_or("none");
            format!("SHARE {word} deny {}", clean(denies))
        }
    }
}

pub(crate) fn end(lock: &Lock) -> String {
    lock.end.map_or_else(|| "EOF".to_owned(), |end| end.to_string())
}

fn state(lock: &Lock) -> Cell {
    let paint = match lock.state {
        LockState::Held => return "held".into(),
        LockState::Waiting => {
            let by = lock.blocked_by.as_deref().map(|id| format!(" {id}")).unwrap_or_default();
            let silent = if lock.passed_over { ", silent" } else { "" };
            return Cell::painted(&format!("waits{by}{silent}"), Paint::Notable);
        }
        LockState::Unconfirmed | LockState::Remembered => Paint::Notable,
        LockState::Releasable | LockState::Suspect => Paint::Bad,
    };
    Cell::painted(&word(lock.state), paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_are_those_of_the_api() {
        for state in STATES {
            let parsed: LockState = serde_json::from_value(state.into()).unwrap();
            assert_eq!(word(parsed), state);
        }
    }
}
