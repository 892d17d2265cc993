//! The configuration file: TOML, optional, and strict. An unknown key is an error that gives its line
//! and the most similar known key.

mod admin;
pub(crate) mod changes;
pub(crate) mod consistency;
mod duration;
pub(crate) mod effective;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub(crate) mod network;
pub(crate) mod node_name;
mod parse_error;
pub(crate) mod postgres_url;
pub(crate) mod rules;
mod store_password;
pub(crate) mod store_url;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, de};

use crate::cli::{Ports, Rpcbind};
use crate::config::{postgres_url::is_readable_by_all, store_url::StoreUrl};
pub(crate) use admin::{Admin, AdminListen, AdminSocket, Paths};
use duration::duration;
pub(crate) use duration::parse_some_time;
pub(crate) use network::Network;
pub(crate) use rules::Rule;

pub(crate) const DEFAULT_PATH: &str = "/etc/lockkeeper/lockkeeper.toml";

/// `EX_CONFIG` of `sysexits.h`: the configuration is wrong.
pub(crate) const EXIT_CODE: u8 = 78;

/// The configuration is wrong, so that starting again does not help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(pub(crate) String);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    pub rpc: Rpc,
    pub nsm: Nsm,
    pub store: Store,
    pub recovery: Recovery,
    pub standby: Standby,
    pub limits: Limits,
    pub admin: Admin,
    #[serde(rename = "export")]
    pub exports: Vec<Export>,
    /// This file, if any user of this machine can read it.
    #[serde(skip)]
    pub readable_by_all: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rpc {
    pub listen: Option<SocketAddr>,
    /// Whether NFS, MOUNT, NLM and NSM are served over UDP besides TCP.
    pub udp: Option<bool>,
    pub rpcbind: Option<Rpcbind>,
    /// Port of the built-in rpcbind, or of the host's. Clients always use 111.
    pub rpcbind_port: Option<u16>,
    /// Port of the clients' rpcbind.
    pub peer_rpcbind_port: Option<u16>,
    /// Additional names by which clients mount this server.
    pub names: Vec<String>,
    /// Addresses of this server, each with the one that it replaces.
    pub formerly: BTreeMap<IpAddr, IpAddr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Nsm {
    /// Whether SM_SIMU_CRASH from this host restarts the server.
    pub simu_crash: bool,
    pub verify: Option<Verify>,
    /// Whether clients may report their reboots from another address.
    pub roaming: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    #[serde(deserialize_with = "store_url")]
    pub url: Option<StoreUrl>,
    /// A file that holds the password of a PostgreSQL store.
    pub password_file: Option<PathBuf>,
    pub durability: Option<Durability>,
    pub failover: Option<Failover>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Recovery {
    #[serde(deserialize_with = "duration::positive")]
    pub window: Option<Duration>,
    pub grace: Option<Grace>,
    pub unreachable: Option<Unreachable>,
    pub protocol: Protocols,
}

/// Servers sharing a PostgreSQL store.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Standby {
    /// Name of this server among them.
    #[serde(deserialize_with = "node_name::optional")]
    pub node: Option<String>,
    /// How long a server that stopped renewing keeps the store.
    #[serde(deserialize_with = "duration::lease")]
    pub lease: Option<Duration>,
    /// Program that must succeed before clients are admitted.
    pub on_takeover: Option<PathBuf>,
    #[serde(deserialize_with = "duration::positive")]
    pub on_takeover_timeout: Option<Duration>,
    pub writes: Option<Writes>,
}

impl Standby {
    /// Whether the file says anything about a pair.
    pub(crate) fn is_configured(&self) -> bool {
        let Self { node, lease, on_takeover, on_takeover_timeout, writes } = self;
        let times = lease.is_some() || on_takeover_timeout.is_some();
        times || node.is_some() || on_takeover.is_some() || writes.is_some()
    }
}

/// Whether one of a pair changes files while it cannot renew its lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Writes {
    /// No: another server may have taken over.
    #[default]
    Strict,
    /// Yes, unless a standby was known when the lease was last renewed.
    Available,
}

/// Overrides per protocol.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Protocols {
    pub nlm: Protocol,
    pub nsm: Protocol,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Protocol {
    #[serde(deserialize_with = "duration::positive")]
    pub window: Option<Duration>,
}

