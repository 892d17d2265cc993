//! The command: `compare` measures servers that it starts. (`lockkeeper bench` measures one that is
//! there.)

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use load::LoadArgs;

use crate::compare::{self, Ending, Plan};
use crate::misses;

#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Measures our server and Debian's nfs-ganesha in turn; needs root
    Compare(CompareArgs),
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
        BenchCommand::Compare(args) => compare(args),
    }
}

fn compare(args: CompareArgs) -> Result<ExitCode> {
    ensure!(is_root(), "a comparison makes namespaces and needs root");
    let plan = Plan {
        lockkeeper: args.lockkeeper,
        async_metadata: args.async_metadata,
        power: args.power,
        postgres: args.postgres,
        locks: args.locks,
        parent: args.parent,
        rounds: args.rounds,
        load: args.load.plan()?,
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

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
