//! The facts that all checks work on, gathered once.

use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use admin::api;
use client::rpcbind::RpcTransport;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::client::Client;
use super::directory::DirectoryInfo;
use super::process::{self, Descriptors, Process};
use super::registry::Registry;
use super::rpc_probe::{self, ProbeResult};
use super::settings::ServerSettings;
use super::store_contents::{self, StoreContents};
use super::translation::Translation;
use crate::cli;
use crate::config::store_url::{self, StoreUrl};
use crate::daemon::{CommandError, Daemon};

pub(super) struct Facts {
    pub now: SystemTime,
    pub settings: ServerSettings,
    pub daemon: Daemon,
    pub status: Result<api::Status, CommandError>,
    /// The server that answers, or else the one that has locked the state directory.
    pub process: Option<Process>,
    /// The process that has locked the state directory.
    pub leader: Option<Process>,
    pub state: Result<DirectoryInfo, String>,
    /// The embedded store's directory, if outside the state directory.
    pub store: Option<Result<DirectoryInfo, String>>,
    /// The directory of its mark.
    pub mark: Option<Result<DirectoryInfo, String>>,
    pub descriptors: Descriptors,
    pub ports: Ports,
    pub registry: Registry,
    pub store_contents: StoreContents,
    pub client: Option<Client>,
    pub translation: Translation,
}

/// The server's port, probed from this host.
pub(super) struct Ports {
    pub tcp: ProbeResult,
    pub udp: ProbeResult,
    /// NLM on the same port, which no other NFS server offers.
    pub locks: ProbeResult,
}

impl Facts {
    pub(super) async fn gather(args: &cli::Doctor, named: Option<&str>) -> Self {
        let (daemon, status) = find(args, named).await;
        // A unix socket is displayed as its path.
        let answering = process::peer_pid(Path::new(&daemon.to_string())).await;
        let answering = answering.filter(|_| status.is_ok()).and_then(Process::read);
        let settings =
            ServerSettings::new(args, answering.as_ref().and_then(|server| server.serve.as_ref()));
        let leader = leader(&settings);
        // A server that does not answer is identified by its lock on the state directory.
        let settings = match (&answering, leader.as_ref().and_then(|leader| leader.serve.as_ref()))
        {
            (None, Some(serve)) => ServerSettings::new(args, Some(serve)),
            _ => settings,
        };
        let running = answering.as_ref().or(leader.as_ref());
        let descriptors =
            running.map_or_else(process::own_descriptors, |server| server.descriptors);
        let (ports, registry) = tokio::join!(Ports::ask(&settings), Registry::ask(&settings));
        let store_contents =
            store_contents::look(&settings, status.is_ok() || leader.is_some()).await;
        let client = match &args.client {
            Some(name) => Some(Client::look(name, &daemon, &status, &settings).await),
            None => None,
        };
        let translation = Translation::look(&daemon, &status).await;
        Self {
            now: SystemTime::now(),
            state: look(&settings.state),
            store: store_place(&settings),
            mark: mark_place(&settings),
            process: answering.or_else(|| Process::read(leader.as_ref()?.pid)),
            daemon,
            status,
            leader,
            settings,
            descriptors,
            ports,
            registry,
            store_contents,
            client,
            translation,
        }
    }

    /// Whether a server runs here, even if it does not answer.
    pub(super) fn is_running(&self) -> bool {
        self.status.is_ok() || self.leader.is_some()
    }

    /// Whether the server is a standby.
    pub(super) fn is_standby(&self) -> bool {
        self.status.as_ref().is_ok_and(|status| status.state == api::ServerState::Standby)
    }
}

impl Ports {
    async fn ask(settings: &ServerSettings) -> Self {
        let at = settings.local_address();
        let nfs = (wire::nfs3::PROGRAM, wire::nfs3::VERSION);
        let nlm = (wire::nlm::PROGRAM, wire::nlm::V4);
        let (tcp, udp, locks) = tokio::join!(
            rpc_probe::null_call(at, RpcTransport::Tcp, nfs),
            rpc_probe::null_call(at, RpcTransport::Udp, nfs),
            rpc_probe::null_call(at, RpcTransport::Tcp, nlm),
        );
        Self { tcp, udp, locks }
    }
}

/// The server named, else the one at a default socket, else the one that the configuration or the lock
/// on the state directory points to.
async fn find(
    args: &cli::Doctor,
    named: Option<&str>,
) -> (Daemon, Result<api::Status, CommandError>) {
    let daemon = Daemon::find(named);
    let status = daemon.get::<api::Status>("/v1/status").await;
    let is_named = named.is_some() || std::env::var_os("LOCKKEEPER_ADMIN").is_some();
    if status.is_ok() || is_named {
        return (daemon, status);
    }
    let settings = ServerSettings::new(args, None);
    let serve = leader(&settings).and_then(|leader| leader.serve);
    let settings = ServerSettings::new(args, serve.as_ref());
    let Some(socket) = settings.admin_socket.as_ref().and_then(|path| path.to_str()) else {
        return (daemon, status);
    };
    let other = Daemon::find(Some(socket));
    match other.get::<api::Status>("/v1/status").await {
        Ok(found) => (other, Ok(found)),
        Err(_) => (daemon, status),
    }
}

/// The process that has locked the state directory.
fn leader(settings: &ServerSettings) -> Option<Process> {
    process::lock_holder(&settings.state.join("lock")).and_then(Process::read)
}

fn look(path: &Path) -> Result<DirectoryInfo, String> {
    DirectoryInfo::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn store_place(settings: &ServerSettings) -> Option<Result<DirectoryInfo, String>> {
    match &settings.store {
        StoreUrl::Embedded(path) if !path.starts_with(&settings.state) => Some(look(path)),
        _ => None,
    }
}

fn mark_place(settings: &ServerSettings) -> Option<Result<DirectoryInfo, String>> {
    match &settings.store {
        StoreUrl::Embedded(path) => match store_url::run_directory(path) {
            Ok(run) => Some(look(&run)),
            Err(error) => Some(Err(format!("{error:#}"))),
        },
        StoreUrl::Memory | StoreUrl::Postgres(_) => None,
    }
}

/// Runs blocking work that may hang, and gives up after `limit`. On a plain thread: a blocking thread
/// of the runtime would delay the end of the program.
pub(super) async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = oneshot::channel();
    thread::Builder::new().spawn(move || drop(done.send(work()))).ok()?;
    timeout(limit, result).await.ok()?.ok()
}
