//! Starts the admin API as configured, and knows its default sockets.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use admin::{Admin, AdminError, Facts, ListenError, PathVisibility, Reload, Settings};
use anyhow::Result;
use tokio::sync::mpsc;
use tracing::warn;

use super::state_directory;
use crate::cli;
use crate::config::{AdminListen, AdminSocket, File, Paths};

const PORT: u16 = 9049;
pub(crate) const SYSTEM_SOCKET: &str = "/run/lockkeeper/admin.sock";

/// Returns `None` if the API is off. A configured socket that cannot be opened is an error; a default
/// one in use by another server is skipped with a warning.
pub(crate) async fn open(
    args: &cli::Serve,
    file: &File,
    state: &Path,
    facts: Facts,
    reloads: mpsc::Sender<Reload>,
) -> Result<Option<Admin>> {
    let configured_socket = args.admin_socket.clone().map(AdminSocket::At);
    let configured_socket = configured_socket.or_else(|| file.admin.socket.clone());
    let configured_listen = args.admin.clone().or_else(|| file.admin.listen.clone());
    let paths = match file.admin.paths.unwrap_or_default() {
        Paths::Operators => PathVisibility::Operators,
        Paths::All => PathVisibility::All,
    };
    let token = state.join("admin-token");
    let mut settings = Settings::default().with_token(token).with_paths(paths).with_facts(facts);
    settings.socket = match &configured_socket {
        Some(AdminSocket::Off) => None,
        Some(AdminSocket::At(path)) => Some(path.clone()),
        None => Some(default_socket(state)),
    };
    settings.listen = match configured_listen {
        Some(AdminListen::Off) => None,
        Some(AdminListen::At(address)) => Some(address),
        None => Some(default_listen()),
    };
    settings.metrics = file.admin.metrics_listen.as_ref().and_then(AdminListen::address);
    if let Some(directory) = settings.socket.as_deref().and_then(Path::parent)
        && let Err(error) = prepare_directory(directory, &configured_socket)
    {
        let directory = directory.display();
        warn!("only root can reach the socket in {directory}: {error}; chmod 711 {directory}");
    }
    loop {
        if settings.socket.is_none() && settings.listen.is_none() && settings.metrics.is_none() {
            return Ok(None);
        }
        let failed = match Admin::start(settings.clone(), reloads.clone()).await {
            Ok(admin) => return Ok(Some(admin)),
            Err(failed) => failed,
        };
        match &failed {
            AdminError::Listen(ListenError::Tcp { address, .. })
                if configured_listen.is_none() && settings.listen == Some(*address) =>
            {
                settings.listen = None;
            }
            AdminError::Token(_) if configured_listen.is_none() => settings.listen = None,
            AdminError::Listen(ListenError::InUse { .. } | ListenError::Socket { .. })
                if configured_socket.is_none() =>
            {
                settings.socket = None;
            }
            _ => return Err(failed.into()),
        }
        warn!("{failed}");
    }
}

/// Creates the socket's directory. The system directory must be traversable by all users, regardless
/// of the umask and of its creator, but not listable: it also contains the marks of stores.
fn prepare_directory(directory: &Path, configured: &Option<AdminSocket>) -> io::Result<()> {
    let system = Path::new(SYSTEM_SOCKET).parent() == Some(directory);
    match (system, configured) {
        (true, _) => make_traversable(directory),
        // Private; if this fails, binding the socket reports it.
        (false, None) => {
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            Ok(())
        }
        (false, Some(_)) => Ok(()),
    }
}

fn make_traversable(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o711).create(directory)?;
    let found = fs::metadata(directory)?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || found.mode() & 0o011 == 0o011 {
        return Ok(());
    }
    fs::set_permissions(directory, Permissions::from_mode(found.mode() & 0o7777 | 0o011))
}

/// Default socket of a server.
pub(crate) fn default_socket(state: &Path) -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return SYSTEM_SOCKET.into();
    }
    // Not in a directory given by --state, which commands do not know.
    own_sockets().into_iter().next().unwrap_or_else(|| state.join("admin.sock"))
}

/// Where commands look for a server: the system socket, then the user's own.
pub(crate) fn sockets() -> Vec<PathBuf> {
    let own = if rustix::process::geteuid().is_root() { Vec::new() } else { own_sockets() };
    [SYSTEM_SOCKET.into()].into_iter().chain(own).collect()
}

/// Sockets of an unprivileged server, with and without XDG_RUNTIME_DIR: server and command may differ
/// in whether it is set.
fn own_sockets() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let runtime = runtime.map(|dir| PathBuf::from(dir).join("lockkeeper/admin.sock"));
    let state = state_directory::default_path().ok().map(|dir| dir.join("admin.sock"));
    runtime.into_iter().chain(state).collect()
}

pub(crate) fn default_listen() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT)
}

/// The banner's `admin` line.
pub(crate) fn describe(admin: &Admin) -> String {
    let socket = admin.socket().map(|path| path.display().to_string());
    let web = admin.tcp().map(|address| format!("web http://{address}"));
    let metrics = admin.metrics().map(|address| format!("metrics http://{address}/metrics"));
    [socket, web, metrics].into_iter().flatten().collect::<Vec<_>>().join("   ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_through_the_systems_directory_and_nobody_lists_it() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let new = dir.path().join("a/b");
        make_traversable(&new).unwrap();
        assert_eq!(mode(&new), 0o711);
        for (before, after) in [(0o700, 0o711), (0o750, 0o751), (0o755, 0o755)] {
            fs::set_permissions(&new, Permissions::from_mode(before)).unwrap();
            make_traversable(&new).unwrap();
            assert_eq!(mode(&new), after);
        }
    }
}
