//! The story of a start: workers, services, sockets, rpcbind; and of a clean stop.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tracing::warn;

use vfs::{Exports, HandleKey};

use crate::dispatch::Dispatcher;
use crate::limits::Limits;
use crate::registrar::{RegisterError, Registrar, RpcbindMode, RpcbindState};
use crate::service::Service;
use crate::service::mount::MountService;
use crate::service::nfs3::{Files, Nfs3};
use crate::service::rpcbind::Rpcbind;
use crate::transport::listen::{ListenError, Listeners};
use crate::workers::Workers;

#[derive(Debug, Clone)]
pub struct Config {
    /// Where all programs are served; `[::]` is every address of both families.
    pub listen: SocketAddr,
    pub rpcbind: RpcbindMode,
    /// 111 everywhere but in tests and demonstrations.
    pub rpcbind_port: u16,
    /// How often to look whether the host's rpcbind still knows us.
    pub rpcbind_check_every: Duration,
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 2049),
            rpcbind: RpcbindMode::Auto,
            rpcbind_port: wire::rpcbind::PORT,
            rpcbind_check_every: Duration::from_secs(30),
            limits: Limits::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("cannot start worker threads: {0}")]
    Workers(io::Error),
}

/// A server that is listening. It ends when [`Stopper::stop`] is called.
pub struct Server {
    files: Arc<Files>,
    workers: Arc<Workers>,
    addresses: Vec<SocketAddr>,
    rpcbind: RpcbindState,
    registrar: Registrar,
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

/// Steers a running server from elsewhere.
#[derive(Clone)]
pub struct Stopper {
    stop: watch::Sender<bool>,
    files: Arc<Files>,
}

impl Stopper {
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// From the next request on, these exports are served.
    pub fn replace_exports(&self, exports: Exports) {
        self.files.replace_exports(exports);
    }
}

/// How long a clean stop waits for requests that are under way.
const LAST_REPLIES: Duration = Duration::from_millis(200);

impl Server {
    /// Opens the sockets and begins to serve. When this returns, clients can mount.
    pub async fn start(
        config: Config,
        exports: Exports,
        key: HandleKey,
    ) -> Result<Self, BootError> {
        let limits = config.limits;
        let workers = Workers::start(limits.workers, vfs::local::prepare_worker_thread)
            .map_err(BootError::Workers)?;
        let workers = Arc::new(workers);
        let files = Arc::new(Files::new(exports, key, limits.names_max));

        let services: Vec<Arc<dyn Service>> =
            vec![Arc::new(Nfs3::new(files.clone())), Arc::new(MountService::new(files.clone()))];
        let programs = services
            .iter()
            .flat_map(|service| service.versions().iter().map(|v| (service.program(), *v)))
            .collect();
        let dispatcher = Arc::new(Dispatcher::new(services, workers.clone(), limits.clone()));

        let listeners = Listeners::open(config.listen)?;
        let addresses = listeners.addresses().to_vec();
        let registrar = Registrar::new(programs, &addresses, listeners.port(), config.rpcbind_port);
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        listeners.serve(&dispatcher, &stopped, &mut tasks);

        let rpcbind = choose_rpcbind(config.rpcbind, &registrar).await?;
        let rpcbind = match rpcbind {
            RpcbindState::Embedded { .. } => match registrar.listen(config.listen) {
                Ok(listeners) => {
                    let table: Arc<dyn Service> = Arc::new(Rpcbind::new(registrar.table()));
                    let dispatcher = Dispatcher::new(vec![table], workers.clone(), limits);
                    listeners.serve(&Arc::new(dispatcher), &stopped, &mut tasks);
                    rpcbind
                }
                Err(failed) if config.rpcbind == RpcbindMode::Auto => {
                    RpcbindState::Off { reason: failed.to_string() }
                }
                Err(failed) => return Err(failed.into()),
            },
            RpcbindState::System { .. } => {
                let every = config.rpcbind_check_every;
                tasks.spawn(keep_registered(registrar.clone(), every, stopped.clone()));
                rpcbind
            }
            RpcbindState::Off { .. } => rpcbind,
        };
        if let RpcbindState::Off { reason } = &rpcbind
            && config.rpcbind == RpcbindMode::Auto
        {
            warn!("no rpcbind: {reason}");
        }
        Ok(Self { files, workers, addresses, rpcbind, registrar, tasks, stop })
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    pub fn rpcbind(&self) -> &RpcbindState {
        &self.rpcbind
    }

    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone(), files: self.files.clone() }
    }

    /// Serves until it is told to stop, then ends cleanly: no new requests, the last replies go
    /// out, rpcbind forgets us.
    pub async fn run(mut self) {
        let mut stopped = self.stop.subscribe();
        // The sender lives in `self`, so this ends by a stop only.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        if matches!(self.rpcbind, RpcbindState::System { .. }) {
            self.registrar.unregister().await;
        }
        while self.tasks.join_next().await.is_some() {}
        sleep(LAST_REPLIES).await;
        drop(self.workers);
    }
}

async fn choose_rpcbind(
    mode: RpcbindMode,
    registrar: &Registrar,
) -> Result<RpcbindState, RegisterError> {
    let port = registrar.rpcbind_port();
    match mode {
        RpcbindMode::Off => Ok(RpcbindState::Off { reason: "switched off".into() }),
        RpcbindMode::Embedded => Ok(RpcbindState::Embedded { port }),
        RpcbindMode::System => registrar.register().await.map(|()| RpcbindState::System { port }),
        RpcbindMode::Auto => match registrar.register().await {
            Ok(()) => Ok(RpcbindState::System { port }),
            Err(RegisterError::NoSystem { .. }) => Ok(RpcbindState::Embedded { port }),
            Err(RegisterError::Foreign { program, name, port, fix }) => {
                Err(RegisterError::Foreign { program, name, port, fix })
            }
            Err(error) => Ok(RpcbindState::Off { reason: error.to_string() }),
        },
    }
}

async fn keep_registered(registrar: Registrar, every: Duration, mut stop: watch::Receiver<bool>) {
    let mut every = interval(every);
    every.tick().await;
    loop {
        tokio::select! {
            _ = every.tick() => registrar.check().await,
            _ = stop.changed() => return,
        }
    }
}
