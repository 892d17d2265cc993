//! From the configuration to the API: which sockets, and what the operator is told about them.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use admin::{Admin, AdminError, Facts, ListenError, Reload, Settings};
use anyhow::Result;
use tokio::sync::mpsc;
use tracing::warn;

use crate::cli;
use crate::config::{AdminListen, AdminSocket, File};
use crate::state;

const PORT: u16 = 9049;
pub const SYSTEM_SOCKET: &str = "/run/lockkeeper/admin.sock";

/// `None`: it is switched off. What was asked for must be had; what is only the default may be
/// another server's already, and is then left out.
pub async fn open(
    args: &cli::Serve,
    file: &File,
    state: &Path,
    facts: Facts,
    reloads: mpsc::Sender<Reload>,
) -> Result<Option<Admin>> {
    let asked_socket = args.admin_socket.clone().map(AdminSocket::At);
    let asked_socket = asked_socket.or_else(|| file.admin.socket.clone());
    let asked_listen = args.admin.clone().or_else(|| file.admin.listen.clone());
    let mut settings = Settings {
        socket: match &asked_socket {
            Some(AdminSocket::Off) => None,
            Some(AdminSocket::At(path)) => Some(path.clone()),
            None => Some(default_socket(state)),
        },
        listen: match asked_listen {
            Some(AdminListen::Off) => None,
            Some(AdminListen::At(address)) => Some(address),
            None => Some(default_listen()),
        },
        token: Some(state.join("admin-token")),
        facts,
    };
    if let Some(directory) = settings.socket.as_deref().and_then(Path::parent)
        && let Err(error) = let_through(directory, &asked_socket)
    {
        let directory = directory.display();
        warn!("only root may reach the socket in {directory}: {error}; chmod 711 {directory}");
    }
    loop {
        if settings.socket.is_none() && settings.listen.is_none() {
            return Ok(None);
        }
        let failed = match Admin::start(settings.clone(), reloads.clone()).await {
            Ok(admin) => return Ok(Some(admin)),
            Err(failed) => failed,
        };
        match &failed {
            AdminError::Listen(ListenError::Tcp { .. }) | AdminError::Token(_)
                if asked_listen.is_none() =>
            {
                settings.listen = None;
            }
            AdminError::Listen(ListenError::InUse { .. } | ListenError::Socket { .. })
                if asked_socket.is_none() =>
            {
                settings.socket = None;
            }
            _ => return Err(failed.into()),
        }
        warn!("{failed}");
    }
}

/// The directory of the socket, made if it is not there: the system's must let everybody through,
/// whatever the umask, and whoever made it. What else is in it are marks of stores, which nobody
/// else may read, list or lock.
fn let_through(directory: &Path, asked: &Option<AdminSocket>) -> io::Result<()> {
    let system = Path::new(SYSTEM_SOCKET).parent() == Some(directory);
    match (system, asked) {
        (true, _) => open_to_all(directory),
        // Ours alone, as what else we keep there; if it cannot be made, the socket says so.
        (false, None) => {
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            Ok(())
        }
        (false, Some(_)) => Ok(()),
    }
}

fn open_to_all(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o711).create(directory)?;
    let found = fs::metadata(directory)?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || found.mode() & 0o011 == 0o011 {
        return Ok(());
    }
    fs::set_permissions(directory, Permissions::from_mode(found.mode() & 0o7777 | 0o011))
}

/// Where the server listens if it is not told.
pub fn default_socket(state: &Path) -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return SYSTEM_SOCKET.into();
    }
    // Commands do not know of a state directory that was named to the server.
    own_sockets().into_iter().next().unwrap_or_else(|| state.join("admin.sock"))
}

/// Where commands look for a server if they are not told: at the system's, and then at their
/// user's own.
pub fn sockets() -> Vec<PathBuf> {
    let own = if rustix::process::geteuid().is_root() { Vec::new() } else { own_sockets() };
    [SYSTEM_SOCKET.into()].into_iter().chain(own).collect()
}

/// Of a user who is not root; the server may have been started without the variable that a command
/// has, or with it.
fn own_sockets() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let runtime = runtime.map(|dir| PathBuf::from(dir).join("lockkeeper/admin.sock"));
    let state = state::default_path().ok().map(|dir| dir.join("admin.sock"));
    runtime.into_iter().chain(state).collect()
}

pub fn default_listen() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT)
}

/// A line of the banner.
pub fn describe(admin: &Admin) -> String {
    let socket = admin.socket().map(|path| path.display().to_string());
    let web = admin.tcp().map(|address| format!("web http://{address}"));
    [socket, web].into_iter().flatten().collect::<Vec<_>>().join("   ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_through_the_systems_directory_and_nobody_lists_it() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let new = dir.path().join("a/b");
        open_to_all(&new).unwrap();
        assert_eq!(mode(&new), 0o711);
        for (before, after) in [(0o700, 0o711), (0o750, 0o751), (0o755, 0o755)] {
            fs::set_permissions(&new, Permissions::from_mode(before)).unwrap();
            open_to_all(&new).unwrap();
            assert_eq!(mode(&new), after);
        }
    }
}
