//! The story of a start: workers, services, sockets, rpcbind; and of a clean stop.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tracing::warn;

use keeper::identity::HostKey;
use vfs::{Exports, HandleKey};

use crate::callbacks::{self, Callbacks, Report};
use crate::chronicle::Chronicle;
use crate::control::Control;
use crate::engine::{End, Engine, Input};
use crate::files::Files;
use crate::liveness::{self, Liveness};
use crate::locks::{self, Carrier, Locks, LocksError};
use crate::meters::Meters;
use crate::peer::{self, Peers};
use crate::registrar::{RegisterError, Registrar, RpcbindMode, RpcbindState};
use crate::rpc::dispatch::Dispatcher;
use crate::rpc::limits::Limits;
use crate::rpc::workers::Workers;
use crate::service::Service;
use crate::service::mount::MountService;
use crate::service::nfs3::Nfs3;
use crate::service::nlm::Nlm;
use crate::service::nsm::Nsm;
use crate::service::rpcbind::Rpcbind;
use crate::tenure::Tenure;
use crate::transport::Peer;
use crate::transport::listen::{ListenError, Listeners};

#[derive(Debug, Clone)]
pub struct Config {
    /// Where all programs are served; `[::]` is every address of both families.
    pub listen: SocketAddr,
    pub rpcbind: RpcbindMode,
    /// 111 everywhere but in tests and demonstrations.
    pub rpcbind_port: u16,
    /// Where the rpcbind of clients is asked for their lock and status services.
    pub peer_rpcbind_port: u16,
    /// How often to look whether the host's rpcbind still knows us.
    pub rpcbind_check_every: Duration,
    /// SM_SIMU_CRASH from this host ends the server as a crash does (R1.1); else it is refused.
    pub simulated_crash: bool,
    /// Whether requests, replies and commits are counted for [`Control::meters`].
    pub metrics: bool,
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 2049),
            rpcbind: RpcbindMode::Auto,
            rpcbind_port: wire::rpcbind::PORT,
            peer_rpcbind_port: wire::rpcbind::PORT,
            rpcbind_check_every: Duration::from_secs(30),
            simulated_crash: false,
            metrics: true,
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
    #[error(transparent)]
    Locks(#[from] LocksError),
}

/// Why a server ended that nobody stopped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failed(String);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "after a simulated crash the server is to be started again"]
pub enum Ended {
    /// Cleanly: the next start needs no grace period.
    Stopped,
    /// By SM_SIMU_CRASH: to be started again at once, and its clients reclaim.
    Crashed,
}

/// What ends it before it is stopped.
enum Early {
    Failed(Failed),
    Crash,
}

/// Lets go of the locks as a crash does, unless they were left in order.
struct Custody(Engine);

