//! Becoming leader of a shared store: waiting, taking over, and running the hook before clients are
//! admitted.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use store::Lease;
use store::postgres::{
    COMMAND_SUFFIX, Leader, LeaderWatch, Postgres, PostgresSettings, ProcessIdentity, QueryTimes,
    TakeoverDecision,
};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::standby_copy::{StandbyCopies, StandbyCopy};

/// Attempts to run a failing hook.
const HOOK_ATTEMPTS: u32 = 3;
const HOOK_PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(super) struct TakeoverOptions {
    pub settings: PostgresSettings,
    /// Wait while another server is leader, instead of failing.
    pub standby: bool,
    pub on_takeover: Option<PathBuf>,
    pub on_takeover_timeout: Duration,
    /// What a standby copies while it waits.
    pub copy: StandbyCopy,
}

/// The store, exclusive while the lease is held.
pub(super) struct AcquiredStore {
    pub store: Postgres,
    pub lease: Lease,
    /// The leader before this server.
    previous: Option<PreviousLeader>,
    /// Nodes presumed dead and not fenced since. The hook must fence them before clients are admitted.
    unfenced: Vec<String>,
}

struct PreviousLeader {
    node: String,
    /// Stopped cleanly, or its process is known to be gone.
    left: bool,
}

/// Ends the waiting thread when dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Resolves when this server is leader and the hook has succeeded. Cancelling gives up leadership.
pub(super) async fn acquire(
    options: &TakeoverOptions,
    waiting: impl Fn(&str) + Send + 'static,
) -> Result<AcquiredStore> {
    let active = CancelOnDrop(Arc::new(AtomicBool::new(true)));
    let (done, acquired) = oneshot::channel();
    let (of, is_active) = (options.clone(), active.0.clone());
    thread::Builder::new().name("takeover".into()).spawn(move || {
        let _ = done.send(wait_and_acquire(&of, &is_active, &waiting));
    })?;
    let mut acquired = acquired.await.context("the takeover thread panicked")??;
    // From here on an error drops the store, which gives up leadership.
    match &options.on_takeover {
        Some(hook) => {
            run_hook(options, hook, acquired.previous.as_ref(), &acquired.unfenced).await?;
            let author = format!("on_takeover of {}", options.settings.node);
            for node in &acquired.unfenced {
                acquired.store.set_fenced(node, &author)?;
            }
        }
        None => {
            for node in &acquired.unfenced {
                warn!(
                    "{node} is presumed dead but was not fenced: if it is only paused, writes that \
                     it has begun can still reach the files; when it is off, run: lockkeeper store \
                     fenced {node}"
                );
            }
        }
    }
    drop(active);
    Ok(acquired)
}

fn wait_and_acquire(
    options: &TakeoverOptions,
    active: &AtomicBool,
    waiting: &dyn Fn(&str),
) -> Result<AcquiredStore> {
    let mut every = options.settings.lease / 6;
    let mut store = connect(options, active, every)?;
    let mut watch = LeaderWatch::default();
    let mut known: Option<Leader> = None;
    let mut failing = false;
    let mut copies = StandbyCopies::new(options.copy.clone());
    let (leadership, lease) = loop {
        if !active.load(Ordering::Relaxed) {
            let _ = store.stop_standing_by();
            bail!("stopped while waiting for the store");
        }
        let registered = if options.standby { store.stand_by() } else { Ok(()) };
        let seen = match registered {
            Ok(()) => store.observe_leader(&mut watch),
            Err(failed) => {
                watch.observe(QueryTimes::at(Instant::now()), None);
                Err(failed)
            }
        };
        match seen {
            Ok((leadership, verdict)) => {
                if std::mem::take(&mut failing) {
                    info!("the store is readable again");
                }
                if matches!(verdict, TakeoverDecision::Vacant | TakeoverDecision::LeaderDead) {
                    match store.take_leadership_if_unchanged(&leadership) {
                        Ok(Some(lease)) => break (leadership, lease),
                        // The leader renewed, or another standby was faster.
                        Ok(None) => {}
                        Err(failed) if options.standby && failed.is_transient() => {
                            warn!("takeover failed: {failed}");
                        }
                        Err(failed) => return Err(failed.into()),
                    }
                }
                let leader = leadership.leader.as_ref();
                if let Err(refused) = check_leader(options, known.as_ref(), leader, waiting) {
                    let _ = store.stop_standing_by();
                    return Err(refused);
                }
                known = leadership.leader;
                if options.standby {
                    copies.keep(&mut store);
                }
                // The leader must notice this standby within its own lease.
                let lease = known.as_ref().map_or(options.settings.lease, |leader| leader.lease);
                every = lease.min(options.settings.lease).max(Duration::from_millis(300)) / 6;
            }
            Err(failed) if !options.standby => return Err(failed.into()),
            Err(failed) if !failing => {
                failing = true;
                warn!("standby cannot read the store: {failed}");
            }
            Err(_) => {}
        }
        thread::sleep(every);
    };
    let leader = leadership.leader.filter(|leader| !leader.node.ends_with(COMMAND_SUFFIX));
    let previous = leader.map(|leader| PreviousLeader {
        left: leader.has_released
            || leader.process.as_ref().is_some_and(ProcessIdentity::has_exited),
        node: leader.node,
    });
    match &previous {
        Some(PreviousLeader { node, left: true }) => info!("{node} left the store; taking over"),
        Some(PreviousLeader { node, left: false }) if *node != options.settings.node => {
            warn!("{node} stopped renewing its lease; taking over");
        }
        _ => {}
    }
    let unfenced = store.leadership()?.unfenced;
    Ok(AcquiredStore { store, lease, previous, unfenced })
}

