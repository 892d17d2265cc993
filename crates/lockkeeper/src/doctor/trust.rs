//! The store: can it be trusted, does it work, who else uses it.

use std::time::Duration;

use admin::api::Status;
use store::postgres::Seat;

use super::facts::Facts;
use super::finding::{Finding, fail, log, ok, warn};
use super::kept::Kept;
use crate::stores::StoreUrl;

/// A standby that was heard of so many leases ago is gone.
const LEASES_MAX: u32 = 5;

/// As the running server has it.
pub fn store(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.status else { return Vec::new() };
    if facts.is_standby() {
        return Vec::new();
    }
    let store = &status.store;
    let mut findings = Vec::new();
    if let Some(seconds) = store.stalled_seconds {
        findings.push(fail(
            "LK251",
            format!("the store {} has not worked for {seconds:.0} s: locks wait", store.shown),
            format!("see why: {}; free space, or start the database", log()),
        ));
    }
    if store.kind == "memory" {
        findings.push(warn(
            "LK252",
            "the store is in memory: every lock ends with the server",
            "serve without --store memory: (url = \"embedded:/var/lib/lockkeeper/store\")",
        ));
    } else if !store.exact {
        findings.push(not_exact(facts, status));
    }
    if findings.is_empty() {
        let commits = store.commit_p99_seconds.map(|s| format!(", commit p99 {:.1} ms", s * 1e3));
        let commits = commits.unwrap_or_default();
        findings.push(ok(format!("the store {} was complete at the start{commits}", store.shown)));
    }
    findings
}

fn not_exact(facts: &Facts, status: &Status) -> Finding {
    let grace = status.grace.as_ref().filter(|grace| grace.active);
    let now = match grace {
        Some(grace) => format!("clients take them back for {:.0} s", grace.remaining_seconds),
        None => "clients were given time to take them back".to_owned(),
    };
    let fix = match facts.plan.outlives_power {
        _ if grace.is_some() => {
            "lockkeeper grace shows who is missing; so that a power cut loses \
                                 nothing next time: durability = \"power\" under [store]"
        }
        true => "lockkeeper locks shows what came back",
        false => {
            "so that a power cut loses nothing next time: durability = \"power\" under [store]"
        }
    };
    let text = format!("the store was not exact at the start: locks may be missing; {now}");
    warn("LK250", text, fix)
}

/// As it lies there while no server runs.
pub fn at_rest(facts: &Facts) -> Vec<Finding> {
    let url = &facts.plan.store;
    match &facts.kept {
        Kept::NotLooked | Kept::Shared(_) => Vec::new(),
        // Nobody can tell, and that was said.
        Kept::Nothing if facts.state.is_err() => Vec::new(),
        Kept::Nothing => vec![ok(format!("the store {url} will be made by the first start"))],
        Kept::Unreadable(error) => vec![match url {
            StoreUrl::Postgres(_) => fail(
                "LK255",
                format!("the store {error}"),
                format!("start the database, or mend the url; then: lockkeeper store check {url}"),
            ),
            _ => fail(
                "LK254",
                format!("the store {url} cannot be used: {error}"),
                format!("restore it from a backup, then: lockkeeper store check {url}"),
            ),
        }],
        Kept::Found { problems, .. } if !problems.is_empty() => vec![fail(
            "LK253",
            format!("the store {url} contradicts itself: {}", problems.join("; ")),
            format!(
                "restore it from a backup; if no client holds a lock any more: lockkeeper store \
                 clear {url} --force"
            ),
        )],
        Kept::Found { exact: false, locks, clients, .. } => vec![warn(
            "LK250",
            format!(
                "the store {url} is not exact: of {clients} clients it knows {locks} locks, and \
                 some may be missing"
            ),
            "start the server: clients take their locks back; so that a power cut loses nothing \
             next time: durability = \"power\" under [store]",
        )],
        Kept::Found { locks, clients, .. } => {
            vec![ok(format!("the store {url} is complete: {clients} clients, {locks} locks"))]
        }
    }
}

/// Servers that share a database.
pub fn seat(facts: &Facts) -> Vec<Finding> {
    let Kept::Shared(seat) = &facts.kept else { return Vec::new() };
    let mut findings = vec![ok(who_serves(seat))];
    let lease = seat.holder.as_ref().map_or(Duration::from_secs(3), |holder| holder.lease);
    let serving = seat.holder.as_ref().filter(|holder| !holder.left).map(|holder| &holder.node);
    for standby in seat.standbys.iter().filter(|standby| Some(&standby.node) != serving) {
        let heard = standby.heard.as_secs_f64();
        let node = &standby.node;
        findings.push(if standby.heard > lease * LEASES_MAX {
            warn(
                "LK256",
                format!("the standby {node} was last heard of {heard:.0} s ago: it will not help"),
                format!("on {node}: systemctl status lockkeeper"),
            )
        } else {
            ok(format!("the standby {node} was heard of {heard:.1} s ago"))
        });
    }
    if !seat.unfenced.is_empty() {
        let nodes = seat.unfenced.join(", ");
        findings.push(warn(
            "LK257",
            format!("taken to be dead, and nobody made sure: {nodes}"),
            format!("make sure that {nodes} is off; on_takeover under [standby] does it next time"),
        ));
    }
    findings
}

fn who_serves(seat: &Seat) -> String {
    match &seat.holder {
        None => "no server has used the database yet".into(),
        Some(holder) if holder.left => {
            format!("nobody serves from the database; {} stopped cleanly", holder.node)
        }
        Some(holder) => {
            let lease = holder.lease.as_secs_f64();
            format!("{} serves since {}, with a lease of {lease} s", holder.node, holder.since)
        }
    }
}
