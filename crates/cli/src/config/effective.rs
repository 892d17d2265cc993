//! The effective configuration: the file with all defaults filled in, as TOML that parses again.
//!
//! Structures are destructured exhaustively, so that a new setting cannot be missing here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use server::Limits as ServerLimits;
use store::Durability as StoreDurability;
use store::postgres::PostgresSettings;
use toml::{Table, Value};
use vfs::export::shown_networks;

use super::{
    Access, Admin, AdminListen, AdminSocket, Durability, ExclusiveLock, Export, Failover, File,
    Grace, Limits, Metadata, MountWalk, Network, Nsm, Paths, Protocol, Protocols, Recovery, Rpc,
    Squash, Standby, Store, Unreachable, Verify, Writes,
};
use crate::cli::{Ports, Rpcbind};

use crate::serve::admin::{default_listen, default_socket};
use crate::serve::lock_service::HOOK_TIMEOUT;
use crate::serve::state_directory;

pub(crate) fn table(file: File) -> Table {
    let File { rpc, nsm, store, recovery, standby, limits, admin, exports, readable_by_all: _ } =
        file;
    let mut whole = Table::new();
    whole.insert("store".into(), self::store(store).into());
    whole.insert("recovery".into(), self::recovery(recovery).into());
    whole.insert("standby".into(), self::standby(standby).into());
    whole.insert("limits".into(), self::limits(limits).into());
    whole.insert("rpc".into(), self::rpc(rpc).into());
    whole.insert("nsm".into(), self::nsm(&nsm).into());
    whole.insert("admin".into(), self::admin(admin).into());
    if !exports.is_empty() {
        let exports = exports.into_iter().map(|one| Value::from(export(one)));
        whole.insert("export".into(), Value::Array(exports.collect()));
    }
    whole
}

fn store(store: Store) -> Table {
    let Store { url, password_file, durability, failover } = store;
    let own = || {
        state_directory::default_path()
            .ok()
            .map(|path| format!("embedded:{}", path.join("store").display()))
    };
    let durability = match durability.unwrap_or_default() {
        Durability::Process => "process",
        Durability::Power => "power",
    };
    let mut table = Table::new();
    optional(&mut table, "url", url.map(|url| url.to_string()).or_else(own));
    optional(&mut table, "password_file", password_file.map(|path| path.display().to_string()));
    table.insert("durability".into(), durability.into());
    let failover = match failover.unwrap_or_default() {
        Failover::Asynchronous => "asynchronous",
        Failover::Synchronous => "synchronous",
    };
    table.insert("failover".into(), failover.into());
    table
}

fn recovery(recovery: Recovery) -> Table {
    let Recovery { window, grace, unreachable, protocol: Protocols { nlm, nsm } } = recovery;
    let window = window.unwrap_or(keeper::config::Config::default().window);
    let grace = match grace.unwrap_or_default() {
        Grace::Strict => "strict",
        Grace::Instant => "instant",
    };
    let unreachable = match unreachable.unwrap_or_default() {
        Unreachable::OnDemand => "on-demand",
        Unreachable::Immediate => "immediate",
        Unreachable::Retain => "retain",
    };
    let mut protocols = Table::new();
    for (name, Protocol { window: own }) in [("nlm", nlm), ("nsm", nsm)] {
        let own = Table::from_iter([("window".to_owned(), time(own.unwrap_or(window)))]);
        protocols.insert(name.into(), own.into());
    }
    Table::from_iter([
        ("window".to_owned(), time(window)),
        ("grace".to_owned(), grace.into()),
        ("unreachable".to_owned(), unreachable.into()),
        ("protocol".to_owned(), protocols.into()),
    ])
}

fn standby(standby: Standby) -> Table {
    let Standby { node, lease, on_takeover, on_takeover_timeout, writes } = standby;
    let usual = PostgresSettings::new("", "", StoreDurability::Process).lease;
    let mut table = Table::new();
    table.insert("node".into(), node.unwrap_or_else(super::host_name).into());
    table.insert("lease".into(), time(lease.unwrap_or(usual)));
    optional(&mut table, "on_takeover", on_takeover.map(|path| path.display().to_string()));
    table.insert("on_takeover_timeout".into(), time(on_takeover_timeout.unwrap_or(HOOK_TIMEOUT)));
    let writes = match writes.unwrap_or_default() {
        Writes::Strict => "strict",
        Writes::Available => "available",
    };
    table.insert("writes".into(), writes.into());
    table
}