impl Drop for Custody {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// A server that is listening. It ends when [`Stopper::stop`] is called; one that is dropped
/// instead leaves as by a crash.
pub struct Server {
    control: Control,
    files: Arc<Files>,
    workers: Arc<Workers>,
    addresses: Vec<SocketAddr>,
    registrar: Registrar,
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
    locks: Custody,
    tenure: Tenure,
    crash: Arc<Notify>,
    // The carrier knows it only weakly.
    _dispatcher: Arc<Dispatcher>,
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

/// How long a clean stop waits for requests that came by UDP; connections see to theirs.
const LAST_REPLIES: Duration = Duration::from_millis(200);
/// How long it waits for a store that does not take the last step.
const LAST_COMMIT: Duration = Duration::from_secs(5);

impl Server {
    /// Takes up the locks, opens the sockets and begins to serve. When this returns, clients can
    /// mount.
    pub async fn start(
        config: Config,
        exports: Exports,
        key: HandleKey,
        locks: Locks,
    ) -> Result<Self, BootError> {
        let limits = config.limits;
        let reserved_ports = locks.reserved_ports;
        let meters = config.metrics.then(|| Arc::new(Meters::default()));
        let restored = locks::restore(locks, limits.lock_requests_max, meters.clone())?;
        let chronicle = Arc::new(Chronicle::new(restored.epoch.get()));
        let tenure = restored.tenure;
        let workers = Workers::start(limits.workers, vfs::local::prepare_worker_thread)
            .map_err(BootError::Workers)?;
        let workers = Arc::new(workers);
        let files = Arc::new(Files::new(exports, key, limits.names_max));

        restored.fenced.iter().for_each(|address| files.fences.set(*address, true));

        let listeners = Listeners::bind(config.listen, &tenure, restored.epoch)?;
        let locks = Custody(restored.engine);
        let engine = &locks.0;
        let report = {
            let (reporter, meters) = (engine.reporter(), meters.clone());
            Arc::new(move |report| {
                reporter.report(match report {
                    Report::Granted(grant, answer) => {
                        if let Some(meters) = &meters {
                            meters.called_back(answer);
                        }
                        Input::Granted(grant, answer)
                    }
                    Report::Noticed(notice, result) => Input::Noticed(notice, result),
                });
            })
        };
        let settings = peer::Settings {
            rpcbind_port: config.peer_rpcbind_port,
            reserved_ports: rustix::process::geteuid().is_root(),
            tenure: tenure.clone(),
            ..peer::Settings::default()
        };
        let peers = Peers::new(settings, &listeners.datagrams());
        let settings = callbacks::Settings {
            in_flight_max: limits.callbacks_max,
            meters: meters.clone(),
            ..callbacks::Settings::default()
        };
        let callbacks = Callbacks::new(settings, peers.clone(), report);
        let on_reset = {
            let (reporter, clock) = (engine.reporter(), engine.clock());
            Arc::new(move |host: &HostKey, life: Instant| {
                let (host, life) = (host.clone(), clock.mono(life));
                reporter.report(Input::Reset { host, life });
            })
        };
        let liveness = Liveness::new(liveness::Settings::default(), peers, on_reset);
        let nlm = Nlm::new(
            files.clone(),
            engine.clone(),
            callbacks.clone(),
            liveness.clone(),
            reserved_ports,
        );
        let crash = Arc::new(Notify::new());
        let nsm = Nsm::new(
            files.clone(),
            engine.clone(),
            restored.epoch.get().nsm_state(),
            reserved_ports,
            config.simulated_crash.then(|| crash.clone()),
        );
        let services: Vec<Arc<dyn Service>> = vec![
            Arc::new(Nfs3::new(files.clone())),
            Arc::new(MountService::new(files.clone())),
            Arc::new(nlm),
            Arc::new(nsm),
        ];
        let served = services
            .iter()
            .flat_map(|service| service.versions().iter().map(|v| (service.program(), *v)))
            .collect();
        let on_heard = {
            let (reporter, files) = (engine.reporter(), files.clone());
            Box::new(move |peer: &Peer| {
                let (address, local) = (peer.remote.ip(), peer.is_local());
                let admitted = files.admits(address);
                if admitted {
                    reporter.report(Input::Heard { address, local });
                }
                admitted && !local
            })
        };
        let dispatcher = Dispatcher::new(
            services,
            workers.clone(),
            limits.clone(),
            liveness.clone(),
            tenure.clone(),
            meters.clone(),
            on_heard,
        );
        let dispatcher = Arc::new(dispatcher);

        let addresses = listeners.addresses().to_vec();
        let registrar = Registrar::new(served, &addresses, listeners.port(), config.rpcbind_port);
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();

        let rpcbind = choose_rpcbind(config.rpcbind, &registrar).await?;
        let (rpcbind, table) = match rpcbind {
            RpcbindState::Embedded { .. } => {
                match registrar.listen(config.listen, &tenure, restored.epoch) {
                    Ok(listening) => (rpcbind, Some(listening)),
                    Err(failed) if config.rpcbind == RpcbindMode::Auto => {
                        (RpcbindState::Off { reason: failed.to_string() }, None)
                    }
                    Err(failed) => return Err(failed.into()),
                }
            }
            RpcbindState::System { .. } => {
                let every = config.rpcbind_check_every;
                tasks.spawn(keep_registered(registrar.clone(), every, stopped.clone()));
                (rpcbind, None)
            }
            RpcbindState::Off { .. } => (rpcbind, None),
        };
        // The last to open is what clients of the server before this one knock at: a Linux client
        // that gets in there and is refused at port 111 pauses for five seconds.
        listeners.listen()?.serve(&dispatcher, &stopped, &mut tasks);
        if let Some(listening) = table {
            let table = Rpcbind::new(registrar.table());
            let dispatcher = Dispatcher::new(
                vec![Arc::new(table)],
                workers.clone(),
                limits,
                liveness.clone(),
                tenure.clone(),
                meters.clone(),
                Box::new(|_| true),
            );
            listening.serve(&Arc::new(dispatcher), &stopped, &mut tasks);
        }
        if let RpcbindState::Off { reason } = &rpcbind
            && config.rpcbind == RpcbindMode::Auto
        {
            warn!("no rpcbind: {reason}");
        }
        // Now that clients find us, they are told that we are back.
        let watched = liveness.clone();
        let control = Control {
            engine: engine.clone(),
            files: files.clone(),
            liveness: liveness.clone(),
            chronicle: chronicle.clone(),
            meters: meters.clone(),
            rpcbind: rpcbind.clone(),
        };
        let carrier = Carrier {
            reporter: engine.reporter(),
            callbacks,
            liveness,
            files: files.clone(),
            dispatcher: Arc::downgrade(&dispatcher),
            chronicle,
            meters,
            clock: engine.clock(),
        };
        engine.begin(Box::new(carrier), restored.first);
        tokio::spawn(locks::watch_holders(engine.clone(), watched));
        let _dispatcher = dispatcher;
        Ok(Self {
            control,
            files,
            workers,
            addresses,
            registrar,
            tasks,
            stop,
            locks,
            tenure,
            crash,
            _dispatcher,
        })
    }

