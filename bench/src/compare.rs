//! Our server beside Debian's nfs-ganesha: same directory, same load, in turn.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::Options;
use serde::Serialize;

use crate::database::Database;
use crate::ganesha::Ganesha;
use crate::interference::Interference;
use crate::lockkeeper::{self, Variant};
use crate::namespace::Place;
use crate::restart::{self, Restart};
use crate::server::Server;
use crate::waiting::{self, Handover};
use crate::watched::{self, Watched};
use crate::{namespace, packages};
use load::{Measurement, Operation, Session, Shape, Timing};

/// Who calls, and whose the directory is: an ordinary user, so that squashing does not matter and
/// both servers check permissions as they do every day.
const USER: u32 = 1000;

/// With more, the locks are not all taken back before its grace period ends, and the rest is lost.
const GANESHA_LOCKS_MAX: usize = 100_000;

/// Places among the contenders.
const ASYNC: usize = 1;
const POWER: usize = 2;
const POSTGRES: usize = 3;
const CONTENDERS: usize = 5;

#[derive(Debug, Clone)]
pub struct Plan {
    /// Our program; without it, the other server is measured alone.
    pub lockkeeper: Option<PathBuf>,
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
}

#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    pub servers: Vec<About>,
    pub rows: Vec<Row>,
    pub handovers: Vec<Handover>,
    pub restarts: Vec<Restart>,
    /// Our server, while it is looked at.
    pub watched: Option<Watched>,
    /// Which part of the machine's processors everybody else used meanwhile. Past a tenth or so,
    /// the numbers say how the machine was shared, not how fast the servers are.
    pub others_share: f64,
}

/// What a server is before it has anything to do.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    pub name: String,
    pub start_to_first_answer_ms: f64,
    pub idle_rss_mib: f64,
}

/// One operation in one shape.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub operation: Operation,
    pub shape: Shape,
    pub ours: Option<Measurement>,
    /// With asynchronous metadata.
    pub ours_async: Option<Measurement>,
    /// With locks that survive a power cut.
    pub ours_power: Option<Measurement>,
    /// With locks in PostgreSQL.
    pub ours_postgres: Option<Measurement>,
    pub ganesha: Measurement,
}

impl Row {
    /// How many times the other server's throughput ours is.
    pub fn ratio(&self) -> Option<f64> {
        ratio(self.ours.as_ref(), &self.ganesha)
    }

    pub fn ratio_power(&self) -> Option<f64> {
        ratio(self.ours_power.as_ref(), &self.ganesha)
    }

    pub fn ratio_postgres(&self) -> Option<f64> {
        ratio(self.ours_postgres.as_ref(), &self.ganesha)
    }
}

pub(crate) fn ratio(ours: Option<&Measurement>, ganesha: &Measurement) -> Option<f64> {
    ours.map(|ours| ours.ops_per_second / ganesha.ops_per_second)
}

/// How a comparison ends.
#[derive(Debug)]
pub enum Ending {
    Compared(Box<Comparison>),
    /// This process only waited for the one that compared; it should end as that one did.
    Waited(ExitCode),
}