fn limits(limits: Limits) -> Table {
    let Limits {
        connections,
        connections_per_address,
        requests_per_connection,
        workers,
        clients,
        clients_per_address,
        locks,
        locks_per_client,
        locks_per_address,
        locks_per_file,
        waiters_per_file,
        idle,
    } = limits;
    let (sockets, keeper) = (ServerLimits::default(), keeper::config::Config::default().limits);
    let mut table = Table::new();
    for (name, set, usual) in [
        ("connections", connections, sockets.connections_max),
        ("connections_per_address", connections_per_address, sockets.connections_per_address_max),
        ("requests_per_connection", requests_per_connection, sockets.requests_in_flight_max),
        ("workers", workers, sockets.workers),
        ("clients", clients, keeper.clients),
        ("clients_per_address", clients_per_address, keeper.clients_per_address),
        ("locks", locks, keeper.locks),
        ("locks_per_client", locks_per_client, keeper.locks_per_client),
        ("locks_per_address", locks_per_address, keeper.locks_per_address),
        ("locks_per_file", locks_per_file, keeper.locks_per_file),
        ("waiters_per_file", waiters_per_file, keeper.waiters_per_file),
    ] {
        let number = i64::try_from(set.unwrap_or(usual)).unwrap_or(i64::MAX);
        table.insert(name.into(), number.into());
    }
    table.insert("idle".into(), time(idle.unwrap_or(sockets.idle_max)));
    table
}

fn rpc(rpc: Rpc) -> Table {
    let Rpc { listen, udp, rpcbind, rpcbind_port, peer_rpcbind_port, names, formerly } = rpc;
    let usual = server::Config::default();
    let rpcbind = match rpcbind.unwrap_or(Rpcbind::Auto) {
        Rpcbind::Auto => "auto",
        Rpcbind::System => "system",
        Rpcbind::Embedded => "embedded",
        Rpcbind::Off => "off",
    };
    let own = rpcbind_port.unwrap_or(usual.rpcbind_port);
    let port = peer_rpcbind_port.unwrap_or(usual.peer_rpcbind_port);
    Table::from_iter([
        ("listen".to_owned(), listen.unwrap_or(usual.listen).to_string().into()),
        ("udp".to_owned(), udp.unwrap_or(usual.udp).into()),
        ("rpcbind".to_owned(), rpcbind.into()),
        ("rpcbind_port".to_owned(), i64::from(own).into()),
        ("peer_rpcbind_port".to_owned(), i64::from(port).into()),
        ("names".to_owned(), names.into()),
        ("formerly".to_owned(), addresses(formerly).into()),
    ])
}

fn addresses(formerly: BTreeMap<IpAddr, IpAddr>) -> Table {
    formerly.into_iter().map(|(new, old)| (new.to_string(), old.to_string().into())).collect()
}

fn nsm(nsm: &Nsm) -> Table {
    let Nsm { simu_crash, verify, roaming } = nsm;
    let verify = match verify.unwrap_or_default() {
        Verify::SignsOfLife => "signs-of-life",
        Verify::Ask => "ask",
        Verify::Address => "address",
    };
    Table::from_iter([
        ("verify".to_owned(), verify.into()),
        ("roaming".to_owned(), (*roaming).into()),
        ("simu_crash".to_owned(), (*simu_crash).into()),
    ])
}

