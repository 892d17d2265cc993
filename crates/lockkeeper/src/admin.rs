//! From the configuration to the API: which sockets, and what the operator is told about them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use admin::{Admin, AdminError, Facts, ListenError, Reload, Settings};
use anyhow::Result;
use tokio::sync::mpsc;
use tracing::warn;

use crate::cli;
use crate::config::{AdminListen, AdminSocket, File};

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
    loop {
        if settings.socket.is_none() && settings.listen.is_none() {
            return Ok(None);
        }
        let failed = match Admin::start(settings.clone(), reloads.clone()).await {
            Ok(admin) => return Ok(Some(admin)),
            Err(failed) => failed,
        };
        match &failed {
            AdminError::Listen(ListenError::Tcp { .. }) if asked_listen.is_none() => {
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

/// Where commands look for a server if they are not told.
pub fn default_socket(state: &Path) -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return SYSTEM_SOCKET.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("lockkeeper/admin.sock"),
        None => state.join("admin.sock"),
    }
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