/// A standby also waits for the database.
fn connect(options: &TakeoverOptions, active: &AtomicBool, every: Duration) -> Result<Postgres> {
    let mut failing = false;
    loop {
        match Postgres::connect(options.settings.clone()) {
            Ok(store) => return Ok(store),
            Err(failed) if !options.standby || !failed.is_transient() => return Err(failed.into()),
            Err(failed) if !failing => {
                failing = true;
                warn!("standby cannot read the store: {failed}");
            }
            Err(_) => {}
        }
        if !active.load(Ordering::Relaxed) {
            bail!("stopped while waiting for the store");
        }
        thread::sleep(every.max(Duration::from_millis(500)));
    }
}

/// Another server may be leader: a standby reports it and waits, any other server fails once the leader
/// has renewed.
fn check_leader(
    options: &TakeoverOptions,
    known: Option<&Leader>,
    now: Option<&Leader>,
    waiting: &dyn Fn(&str),
) -> Result<()> {
    let Some(now) = now else { return Ok(()) };
    let lives = known.is_some_and(|known| now.made_progress_since(known));
    if options.standby {
        // Fencing goes by name (B6.65).
        if lives && now.node == options.settings.node {
            bail!(
                "the server that serves since {} has the name {:?}, too: a hook would fence the \
                 wrong one. Give each server its own name: --node NAME, or node under [standby]",
                now.since,
                now.node
            );
        }
        if known.is_none_or(|known| known.nonce != now.nonce) {
            let text = format!("standing by: {} serves since {}", now.node, now.since);
            info!("{text}");
            waiting(&text);
        }
        return Ok(());
    }
    match known {
        Some(_) if lives => bail!(
            "in use by {} since {}; stop that server first, or use --standby to take over when it \
             ends",
            now.node,
            now.since
        ),
        None => {
            info!(
                "watching {} for {:.1} s to see whether it is alive",
                now.node,
                now.lease.as_secs_f64()
            );
            Ok(())
        }
        Some(_) => Ok(()),
    }
}

/// Runs `on_takeover`, which may fence the previous server or move an address. Clients are admitted
/// only if it succeeds.
async fn run_hook(
    options: &TakeoverOptions,
    hook: &PathBuf,
    previous: Option<&PreviousLeader>,
    unfenced: &[String],
) -> Result<()> {
    let shown = hook.display();
    let state = match previous {
        _ if !unfenced.is_empty() => "dead",
        Some(_) => "left",
        None => "none",
    };
    let mut last = anyhow!("not tried");
    for attempt in 1..=HOOK_ATTEMPTS {
        let mut command = Command::new(hook);
        command
            .env("LOCKKEEPER_NODE", &options.settings.node)
            .env("LOCKKEEPER_FORMER_NODE", previous.map_or("", |previous| &previous.node))
            .env("LOCKKEEPER_FORMER_STATE", state)
            .env("LOCKKEEPER_UNFENCED", unfenced.join("\n"))
            // Output is inherited: a pipe could be held open by a process the hook leaves running.
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let limit = options.on_takeover_timeout;
        last = match timeout(limit, command.status()).await {
            Ok(Ok(status)) if status.success() => {
                info!("{shown} succeeded");
                return Ok(());
            }
            Ok(Ok(status)) => anyhow!("{status}"),
            Ok(Err(failed)) => failed.into(),
            Err(_) => anyhow!("timed out after {limit:?}"),
        };
        error!("on_takeover {shown} failed ({attempt} of {HOOK_ATTEMPTS}): {last}");
        tokio::time::sleep(HOOK_PAUSE).await;
    }
    Err(last.context(format!("on_takeover {shown} failed; no clients admitted")))
}
