//! Keeps the copy up to date: after a registration has changed, and every minute for the token. Reads
//! the keeper in portions and writes on a thread for blocking work, so that no lock waits for it.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keeper::Keeper;
use keeper::config::RosterEntry;
use keeper::identity::{ClientId, Epoch};
use store::Token;
use tokio::time::{MissedTickBehavior, interval_at, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::{RosterCopy, RosterFile, entry};
use crate::engine::Engine;

/// When the copy is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// How often, if nothing has registered.
    every: Duration,
    /// The least time between two writes.
    pause: Duration,
    /// A batch of locks alone may be in the page cache when it is acknowledged; a store has it on the
    /// disk well within this time. The copy never has the token of a younger one: after a power loss
    /// it would show a store as older that lacks nothing but locks.
    settled_after: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(60),
            pause: Duration::from_secs(1),
            settled_after: Duration::from_secs(5),
        }
    }
}

/// Clients that one read of the keeper visits, as the engine waits meanwhile.
const PORTION: usize = 1000;
/// How long a clean stop waits for the last copy.
const LAST_COPY: Duration = Duration::from_secs(1);
/// Without a write for this long the copy counts as failing.
const OVERDUE: Duration = Duration::from_secs(180);

/// Whether the copy can be written.
#[derive(Clone, Debug)]
pub struct CopyHealth {
    last: Arc<Mutex<LastWrites>>,
    /// Held during a write: two would share the file under construction.
    writing: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct LastWrites {
    succeeded: Instant,
    error: Option<String>,
}

impl CopyHealth {
    /// A write is due now.
    pub(crate) fn new() -> Self {
        let last = LastWrites { succeeded: Instant::now(), error: None };
        Self { last: Arc::new(Mutex::new(last)), writing: Arc::default() }
    }

    /// Why the copy is out of date; `None` if it is not.
    pub fn problem(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let overdue = last.succeeded.elapsed();
        let overdue = (overdue > OVERDUE).then(|| format!("no write in {} s", overdue.as_secs()));
        last.error.clone().or(overdue)
    }

    /// Writes the copy; a failure is logged once.
    pub(crate) fn write(&self, file: &RosterFile, copy: &RosterCopy) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write(copy).map_err(|error| error.to_string());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = written.as_ref().err().cloned();
        let before = std::mem::replace(&mut last.error, failed);
        let path = file.path().display();
        match (written, before) {
            (Ok(()), before) => {
                last.succeeded = Instant::now();
                if before.is_some() {
                    info!("the copy of the roster {path} is written again");
                }
            }
            (Err(error), None) => warn!(
                "cannot write the copy of the roster {path}: {error}. Locks go on; if the store is \
                 lost, clients that registered since are not notified"
            ),
            (Err(_), Some(_)) => {}
        }
    }
}

/// Refreshes the copy until the engine ends.
pub(crate) async fn refresh_regularly(
    engine: Engine,
    epoch: Epoch,
    file: RosterFile,
    health: CopyHealth,
    schedule: Schedule,
) {
    let Schedule { every, pause, settled_after } = schedule;
    let mut minutes = interval_at(tokio::time::Instant::now() + every, every);
    minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut settled = Token::default();
    loop {
        let written = tokio::time::Instant::now();
        tokio::select! {
            () = engine.roster_changed() => sleep_until(written + pause).await,
            _ = minutes.tick() => {
                settled = engine.last_token();
                sleep(settled_after).await;
            }
            _ = engine.ended() => return,
        }
        let token = settled.max(engine.last_synced_token());
        if refresh(&engine, epoch, token, &file, &health).await.is_break() {
            return;
        }
    }
}

/// The last copy, for a clean stop: to be called before the engine is stopped.
pub(crate) async fn refresh_before_stop(
    engine: &Engine,
    epoch: Epoch,
    file: &RosterFile,
    health: &CopyHealth,
) {
    // Dropping the store syncs it, so that every token is settled.
    let _ = timeout(LAST_COPY, refresh(engine, epoch, engine.last_token(), file, health)).await;
}

async fn refresh(
    engine: &Engine,
    epoch: Epoch,
    token: Token,
    file: &RosterFile,
    health: &CopyHealth,
) -> ControlFlow<()> {
    let Some(hosts) = read_hosts(engine).await else { return ControlFlow::Break(()) };
    let copy = RosterCopy { epoch, token, hosts };
    let (file, health) = (file.clone(), health.clone());
    match tokio::task::spawn_blocking(move || health.write(&file, &copy)).await {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// `None` if the engine ends first.
async fn read_hosts(engine: &Engine) -> Option<Vec<RosterEntry>> {
    let (mut hosts, mut after) = (Vec::new(), ClientId(0));
    loop {
        let portion = move |keeper: &Keeper| {
            let clients = keeper.clients(after).take(PORTION);
            clients.map(|view| (view.client.id, entry(view.client))).collect::<Vec<_>>()
        };
        let portion = engine.read(portion).await?;
        let Some((last, _)) = portion.last() else { return Some(hosts) };
        after = *last;
        hosts.extend(portion.into_iter().filter_map(|(_, entry)| entry));
    }
}

#[cfg(test)]
mod tests {
    use keeper::bytes::FileKey;
    use keeper::identity::RequestId;
    use keeper::request::LockRequest;
    use testbed::wait::until;

    use super::*;
    use crate::engine::request::Request;
    use crate::engine::tests::{begun_with, lock_request};

    /// B4.100
    #[tokio::test(flavor = "multi_thread")]
    async fn the_copy_is_refreshed_by_registrations_at_once_and_by_locks_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = RosterFile::new(dir.path().join("roster"));
        let copy = || file.read().unwrap().unwrap_or_default();
        let engine = begun_with(Box::new(store::Memory::new()));
        let schedule = Schedule {
            every: Duration::from_secs(2),
            pause: Duration::ZERO,
            settled_after: Duration::from_millis(200),
        };
        let health = CopyHealth::new();
        let refreshing =
            refresh_regularly(engine.clone(), Epoch(7), file.clone(), health, schedule);
        tokio::spawn(refreshing);
        let lock = |id: u64, name: &str| {
            let request = LockRequest {
                id: RequestId(id),
                file: FileKey::new(&id.to_be_bytes()),
                ..lock_request(id, name, "10.0.0.1")
            };
            engine.ask(Request::Lock(request), Box::new(|_, _| {}));
            engine.flush();
        };
        lock(1, "alice");
        let names = |copy: &RosterCopy| -> Vec<String> {
            copy.hosts.iter().map(|host| host.name.to_string()).collect()
        };
        until("alice is in the copy", || names(&copy()) == ["alice"]).await;
        assert_eq!(copy().epoch, Epoch(7));
        let (registered, _) = (copy().token, lock(2, "alice"));
        until("the lock is durable", || engine.last_token() > registered).await;
        assert_eq!(engine.last_synced_token(), registered);
        until("the copy follows", || copy().token == engine.last_token()).await;
        lock(3, "bob");
        until("bob is in the copy", || names(&copy()) == ["alice", "bob"]).await;
        engine.abandon();
    }
}
