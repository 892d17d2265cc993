//! `lockkeeper doctor`: what stands between clients and their locks, and how to mend it.
//!
//! Facts are gathered once; each check reads them and says one line or more. docs/doctor.md has
//! every number.

mod client;
mod facts;
mod finding;
mod glass;
mod host;
mod kept;
mod names;
mod owner;
mod place;
mod plan;
mod process;
mod programs;
mod reach;
mod registry;
mod running;
mod trust;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::cli;
use facts::Facts;
use finding::{Finding, Level, Report};

type Check = fn(&Facts) -> Vec<Finding>;

/// In the order in which they are told: what others build on comes first.
const CHECKS: [Check; 19] = [
    running::configuration,
    running::server,
    running::health,
    host::state,
    host::user,
    host::mark,
    host::clock,
    host::descriptors,
    trust::store,
    trust::at_rest,
    trust::seat,
    running::port,
    registry::check,
    client::known,
    programs::rpcbind,
    programs::statd,
    programs::lockd,
    client::clock,
    client::names,
];

/// `named` is the server that `--server` names.
pub async fn run(args: &cli::Doctor, named: Option<&str>) -> ExitCode {
    let facts = Facts::gather(args, named).await;
    let findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&facts)).collect();
    // Whoever reads may have stopped reading; the exit code still says it.
    let _ = tell(&facts, &findings, args.json);
    exit_code(&facts, &findings)
}

fn tell(facts: &Facts, findings: &[Finding], json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            asked_server: facts.status.is_ok(),
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

/// 3: the server could not be asked, so this is not the whole truth.
fn exit_code(facts: &Facts, findings: &[Finding]) -> ExitCode {
    match (&facts.status, finding::verdict(findings)) {
        (Err(failed), _) => failed.exit_code().into(),
        (Ok(_), Level::Fail) => ExitCode::FAILURE,
        (Ok(_), _) => ExitCode::SUCCESS,
    }
}
