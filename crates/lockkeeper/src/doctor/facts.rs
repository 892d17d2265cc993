//! All that the checks go by, gathered once.

use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use admin::api;
use client::rpcbind::Over;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::client::Client;
use super::kept::{self, Kept};
use super::place::Place;
use super::plan::Plan;
use super::process::{self, Descriptors, Process};
use super::reach::{self, Reach};
use super::registry::Registry;
use crate::cli;
use crate::daemon::{Daemon, Failed};
use crate::stores::{self, StoreUrl};

pub struct Facts {
    pub now: SystemTime,
    pub plan: Plan,
    pub daemon: Daemon,
    pub status: Result<api::Status, Failed>,
    /// The server that answers, or else the one that uses the state directory.
    pub process: Option<Process>,
    /// Who uses the state directory.
    pub holder: Option<Process>,
    pub state: Result<Place, String>,
    /// Where the embedded store is, if not in the state directory's file system.
    pub store: Option<Result<Place, String>>,
    /// Where its mark is.
    pub mark: Option<Result<Place, String>>,
    pub descriptors: Descriptors,
    pub ports: Ports,
    pub registry: Registry,
    pub kept: Kept,
    pub client: Option<Client>,
}

/// Our main port, asked from this host.
pub struct Ports {
    pub tcp: Reach,
    pub udp: Reach,
    /// NLM at the same port: no other NFS server has it there.
    pub locks: Reach,
}

impl Facts {
    pub async fn gather(args: &cli::Doctor, named: Option<&str>) -> Self {
        let (daemon, status) = find(args, named).await;
        // Its name is its path, if it is a socket.
        let answering = process::behind(Path::new(&daemon.to_string())).await;
        let answering = answering.filter(|_| status.is_ok()).and_then(Process::look);
        let plan = Plan::make(args, answering.as_ref().and_then(|server| server.serve.as_ref()));
        let holder = holder(&plan);
        // One that does not answer shows by its lock how it was started.
        let plan = match (&answering, holder.as_ref().and_then(|holder| holder.serve.as_ref())) {
            (None, Some(serve)) => Plan::make(args, Some(serve)),
            _ => plan,
        };
        let running = answering.as_ref().or(holder.as_ref());
        let descriptors =
            running.map_or_else(process::own_descriptors, |server| server.descriptors);
        let (ports, registry) = tokio::join!(Ports::ask(&plan), Registry::ask(&plan));
        let kept = kept::look(&plan, status.is_ok() || holder.is_some()).await;
        let client = match &args.client {
            Some(name) => Some(Client::look(name, &daemon, &status, &plan).await),
            None => None,
        };
        Self {
            now: SystemTime::now(),
            state: look(&plan.state),
            store: store_place(&plan),
            mark: mark_place(&plan),
            process: answering.or_else(|| Process::look(holder.as_ref()?.pid)),
            daemon,
            status,
            holder,
            plan,
            descriptors,
            ports,
            registry,
            kept,
            client,
        }
    }

    /// Whether some server runs here, asked or not.
    pub fn is_running(&self) -> bool {
        self.status.is_ok() || self.holder.is_some()
    }

    /// Another server of the same store serves, and this one waits.
    pub fn is_standby(&self) -> bool {
        self.status.as_ref().is_ok_and(|status| status.state == api::ServerState::Standby)
    }
}

impl Ports {
    async fn ask(plan: &Plan) -> Self {
        let at = plan.near();
        let nfs = (wire::nfs3::PROGRAM, wire::nfs3::VERSION);
        let nlm = (wire::nlm::PROGRAM, wire::nlm::V4);
        let (tcp, udp, locks) = tokio::join!(
            reach::ask(at, Over::Tcp, nfs),
            reach::ask(at, Over::Udp, nfs),
            reach::ask(at, Over::Tcp, nlm),
        );
        Self { tcp, udp, locks }
    }
}

/// The server that is named, or the one at the usual place; or else the one that the configuration
/// or the state directory tells of.
async fn find(args: &cli::Doctor, named: Option<&str>) -> (Daemon, Result<api::Status, Failed>) {
    let daemon = Daemon::find(named);
    let status = daemon.get::<api::Status>("/v1/status").await;
    let is_named = named.is_some() || std::env::var_os("LOCKKEEPER_ADMIN").is_some();
    if status.is_ok() || is_named {
        return (daemon, status);
    }
    let plan = Plan::make(args, None);
    let serve = holder(&plan).and_then(|holder| holder.serve);
    let plan = Plan::make(args, serve.as_ref());
    let Some(socket) = plan.admin_socket.as_ref().and_then(|path| path.to_str()) else {
        return (daemon, status);
    };
    let other = Daemon::find(Some(socket));
    match other.get::<api::Status>("/v1/status").await {
        Ok(found) => (other, Ok(found)),
        Err(_) => (daemon, status),
    }
}

/// Who has the state directory.
fn holder(plan: &Plan) -> Option<Process> {
    process::lock_holder(&plan.state.join("lock")).and_then(Process::look)
}

fn look(path: &Path) -> Result<Place, String> {
    Place::look(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn store_place(plan: &Plan) -> Option<Result<Place, String>> {
    match &plan.store {
        StoreUrl::Embedded(path) if !path.starts_with(&plan.state) => Some(look(path)),
        _ => None,
    }
}

fn mark_place(plan: &Plan) -> Option<Result<Place, String>> {
    match &plan.store {
        StoreUrl::Embedded(path) => match stores::run_directory(path) {
            Ok(run) => Some(look(&run)),
            Err(error) => Some(Err(format!("{error:#}"))),
        },
        StoreUrl::Memory | StoreUrl::Postgres(_) => None,
    }
}

/// Work that may hang in the system, on a thread that nobody waits for longer than this. Not one of
/// the runtime's: the program could not end before it.
pub async fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = oneshot::channel();
    thread::Builder::new().spawn(move || drop(done.send(work()))).ok()?;
    timeout(patience, result).await.ok()?.ok()
}
