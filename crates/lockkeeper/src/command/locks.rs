//! `lockkeeper locks`: who holds this, since when, and who waits for whom.

use admin::api::{Lock, LockKind, LockMode, LockState};
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use serde::Serialize;

use super::{Session, name_of};
use crate::daemon::Failed;
use crate::listing::{Listing, Shape};
use crate::tables::{Cell, Table, age};
use crate::terminal::{Paint, clean};
use crate::watch::{self, View};

/// As wide as what stands there usually, so that a table that is drawn again keeps still.
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

/// As the API writes them.
const STATES: [&str; 6] = ["held", "unconfirmed", "releasable", "suspect", "remembered", "waiting"];

#[derive(Debug, Args)]
pub struct Locks {
    /// Only those of this client: its id, name or address
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// Only those on this file, or below this directory: below an export, or absolute
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    path: Option<String>,
    /// Only those who wait
    #[arg(long, conflicts_with = "state")]
    waiting: bool,
    /// Only those in this state
    #[arg(long, value_parser = PossibleValuesParser::new(STATES))]
    state: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

impl Locks {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        let state = self.waiting.then(|| word(LockState::Waiting)).or(self.state);
        let listing = Listing {
            daemon: &session.daemon,
            path: "/v1/locks",
            filter: vec![("client", self.client), ("path", self.path), ("state", state)],
            shape: &self.shape,
        };
        if self.shape.json {
            return watch::repeat(self.shape.watch, async || listing.print_json::<Lock>().await)
                .await;
        }
        watch::show(self.shape.watch, async || {
            let page = listing.read::<Lock>().await?;
            let table = table(&page.items);
            if table.is_empty() {
                return Ok(View { remark: Some("no locks".into()), ..View::default() });
            }
            let text = table.draw(session.width(), session.colour);
            Ok(View { text, remark: listing.remark(&page) })
        })
        .await
    }
}

/// A value of the API's as the API writes it.
pub fn word(value: impl Serialize) -> String {
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

/// `WRITE`; `WRITE*` for somebody who waits; `SHARE RW deny W`.
pub fn mode(lock: &Lock) -> String {
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

pub fn end(lock: &Lock) -> String {
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
