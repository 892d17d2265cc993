//! Every key of the configuration file is set, and its effect observed at a running server.
//!
//! A row has a key, a value, what is seen of a server with it and, where that can be tried on any
//! machine, of one without it. A key that the program knows and the table lacks fails the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod exports;
mod limits;
mod recovery;
mod service;
mod setup;
mod standby;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;

use setup::Setup;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

type Observe = fn(Setup) -> Pin<Box<dyn Future<Output = String> + Send>>;

struct Row {
    key: &'static str,
    /// As in the file. `HOME` is the directory of the trial, `FREE` a free port.
    value: &'static str,
    observe: Observe,
    /// What is seen with the value.
    with: &'static str,
    /// What is seen without the key.
    without: Option<&'static str>,
}

const fn row(
    key: &'static str,
    value: &'static str,
    observe: Observe,
    with: &'static str,
    without: &'static str,
) -> Row {
    Row { key, value, observe, with, without: Some(without) }
}

/// Without the key the server would use a port that belongs to the machine.
const fn only_set(
    key: &'static str,
    value: &'static str,
    observe: Observe,
    with: &'static str,
) -> Row {
    Row { key, value, observe, with, without: None }
}

/// A function as an [`Observe`].
macro_rules! by {
    ($observe:path) => {
        |setup| Box::pin($observe(setup))
    };
}

const ROWS: &[Row] = &[
    row("rpc.listen", "'127.0.0.2:0'", by!(service::address), "127.0.0.2", "127.0.0.1"),
    row(
        "rpc.udp",
        "false",
        by!(service::datagrams),
        "no answer, tcp; udp is off, no mounts with proto=udp",
        "answer, tcp, udp, ",
    ),
    row("rpc.rpcbind", "'embedded'", by!(service::rpcbind), "built-in", "none"),
    only_set("rpc.rpcbind_port", "FREE", by!(service::rpcbind_port), "the given one"),
    only_set("rpc.peer_rpcbind_port", "FREE", by!(service::peer_rpcbind), "asked for a port"),
    only_set("rpc.names", "['filer.example']", by!(recovery::notified_name), "filer.example"),
    row("nsm.simu_crash", "true", by!(service::simulated_crash), "answered", "refused"),
    row(
        "rpc.formerly",
        "{ '127.0.0.1' = '127.0.0.2' }",
        by!(recovery::renumbered),
        "Granted",
        "DeniedGracePeriod",
    ),
    row("nsm.roaming", "true", by!(recovery::roaming_notice), "answered", "not answered"),
    row("nsm.verify", "'address'", by!(recovery::reboot_notice), "answered", "not answered"),
    row("store.url", "'memory:'", by!(service::store), "memory", "embedded"),
    row("store.password_file", "'HOME/password'", by!(standby::password), "serves", "ended"),
    row("store.durability", "'power'", by!(service::durability), "power", "process"),
    row("store.failover", "'synchronous'", by!(standby::failover), "warned", "not warned"),
    row("recovery.window", "'7s'", by!(recovery::window), "7", "90"),
    row("recovery.grace", "'instant'", by!(recovery::new_lock), "Granted", "DeniedGracePeriod"),
    row("recovery.unreachable", "'immediate'", by!(recovery::silent_holder), "0 locks", "1 locks"),
    row("recovery.protocol.nlm.window", "'8s'", by!(recovery::window), "8", "90"),
    row("recovery.protocol.nsm.window", "'1s'", by!(recovery::registrant), "minutes", "seconds"),
    row("standby.node", "'n7'", by!(service::node), "n7", "the host name"),
    row("standby.lease", "'900ms'", by!(standby::lease), "900", "3000"),
    row("standby.on_takeover", "'HOME/hook'", by!(standby::hook), "run", "not run"),
    row("standby.on_takeover_timeout", "'200ms'", by!(standby::slow_hook), "ended", "serves"),
    row("standby.writes", "'available'", by!(standby::writes), "changed", "later"),
    row("limits.connections", "1", by!(limits::second_connection), "closed", "answered"),
    row(
        "limits.connections_per_address",
        "1",
        by!(limits::second_connection),
        "closed",
        "answered",
    ),
    row("limits.requests_per_connection", "1", by!(limits::second_request), "after", "before"),
    row("limits.workers", "1", by!(limits::workers), "one", "several"),
    row("limits.idle", "'1s'", by!(limits::idle_connection), "closed", "open"),
    row("limits.clients", "1", by!(limits::second_host), "DeniedNoLocks", "Granted"),
    row("limits.locks", "1", by!(limits::second_lock), "DeniedNoLocks", "Granted"),
    row("limits.locks_per_client", "1", by!(limits::second_lock), "DeniedNoLocks", "Granted"),
    row("limits.clients_per_address", "1", by!(limits::second_host), "DeniedNoLocks", "Granted"),
    row("limits.locks_per_address", "1", by!(limits::second_lock), "DeniedNoLocks", "Granted"),
    row("limits.locks_per_file", "1", by!(limits::second_lock), "DeniedNoLocks", "Granted"),
    row("limits.waiters_per_file", "1", by!(limits::second_waiter), "DeniedNoLocks", "Blocked"),
    row("admin.socket", "'HOME/other.sock'", by!(service::socket), "other.sock", "admin.sock"),
    row("admin.listen", "'off'", by!(service::web), "none", "a page"),
    row("admin.metrics", "false", by!(service::metrics), "404", "200"),
    row(
        "admin.metrics_listen",
        "'127.0.0.1:FREE'",
        by!(service::metrics_alone),
        "200, 404",
        "none",
    ),
    row("admin.paths", "'all'", by!(service::paths), "shown", "withheld"),
    row("export.path", "'memory:/other'", by!(exports::other_path), "mounted", "refused"),
    row("export.id", "77", by!(exports::renamed), "good", "stale"),
    row("export.filesystem_id", "4242", by!(exports::filesystem_id), "4242", "another"),
    row("export.clients", "['127.0.0.2/32']", by!(exports::mount), "refused", "mounted"),
    row("export.access", "'ro'", by!(exports::create), "refused", "created"),
    row("export.squash", "'all'", by!(exports::owner), "65534:65534", "1000:1001"),
    row("export.anonymous_uid", "1234", by!(exports::squashed), "1234:65534", "65534:65534"),
    row("export.anonymous_gid", "1234", by!(exports::squashed), "65534:1234", "65534:65534"),
    row("export.ports", "'reserved'", by!(exports::mount), "refused", "mounted"),
    row("export.metadata", "'async'", by!(exports::syncs), "no sync", "a sync for each"),
    row("export.exclusive", "true", by!(exports::before), "given", "not given"),
    row("export.lock_auth", "false", by!(exports::private_lock), "Granted", "Failed"),
    row("export.exclusive_lock", "'write'", by!(exports::readers_lock), "Failed", "Granted"),
    row("export.mount_walk", "'server'", by!(exports::mount_below_closed), "mounted", "refused"),
    row(
        "export.rule",
        "[{ clients = ['127.0.0.1/32'], access = 'ro', squash = 'root', anonymous_uid = 65534, \
         anonymous_gid = 65534, ports = 'any', lock_auth = true, exclusive_lock = 'read', \
         stateless_clients = false, mount_walk = 'caller' }]",
        by!(exports::create),
        "refused",
        "created",
    ),
    row("export.stateless_clients", "true", by!(recovery::reset), "released", "held"),
];

