//! The banner printed when the server has started.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use keeper::Keeper;
use keeper::change::Exactness;
use keeper::identity::LockId;
use server::{RpcbindState, Server};
use vfs::export::{private_networks, shown_networks};
use vfs::{Export, ExportAccess, Exports, Rules, Squash};

/// What `udp = false` costs (B7.140).
const WITHOUT_UDP: &str = "off: no mounts with proto=udp or mountproto=udp, no reboot reports by sm-notify of \
     Linux, no lock managers that call over UDP (that of macOS by default)";

/// `as_server`: whether operations of an export run as the server's own user. `admin`: the admin API's addresses.
pub(super) async fn banner(
    server: &Server,
    exports: &Exports,
    store: &str,
    as_server: impl Fn(&Export) -> bool,
    admin: Option<String>,
) -> String {
    let recovery = server.engine().read(RecoverySummary::read).await;
    let mut text = String::new();
    let mut line = |name: &str, rest: String| {
        let _ = writeln!(text, "{name:<10}{rest}");
    };
    let state = recovery.as_ref().map_or(0, |recovery| recovery.state);
    line("lockkeeper", format!(" {}   {store}   NSM state {state}", env!("CARGO_PKG_VERSION")));
    for export in exports.iter() {
        for rules in export.rules.iter() {
            line("export", describe(export, rules, as_server(export)));
        }
    }
    for export in exports.opening() {
        let path = export.path.escape_ascii();
        line("export", format!("{path}   not served yet: its file system does not answer"));
    }
    line("admits", admits(exports));
    let port = server.port();
    let families = server.addresses().iter().map(|address| address.ip().to_string());
    let families = families.collect::<Vec<_>>().join(" ");
    let rpcbind = match server.rpcbind() {
        RpcbindState::System { port } => format!("registered with the host's, port {port}"),
        RpcbindState::Embedded { port } => format!("built-in, port {port}"),
        RpcbindState::Off { reason } => format!("none ({reason})"),
    };
    let transports = if server.serves_udp() { "tcp, udp" } else { "tcp; udp is off" };
    line(
        "rpc",
        format!("nfs mount nlm nsm on {port} ({transports}) at {families}   rpcbind: {rpcbind}"),
    );
    if !server.serves_udp() {
        line("udp", WITHOUT_UDP.to_string());
    }
    if let Some(recovery) = &recovery {
        line("recovery", recovery.to_string());
    }
    if let Some(admin) = admin {
        line("admin", admin);
    }
    if let (Some(export), Some(at)) = (exports.iter().next(), server.addresses().first()) {
        let rpcbind_port = match server.rpcbind() {
            RpcbindState::System { port } | RpcbindState::Embedded { port } => Some(*port),
            RpcbindState::Off { .. } => None,
        };
        line("mount", mount_command(*at, rpcbind_port, &String::from_utf8_lossy(&export.path)));
    }
    text
}

/// A command that works on a Linux client, or on this host if the server listens on loopback alone: with
/// `nolock` where the kernel there would not find this lock manager, so that lock calls fail or hang.
fn mount_command(at: SocketAddr, rpcbind_port: Option<u16>, path: &str) -> String {
    let host = match at.ip() {
        ip if ip.is_unspecified() => crate::config::host_name(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let port = at.port();
    let is_found = rpcbind_port == Some(wire::rpcbind::PORT);
    let (options, why) = match (is_found, at.ip().is_loopback()) {
        (false, _) => (
            format!("vers=3,nolock,tcp,port={port},mountport={port},mountproto=tcp"),
            "   # nolock: clients find a lock manager by rpcbind on port 111",
        ),
        (true, true) => (
            format!("vers=3,nolock,port={port}"),
            "   # nolock: the kernel here cannot have a lock manager of its own beside this one",
        ),
        (true, false) if port != server::Config::default().listen.port() => {
            (format!("vers=3,port={port}"), "")
        }
        (true, false) => ("vers=3".into(), ""),
    };
    format!("sudo mount -t nfs -o {options} {} /mnt{why}", quoted(&format!("{host}:{path}")))
}

/// What the keeper recovered, for the `recovery` line.
struct RecoverySummary {
    state: u32,
    hosts: usize,
    locks: usize,
    grace: Option<(Duration, Exactness)>,
}

impl RecoverySummary {
    fn read(keeper: &Keeper) -> Self {
        let counts = keeper.counts();
        let grace = keeper.grace().map(|grace| (grace.window, grace.exactness));
        let remembered = keeper.remembered(LockId(0)).count();
        Self {
            state: keeper.nsm_state(),
            hosts: counts.clients,
            locks: counts.locks + counts.shares + remembered,
            grace,
        }
    }
}

impl fmt::Display for RecoverySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} clients, {} locks; ", self.hosts, self.locks)?;
        match self.grace {
            None => write!(f, "no grace period needed"),
            Some((window, Exactness::Exact)) => write!(
                f,
                "grace ends {} s after the first client call, or when all have reclaimed",
                window.as_secs()
            ),
            Some((window, Exactness::Roster)) => write!(
                f,
                "grace ends {} s after the first client call; the store is not exact, so clients \
                 must reclaim their locks",
                window.as_secs()
            ),
            Some((window, Exactness::Open)) => write!(
                f,
                "grace ends {} s after the first client call; the store is open (clients and locks \
                 may be missing), so any client may reclaim",
                window.as_secs()
            ),
        }
    }
}

