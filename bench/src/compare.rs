//! Our server beside Debian's nfs-ganesha: same directory, same load, in turn.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::Options;
use serde::Serialize;

use crate::ganesha::Ganesha;
use crate::namespace::Place;
use crate::server::Server;
use crate::usage::Machine;
use crate::{
    Measurement, Operation, Session, Shape, Timing, load, lockkeeper, namespace, packages, usage,
};

/// Who calls, and whose the directory is: an ordinary user, so that squashing does not matter and
/// both servers check permissions as they do every day.
const USER: u32 = 1000;

#[derive(Debug, Clone)]
pub struct Plan {
    /// Our program; without it, the other server is measured alone.
    pub lockkeeper: Option<PathBuf>,
    /// Also measure our server with asynchronous metadata, on CREATE and REMOVE.
    pub async_metadata: bool,
    /// Where the served directory is made; the system's temporary directory if `None`.
    pub parent: Option<PathBuf>,
    pub operations: Vec<Operation>,
    pub shapes: Vec<Shape>,
    pub rounds: usize,
    pub timing: Timing,
}

#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    pub servers: Vec<About>,
    pub rows: Vec<Row>,
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
    pub ganesha: Measurement,
}

impl Row {
    /// How many times the other server's throughput ours is.
    pub fn ratio(&self) -> Option<f64> {
        ratio(self.ours.as_ref(), &self.ganesha)
    }
}

fn ratio(ours: Option<&Measurement>, ganesha: &Measurement) -> Option<f64> {
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

    progress("starting nfs-ganesha");
    let ganesha = Ganesha::start(&dir, &state, &options).await?;
    let mut ours = None;
    let mut ours_async = None;
    if let Some(program) = &plan.lockkeeper {
        progress("starting lockkeeper");
        ours = Some(lockkeeper::start(program, &dir, &state, &options).await?);
        if plan.async_metadata {
            let server = lockkeeper::start_async(program, &dir, &state, &options);
            ours_async = Some(server.await?);
        }
    }
    let servers = [ours.as_ref(), ours_async.as_ref(), Some(&ganesha.server)];
    let about = servers.into_iter().flatten().map(About::new).collect();

    let mut contenders = [None, None, None];
    for (contender, server) in contenders.iter_mut().zip(servers) {
        if let Some(server) = server {
            *contender = Some(Contender::prepare(server, plan).await?);
        }
    }
    let mut rows = Vec::new();
    let interference = Interference::begin(&servers)?;
    for operation in &plan.operations {
        for shape in &plan.shapes {
            progress(&format!("{operation} {shape}"));
            rows.push(row(&mut contenders, *operation, *shape, plan).await?);
        }
    }
    let others_share = interference.share(&servers)?;
    for contender in contenders.iter_mut().flatten() {
        contender.session.close().await?;
    }
    Ok(Comparison { servers: about, rows, others_share })
}

/// Tells how much of the machine went to processes that are not part of the comparison.
struct Interference {
    machine: Machine,
    ours: Duration,
}

impl Interference {
    fn begin(servers: &[Option<&Server>]) -> Result<Self> {
        Ok(Self { machine: usage::machine()?, ours: Self::ours(servers)? })
    }

    fn share(&self, servers: &[Option<&Server>]) -> Result<f64> {
        let machine = usage::machine()?;
        let busy = machine.busy.saturating_sub(self.machine.busy);
        let all = machine.all.saturating_sub(self.machine.all);
        let ours = Self::ours(servers)?.saturating_sub(self.ours);
        Ok(busy.saturating_sub(ours).as_secs_f64() / all.as_secs_f64().max(0.01))
    }

    /// The load's own time and the servers'.
    fn ours(servers: &[Option<&Server>]) -> Result<Duration> {
        servers.iter().flatten().try_fold(usage::own_cpu(), |sum, server| Ok(sum + server.cpu()?))
    }
}

/// A server and the session that measures it.
struct Contender<'a> {
    server: &'a Server,
    session: Session,
}

impl<'a> Contender<'a> {
    async fn prepare(server: &'a Server, plan: &Plan) -> Result<Self> {
        let largest = Shape {
            connections: plan.shapes.iter().map(|shape| shape.connections).max().unwrap_or(1),
            depth: plan.shapes.iter().map(|shape| shape.depth).max().unwrap_or(1),
        };
        let fill = plan.operations.iter().any(|operation| operation.bytes() > 0);
        let session = Session::open(server.target.clone(), largest, fill)
            .await
            .with_context(|| server.name.clone())?;
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
    contenders: &mut [Option<Contender<'_>>; 3],
    operation: Operation,
    shape: Shape,
    plan: &Plan,
) -> Result<Row> {
    let mut found = [const { Vec::new() }; 3];
    ensure!(plan.rounds > 0, "at least one round");
    for _ in 0..plan.rounds {
        for (index, contender) in contenders.iter_mut().enumerate() {
            let Some(contender) = contender else { continue };
            // The second differs from the first only where metadata is changed.
            if index == 1 && operation != Operation::CreateRemove {
                continue;
            }
            found[index].push(contender.measure(operation, shape, plan.timing).await?);
        }
    }
    let [ours, ours_async, ganesha] = found.map(|rounds| Measurement::merge(&rounds));
    let ganesha = ganesha.context("nothing was measured")?;
    Ok(Row { operation, shape, ours, ours_async, ganesha })
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

impl Comparison {
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<27} | {:>28} | {:>19} | {:>19} | {:>17}\n",
            "", "ops/s", "p50 us", "p99 us", "server cpu us"
        );
        let _ = writeln!(
            out,
            "{:<20} {:>6} | {:>10} {:>10} {:>6} | {:>9} {:>9} | {:>9} {:>9} | {:>8} {:>8}",
            "operation",
            "shape",
            "ours",
            "ganesha",
            "ratio",
            "ours",
            "ganesha",
            "ours",
            "ganesha",
            "ours",
            "ganesha"
        );
        for row in &self.rows {
            line(&mut out, row.operation.to_string(), row.ours.as_ref(), row);
            if row.ours_async.is_some() {
                line(&mut out, format!("{} async", row.operation), row.ours_async.as_ref(), row);
            }
        }
        out.push('\n');
        for server in &self.servers {
            let _ = writeln!(
                out,
                "{:<20} first answer after {:>7.1} ms, {:>6.1} MiB when idle",
                server.name, server.start_to_first_answer_ms, server.idle_rss_mib
            );
        }
        let _ = writeln!(out, "others used {:.0} % of the machine", self.others_share * 100.0);
        out
    }
}

fn line(out: &mut String, name: String, ours: Option<&Measurement>, row: &Row) {
    let show = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let other = &row.ganesha;
    let _ = writeln!(
        out,
        "{:<20} {:>6} | {:>10} {:>10.0} {:>6} | {:>9} {:>9.1} | {:>9} {:>9.1} | {:>8} {:>8}",
        name,
        row.shape,
        show(ours.map(|m| m.ops_per_second), 0),
        other.ops_per_second,
        show(ratio(ours, other), 2),
        show(ours.map(|m| m.p50_us), 1),
        other.p50_us,
        show(ours.map(|m| m.p99_us), 1),
        other.p99_us,
        show(ours.and_then(|m| m.server_cpu_us), 1),
        show(other.server_cpu_us, 1),
    );
}