/// To which replicas a PostgreSQL store fails over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Failover {
    /// To any: acknowledged locks may be missing afterwards.
    #[default]
    Asynchronous,
    /// Only to synchronous ones.
    Synchronous,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    /// Survive a crash of the server; after a power failure clients reclaim them
    #[default]
    Process,
    /// Also survive a power failure, at the cost of one disk write per lock
    Power,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Grace {
    /// All new locks
    #[default]
    Strict,
    /// Only new locks that conflict with an unreclaimed one
    Instant,
}

/// What a reboot notice requires besides the right source address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verify {
    /// No sign of life from the previous kernel.
    #[default]
    SignsOfLife,
    /// The same, and for a datagram confirmation by the client's status monitor.
    Ask,
    /// Nothing more.
    Address,
}

/// What happens to the locks of a host that does not respond after a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unreachable {
    /// When another client requests them and the holder does not answer
    #[default]
    OnDemand,
    /// When the first notice is not answered
    Immediate,
    /// Only by proof of a reboot or by an operator
    Retain,
}

/// Absent limits have their defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    pub connections: Option<usize>,
    pub connections_per_address: Option<usize>,
    pub requests_per_connection: Option<usize>,
    pub workers: Option<usize>,
    pub clients: Option<usize>,
    pub clients_per_address: Option<usize>,
    pub locks: Option<usize>,
    pub locks_per_client: Option<usize>,
    pub locks_per_address: Option<usize>,
    pub locks_per_file: Option<usize>,
    pub waiters_per_file: Option<usize>,
    #[serde(deserialize_with = "duration")]
    pub idle: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Export {
    pub path: PathBuf,
    pub id: Option<u32>,
    pub filesystem_id: Option<u64>,
    pub clients: Option<Vec<Network>>,
    #[serde(default)]
    pub access: Access,
    #[serde(default)]
    pub squash: Squash,
    #[serde(default = "nobody")]
    pub anonymous_uid: u32,
    #[serde(default = "nobody")]
    pub anonymous_gid: u32,
    pub ports: Option<Ports>,
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub exclusive: bool,
    #[serde(default = "yes")]
    pub lock_auth: bool,
    #[serde(default)]
    pub exclusive_lock: ExclusiveLock,
    #[serde(default)]
    pub stateless_clients: bool,
    #[serde(default)]
    pub mount_walk: MountWalk,
    /// What differs for some networks.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

impl Export {
    /// An export of `path` with default settings.
    pub(crate) fn of(path: PathBuf) -> Self {
        Self {
            path,
            id: None,
            filesystem_id: None,
            clients: None,
            access: Access::default(),
            squash: Squash::default(),
            anonymous_uid: nobody(),
            anonymous_gid: nobody(),
            ports: None,
            metadata: Metadata::default(),
            exclusive: false,
            lock_auth: true,
            exclusive_lock: ExclusiveLock::default(),
            stateless_clients: false,
            mount_walk: MountWalk::default(),
            rules: Vec::new(),
        }
    }
}

/// What an export of a file system in memory has instead of a directory.
const MEMORY: &str = "memory:";

impl Export {
    /// The path by which clients mount a file system in memory; `None` for a directory.
    pub(crate) fn memory_path(&self) -> Result<Option<PathBuf>> {
        let Some(path) = self.path.as_os_str().as_bytes().strip_prefix(MEMORY.as_bytes()) else {
            return Ok(None);
        };
        if path.is_empty() {
            return Ok(Some("/memory".into()));
        }
        let path = Path::new(OsStr::from_bytes(path));
        let plain = path.components().all(|part| !matches!(part, Component::ParentDir));
        if path.is_relative() || !plain {
            bail!("{MEMORY} is followed by the absolute path that clients mount, as in {MEMORY}/a");
        }
        Ok(Some(path.components().collect()))
    }
}

fn yes() -> bool {
    true
}

fn nobody() -> u32 {
    vfs::export::NOBODY
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Access {
    #[default]
    Rw,
    Ro,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Squash {
    None,
    #[default]
    Root,
    All,
}

/// The permission that an exclusive lock requires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExclusiveLock {
    #[default]
    Read,
    Write,
}

/// Whose permission to search the path of a mount needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MountWalk {
    #[default]
    Caller,
    Server,
}

/// Whether creations, removals and renames are on disk before the reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Metadata {
    #[default]
    Sync,
    Async,
}

