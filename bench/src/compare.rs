//! Our server beside nfs-ganesha, an older binary of ours and what the machine can do: same
//! directory, same load, in turn.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use client::Options;
use serde::Serialize;

use crate::contender::{Contenders, Role};
use crate::database::Database;
use crate::ganesha::{Edition, Ganesha, Installation, Place};
use crate::instructions::{self, Instructions};
use crate::interference::Interference;
use crate::limit::Loop;
use crate::link::Link;
use crate::lockkeeper::{Binary, Build, Site, Variant};
use crate::machine::Machine;
use crate::monitoring::{self, MonitoringCost};
use crate::namespace::Isolation;
use crate::restart::{self, Restart};
use crate::row::Row;
use crate::server::Server;
use crate::waiting::Handover;
use crate::{namespace, packages, rpcbind};
use load::{Operation, Shape};

/// The calling user, who owns the directory: unprivileged, so that squashing does not matter and
/// both servers check permissions as usual.
const USER: u32 = 1000;

/// With more, not all locks are reclaimed before its grace period ends, and the rest are lost.
const GANESHA_LOCKS_MAX: usize = 100_000;

#[derive(Debug, Clone)]
pub struct Plan {
    /// Our program; without it, nfs-ganesha is measured alone.
    pub lockkeeper: Option<PathBuf>,
    /// An older binary of ours, measured in every variant that ours is.
    pub before: Option<PathBuf>,
    /// Which nfs-ganesha is measured, if any.
    pub ganesha: Option<Edition>,
    /// Where the newest nfs-ganesha is kept.
    pub cache: PathBuf,
    /// One comparison over each.
    pub links: Vec<Link>,
    /// Also measure what the machine can do, on READ and WRITE.
    pub limits: bool,
    /// Also count instructions per call, of ours and of the older binary.
    pub instructions: bool,
    /// Also measure our server with asynchronous metadata, on CREATE and REMOVE.
    pub async_metadata: bool,
    /// Also measure our server with `durability = "power"`, on locks.
    pub power: bool,
    /// Also measure our server with its locks in PostgreSQL.
    pub postgres: bool,
    /// How many locks are held when the servers are killed; 0 leaves that out.
    pub locks: usize,
    /// Where the served directory is made; the system's temporary directory if `None`.
    pub parent: Option<PathBuf>,
    pub rounds: usize,
    pub load: load::Plan,
    /// Measured too, for charts; no bar applies.
    pub curves: Vec<(Operation, Shape)>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    pub machine: Machine,
    pub link: Link,
    pub rounds: usize,
    pub servers: Vec<About>,
    pub rows: Vec<Row>,
    /// Of latency against load.
    pub curves: Vec<Row>,
    /// Why `curves` end early, if they do.
    pub curve_error: Option<String>,
    pub handovers: Vec<Handover>,
    pub restarts: Vec<Restart>,
    /// Why nfs-ganesha is not among them, if it was killed.
    pub restart_error: Option<String>,
    /// The cost of monitoring our server.
    pub watched: Option<MonitoringCost>,
    pub instructions: Vec<Instructions>,
    /// The share of processor time that unrelated processes used meanwhile. Beyond about 0.1, the
    /// results reflect how the machine was shared rather than how fast the servers are.
    pub others_share: f64,
}

/// A server before it has any load.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    pub name: String,
    pub version: Option<String>,
    pub start_to_first_answer_ms: f64,
    pub idle_rss_mib: f64,
}

/// How a comparison ends.
#[derive(Debug)]
pub enum Ending {
    /// One for each link.
    Compared(Vec<Comparison>),
    /// This process only waited for the one that compared; it should exit with the same status.
    Waited(ExitCode),
}

/// Compares. Starts the calling program again inside its own namespaces, with the same arguments,
/// so this must be called before any side effect that must not happen twice, and outside any
/// runtime.
pub fn run(plan: &Plan, progress: impl Fn(&str)) -> Result<Ending> {
    testbed::packages::install(packages::RPCBIND)?;
    for (packages, wanted) in [
        (packages::ETHTOOL, plan.links.contains(&Link::Veth)),
        (packages::POSTGRES, plan.postgres),
        (packages::VALGRIND, plan.instructions),
    ] {
        if wanted {
            testbed::packages::install(packages)?;
        }
    }
    let installation = match plan.ganesha {
        Some(edition) => Some(Installation::make(edition, &plan.cache)?),
        None => None,
    };
    let parent = plan.parent.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = match namespace::enter(&parent)? {
        Isolation::Inside(scratch) => scratch,
        Isolation::Ended(code) => return Ok(Ending::Waited(code)),
    };
    // Temporary directories are private to their owner; the calling user must traverse this one.
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755))?;
    if let Some(installation) = &installation {
        installation.mount(&scratch)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut found = Vec::new();
    for link in &plan.links {
        progress(&format!("over {}", link.name()));
        let comparing = compare(plan, *link, installation.as_ref(), &scratch, &progress);
        found.push(runtime.block_on(comparing)?);
    }
    Ok(Ending::Compared(found))
}

