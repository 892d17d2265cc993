//! Checks of the configuration and the running server.

use admin::api::{Severity, Status};

use super::facts::Facts;
use super::finding::{Finding, fail, log, ok, service, warn};
use super::rpc_probe::ProbeResult;
use crate::daemon::CommandError;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn configuration(facts: &Facts) -> Vec<Finding> {
    let path = facts.settings.config_path.display();
    let file = match &facts.settings.config {
        Ok(file) => file,
        Err(error) => {
            let fix = format!("edit {path}, then: lockkeeper config check -c {path}");
            return vec![fail("LK201", format!("configuration {error}"), fix)];
        }
    };
    let mut findings: Vec<Finding> = Vec::new();
    for export in &file.exports {
        if let Err(error) = export.rule_set(None) {
            let fix = format!("edit {path}, then: lockkeeper config check -c {path}");
            findings.push(fail("LK201", format!("configuration {path}: {error}"), fix));
        }
        let is_directory = matches!(export.memory_path(), Ok(None));
        if is_directory && !export.path.is_dir() {
            let export = export.path.display();
            findings.push(fail(
                "LK202",
                format!("export path {export} is not a directory: the server will not start"),
                format!("mkdir -p {export}; or remove it from {path}"),
            ));
        }
    }
    if findings.is_empty() {
        let there = facts.settings.config_path.exists();
        findings.push(match there {
            true => ok(format!("configuration {path}: {} exports", file.exports.len())),
            false => ok(format!("no configuration file {path}: using defaults")),
        });
    }
    findings
}

/// Whether the server answers and has this program's version.
pub(super) fn server(facts: &Facts) -> Vec<Finding> {
    match &facts.status {
        Ok(status) => vec![answering(facts, status)],
        Err(failed) => vec![not_answering(facts, failed)],
    }
}

fn answering(facts: &Facts, status: &Status) -> Finding {
    if status.version != VERSION {
        return warn(
            "LK204",
            format!("the server is version {}, this command is {VERSION}", status.version),
            service("restart"),
        );
    }
    let process = facts.process.as_ref().map(|server| format!(", pid {}", server.pid));
    ok(format!(
        "the server answers at {}: {} {VERSION}{}",
        facts.daemon,
        status.node,
        process.unwrap_or_default()
    ))
}

fn not_answering(facts: &Facts, failed: &CommandError) -> Finding {
    let fix = match (failed.hint(), &facts.leader) {
        (_, Some(_)) if failed.exit_code() == 3 => log(),
        (Some(hint), _) => hint,
        (None, _) => "compare `lockkeeper --version` with the server's version",
    };
    fail("LK203", format!("{failed}; checks that need the server were skipped"), fix)
}

/// Health findings that have checks of their own: store stalled, in memory, not exact; no rpcbind.
const COVERED_BY_CHECKS: [&str; 4] = ["LK104", "LK105", "LK106", "LK111"];

/// Health findings of the server.
pub(super) fn health(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.status else { return Vec::new() };
    let problems = status.health.iter().filter(|finding| {
        finding.severity != Severity::Info && !COVERED_BY_CHECKS.contains(&finding.code.as_str())
    });
    problems
        .map(|finding| {
            let text = format!("server: {}", finding.status);
            let repeated = match finding.severity {
                Severity::Error => fail(&finding.code, text, finding.action.clone()),
                _ => warn(&finding.code, text, finding.action.clone()),
            };
            Finding { see: Some(finding.see.clone()), ..repeated }
        })
        .collect()
}

/// The port of all programs.
pub(super) fn port(facts: &Facts) -> Vec<Finding> {
    if facts.is_standby() {
        return vec![ok("standby: no port is served")];
    }
    let at = facts.settings.local_address();
    if at.port() == 0 {
        return vec![ok("the port is chosen by the system: not checked")];
    }
    let ports = &facts.ports;
    let start = if facts.is_running() {
        format!("{}; for the reason: {}", service("restart"), log())
    } else {
        format!("{}, or lockkeeper serve DIR", service("start"))
    };
    let firewall = format!(
        "allow it in the firewall: nft insert rule inet filter input tcp dport {} accept (and \
         udp); if that does not help: {}",
        at.port(),
        log()
    );
    vec![match (&ports.tcp, &ports.locks) {
        (ProbeResult::Answers, ProbeResult::Answers) if ports.udp.is_answer() => {
            ok(format!("NFS and NLM answer on {at} over TCP and UDP"))
        }
        (ProbeResult::Answers, ProbeResult::Answers) => warn(
            "LK233",
            format!("NFS answers on {at} over TCP, but over UDP it {}", ports.udp.describe()),
            firewall,
        ),
        (ProbeResult::Answers, ProbeResult::OtherProgram) | (ProbeResult::OtherProgram, _) => fail(
            "LK232",
            format!("{at} is in use by another NFS server"),
            format!("systemctl disable --now nfs-server nfs-ganesha, then {}", service("restart")),
        ),
        (ProbeResult::Refused, _) => fail("LK230", format!("nothing is listening on {at}"), start),
        (result, other) => {
            let worse = if result.is_answer() { other } else { result };
            fail("LK231", format!("the server at {at} {}", worse.describe()), firewall)
        }
    }]
}