fn store_url<'de, D: Deserializer<'de>>(from: D) -> Result<Option<StoreUrl>, D::Error> {
    let text = String::deserialize(from)?;
    StoreUrl::parse(&text).map(Some).map_err(de::Error::custom)
}

impl File {
    /// Loads `named`, or the default file if it exists; otherwise returns the defaults.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let wrong = |error: String| ConfigError(format!("{}: {error}", path.display()));
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let mut file = Self::parse(&text).map_err(|error| wrong(format!("{error:#}")))?;
                let Store { url, password_file, .. } = &mut file.store;
                *url = url.take().map(|url| url.with_server_password(password_file.as_deref()));
                file.readable_by_all = is_readable_by_all(path).then(|| path.to_owned());
                Ok(file)
            }
            Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Err(wrong(format!(
                "{error}; without -c, {DEFAULT_PATH} is used if it exists, and defaults if not"
            ))),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(wrong(format!("{error}; it may contain a password, so only root reads it")))
            }
            Err(error) if error.kind() == ErrorKind::IsADirectory => {
                Err(wrong("a directory; -c names a file, such as lockkeeper.toml in it".into()))
            }
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let file: Self =
            toml::from_str(text).map_err(|error| parse_error::explain(text, &error))?;
        file.store.check()?;
        for export in &file.exports {
            let path = export.path.display();
            if export.memory_path().with_context(|| format!("export {path}"))?.is_none()
                && export.path.is_relative()
            {
                match export.path.starts_with("~") {
                    true => {
                        bail!("export {path}: write the directory in full: `~` is not expanded")
                    }
                    false => bail!("export {path}: path must be absolute, such as /srv/{path}"),
                }
            }
        }
        let metrics = file.admin.metrics_listen.as_ref().and_then(AdminListen::address);
        if metrics.is_some() && file.admin.metrics == Some(false) {
            bail!("[admin] metrics_listen is set, but metrics = false: remove one of them");
        }
        Ok(file)
    }

    /// What is valid but does not work as it may be expected to.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.exposed_passwords();
        for export in &self.exports {
            if export.clients.is_none() && export.rules.is_empty() {
                let path = export.path.display();
                let networks = default_clients();
                warnings.push(format!(
                    "export {path} has no `clients`, so every loopback and private address may \
                     mount it ({networks}); name those that should. The next version will refuse an \
                     export without `clients` in a configuration file"
                ));
            }
            for network in export.networks().iter().filter(|network| is_link_local(network)) {
                let path = export.path.display();
                warnings.push(format!(
                    "export {path}: clients: {network} is link-local: the server never calls such \
                     an address back, so its clients are not notified of a restart and wait for \
                     locks by polling; let them mount by another address"
                ));
            }
        }
        warnings
    }
}

/// The networks that may mount an export without `clients` (B7.130).
fn default_clients() -> String {
    let networks = vfs::export::private_networks();
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn is_link_local(network: &IpNet) -> bool {
    let all = [
        Ipv6Net::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10).map(IpNet::V6),
        Ipv4Net::new(Ipv4Addr::new(169, 254, 0, 0), 16).map(IpNet::V4),
    ];
    all.iter().flatten().any(|link_local| link_local.contains(network))
}

