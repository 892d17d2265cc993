//! The seat at a store that several servers share: waiting for it, taking it, and what must be done
//! before the first client is let in.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use store::Lease;
use store::postgres::{
    COMMAND, Holder, Moment, Postgres, PostgresSettings, Process, Verdict, Watch,
};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{error, info, warn};

/// How often a hook that fails is tried.
const HOOK_ATTEMPTS: u32 = 3;
const HOOK_PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Wish {
    pub settings: PostgresSettings,
    /// Wait for as long as another serves, instead of refusing to start.
    pub standby: bool,
    pub on_takeover: Option<PathBuf>,
    pub on_takeover_timeout: Duration,
}

/// The store, ours alone for as long as the lease is held.
pub struct Taken {
    pub store: Postgres,
    pub lease: Lease,
    /// Who had it before.
    former: Option<Former>,
    /// Those who must be fenced before a client is let in: they were taken to be dead, and nobody has
    /// made sure since.
    unfenced: Vec<String>,
}

struct Former {
    node: String,
    /// It stopped cleanly, or is certain to have ended.
    left: bool,
}

/// Ends the wait when it is dropped.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Resolves when the store is ours and the hook has succeeded. Dropped meanwhile, it lets go.
pub async fn take(wish: &Wish, waiting: impl Fn(&str) + Send + 'static) -> Result<Taken> {
    let wanted = Wanted(Arc::new(AtomicBool::new(true)));
    let (done, taken) = oneshot::channel();
    let (of, is_wanted) = (wish.clone(), wanted.0.clone());
    thread::Builder::new().name("seat".into()).spawn(move || {
        let _ = done.send(wait_and_take(&of, &is_wanted, &waiting));
    })?;
    let mut taken = taken.await.context("the wait for the store ended in a defect")??;
    // Should anything fail from here on, the store lets go of the seat, and others may be luckier.
    if let Some(hook) = &wish.on_takeover {
        run_hook(wish, hook, taken.former.as_ref(), &taken.unfenced).await?;
    }
    taken.store.fenced()?;
    drop(wanted);
    Ok(taken)
}

fn wait_and_take(wish: &Wish, wanted: &AtomicBool, waiting: &dyn Fn(&str)) -> Result<Taken> {
    let mut every = wish.settings.lease / 6;
    let mut store = connect(wish, wanted, every)?;
    let mut watch = Watch::default();
    let mut known: Option<Holder> = None;
    let mut troubled = false;
    let (seat, lease) = loop {
        if !wanted.load(Ordering::Relaxed) {
            let _ = store.stop_standing_by();
            bail!("stopped while waiting for the store");
        }
        let registered = if wish.standby { store.stand_by() } else { Ok(()) };
        let seen = match registered {
            Ok(()) => store.watch(&mut watch),
            Err(failed) => {
                watch.look(Moment::at(Instant::now()), None);
                Err(failed)
            }
        };
        match seen {
            Ok((seat, verdict)) => {
                if std::mem::take(&mut troubled) {
                    info!("the store can be read again");
                }
                if matches!(verdict, Verdict::Free | Verdict::Dead) {
                    match store.take_as_seen(&seat) {
                        Ok(Some(lease)) => break (seat, lease),
                        // It shows life again, or another was faster.
                        Ok(None) => {}
                        Err(failed) if wish.standby && failed.may_pass() => {
                            warn!("could not take over: {failed}");
                        }
                        Err(failed) => return Err(failed.into()),
                    }
                }
                heed(wish, known.as_ref(), seat.holder.as_ref(), waiting)?;
                known = seat.holder;
                // Whoever serves must see that we wait, by its own lease.
                let lease = known.as_ref().map_or(wish.settings.lease, |holder| holder.lease);
                every = lease.min(wish.settings.lease).max(Duration::from_millis(300)) / 6;
            }
            Err(failed) if !wish.standby => return Err(failed.into()),
            Err(failed) if !troubled => {
                troubled = true;
                warn!("standing by without a view of the store: {failed}");
            }
            Err(_) => {}
        }
        thread::sleep(every);
    };
    let holder = seat.holder.filter(|holder| !holder.node.ends_with(COMMAND));
    let former = holder.map(|holder| Former {
        left: holder.left || holder.process.as_ref().is_some_and(Process::is_gone),
        node: holder.node,
    });
    match &former {
        Some(Former { node, left: true }) => info!("{node} has left the store; taking it"),
        Some(Former { node, left: false }) if *node != wish.settings.node => {
            warn!("{node} shows no life any more; taking over");
        }
        _ => {}
    }
    let unfenced = store.seat()?.unfenced;
    Ok(Taken { store, lease, former, unfenced })
}

