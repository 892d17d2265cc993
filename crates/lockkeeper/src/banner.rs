//! What the operator reads when the server has started.

use std::fmt::Write as _;
use std::path::Path;

use server::{RpcbindState, Server};
use vfs::{Access, Export, Exports, Squash};

pub fn banner(server: &Server, exports: &Exports, state: &Path) -> String {
    let mut text = String::new();
    let mut line = |name: &str, rest: String| {
        let _ = writeln!(text, "{name:<10}{rest}");
    };
    line("lockkeeper", format!(" {}   state {}", env!("CARGO_PKG_VERSION"), state.display()));
    for export in exports.iter() {
        line("export", describe(export));
    }
    let port = server.port();
    let families = server.addresses().iter().map(|address| address.ip().to_string());
    let families = families.collect::<Vec<_>>().join(" ");
    let rpcbind = match server.rpcbind() {
        RpcbindState::System { port } => format!("registered with this host's, port {port}"),
        RpcbindState::Embedded { port } => format!("serving {port} itself"),
        RpcbindState::Off { reason } => format!("none ({reason})"),
    };
    line("rpc", format!("nfs mount on {port} (tcp, udp) at {families}   rpcbind: {rpcbind}"));
    line("locks", "not served yet: mount with -o nolock if programs on it lock files".into());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let options = match server.rpcbind() {
        RpcbindState::Off { .. } => {
            format!("vers=3,tcp,port={port},mountport={port},mountproto=tcp")
        }
        _ if port != 2049 => format!("vers=3,port={port}"),
        _ => "vers=3".into(),
    };
    if let Some(export) = exports.iter().next() {
        let path = export.path.escape_ascii();
        line("mount", format!("sudo mount -t nfs -o {options} {host}:{path} /mnt"));
    }
    text
}

fn describe(export: &Export) -> String {
    let rules = &export.rules;
    let access = match rules.access {
        Access::ReadWrite => "rw",
        Access::ReadOnly => "ro",
    };
    let squash = match rules.squash {
        Squash::None => "root is root".to_string(),
        Squash::Root => format!("root squashed to {}", rules.anonymous_uid),
        Squash::All => {
            format!("all squashed to {}:{}", rules.anonymous_uid, rules.anonymous_gid)
        }
    };
    let clients = rules.clients.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let ports = if rules.reserved_ports { "reserved ports" } else { "any port" };
    format!("{}   {access}   {clients}   {squash}   {ports}", export.path.escape_ascii())
}
