//! Contents of the store, read without changing it: an embedded store through [`OverlayDisk`] while no
//! server uses it, a PostgreSQL store by its leadership table.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keeper::change::{Exactness, Snapshot};
use store::BootId;
use store::postgres::Leadership;
use store::{Embedded, EmbeddedSettings, Store as _, consistency};

use super::facts::within;
use super::overlay_disk::OverlayDisk;
use super::settings::ServerSettings;
use crate::config::store_url::{self, StoreUrl};

/// A store of a million locks loads in a few seconds.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) enum StoreContents {
    /// In use by a server, which is queried instead; or in memory.
    NotExamined,
    /// Never used by a server.
    Absent,
    Snapshot {
        exact: bool,
        locks: usize,
        clients: usize,
        problems: Vec<String>,
    },
    Unreadable(String),
    /// PostgreSQL: leader and standbys.
    Leadership(Box<Leadership>),
}

pub(super) async fn look(settings: &ServerSettings, in_use: bool) -> StoreContents {
    let too_slow =
        || StoreContents::Unreadable(format!("{}: no answer within {TIMEOUT:?}", settings.store));
    match settings.store.clone() {
        StoreUrl::Memory => StoreContents::NotExamined,
        StoreUrl::Embedded(_) if in_use => StoreContents::NotExamined,
        StoreUrl::Embedded(path) => {
            within(TIMEOUT, move || embedded(&path)).await.unwrap_or_else(too_slow)
        }
        StoreUrl::Postgres(address) => {
            let look = move || match store_url::look_into(&address)
                .and_then(|mut s| Ok(s.leadership()?))
            {
                Ok(leadership) => StoreContents::Leadership(Box::new(leadership)),
                Err(error) => StoreContents::Unreadable(format!("{error:#}")),
            };
            within(TIMEOUT, look).await.unwrap_or_else(too_slow)
        }
    }
}

fn embedded(path: &Path) -> StoreContents {
    match Embedded::exists(path) {
        Ok(true) => {}
        Ok(false) => return StoreContents::Absent,
        Err(error) => return StoreContents::Unreadable(error.to_string()),
    }
    match load(path) {
        Ok(saved) => StoreContents::Snapshot {
            exact: saved.exactness == Exactness::Exact,
            locks: saved.locks.len(),
            clients: saved.clients.len(),
            problems: consistency::problems(&saved),
        },
        Err(error) => StoreContents::Unreadable(format!("{error:#}")),
    }
}

/// Loads it as the next start would.
fn load(path: &Path) -> anyhow::Result<Snapshot> {
    let settings = EmbeddedSettings {
        durability: store::Durability::Process,
        disk: Arc::new(OverlayDisk::new(path.to_owned())?),
        run: Arc::new(OverlayDisk::new(store_url::run_directory(path)?)?),
        boot: BootId::of_this_machine()?,
        sync_delay: TIMEOUT,
        journal_bytes: u64::MAX,
        reserve_bytes: 0,
    };
    Ok(Embedded::open(settings)?.load()?)
}
