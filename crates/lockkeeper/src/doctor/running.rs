//! The configuration, and the server that runs by it.

use admin::api::{Severity, Status};

use super::facts::Facts;
use super::finding::{Finding, fail, log, ok, service, warn};
use super::reach::Reach;
use crate::daemon::Failed;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn configuration(facts: &Facts) -> Vec<Finding> {
    let path = facts.plan.config_path.display();
    let file = match &facts.plan.config {
        Ok(file) => file,
        Err(error) => {
            let fix = format!("edit {path}, then: lockkeeper config check -c {path}");
            return vec![fail("LK201", format!("configuration {error}"), fix)];
        }
    };
    let mut findings: Vec<Finding> = Vec::new();
    for export in &file.exports {
        if !export.path.is_dir() {
            let export = export.path.display();
            findings.push(fail(
                "LK202",
                format!("export {export} is no directory, so the server will not start"),
                format!("mkdir -p {export}; or take it out of {path}"),
            ));
        }
    }
    if findings.is_empty() {
        let there = facts.plan.config_path.exists();
        findings.push(match there {
            true => ok(format!("configuration {path}: {} exports", file.exports.len())),
            false => ok(format!("no configuration file at {path}: defaults")),
        });
    }
    findings
}

/// Whether it can be asked, and is of our version.
pub fn server(facts: &Facts) -> Vec<Finding> {
    match &facts.status {
        Ok(status) => vec![answering(facts, status)],
        Err(failed) => vec![not_answering(facts, failed)],
    }
}

fn answering(facts: &Facts, status: &Status) -> Finding {
    if status.version != VERSION {
        return warn(
            "LK204",
            format!("the server is lockkeeper {}, this command is {VERSION}", status.version),
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

fn not_answering(facts: &Facts, failed: &Failed) -> Finding {
    let fix = match (failed.hint(), &facts.holder) {
        (_, Some(_)) if failed.exit_code() == 3 => log(),
        (Some(hint), _) => hint,
        (None, _) => "compare `lockkeeper --version` with that of the server",
    };
    let left_out = "what only it knows was left out";
    fail("LK203", format!("{failed}; {left_out}"), fix)
}

/// What the doctor says in its own words: the store stalled, in memory, not exact; no rpcbind.
const SAID_ELSEWHERE: [&str; 4] = ["LK104", "LK105", "LK106", "LK111"];

/// What the server itself worries about.
pub fn health(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.status else { return Vec::new() };
    let worries = status.health.iter().filter(|finding| {
        finding.severity != Severity::Info && !SAID_ELSEWHERE.contains(&finding.code.as_str())
    });
    worries
        .map(|finding| {
            let text = format!("the server says: {}", finding.status);
            let told = match finding.severity {
                Severity::Error => fail(&finding.code, text, finding.action.clone()),
                _ => warn(&finding.code, text, finding.action.clone()),
            };
            Finding { see: Some(finding.see.clone()), ..told }
        })
        .collect()
}

/// The port at which all programs are served.
pub fn port(facts: &Facts) -> Vec<Finding> {
    if facts.is_standby() {
        return vec![ok("a standby serves no port: another server has the store")];
    }
    let at = facts.plan.near();
    if at.port() == 0 {
        return vec![ok("the port is the system's choice: not looked at")];
    }
    let ports = &facts.ports;
    let start = if facts.is_running() {
        format!("{}; its log says why: {}", service("restart"), log())
    } else {
        format!("{}, or lockkeeper serve DIR", service("start"))
    };
    let firewall = format!(
        "let it through: nft insert rule inet filter input tcp dport {} accept (and udp); if that \
         is not it: {}",
        at.port(),
        log()
    );
    vec![match (&ports.tcp, &ports.locks) {
        (Reach::Answers, Reach::Answers) if ports.udp.is_fine() => {
            ok(format!("NFS and locks answer at {at}, over TCP and UDP"))
        }
        (Reach::Answers, Reach::Answers) => warn(
            "LK233",
            format!("NFS answers at {at} over TCP, but over UDP it {}", ports.udp.words()),
            firewall,
        ),
        (Reach::Answers, Reach::OtherProgram) | (Reach::OtherProgram, _) => fail(
            "LK232",
            format!("another NFS server has {at}, one that serves no locks there"),
            format!("systemctl disable --now nfs-server nfs-ganesha, then {}", service("restart")),
        ),
        (Reach::Refused, _) => {
            fail("LK230", format!("nobody listens at {at}: clients get no answer"), start)
        }
        (reach, other) => {
            let worse = if reach.is_fine() { other } else { reach };
            fail("LK231", format!("the server at {at} {}", worse.words()), firewall)
        }
    }]
}
