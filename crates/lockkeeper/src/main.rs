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
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let arguments = cli::Cli::parse();
    memory::keep_buffers();
    let filter = EnvFilter::try_from_env("LOCKKEEPER_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(colour())
        // A log that nobody reads any more is no reason to end; complaining about it there would be.
        .log_internal_errors(false)
        .init();
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

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

fn colour() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal()
}