/// The host name: the default node name, and a name that notices carry.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        File::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_file_is_read() {
        let file = File::parse(
            r#"
            [rpc]
            listen = "[::]:2049"
            rpcbind = "embedded"
            rpcbind_port = 10111
            names = ["filer.example.com"]
            formerly = { "10.0.0.7" = "10.0.0.5" }
            [store]
            url = "embedded:/var/lib/locks"
            durability = "power"
            [recovery]
            window = "45s"
            grace = "instant"
            unreachable = "on-demand"
            [recovery.protocol.nsm]
            window = "15s"
            [nsm]
            simu_crash = true
            verify = "ask"
            roaming = true
            [limits]
            connections = 100
            locks_per_client = 5
            clients_per_address = 7
            locks_per_address = 9
            idle = "15m"
            [[export]]
            path = "/srv/a"
            clients = ["10.0.0.0/24", "fd00::7"]
            access = "ro"
            squash = "all"
            anonymous_uid = 1000
            ports = "any"
            metadata = "async"
            lock_auth = false
            exclusive_lock = "write"
            stateless_clients = true
            mount_walk = "server"
            "#,
        )
        .unwrap();
        assert_eq!(file.rpc.rpcbind, Some(Rpcbind::Embedded));
        assert_eq!(file.rpc.rpcbind_port, Some(10_111));
        let [new, old] = ["10.0.0.7", "10.0.0.5"].map(|ip| ip.parse().unwrap());
        assert_eq!(file.rpc.formerly, [(new, old)].into());
        assert_eq!(file.limits.idle, Some(Duration::from_secs(900)));
        assert_eq!(file.store.url, Some(StoreUrl::Embedded("/var/lib/locks".into())));
        assert_eq!(file.store.durability, Some(Durability::Power));
        assert_eq!(file.recovery.window, Some(Duration::from_secs(45)));
        assert_eq!(file.recovery.protocol.nsm.window, Some(Duration::from_secs(15)));
        assert!(file.recovery.protocol.nlm.window.is_none() && file.nsm.simu_crash);
        assert_eq!(file.recovery.unreachable, Some(Unreachable::OnDemand));
        assert_eq!((file.nsm.verify, file.nsm.roaming), (Some(Verify::Ask), true));
        let export = &file.exports[0];
        assert!(!export.lock_auth && export.stateless_clients);
        assert_eq!(export.exclusive_lock, ExclusiveLock::Write);
        assert_eq!(export.mount_walk, MountWalk::Server);
        assert_eq!((export.access, export.squash), (Access::Ro, Squash::All));
        let clients = Network::of_all(export.clients.as_ref().unwrap());
        assert_eq!(clients[1].to_string(), "fd00::7/128");
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line_and_the_nearest_name() {
        let text = error("[rpc]\n\nlisen = \"[::]:2049\"\n");
        assert!(text.starts_with("line 3: unknown key `lisen`"), "{text}");
        assert!(text.ends_with("did you mean `listen`?"), "{text}");
        let text = error("[[export]]\npath = \"/a\"\nacces = \"rw\"\n");
        assert!(text.starts_with("line 3:") && text.ends_with("did you mean `access`?"), "{text}");
        let text = error("[[export]]\npath = \"/a\"\nsquash = \"rot\"\n");
        assert!(text.starts_with("line 3:") && text.ends_with("did you mean `root`?"), "{text}");
    }

    #[test]
    fn values_that_make_no_sense_are_refused_with_a_hint() {
        assert!(error("[limits]\nidle = \"900\"\n").contains("did you mean \"900s\"?"));
        let text = error("[limits]\nidle = 900\n");
        assert!(text.contains("line 2") && text.contains("did you mean \"900s\"?"), "{text}");
        assert!(
            error("[[export]]\npath = \"/a\"\nclients = [\"10.0.0.0/33\"]\n").contains("neither")
        );
        assert!(error("[store]\nurl = \"redis:\"\n").contains("embedded:/PATH"));
        assert!(error("[[export]]\npath = \"a\"\n").contains("absolute"));
        for path in ["memory:a", "memory:/a/../b"] {
            let text = format!(
                "{:#}",
                File::parse(&format!("[[export]]\npath = {path:?}\n")).unwrap_err()
            );
            assert!(text.contains("memory: is followed by the absolute path"), "{text}");
        }
        assert!(error("[[export]]\naccess = \"rw\"\n").contains("path"));
    }

    /// B7.130
    #[test]
    fn an_export_of_a_file_without_clients_draws_a_warning() {
        let warnings = |clients: &str| {
            let text = format!("[[export]]\npath = \"/srv\"\n{clients}\n");
            File::parse(&text).unwrap().warnings()
        };
        let warned = warnings("");
        assert!(warned.len() == 1 && warned[0].contains("/srv has no `clients`"), "{warned:?}");
        assert!(warned[0].contains("The next version will refuse"), "{warned:?}");
        assert_eq!(warnings("clients = [\"10.0.0.0/8\"]"), [""; 0]);
        assert_eq!(warnings("clients = []"), [""; 0]);
        assert_eq!(File::default().warnings(), [""; 0]);
    }
}