    /// The lock service.
    pub fn engine(&self) -> &Engine {
        &self.locks.0
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    pub fn rpcbind(&self) -> &RpcbindState {
        self.control.rpcbind()
    }

    /// To see and steer it from elsewhere.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone(), files: self.files.clone() }
    }

    /// Serves until it is told to stop, then ends cleanly: no new requests, the last replies go
    /// out, the locks are marked as left in order, rpcbind forgets us. An error is a store that
    /// failed for good: nothing more may be promised.
    pub async fn run(mut self) -> Result<Ended, Failed> {
        let mut stopped = self.stop.subscribe();
        let early = tokio::select! {
            // The sender lives in `self`, so this ends by a stop only.
            _ = stopped.wait_for(|stopped| *stopped) => None,
            end = self.engine().ended() => match end {
                End::Stopped | End::Abandoned => None,
                End::Failed(why) => Some(Early::Failed(Failed(why))),
            },
            () = self.crash.notified() => Some(Early::Crash),
            why = self.tenure.clone().lost() => Some(Early::Failed(Failed(why))),
        };
        let failed = match early {
            Some(Early::Crash) => {
                // Whoever asked for it is answered first.
                sleep(LAST_REPLIES).await;
                return Ok(Ended::Crashed);
            }
            Some(Early::Failed(failed)) => Some(failed),
            None => None,
        };
        self.stop.send_replace(true);
        if matches!(self.rpcbind(), RpcbindState::System { .. }) {
            self.registrar.unregister().await;
        }
        while self.tasks.join_next().await.is_some() {}
        sleep(LAST_REPLIES).await;
        let failed = match failed {
            Some(failed) => Some(failed),
            None => self.stop_locks().await,
        };
        drop(self.workers);
        failed.map_or(Ok(Ended::Stopped), Err)
    }

    async fn stop_locks(&self) -> Option<Failed> {
        self.engine().report(Input::Stop);
        match timeout(LAST_COMMIT, self.engine().ended()).await {
            Ok(End::Stopped | End::Abandoned) => None,
            Ok(End::Failed(why)) => Some(Failed(why)),
            Err(_) => Some(Failed(
                "the store did not take the last step; the next start begins with a grace period"
                    .into(),
            )),
        }
    }
}

/// Why there is no rpcbind if nobody wanted one.
pub const SWITCHED_OFF: &str = "switched off";

async fn choose_rpcbind(
    mode: RpcbindMode,
    registrar: &Registrar,
) -> Result<RpcbindState, RegisterError> {
    let port = registrar.rpcbind_port();
    match mode {
        RpcbindMode::Off => Ok(RpcbindState::Off { reason: SWITCHED_OFF.into() }),
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
