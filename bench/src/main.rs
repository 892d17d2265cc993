//! The benchmark as a program of its own.

use std::process::ExitCode;

use clap::Parser;
use lockkeeper_bench::command::{BenchCommand, execute};

/// Measures NFSv3 servers
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: BenchCommand,
}

fn main() -> ExitCode {
    execute(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
