//! The command: `compare` measures servers that it starts. (`lockkeeper bench` measures a running
//! one.)

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use load::LoadArgs;

use crate::compare::{self, Ending, Plan};
use crate::misses;
use crate::ratio::ROUNDS_MAX;

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
    /// An older binary of ours, measured in the same rounds: prints the ratio to it, of throughput
    /// and of processor time. Each server is then measured twice in a round, half as long, so that
    /// neither of the two has the better place
    #[arg(long, requires = "lockkeeper", value_name = "FILE")]
    pub before: Option<PathBuf>,
    /// Leave nfs-ganesha out
    #[arg(long, requires = "before", conflicts_with = "check")]
    pub without_ganesha: bool,
    /// Also count the instructions per call of both binaries, with valgrind, on GETATTR and on locks
    #[arg(long, requires = "before")]
    pub instructions: bool,
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
    #[arg(long, default_value_t = 3, value_parser = rounds())]
    pub rounds: usize,
    /// Fail if our server does not reach its bars
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Runs a command to completion. Must be called first in `main`, outside any runtime.
pub fn execute(command: BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Compare(args) => compare(args),
    }
}

fn compare(args: CompareArgs) -> Result<ExitCode> {
    ensure!(is_root(), "a comparison makes namespaces and needs root");
    ensure!(
        args.before.is_none() || args.rounds > 1,
        "--before needs at least two rounds, since one has no spread"
    );
    let plan = Plan {
        lockkeeper: args.lockkeeper,
        before: args.before,
        ganesha: !args.without_ganesha,
        instructions: args.instructions,
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

fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=ROUNDS_MAX)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn parse(arguments: &str) -> Result<CompareArgs, clap::Error> {
        let arguments = arguments.split(' ').filter(|argument| !argument.is_empty());
        let command = CompareArgs::augment_args(Command::new("compare").no_binary_name(true));
        CompareArgs::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn the_bars_need_nfs_ganesha() {
        let both = "--lockkeeper new --before old --without-ganesha";
        assert!(parse(both).unwrap().without_ganesha);
        let refused = parse(&format!("{both} --check")).unwrap_err().to_string();
        assert!(refused.contains("'--without-ganesha' cannot be used with '--check'"), "{refused}");
    }

    #[test]
    fn an_older_binary_is_compared_with_ours() {
        for refused in [
            "--before old",
            "--lockkeeper new --without-ganesha",
            "--lockkeeper new --instructions",
            "--rounds 0",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
        assert_eq!(parse("").unwrap().rounds, 3);
    }
}
