//! The program `lockkeeper`: command line, configuration, and the commands. A library only so that
//! fuzz targets reach the configuration.
//!
//! | file | contents |
//! |---|---|
//! | `cli` | arguments of all commands |
//! | `config` | the configuration file; `config/effective.rs` prints it with defaults, `config/store_url.rs` parses and opens stores |
//! | `serve` | `serve`: builds the server from arguments and file; `serve/` has the exports, the lock service and its store, takeover of a shared store, the admin API, the state directory and the banner |
//! | `commands` | one file per command that operates a running server or a store; shared: `paged_list`, `tables`, `terminal`, `watch` |
//! | `daemon` | client of the admin API (HTTP over a unix socket or TCP) and its errors |
//! | `doctor` | `doctor`: gathers facts, then runs the checks on them |
//! | `demo` | `demo`: two simulated client machines and a child server |
//! | `bench` | `bench`: the load of `crates/load` against any server |
//! | `logging` | the log: text, JSON, or the journal |
//! | `child_server`, `interrupts` | a temporary server process and signal handling, for `demo` and `bench` |

#![warn(unreachable_pub)]

mod bench;
mod child_server;
mod cli;
mod commands;
mod config;
mod daemon;
mod demo;
mod doctor;
mod interrupts;
mod logging;
mod serve;

#[cfg(any(test, feature = "fuzz"))]
pub use config::fuzz;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use logging::LogFormat;

/// How long a stopped server waits for its tasks.
const RUNTIME_END_MAX: Duration = Duration::from_millis(500);

/// The program: reads the command line, and returns when the command has ended.
pub fn run() -> ExitCode {
    let arguments = cli::Cli::parse();
    serve::allocator::keep_buffers();
    let format = match &arguments.command {
        cli::Command::Serve(args) => args.log_format,
        _ => None,
    };
    let format = match logging::start(format) {
        Ok(format) => format,
        Err(error) => return failed(LogFormat::Text, &error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(format, &error.into()),
    };
    let done = match arguments.command {
        cli::Command::Serve(args) => {
            let bound = args.end_with_parent.map_or(Ok(()), child_server::die_with_parent);
            let served = bound.and_then(|()| runtime.block_on(serve::serve(*args)));
            // Closes what tasks still hold; a thread that hangs in a file system is not waited for.
            runtime.shutdown_timeout(RUNTIME_END_MAX);
            served
        }
        cli::Command::Store(command) => commands::store::run(&command),
        cli::Command::Operate(command) => {
            return runtime.block_on(commands::run(command, &arguments.globals));
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
        Err(error) => failed(format, &error),
    }
}

fn failed(format: LogFormat, error: &anyhow::Error) -> ExitCode {
    logging::report(format, error);
    match error.downcast_ref() {
        Some(config::ConfigError(_)) => ExitCode::from(config::EXIT_CODE),
        None => ExitCode::FAILURE,
    }
}
