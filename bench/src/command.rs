//! The commands: `run` against a server that is there, `compare` against one that is started.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use client::Options;

use crate::compare::{self, Ending, Plan};
use crate::{Operation, Session, Shape, Target, Timing, load, misses, report};

#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Measures one server, which may be any that speaks NFSv3 over TCP
    Run(RunArgs),
    /// Measures our server and Debian's nfs-ganesha in turn; needs root
    Compare(CompareArgs),
}

#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// What to measure, all by default
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub operations: Vec<Operation>,
    /// Connections and calls under way on each: 1x1,4x8,8x16 by default
    #[arg(long, value_delimiter = ',', value_name = "CxD")]
    pub shapes: Vec<Shape>,
    /// How long each measurement lasts
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// How long the load runs before it is measured
    #[arg(long, default_value_t = 0.3)]
    pub warm_up_seconds: f64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The server's address
    #[arg(long)]
    pub host: IpAddr,
    /// The exported path
    #[arg(long)]
    pub export: String,
    /// The port of NFS; rpcbind is asked if it is not given
    #[arg(long)]
    pub port: Option<u16>,
    /// The port of MOUNT; the same as of NFS if that is given, otherwise rpcbind is asked
    #[arg(long)]
    pub mount_port: Option<u16>,
    /// The port of NLM; the same as of NFS if that is given, otherwise rpcbind is asked
    #[arg(long)]
    pub nlm_port: Option<u16>,
    /// Call as this user; by default root from a reserved port if we are root
    #[arg(long)]
    pub uid: Option<u32>,
    /// Call from a port below 1024
    #[arg(long)]
    pub reserved_port: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}

#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Our program; without it, only nfs-ganesha is measured
    #[arg(long, value_name = "FILE")]
    pub lockkeeper: Option<PathBuf>,
    /// Also measure our server with metadata = "async" on CREATE and REMOVE
    #[arg(long, requires = "lockkeeper")]
    pub async_metadata: bool,
    /// Also measure our server with durability = "power" on locks
    #[arg(long, requires = "lockkeeper")]
    pub power: bool,
    /// Also measure our server with its locks in Debian's PostgreSQL
    #[arg(long, requires = "lockkeeper")]
    pub postgres: bool,
    /// How many locks are held when the servers are killed and started again; 0 leaves that out
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    pub locks: usize,
    /// Where to make the served directory; the system's temporary directory by default
    #[arg(long, value_name = "DIR")]
    pub parent: Option<PathBuf>,
    /// How often each server is measured, in turn
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Fail if our server does not reach its bars
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Runs a command to its end. To be called first in `main`, outside any runtime.
pub fn execute(command: BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Run(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(run(args)).map(|()| ExitCode::SUCCESS)
        }
        BenchCommand::Compare(args) => compare(args),
    }
}

async fn run(args: RunArgs) -> Result<()> {
    let (operations, shapes, timing) = args.load.plan()?;
    let root = is_root();
    let uid = args.uid.unwrap_or(if root { 0 } else { 65_534 });
    let options = Options {
        reserved_port: args.reserved_port || root,
        timeout: Duration::from_secs(30),
        ..Options::default()
    }
    .user(uid, uid, &[]);
    let mount_port = args.mount_port.or(args.port);
    let nlm_port = args.nlm_port.or(args.port);
    let target =
        Target::find(args.host, args.port, mount_port, nlm_port, args.export, options).await?;
    let largest = Shape {
        connections: shapes.iter().map(|shape| shape.connections).max().unwrap_or(1),
        depth: shapes.iter().map(|shape| shape.depth).max().unwrap_or(1),
    };
    let fill = operations.iter().any(|operation| operation.bytes() > 0);
    let mut session = Session::open(target, largest, fill).await?;
    let found = measure(&mut session, &operations, &shapes, timing).await;
    let closed = session.close().await;
    let found = found?;
    closed?;
    match args.load.json {
        true => println!("{}", serde_json::to_string_pretty(&found)?),
        false => print!("{}", report::table(&found)),
    }
    Ok(())
}

async fn measure(
    session: &mut Session,
    operations: &[Operation],
    shapes: &[Shape],
    timing: Timing,
) -> Result<Vec<report::Measurement>> {
    let mut found = Vec::new();
    for operation in operations {
        for shape in shapes {
            eprintln!("{operation} {shape}");
            found.push(load::run(session, *operation, *shape, timing).await?);
        }
    }
    Ok(found)
}

fn compare(args: CompareArgs) -> Result<ExitCode> {
    ensure!(is_root(), "a comparison makes namespaces and needs root");
    let (operations, shapes, timing) = args.load.plan()?;
    let plan = Plan {
        lockkeeper: args.lockkeeper,
        async_metadata: args.async_metadata,
        power: args.power,
        postgres: args.postgres,
        locks: args.locks,
        parent: args.parent,
        operations,
        shapes,
        rounds: args.rounds,
        timing,
    };
    let found = match compare::run(&plan, |step| eprintln!("{step}"))? {
        Ending::Compared(found) => found,
        Ending::Waited(code) => return Ok(code),
    };
    match args.load.json {
        true => println!("{}", serde_json::to_string_pretty(&found)?),
        false => print!("{}", found.table()),
    }
    let missed = if args.check { misses(&found) } else { Vec::new() };
    if !missed.is_empty() {
        bail!("{} bars are missed:\n  {}", missed.len(), missed.join("\n  "));
    }
    Ok(ExitCode::SUCCESS)
}

impl LoadArgs {
    fn plan(&self) -> Result<(Vec<Operation>, Vec<Shape>, Timing)> {
        let operations = match self.operations.is_empty() {
            true => Operation::ALL.to_vec(),
            false => self.operations.clone(),
        };
        let shapes = match self.shapes.is_empty() {
            true => Shape::ALL.to_vec(),
            false => self.shapes.clone(),
        };
        let seconds = |value: f64| {
            ensure!((0.0..=600.0).contains(&value), "{value} is not between 0 and 600 seconds");
            Ok(Duration::from_secs_f64(value))
        };
        let timing =
            Timing { warm_up: seconds(self.warm_up_seconds)?, measured: seconds(self.seconds)? };
        Ok((operations, shapes, timing))
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