async fn compare(
    plan: &Plan,
    link: Link,
    installation: Option<&Installation>,
    scratch: &Path,
    progress: &impl Fn(&str),
) -> Result<Comparison> {
    let own = scratch.join(link.name_of_directory());
    let (dir, state) = (own.join("data"), own.join("state"));
    fs::create_dir(&own)?;
    fs::create_dir(&dir)?;
    fs::create_dir(&state)?;
    chown(&dir, Some(USER), Some(USER))?;
    let options =
        Options { reserved_port: true, timeout: Duration::from_secs(30), ..Options::default() }
            .user(USER, USER, &[]);

    let locks = plan.load.locks();
    link.set_up()?;
    let (mut ganesha, mut rpcbind) = (None, None);
    if let Some(installation) = installation {
        progress("starting nfs-ganesha");
        let place = Place { scratch, dir: &dir, state: &state, options: &options, link };
        ganesha = Some(Ganesha::start(installation, place, locks).await?);
    } else {
        rpcbind = Some(rpcbind::start(link, Command::new("rpcbind"), &state).await?);
    }
    let mut database = None;
    if plan.postgres && plan.lockkeeper.is_some() && locks {
        progress("starting PostgreSQL");
        database = Some(Arc::new(Database::start()?));
    }
    let database = database.as_ref();
    let site = Site { dir: &dir, state: &state, link, options: &options, database };
    let ours = start_ours(plan, &site, progress).await?;
    let mut limits = Vec::new();
    if plan.limits {
        for by in Loop::ALL {
            limits.push((Role::Limit(by), by.start(&dir, link, &options).await?));
        }
    }
    let other = ganesha.as_ref().map(|ganesha| (Role::Ganesha, &ganesha.server));
    let compared = ours.iter().map(|(role, server)| (*role, server)).chain(other);
    let about = compared.clone().map(|(_, server)| About::new(server)).collect();
    let measured: Vec<(Role, &Server)> =
        compared.chain(limits.iter().map(|(role, server)| (*role, server))).collect();
    let servers: Vec<&Server> = measured.iter().map(|(_, server)| *server).collect();

    let mut all = plan.load.clone();
    all.steps.extend(&plan.curves);
    let mut contenders = Contenders::prepare(&measured, &all, plan.rounds).await?;
    let mut rows = Vec::new();
    let interference = Interference::begin(&servers)?;
    for (operation, shape) in plan.load.steps() {
        progress(&format!("{operation} {shape}"));
        rows.push(contenders.row(operation, shape).await?);
    }
    let others_share = interference.share(&servers)?;
    let mut handovers = Vec::new();
    // A waiter is called back at an address of loopback.
    if locks && link == Link::Loopback {
        progress("from UNLOCK to GRANTED");
        handovers = contenders.handovers().await?;
    }
    let (mut curves, mut curve_error) = (Vec::new(), None);
    for (operation, shape) in &plan.curves {
        progress(&format!("{operation} {shape}"));
        match contenders.row(*operation, *shape).await {
            Ok(row) => curves.push(row),
            // The rows are measured by then. Deep in calls for locks, nfs-ganesha 15 sometimes waits
            // for its rpc.statd until it gives up.
            Err(error) => {
                curve_error = Some(format!("{error:#}"));
                break;
            }
        }
    }
    if curve_error.is_none() {
        contenders.close().await?;
    }
    let (mut restarts, mut restart_error, mut watched) = (Vec::new(), None, None);
    if locks && plan.locks > 0 {
        (restarts, watched) = restart_ours(plan, &site, progress).await?;
        if let Some(ganesha) = &mut ganesha {
            // All rows are measured by then; that it does not come back is a result, too.
            match restart_ganesha(ganesha, plan, progress).await {
                Ok(measured) => restarts.push(measured),
                Err(error) => restart_error = Some(format!("{error:#}")),
            }
        }
    }
    // Their ports are needed again.
    drop((ours, limits));
    let mut instructions = Vec::new();
    if plan.instructions
        && let (Some(ours), Some(before)) =
            (plan.binary(Build::Current), plan.binary(Build::Before))
    {
        progress("counting instructions");
        instructions = instructions::measure(&site, ours, before, &plan.load).await?;
    }
    drop(rpcbind);
    Ok(Comparison {
        machine: Machine::this()?,
        link,
        rounds: plan.rounds,
        servers: about,
        rows,
        curves,
        curve_error,
        handovers,
        restarts,
        restart_error,
        watched,
        instructions,
        others_share,
    })
}