/// The keys that the program knows in a table of the file, from its error for an unknown one.
fn known_keys(header: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockkeeper.toml");
    std::fs::write(&file, format!("{header}\nzzz = 1\n")).unwrap();
    let mut command = Command::new(support::PROGRAM);
    let output = command.args(["config", "check", "-c"]).arg(&file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let list = said.split("expected ").nth(1).unwrap_or_else(|| panic!("{header}: {said}"));
    list.split(';').next().unwrap().split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// Whether a key is a table of its own.
fn is_table(path: &str) -> bool {
    ["recovery.protocol", "recovery.protocol.nlm", "recovery.protocol.nsm"].contains(&path)
}

fn keys_below(table: &str) -> Vec<String> {
    let header = if table == "export" { "[[export]]".to_owned() } else { format!("[{table}]") };
    let mut keys = Vec::new();
    for key in known_keys(&header) {
        let path = format!("{table}.{key}");
        match is_table(&path) {
            true => keys.extend(keys_below(&path)),
            false => keys.push(path),
        }
    }
    keys
}

#[test]
fn every_key_that_the_program_knows_is_in_the_table() {
    let known: BTreeSet<String> = known_keys("").iter().flat_map(|name| keys_below(name)).collect();
    let rows: BTreeSet<String> = ROWS.iter().map(|row| row.key.to_owned()).collect();
    assert_eq!(rows, known);
}

#[test]
fn every_key_is_shown_as_it_was_set() {
    for row in ROWS {
        let setup = Setup::new(row.key, Some(row.value));
        let mut command = Command::new(support::PROGRAM);
        let output = command.args(["config", "show", "-c"]).arg(setup.write()).output().unwrap();
        let shown: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
        assert_eq!(setup::find(&shown, row.key), setup.value(row.key), "{}", row.key);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_has_its_effect() {
    let room = Arc::new(Semaphore::new(4));
    let mut trials = JoinSet::new();
    for row in ROWS {
        for (value, expected) in [(Some(row.value), Some(row.with)), (None, row.without)] {
            let Some(expected) = expected else { continue };
            let room = room.clone();
            trials.spawn(async move {
                let _turn = room.acquire().await.unwrap();
                // In a task of its own, so that a panic is told with its key.
                let seen = tokio::spawn((row.observe)(Setup::new(row.key, value))).await;
                let seen = seen.unwrap_or_else(|failed| format!("{failed}"));
                let set = value.map_or("not set".into(), |value| format!("= {value}"));
                (seen != expected).then(|| format!("{} {set}: {seen}, not {expected}", row.key))
            });
        }
    }
    let wrong: Vec<String> = trials.join_all().await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
