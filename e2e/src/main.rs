//! `lockkeeper-e2e`: boots the guests, starts the server, runs the drill.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lockkeeper_e2e::apt::Suite;
use lockkeeper_e2e::drill::context::{Drill, Size};
use lockkeeper_e2e::drill::{self, Step};
use lockkeeper_e2e::image::Image;
use lockkeeper_e2e::packages;

/// Judge a Lockkeeper server with real Linux kernel clients. Needs root on Debian.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Run only the steps whose name contains one of these
    filters: Vec<String>,
    /// The server under test, run as `PROGRAM serve -c FILE --state DIR`
    #[arg(long, value_name = "PROGRAM", env = "LOCKKEEPER_BIN")]
    server: Option<PathBuf>,
    /// Where the kernel, the guest tool and the run's files go
    #[arg(long, value_name = "DIR", default_value = "target/lab")]
    lab: PathBuf,
    /// A guest tool that is already built, static
    #[arg(long, value_name = "PROGRAM")]
    tool: Option<PathBuf>,
    /// Smaller numbers everywhere, for CI
    #[arg(long)]
    short: bool,
    /// The suite of Debian whose kernel the guests boot, if it is not this machine's
    #[arg(long, value_name = "SUITE")]
    kernel: Option<Suite>,
    /// Only install packages, fetch the kernel and pack the guests' root
    #[arg(long)]
    prepare: bool,
    /// Only name the steps
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lockkeeper-e2e: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let steps = chosen(&options.filters, options.short);
    if options.list {
        steps.iter().for_each(|step| println!("{}", step.name));
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!steps.is_empty(), "no step is named like that; --list names them all");
    testbed::packages::install(packages::PACKAGES)?;
    // Programs that are run in other directories must find it too.
    let lab = std::path::absolute(&options.lab)?;
    let image =
        Image::prepare(&lab, options.kernel, options.tool.as_deref(), lockkeeper_e2e::lab::HOSTS)?;
    if options.prepare {
        return Ok(ExitCode::SUCCESS);
    }
    let server = options.server.as_ref().context("which server? --server PROGRAM")?;
    let server = server.canonicalize().with_context(|| server.display().to_string())?;
    let size = if options.short { Size::SHORT } else { Size::FULL };
    println!("{}: {size:?}", if options.short { "short form" } else { "full form" });
    let start = Instant::now();
    let drill = Drill::start(&image, &lab.join("run"), &server, size)?;
    println!("ok    start  {:.1} s", start.elapsed().as_secs_f64());
    let summary = drill::run(&drill, &steps)?;
    println!("whole drill {:.0} s", start.elapsed().as_secs_f64());
    println!("{} passed, {} failed", summary.passed, summary.failed);
    Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The steps named, or all; a long one only in the full form or by its name.
fn chosen(filters: &[String], short: bool) -> Vec<Step> {
    let wanted = |step: &Step| match filters {
        [] => !(short && step.long),
        _ => filters.iter().any(|filter| step.name.contains(filter)),
    };
    drill::steps().into_iter().filter(wanted).collect()
}
