//! Recovery time of a server that is killed while many locks are held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use client::{Connection, Options};
use serde::Serialize;
use wire::nlm::{LockArgs, Status, v4};

use crate::population::LockPopulation;
use crate::server::Server;

/// Longer than any server's default grace period.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Times count from the start of the new process; `None` is "not within two minutes".
#[derive(Debug, Clone, Serialize)]
pub struct Restart {
    pub server: String,
    pub locks: usize,
    /// With all locks held, before the kill.
    pub rss_mib: f64,
    pub first_reclaim_ms: Option<f64>,
    pub all_reclaimed_ms: Option<f64>,
    /// The first new lock, requested when all are reclaimed.
    pub new_lock_ms: Option<f64>,
}

/// `before_kill` runs when all locks are held.
pub(crate) async fn measure(
    server: &mut Server,
    locks: usize,
    before_kill: impl FnOnce() -> Result<()>,
) -> Result<Restart> {
    let target = server.target.clone();
    let population = Arc::new(LockPopulation::create(&target, locks).await?);
    population.take_all(&target, false).await.context("taking the locks")?;
    let rss_mib = server.rss_bytes()? as f64 / f64::from(1 << 20);
    let name = server.name.clone();
    let mut found = Restart {
        server: name,
        locks,
        rss_mib,
        first_reclaim_ms: None,
        all_reclaimed_ms: None,
        new_lock_ms: None,
    };
    before_kill()?;
    let started = server.kill_and_start()?;
    let ms = |now: Instant| Some((now - started).as_secs_f64() * 1e3);

    let Some(first) = granted(server, started, &population.reclaim_first()).await? else {
        return Ok(found);
    };
    found.first_reclaim_ms = ms(first);
    population.take_all(&target, true).await.context("taking the locks back")?;
    found.all_reclaimed_ms = ms(Instant::now());
    found.new_lock_ms = granted(server, started, &population.other()).await?.and_then(ms);
    Ok(found)
}

/// Retries until the lock is granted, as clients do; when it was, if ever.
async fn granted(
    server: &mut Server,
    started: Instant,
    args: &LockArgs,
) -> Result<Option<Instant>> {
    let nlm = server.target.nlm.context("no lock manager")?;
    let options = Options {
        connect_timeout: Duration::from_secs(1),
        timeout: Duration::from_secs(10),
        ..server.target.options.clone()
    };
    let mut connection: Option<Connection> = None;
    while started.elapsed() < GIVE_UP {
        server.check()?;
        // A refused connection costs the server nothing; a denied lock does.
        let mut pause = Duration::from_millis(1);
        if connection.is_none() {
            connection = Connection::connect(nlm, &options).await.ok();
        }
        if let Some(to) = &connection {
            match to.call::<v4::Lock>(args).await {
                Ok(reply) if reply.status == Status::Granted => return Ok(Some(Instant::now())),
                Ok(_) => pause = Duration::from_millis(20),
                Err(_) => connection = None,
            }
        }
        tokio::time::sleep(pause).await;
    }
    Ok(None)
}
