//! `lockkeeper doctor`: diagnoses why clients cannot lock.
//!
//! [`facts`] gathers everything once, without changing anything; each check turns facts into findings.
//! docs/doctor.md documents every code.
//!
//! | file | contents |
//! |---|---|
//! | `settings`, `process`, `directory`, `store_contents`, `rpc_probe`, `port_owner`, `names` | facts: effective settings, processes, file systems, the store read through `overlay_disk`, RPC services, listening ports, name resolution |
//! | `running`, `host`, `store`, `registry` | checks of this host: server, machine, store, rpcbind (LK20x to LK25x) |
//! | `client`, `client_programs`, `names` | checks of one client (LK26x to LK29x) |
//! | `translation` | evidence and check of address translation (LK295, LK296) |
//! | `from_client` | `--mount`, run on a client: address translation on the way to a server (LK286, LK297, LK298) |
//! | `finding` | findings and their output |

mod client;
mod client_programs;
mod directory;
mod facts;
mod finding;
mod from_client;
mod host;
mod names;
mod overlay_disk;
mod port_owner;
mod process;
mod registry;
mod rpc_probe;
mod running;
mod settings;
mod store;
mod store_contents;
mod translation;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::cli;
use facts::Facts;
use finding::{Finding, Level, Report};

type Check = fn(&Facts) -> Vec<Finding>;

/// In output order: prerequisites first.
const CHECKS: [Check; 21] = [
    running::configuration,
    running::server,
    running::health,
    host::state,
    host::user,
    host::mark,
    host::clock,
    host::descriptors,
    host::local_locks,
    store::store,
    store::at_rest,
    store::leadership,
    running::port,
    registry::check,
    translation::check,
    client::known,
    client_programs::rpcbind,
    client_programs::statd,
    client_programs::lockd,
    client::clock,
    client::names,
];

/// `named` is the value of `--server`.
pub(crate) async fn run(args: &cli::Doctor, named: Option<&str>) -> ExitCode {
    if let Some(server) = &args.mount {
        let findings = from_client::check(server).await;
        let _ = print(false, &findings, args.json);
        return match finding::verdict(&findings) {
            Level::Fail => ExitCode::FAILURE,
            Level::Warn | Level::Ok => ExitCode::SUCCESS,
        };
    }
    let facts = Facts::gather(args, named).await;
    let findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&facts)).collect();
    // A closed stdout is ignored; the exit code still reports the verdict.
    let _ = print(facts.status.is_ok(), &findings, args.json);
    exit_code(&facts, &findings)
}

fn print(asked_server: bool, findings: &[Finding], json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            asked_server,
            verdict: finding::verdict(findings),
            findings,
        };
        serde_json::to_writer_pretty(&mut out, &report)?;
        return writeln!(out);
    }
    let colour = std::env::var_os("NO_COLOR").is_none() && std::io::stdout().is_terminal();
    finding::print(findings, colour, &mut out)?;
    out.flush()
}

/// 3 if the server could not be queried, as the findings are then incomplete.
fn exit_code(facts: &Facts, findings: &[Finding]) -> ExitCode {
    match (&facts.status, finding::verdict(findings)) {
        (Err(failed), _) => failed.exit_code().into(),
        (Ok(_), Level::Fail) => ExitCode::FAILURE,
        (Ok(_), _) => ExitCode::SUCCESS,
    }
}
