//! What is in the store, read without changing it: an embedded one behind glass while nobody serves
//! from it, PostgreSQL by looking at who has the seat.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keeper::change::{Exactness, Snapshot};
use store::embedded::mark::BootId;
use store::postgres::Seat;
use store::{Embedded, Settings, Store as _, check};

use super::facts::within;
use super::glass::Glass;
use super::plan::Plan;
use crate::stores::{self, StoreUrl};

/// A store of a million locks is read in a few seconds.
const PATIENCE: Duration = Duration::from_secs(20);

pub enum Kept {
    /// In use by the server, which is asked instead; or in memory, where there is nothing.
    NotLooked,
    /// No server has ever used it.
    Nothing,
    Found {
        exact: bool,
        locks: usize,
        clients: usize,
        problems: Vec<String>,
    },
    Unreadable(String),
    /// PostgreSQL: who serves, who waits.
    Shared(Seat),
}

pub async fn look(plan: &Plan, in_use: bool) -> Kept {
    let too_slow = || Kept::Unreadable(format!("{}: no answer in {PATIENCE:?}", plan.store));
    match plan.store.clone() {
        StoreUrl::Memory => Kept::NotLooked,
        StoreUrl::Embedded(_) if in_use => Kept::NotLooked,
        StoreUrl::Embedded(path) => {
            within(PATIENCE, move || embedded(&path)).await.unwrap_or_else(too_slow)
        }
        StoreUrl::Postgres(address) => {
            let look = move || match stores::look_into(&address).and_then(|mut s| Ok(s.seat()?)) {
                Ok(seat) => Kept::Shared(seat),
                Err(error) => Kept::Unreadable(format!("{error:#}")),
            };
            within(PATIENCE, look).await.unwrap_or_else(too_slow)
        }
    }
}

fn embedded(path: &Path) -> Kept {
    if !path.is_dir() {
        return Kept::Nothing;
    }
    match load(path) {
        Ok(saved) => Kept::Found {
            exact: saved.exactness == Exactness::Exact,
            locks: saved.locks.len(),
            clients: saved.clients.len(),
            problems: check::problems(&saved),
        },
        Err(error) => Kept::Unreadable(format!("{error:#}")),
    }
}

/// As the next start would read it.
fn load(path: &Path) -> anyhow::Result<Snapshot> {
    let settings = Settings {
        durability: store::Durability::Process,
        disk: Arc::new(Glass::new(path.to_owned())?),
        run: Arc::new(Glass::new(stores::run_directory(path)?)?),
        boot: BootId::of_this_machine()?,
        sync_delay: PATIENCE,
        journal_bytes: u64::MAX,
    };
    Ok(Embedded::open(settings)?.load()?)
}