fn admin(admin: Admin) -> Table {
    let Admin { socket, listen, metrics, metrics_listen, paths } = admin;
    let socket = match socket {
        Some(AdminSocket::Off) => Some("off".to_owned()),
        Some(AdminSocket::At(path)) => Some(path.display().to_string()),
        None => {
            let state = state_directory::default_path().ok();
            state.map(|path| default_socket(&path).display().to_string())
        }
    };
    let listen = listen.unwrap_or_else(|| AdminListen::At(default_listen()));
    let metrics_listen = metrics_listen.unwrap_or(AdminListen::Off);
    let mut table = Table::new();
    optional(&mut table, "socket", socket);
    table.insert("listen".into(), listen.to_string().into());
    table.insert("metrics_listen".into(), metrics_listen.to_string().into());
    table.insert("metrics".into(), metrics.unwrap_or(true).into());
    let paths = match paths.unwrap_or_default() {
        Paths::Operators => "operators",
        Paths::All => "all",
    };
    table.insert("paths".into(), paths.into());
    table
}

pub(super) fn export(export: Export) -> Table {
    let rules: Vec<Export> = export.by_rule();
    // The export's own settings come first, if they are a rule.
    let rules = &rules[rules.len() - export.rules.len()..];
    let mut table = Table::new();
    table.insert("path".into(), export.path.display().to_string().into());
    optional(&mut table, "id", export.id.map(i64::from));
    let filesystem_id = export.filesystem_id.and_then(|id| i64::try_from(id).ok());
    optional(&mut table, "filesystem_id", filesystem_id);
    if export.clients.is_some() || rules.is_empty() {
        table.insert("clients".into(), clients(&export).into());
    }
    let metadata = match export.metadata {
        Metadata::Sync => "sync",
        Metadata::Async => "async",
    };
    table.insert("metadata".into(), metadata.into());
    table.insert("exclusive".into(), export.exclusive.into());
    add_options(&mut table, &export);
    if !rules.is_empty() {
        let rules = rules.iter().map(|rule| {
            let mut table = Table::new();
            table.insert("clients".into(), clients(rule).into());
            add_options(&mut table, rule);
            Value::from(table)
        });
        table.insert("rule".into(), Value::Array(rules.collect()));
    }
    table
}

fn clients(export: &Export) -> Vec<String> {
    let own = export.clients.as_deref().map(Network::of_all);
    shown_networks(&own.unwrap_or_else(vfs::export::private_networks))
}

/// The settings of an export that a rule may have, too.
fn add_options(table: &mut Table, export: &Export) {
    let Export {
        path: _,
        id: _,
        filesystem_id: _,
        clients: _,
        access,
        squash,
        anonymous_uid,
        anonymous_gid,
        ports,
        metadata: _,
        exclusive: _,
        lock_auth,
        exclusive_lock,
        stateless_clients,
        mount_walk,
        rules: _,
    } = *export;
    let root = rustix::process::geteuid().is_root();
    let ports = match ports.unwrap_or(if root { Ports::Reserved } else { Ports::Any }) {
        Ports::Reserved => "reserved",
        Ports::Any => "any",
    };
    let access = match access {
        Access::Rw => "rw",
        Access::Ro => "ro",
    };
    let squash = match squash {
        Squash::None => "none",
        Squash::Root => "root",
        Squash::All => "all",
    };
    let exclusive_lock = match exclusive_lock {
        ExclusiveLock::Read => "read",
        ExclusiveLock::Write => "write",
    };
    let mount_walk = match mount_walk {
        MountWalk::Caller => "caller",
        MountWalk::Server => "server",
    };
    table.insert("access".into(), access.into());
    table.insert("squash".into(), squash.into());
    table.insert("anonymous_uid".into(), i64::from(anonymous_uid).into());
    table.insert("anonymous_gid".into(), i64::from(anonymous_gid).into());
    table.insert("ports".into(), ports.into());
    table.insert("lock_auth".into(), lock_auth.into());
    table.insert("exclusive_lock".into(), exclusive_lock.into());
    table.insert("stateless_clients".into(), stateless_clients.into());
    table.insert("mount_walk".into(), mount_walk.into());
}

fn optional(table: &mut Table, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        table.insert(name.into(), value.into());
    }
}

/// A duration in the file's syntax.
fn time(duration: Duration) -> Value {
    match (duration.subsec_millis(), duration.as_secs()) {
        (0, seconds) => format!("{seconds}s").into(),
        _ => format!("{}ms", duration.as_millis()).into(),
    }
}