fn describe(export: &Export, rules: &Rules, as_server: bool) -> String {
    let access = match rules.access {
        ExportAccess::ReadWrite => "rw",
        ExportAccess::ReadOnly => "ro",
    };
    let squash = match rules.squash {
        _ if as_server => {
            format!("all operations as uid {}", rustix::process::geteuid().as_raw())
        }
        Squash::None => "root not squashed".to_string(),
        Squash::Root => format!("root squashed to {}", rules.anonymous_uid),
        Squash::All => {
            format!("all squashed to {}:{}", rules.anonymous_uid, rules.anonymous_gid)
        }
    };
    let clients = shown_networks(&rules.clients).join(" ");
    let ports = if rules.require_reserved_ports { "reserved ports" } else { "any port" };
    format!("{}   {access}   {clients}   {squash}   {ports}", export.path.escape_ascii())
}

/// Who may mount: of all exports, or of each where they differ (B7.130).
fn admits(exports: &Exports) -> String {
    let open = exports.iter().map(|export| (&export.path, &export.rules));
    let all = open.chain(exports.opening().iter().map(|export| (&export.path, &export.rules)));
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    let all = all.flat_map(|(path, rules)| rules.iter().map(move |rules| (path, rules)));
    for (path, rules) in all {
        let (who, path) = (who_may_mount(rules), path.escape_ascii().to_string());
        match kinds.iter_mut().find(|(known, _)| *known == who) {
            Some((_, paths)) => paths.push(path),
            None => kinds.push((who, vec![path])),
        }
    }
    match kinds.as_slice() {
        [(who, _)] => who.clone(),
        several => {
            let shown = several.iter().map(|(who, paths)| format!("{}: {who}", paths.join(" ")));
            shown.collect::<Vec<_>>().join("   ")
        }
    }
}

fn who_may_mount(rules: &Rules) -> String {
    let ports = match rules.require_reserved_ports {
        true => "from ports below 1024",
        false => "from any port",
    };
    if rules.clients.is_empty() {
        return "nobody".into();
    }
    if rules.clients == private_networks() {
        return format!(
            "every loopback and private address, {ports}; set `clients` in an [[export]] to narrow it"
        );
    }
    format!("{}, {ports}", shown_networks(&rules.clients).join(" "))
}

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/:._-+@%,=".contains(c);
    if word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B7.130
    #[test]
    fn one_line_says_who_may_mount() {
        use std::sync::Arc;
        use vfs::memory::MemoryFs;
        let export = |path: &'static str, rules: Rules| {
            Export::new(path, Arc::new(MemoryFs::new(vfs::FileSystemId(1)))).with_rules(rules)
        };
        let shown = |list: Vec<Export>| admits(&Exports::new(list).unwrap());
        let narrow = || {
            Rules::default()
                .with_clients(vec!["10.0.0.0/24".parse().unwrap()])
                .with_require_reserved_ports(false)
        };
        let usual = shown(vec![export("/a", Rules::default()), export("/b", Rules::default())]);
        assert!(usual.starts_with("every loopback and private address, from ports below 1024"));
        assert_eq!(shown(vec![export("/a", narrow())]), "10.0.0.0/24, from any port");
        let both = shown(vec![export("/a", narrow()), export("/b", Rules::default())]);
        assert!(both.starts_with("/a: 10.0.0.0/24, from any port   /b: every"), "{both}");
        let nobody = Rules::default().with_clients(Vec::new());
        assert_eq!(shown(vec![export("/a", nobody)]), "nobody");
    }

    /// B8.106
    #[test]
    fn the_mount_command_names_ports_and_addresses_that_clients_cannot_find_out() {
        let mount = |at: &str, rpcbind| mount_command(at.parse().unwrap(), rpcbind, "/srv");
        let name = crate::config::host_name();
        let plain = format!("sudo mount -t nfs -o vers=3 {name}:/srv /mnt");
        assert_eq!(mount("[::]:2049", Some(111)), plain);
        assert_eq!(mount("0.0.0.0:2049", Some(111)), plain);
        let other = mount("10.0.0.5:2050", Some(111));
        assert_eq!(other, "sudo mount -t nfs -o vers=3,port=2050 10.0.0.5:/srv /mnt");
        assert!(mount("[fd00::5]:2049", Some(111)).contains("vers=3 '[fd00::5]:/srv' /mnt"));
        for rpcbind in [None, Some(10_111)] {
            let without = mount("[::]:2049", rpcbind);
            let options = "vers=3,nolock,tcp,port=2049,mountport=2049,mountproto=tcp";
            assert!(
                without.contains(&format!("{options} {name}:/srv /mnt   # nolock")),
                "{without}"
            );
        }
        assert!(mount("127.0.0.1:2049", Some(111)).contains("vers=3,nolock,port=2049 127.0.0.1:"));
    }

    #[test]
    fn a_path_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("filer:/srv/a-b_c.d"), "filer:/srv/a-b_c.d");
        assert_eq!(quoted("filer:/my files"), "'filer:/my files'");
        assert_eq!(quoted("filer:/it's"), r"'filer:/it'\''s'");
    }
}