/// A standby waits for the database as well.
fn connect(wish: &Wish, wanted: &AtomicBool, every: Duration) -> Result<Postgres> {
    let mut troubled = false;
    loop {
        match Postgres::connect(wish.settings.clone()) {
            Ok(store) => return Ok(store),
            Err(failed) if !wish.standby || !failed.may_pass() => return Err(failed.into()),
            Err(failed) if !troubled => {
                troubled = true;
                warn!("standing by without a view of the store: {failed}");
            }
            Err(_) => {}
        }
        if !wanted.load(Ordering::Relaxed) {
            bail!("stopped while waiting for the store");
        }
        thread::sleep(every.max(Duration::from_millis(500)));
    }
}

/// Somebody may be serving: a standby says whom it waits for, others refuse.
fn heed(
    wish: &Wish,
    known: Option<&Holder>,
    now: Option<&Holder>,
    waiting: &dyn Fn(&str),
) -> Result<()> {
    let Some(now) = now else { return Ok(()) };
    if wish.standby {
        if known.is_none_or(|known| known.writer != now.writer) {
            let told = format!("standing by: {} serves since {}", now.node, now.since);
            info!("{told}");
            waiting(&told);
        }
        return Ok(());
    }
    match known {
        Some(known) if now.shows_life_since(known) => bail!(
            "{} serves from this store since {}; stop it first, or start this server with \
             --standby, to take over when that one ends",
            now.node,
            now.since
        ),
        None => {
            info!("looking for {:.1} s whether {} still serves", now.lease.as_secs_f64(), now.node);
            Ok(())
        }
        Some(_) => Ok(()),
    }
}

/// It must succeed before clients are let in: it may fence the former server, or move an address.
async fn run_hook(
    wish: &Wish,
    hook: &PathBuf,
    former: Option<&Former>,
    unfenced: &[String],
) -> Result<()> {
    let shown = hook.display();
    let state = match former {
        _ if !unfenced.is_empty() => "dead",
        Some(_) => "left",
        None => "none",
    };
    let mut last = anyhow!("not tried");
    for attempt in 1..=HOOK_ATTEMPTS {
        let mut command = Command::new(hook);
        command
            .env("LOCKKEEPER_NODE", &wish.settings.node)
            .env("LOCKKEEPER_FORMER_NODE", former.map_or("", |former| &former.node))
            .env("LOCKKEEPER_FORMER_STATE", state)
            .env("LOCKKEEPER_UNFENCED", unfenced.join("\n"))
            // What it says goes to our log: it may leave something running that holds a pipe open.
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let limit = wish.on_takeover_timeout;
        last = match timeout(limit, command.status()).await {
            Ok(Ok(status)) if status.success() => {
                info!("{shown} succeeded");
                return Ok(());
            }
            Ok(Ok(status)) => anyhow!("{status}"),
            Ok(Err(failed)) => failed.into(),
            Err(_) => anyhow!("it took longer than {limit:?}"),
        };
        error!("on_takeover {shown} failed ({attempt} of {HOOK_ATTEMPTS}): {last}");
        tokio::time::sleep(HOOK_PAUSE).await;
    }
    Err(last.context(format!("on_takeover {shown} failed; no client was let in")))
}
