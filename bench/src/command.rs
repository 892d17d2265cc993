//! The command: `compare` measures servers that it starts. (`lockkeeper bench` measures a running
//! one.)

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use load::LoadArgs;

use crate::compare::{self, Ending, Plan};
use crate::ganesha::Edition;
use crate::limit::{self, LimitArgs};
use crate::link::Link;
use crate::ratio::ROUNDS_MAX;
use crate::{misses, report, rows};

#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Measures our server and nfs-ganesha in turn; needs root
    Compare(CompareArgs),
    /// Moves the data of READ and WRITE and does nothing else; started by `compare`
    #[command(hide = true)]
    Limit(LimitArgs),
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
    /// Which nfs-ganesha to compare with
    #[arg(long, value_enum, default_value_t = Edition::Newest, value_name = "WHICH")]
    pub ganesha: Edition,
    /// Where the newest nfs-ganesha is installed, once; remove its directory to have a newer one
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    pub cache: PathBuf,
    /// Leave nfs-ganesha out
    #[arg(long, requires = "before", conflicts_with = "check")]
    pub without_ganesha: bool,
    /// What lies between client and servers; each that is named is measured
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "loopback",
        value_name = "LINK"
    )]
    pub link: Vec<Link>,
    /// Also count the instructions per call of both binaries, with valgrind, on GETATTR and on locks
    #[arg(long, requires = "before")]
    pub instructions: bool,
    /// Also measure our server with metadata = "async" on CREATE and REMOVE
    #[arg(long, requires = "lockkeeper")]
    pub async_metadata: bool,
    /// Also measure our server with durability = "power" on locks, where a connection has several
    /// calls under way
    #[arg(long, requires = "lockkeeper")]
    pub power: bool,
    /// Also measure our server with its locks in Debian's PostgreSQL
    #[arg(long, requires = "lockkeeper")]
    pub postgres: bool,
    /// How many locks are held when the servers are killed and started again, which takes minutes; 0
    /// leaves that out
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub locks: usize,
    /// Where to make the served directory; the system's temporary directory by default
    #[arg(long, value_name = "DIR")]
    pub parent: Option<PathBuf>,
    /// How often each server is measured, in turn
    #[arg(long, default_value_t = 15, value_parser = rounds())]
    pub rounds: usize,
    /// Fail if our server does not reach its bars
    #[arg(long)]
    pub check: bool,
    /// Write the results as a page with charts into this directory; also measures latency at more
    /// depths
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        default_missing_value = "docs",
        requires = "lockkeeper",
        conflicts_with = "without_ganesha"
    )]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Runs a command to completion. Must be called first in `main`, outside any runtime.
pub fn execute(command: BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Compare(args) => compare(args),
        BenchCommand::Limit(args) => limit::serve(&args).map(|()| ExitCode::SUCCESS),
    }
}

fn compare(args: CompareArgs) -> Result<ExitCode> {
    ensure!(is_root(), "a comparison makes namespaces and needs root");
    ensure!(
        args.rounds > 1 || !(args.check || args.report.is_some() || args.before.is_some()),
        "--check, --report and --before need at least two rounds, since one has no spread"
    );
    ensure!(
        (args.locks == 0 && !args.instructions) || args.link == [Link::Loopback],
        "--locks and --instructions need --link loopback"
    );
    let load = args.load.plan_or(rows::plan())?;
    let curves = if args.report.is_some() { rows::curves(&load) } else { Vec::new() };
    let plan = Plan {
        lockkeeper: args.lockkeeper,
        before: args.before,
        ganesha: (!args.without_ganesha).then_some(args.ganesha),
        cache: args.cache,
        links: args.link,
        limits: !args.without_ganesha,
        instructions: args.instructions,
        async_metadata: args.async_metadata,
        power: args.power,
        postgres: args.postgres,
        locks: args.locks,
        parent: args.parent,
        rounds: args.rounds,
        load,
        curves,
    };
    let found = match compare::run(&plan, |step| eprintln!("{step}"))? {
        Ending::Compared(found) => found,
        Ending::Waited(code) => return Ok(code),
    };
    match args.load.json {
        true => println!("{}", serde_json::to_string_pretty(&found)?),
        false => found.iter().for_each(|comparison| println!("{}", comparison.table())),
    }
    if let Some(dir) = &args.report {
        report::write(dir, &found)?;
    }
    if args.check {
        let missed: Vec<String> = found.iter().flat_map(|found| misses(found, &plan)).collect();
        ensure!(missed.is_empty(), "{} bars are missed:\n  {}", missed.len(), missed.join("\n  "));
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
        assert_eq!(parse("").unwrap().rounds, 15);
    }
}
