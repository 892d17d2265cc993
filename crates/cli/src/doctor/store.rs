//! Checks of the store: complete, working, and led by one server.

use std::time::Duration;

use admin::api::Status;
use store::postgres::Leadership;

use super::facts::Facts;
use super::finding::{Finding, fail, log, ok, warn};
use super::store_contents::StoreContents;
use crate::config::store_url::StoreUrl;
use crate::serve::banner::quoted;

/// A standby not seen for this many leases is considered gone.
const LEASES_MAX: u32 = 5;

/// The store of the running server.
pub(super) fn store(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.status else { return Vec::new() };
    if facts.is_standby() {
        return Vec::new();
    }
    let store = &status.store;
    let mut findings = Vec::new();
    if let Some(seconds) = store.stalled_seconds {
        findings.push(fail(
            "LK251",
            format!("the store {} has been failing for {seconds:.0} s: locks wait", store.shown),
            format!("for the reason: {}; free disk space, or start the database", log()),
        ));
    }
    if store.kind == "memory" {
        findings.push(warn(
            "LK252",
            "the store is in memory: all locks are lost when the server ends",
            "remove --store memory: (url = \"embedded:/var/lib/lockkeeper/store\")",
        ));
    } else if !store.exact {
        findings.push(not_exact(facts, status));
    }
    if findings.is_empty() {
        let commits = store.commit_p99_seconds.map(|s| format!(", commit p99 {:.1} ms", s * 1e3));
        let commits = commits.unwrap_or_default();
        findings.push(ok(format!("the store {} was exact at start{commits}", store.shown)));
    }
    findings
}

fn not_exact(facts: &Facts, status: &Status) -> Finding {
    let grace = status.grace.as_ref().filter(|grace| grace.active);
    let now = match grace {
        Some(grace) => format!("clients can reclaim for {:.0} s", grace.remaining_seconds),
        None => "clients had a grace period to reclaim".to_owned(),
    };
    let fix = match facts.settings.outlives_power {
        _ if grace.is_some() => {
            "see who has not reclaimed: lockkeeper grace; to survive power failures: durability \
             = \"power\" under [store]"
        }
        true => "see what was reclaimed: lockkeeper locks",
        false => "to survive power failures: durability = \"power\" under [store]",
    };
    let text = format!("the store was not exact at start: locks may be missing; {now}");
    warn("LK250", text, fix)
}

/// The store while no server uses it.
pub(super) fn at_rest(facts: &Facts) -> Vec<Finding> {
    let url = &facts.settings.store;
    match &facts.store_contents {
        StoreContents::NotExamined | StoreContents::Leadership(_) => Vec::new(),
        // The unreadable state directory has its own finding.
        StoreContents::Absent if facts.state.is_err() => Vec::new(),
        StoreContents::Absent => {
            vec![ok(format!("the store {url} will be created at the first start"))]
        }
        StoreContents::Unreadable(error) => vec![match url {
            StoreUrl::Postgres(_) => fail(
                "LK255",
                format!("the store {error}"),
                format!(
                    "start the database, or correct the URL; then: lockkeeper store check {}",
                    quoted(&url.to_string())
                ),
            ),
            _ => fail(
                "LK254",
                format!("the store {url} is unusable: {error}"),
                format!("restore it from a backup, then: lockkeeper store check {url}"),
            ),
        }],
        StoreContents::Snapshot { problems, .. } if !problems.is_empty() => vec![fail(
            "LK253",
            format!("the store {url} is inconsistent: {}", problems.join("; ")),
            format!(
                "restore it from a backup; if no client holds a lock any more: lockkeeper store \
                 clear {url} --force"
            ),
        )],
        StoreContents::Snapshot { exact: false, locks, clients, .. } => vec![warn(
            "LK250",
            format!(
                "the store {url} is not exact: {clients} clients, {locks} locks, others may be \
                 missing"
            ),
            "start the server: clients reclaim their locks; to survive power failures: durability = \
             \"power\" under [store]",
        )],
        StoreContents::Snapshot { locks, clients, .. } => {
            vec![ok(format!("the store {url} is exact: {clients} clients, {locks} locks"))]
        }
    }
}

/// Leader and standbys of a PostgreSQL store.
pub(super) fn leadership(facts: &Facts) -> Vec<Finding> {
    let StoreContents::Leadership(leadership) = &facts.store_contents else { return Vec::new() };
    let mut findings = vec![ok(who_serves(leadership))];
    let lease = leadership.leader.as_ref().map_or(Duration::from_secs(3), |leader| leader.lease);
    let serving =
        leadership.leader.as_ref().filter(|leader| !leader.has_released).map(|leader| &leader.node);
    for standby in leadership.standbys.iter().filter(|standby| Some(&standby.node) != serving) {
        let heard = standby.last_seen_ago.as_secs_f64();
        let node = &standby.node;
        findings.push(if standby.last_seen_ago > lease * LEASES_MAX {
            warn(
                "LK256",
                format!("standby {node} was last seen {heard:.0} s ago: it will not take over"),
                format!("on {node}: systemctl status lockkeeper"),
            )
        } else {
            ok(format!("standby {node} was last seen {heard:.1} s ago"))
        });
    }
    if !leadership.unfenced.is_empty() {
        let nodes = leadership.unfenced.join(", ");
        findings.push(warn(
            "LK257",
            format!("presumed dead but not fenced: {nodes}"),
            format!(
                "make sure that each is off, then: lockkeeper store fenced {}; to automate it: \
                 on_takeover under [standby]",
                leadership.unfenced[0]
            ),
        ));
    }
    findings
}

fn who_serves(leadership: &Leadership) -> String {
    match &leadership.leader {
        None => "no server has used the database yet".into(),
        Some(leader) if leader.has_released => {
            format!("no server is using the database; {} stopped cleanly", leader.node)
        }
        Some(leader) => {
            let lease = leader.lease.as_secs_f64();
            format!("{} serves since {}, with a lease of {lease} s", leader.node, leader.since)
        }
    }
}