/// Starts every requested variant, of our binary and then of the older one.
async fn start_ours(
    plan: &Plan,
    site: &Site<'_>,
    progress: &impl Fn(&str),
) -> Result<Vec<(Role, Server)>> {
    let Some(current) = plan.binary(Build::Current) else { return Ok(Vec::new()) };
    progress("starting lockkeeper");
    let wanted = [
        (Variant::Default, true),
        (Variant::Async, plan.async_metadata),
        (Variant::Power, plan.power && plan.load.locks()),
        (Variant::Postgres, site.database.is_some()),
    ];
    let mut servers = Vec::new();
    for (variant, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
        servers.push((Role::Ours(variant), site.start(current, variant).await?));
        if let Some(before) = plan.binary(Build::Before) {
            servers.push((Role::Before(variant), site.start(before, variant).await?));
        }
    }
    Ok(servers)
}

/// Kills our servers while they hold many locks. Also measures the cost of monitoring ours.
async fn restart_ours(
    plan: &Plan,
    site: &Site<'_>,
    progress: &impl Fn(&str),
) -> Result<(Vec<Restart>, Option<MonitoringCost>)> {
    let (mut restarts, mut watched) = (Vec::new(), None);
    for (build, variant) in [
        (Build::Current, Variant::Many),
        (Build::Before, Variant::Many),
        (Build::Current, Variant::PostgresMany),
    ] {
        let Some(binary) = plan.binary(build) else { continue };
        if variant == Variant::PostgresMany && site.database.is_none() {
            continue;
        }
        let name = build.name(variant);
        progress(&format!("killing {name} with {} locks", plan.locks));
        let mut server = site.start(binary, variant).await?;
        let measured = restart::measure(&mut server, plan.locks, || Ok(())).await;
        restarts.push(measured.with_context(|| format!("killed {name}"))?);
        if (build, variant) == (Build::Current, Variant::Many) {
            progress("looking at all those locks while others come and go");
            watched = Some(monitoring::measure(&server, build.web(variant)).await?);
        }
    }
    Ok((restarts, watched))
}

async fn restart_ganesha(
    ganesha: &mut Ganesha,
    plan: &Plan,
    progress: &impl Fn(&str),
) -> Result<Restart> {
    let locks = plan.locks.min(GANESHA_LOCKS_MAX);
    progress(&format!("killing nfs-ganesha with {locks} locks, up to two minutes"));
    let restore_grace = ganesha.grace();
    let measured = restart::measure(&mut ganesha.server, locks, restore_grace).await;
    measured.map_err(|error| ganesha.server.failed("was killed", error))
}

impl Comparison {
    pub fn row(&self, operation: Operation, shape: Shape) -> Option<&Row> {
        self.rows.iter().find(|row| (row.operation, row.shape) == (operation, shape))
    }

    /// What share of the throughput of GETATTR, the least that a call costs, LOCK and UNLOCK reach.
    pub fn share_of_getattr(&self, row: &Row, variant: Variant) -> Option<f64> {
        let getattr = self.row(Operation::GetAttr, row.shape)?.ours(Variant::Default)?;
        let ours = row.ours(variant).filter(|_| row.operation.locks())?;
        Some(ours.measured.ops_per_second / getattr.measured.ops_per_second)
    }
}

impl Plan {
    fn binary(&self, build: Build) -> Option<Binary<'_>> {
        let path = match build {
            Build::Current => &self.lockkeeper,
            Build::Before => &self.before,
        };
        path.as_deref().map(|path| Binary { build, path })
    }
}

impl About {
    fn new(server: &Server) -> Self {
        Self {
            name: server.name.clone(),
            version: server.version.clone(),
            start_to_first_answer_ms: server.start.as_secs_f64() * 1e3,
            idle_rss_mib: server.idle_rss_bytes as f64 / f64::from(1 << 20),
        }
    }
}
