//! What the operator reads when the server has started.

use std::fmt::Write as _;
use std::path::Path;

use server::{RpcbindState, Server};
use vfs::{Access, Export, Exports, Squash};

/// `as_server`: everything is done as the user who runs the server.
pub fn banner(server: &Server, exports: &Exports, state: &Path, as_server: bool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, rest: String| {
        let _ = writeln!(text, "{name:<10}{rest}");
    };
    line("lockkeeper", format!(" {}   state {}", env!("CARGO_PKG_VERSION"), state.display()));
    for export in exports.iter() {
        line("export", describe(export, as_server));
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
        let source = quoted(&format!("{host}:{}", String::from_utf8_lossy(&export.path)));
        line("mount", format!("sudo mount -t nfs -o {options} {source} /mnt"));
    }
    text
}

fn describe(export: &Export, as_server: bool) -> String {
    let rules = &export.rules;
    let access = match rules.access {
        Access::ReadWrite => "rw",
        Access::ReadOnly => "ro",
    };
    let squash = match rules.squash {
        _ if as_server => {
            format!("everybody acts as uid {}", rustix::process::geteuid().as_raw())
        }
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

/// As a shell takes it, in one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/:._-+@%,=".contains(c);
    if word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("filer:/srv/a-b_c.d"), "filer:/srv/a-b_c.d");
        assert_eq!(quoted("filer:/my files"), "'filer:/my files'");
        assert_eq!(quoted("filer:/it's"), r"'filer:/it'\''s'");
    }
}