/// Compares. The calling program is started again inside namespaces of its own, with the same
/// arguments, so this must be called before it has done anything that is not to be done twice,
/// and outside any runtime.
pub fn run(plan: &Plan, progress: impl Fn(&str)) -> Result<Ending> {
    testbed::packages::install(packages::PACKAGES)?;
    if plan.postgres {
        testbed::packages::install(packages::POSTGRES)?;
    }
    let parent = plan.parent.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = match namespace::enter(&parent)? {
        Place::Inside(scratch) => scratch,
        Place::Ended(code) => return Ok(Ending::Waited(code)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(compare(plan, &scratch, &progress)).map(Box::new).map(Ending::Compared)
}

async fn compare(plan: &Plan, scratch: &Path, progress: &impl Fn(&str)) -> Result<Comparison> {
    let (dir, state) = (scratch.join("data"), scratch.join("state"));
    fs::create_dir(&dir)?;
    fs::create_dir(&state)?;
    // Temporary directories are the owner's alone, but the user must pass through this one.
    fs::set_permissions(scratch, fs::Permissions::from_mode(0o755))?;
    chown(&dir, Some(USER), Some(USER))?;
    let options =
        Options { reserved_port: true, timeout: Duration::from_secs(30), ..Options::default() }
            .user(USER, USER, &[]);

    let locks = plan.load.locks();
    progress("starting nfs-ganesha");
    let mut ganesha = Ganesha::start(&dir, &state, &options, locks).await?;
    let mut database = None;
    if plan.postgres && plan.lockkeeper.is_some() && locks {
        progress("starting PostgreSQL");
        database = Some(Arc::new(Database::start()?));
    }
    let database = database.as_ref();
    let mut ours = [None, None, None, None];
    if let Some(program) = &plan.lockkeeper {
        progress("starting lockkeeper");
        let wanted = [
            (Variant::Default, true),
            (Variant::AsyncMetadata, plan.async_metadata),
            (Variant::Power, plan.power && locks),
            (Variant::Postgres, database.is_some()),
        ];
        for (server, (variant, wanted)) in ours.iter_mut().zip(wanted) {
            if wanted {
                let started = lockkeeper::start(program, variant, &dir, &state, &options, database);
                *server = Some(started.await?);
            }
        }
    }
    let [default, asynchronous, power, postgres] = ours.each_ref().map(Option::as_ref);
    let servers = [default, asynchronous, power, postgres, Some(&ganesha.server)];
    let about = servers.into_iter().flatten().map(About::new).collect();

    let mut contenders = [const { None }; CONTENDERS];
    for (contender, server) in contenders.iter_mut().zip(servers) {
        if let Some(server) = server {
            *contender = Some(Contender::prepare(server, plan).await?);
        }
    }
    let mut rows = Vec::new();
    let interference = Interference::begin(&servers)?;
    for (operation, shape) in plan.load.steps() {
        progress(&format!("{operation} {shape}"));
        rows.push(row(&mut contenders, operation, shape, plan).await?);
    }
    let others_share = interference.share(&servers)?;
    let handovers = if locks { handovers(&contenders, progress).await? } else { Vec::new() };
    for contender in contenders.iter_mut().flatten() {
        contender.session.close().await?;
    }
    drop(contenders);
    let (mut restarts, mut watched) = (Vec::new(), None);
    if locks && plan.locks > 0 {
        if let Some(program) = &plan.lockkeeper {
            let many =
                [(Variant::ManyLocks, true), (Variant::ManyLocksPostgres, database.is_some())];
            for (many, _) in many.into_iter().filter(|(_, wanted)| *wanted) {
                progress(&format!("killing {} with {} locks", many.name(), plan.locks));
                let started = lockkeeper::start(program, many, &dir, &state, &options, database);
                let mut server = started.await?;
                let measured = restart::measure(&mut server, plan.locks, || Ok(())).await;
                restarts.push(measured.with_context(|| format!("killed {}", many.name()))?);
                if let Variant::ManyLocks = many {
                    progress("looking at all those locks while others come and go");
                    watched = Some(watched::measure(&server, many.web()).await?);
                }
            }
        }
        restarts.push(restart_ganesha(&mut ganesha, plan, progress).await?);
    }
    Ok(Comparison { servers: about, rows, handovers, restarts, watched, others_share })
}

async fn handovers(
    contenders: &[Option<Contender<'_>>; CONTENDERS],
    progress: &impl Fn(&str),
) -> Result<Vec<Handover>> {
    progress("from UNLOCK to GRANTED");
    let mut handovers = Vec::new();
    for (index, contender) in contenders.iter().enumerate() {
        // To locks it is the same whether metadata is asynchronous.
        let Some(Contender { server, session }) = contender.as_ref().filter(|_| index != ASYNC)
        else {
            continue;
        };
        let measured = waiting::measure(&server.name, session).await;
        handovers.push(measured.with_context(|| server.name.clone())?);
    }
    Ok(handovers)
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
    measured.context("killed nfs-ganesha").with_context(|| ganesha.last_words())
}

/// A server and the session that measures it.
struct Contender<'a> {
    server: &'a Server,
    session: Session,
}

impl<'a> Contender<'a> {
    async fn prepare(server: &'a Server, plan: &Plan) -> Result<Self> {
        let session =
            plan.load.open(server.target.clone()).await.with_context(|| server.name.clone())?;
        Ok(Self { server, session })
    }

    async fn measure(
        &mut self,
        operation: Operation,
        shape: Shape,
        timing: Timing,
    ) -> Result<Measurement> {
        let before = self.server.cpu()?;
        let mut measured = load::run(&mut self.session, operation, shape, timing)
            .await
            .with_context(|| format!("{} {shape}", self.server.name))?;
        let cpu = self.server.cpu()?.saturating_sub(before);
        measured.server_cpu_us = Some(cpu.as_secs_f64() * 1e6 / measured.answered as f64);
        Ok(measured)
    }
}

/// Measures the servers in turn, round by round, so that noise hits all of them.
async fn row(
    contenders: &mut [Option<Contender<'_>>; CONTENDERS],
    operation: Operation,
    shape: Shape,
    plan: &Plan,
) -> Result<Row> {
    let mut found = [const { Vec::new() }; CONTENDERS];
    ensure!(plan.rounds > 0, "at least one round");
    for _ in 0..plan.rounds {
        for (index, contender) in contenders.iter_mut().enumerate() {
            let Some(contender) = contender else { continue };
            // Ours differ from the first only where metadata is changed, and in locks.
            if index == ASYNC && operation != Operation::CreateRemove
                || (index == POWER || index == POSTGRES) && !operation.locks()
            {
                continue;
            }
            found[index].push(contender.measure(operation, shape, plan.load.timing).await?);
        }
    }
    let [ours, ours_async, ours_power, ours_postgres, ganesha] =
        found.map(|rounds| Measurement::merge(&rounds));
    let ganesha = ganesha.context("nothing was measured")?;
    Ok(Row { operation, shape, ours, ours_async, ours_power, ours_postgres, ganesha })
}

impl About {
    fn new(server: &Server) -> Self {
        Self {
            name: server.name.clone(),
            start_to_first_answer_ms: server.start.as_secs_f64() * 1e3,
            idle_rss_mib: server.idle_rss_bytes as f64 / f64::from(1 << 20),
        }
    }
}
