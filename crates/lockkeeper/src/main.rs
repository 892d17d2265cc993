//! The program `lockkeeper`.

mod admin;
mod banner;
mod bench;
mod cli;
mod command;
mod config;
mod daemon;
mod demo;
mod doctor;
mod exports;
mod host;
mod interrupts;
mod listing;
mod locks;
mod memory;
mod own_server;
mod seat;
mod serve;
mod state;
mod store_command;
mod stores;
mod tables;
mod terminal;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() -> ExitCode {
    let arguments = cli::Cli::parse();
    memory::keep_buffers();
    log_to_stderr();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let done = match arguments.command {
        cli::Command::Serve(args) => {
            let tied = args.end_with_parent.map_or(Ok(()), own_server::end_with);
            tied.and_then(|()| runtime.block_on(serve::serve(*args)))
        }
        cli::Command::Store(command) => store_command::run(&command),
        cli::Command::Operate(command) => {
            return runtime.block_on(command::run(command, &arguments.globals));
        }
        cli::Command::Demo(args) => runtime.block_on(demo::run(args)),
        cli::Command::Bench(args) => bench::run(args),
        cli::Command::Doctor(args) => {
            let server = arguments.globals.server.as_deref();
            return runtime.block_on(doctor::run(&args, server));
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Logs what `LOCKKEEPER_LOG` asks for: a level, or levels of modules (`info,lockkeeper_server=debug`).
fn log_to_stderr() {
    let wanted = std::env::var("LOCKKEEPER_LOG").unwrap_or_default();
    let parsed: Option<Targets> = wanted.parse().ok().filter(|_| !wanted.is_empty());
    if parsed.is_none() && !wanted.is_empty() {
        eprintln!("LOCKKEEPER_LOG is {wanted:?}, not a level such as debug; logging at info");
    }
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(colour())
        // A closed stderr must not end the server, and cannot be reported on stderr.
        .log_internal_errors(false);
    let filter = parsed.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    tracing_subscriber::registry().with(filter).with(layer).init();
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

fn colour() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal()
}
