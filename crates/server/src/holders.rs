//! Which hosts hold or await locks, so that `liveness` keeps a witness connection to each of them.

use std::time::{Duration, Instant};

use keeper::Keeper;
use keeper::identity::{ClientId, HostKey, OwnerNamespace, Transport};
use tokio::time::{MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::liveness::Liveness;

/// How often hosts that no longer hold anything are dropped, and hosts that a restart recovered are
/// added.
const REFRESH_EVERY: Duration = Duration::from_secs(30);

/// Keeps the set of witnesses equal to the set of lock holders until the engine ends.
pub(crate) async fn watch_holders(engine: Engine, liveness: Liveness) {
    let mut every = interval(REFRESH_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = engine.ended() => return,
        }
        let at = Instant::now();
        let Some(holders) = engine.read(lock_holders).await else { return };
        for (host, namespace) in &holders {
            liveness.watch(host, *namespace);
        }
        liveness.unwatch_except(&holders.into_iter().map(|(host, _)| host).collect(), at);
    }
}

/// Every host with a lock, a share or a waiter, and the address of ours that it used last.
/// Registrants of SM_MON are not hosts that lock.
pub fn lock_holders(keeper: &Keeper) -> Vec<(HostKey, OwnerNamespace)> {
    let hosts = keeper.clients(ClientId(0)).filter(|view| view.client.is_host());
    let holders = hosts.filter(|view| view.locks + view.shares + view.waiting > 0);
    holders
        .filter_map(|view| {
            let ours = view.client.used.last()?;
            Some((view.client.key(), OwnerNamespace::new(*ours, Transport::Tcp, 4)))
        })
        .collect()
}
