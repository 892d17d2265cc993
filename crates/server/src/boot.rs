//! Start of the server: restore the locks, bind the sockets, build the services, register with rpcbind,
//! listen, begin to decide. Its stop is in [`stop`].

mod stop;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tracing::warn;

use keeper::identity::{Epoch, HostKey};
use vfs::{Exports, HandleKey};

use crate::callbacks::{self, Callbacks, OnReport, Report};
use crate::config::Config;
use crate::control::Control;
use crate::effects::ServerEffects;
use crate::engine::{End, Engine, Input};
use crate::event_log::EventLog;
use crate::files::Files;
use crate::holders::watch_holders;
use crate::liveness::{self, Liveness, OnReset};
use crate::lock_config::LockConfig;
use crate::metrics::Metrics;
use crate::peer::own_addresses::report_addresses;
use crate::peer::{self, Peers};
use crate::refusals::Refusals;
use crate::registrar::{RegisterError, Registrar, RpcbindMode, RpcbindState};
use crate::restore::{RestoreError, restore};
use crate::roster_copy::{CopyHealth, RosterFile, Schedule, refresh_regularly};
use crate::rpc::callers::Callers;
use crate::rpc::dispatch::{Dispatcher, OnHeard, Shared};
use crate::rpc::limits::Limits;
use crate::rpc::workers::Workers;
use crate::service::Service;
use crate::service::mount::MountService;
use crate::service::nfs3::Nfs3;
use crate::service::nlm::Nlm;
use crate::service::nsm::Nsm;
use crate::service::rpcbind::Rpcbind;
use crate::service_lease::ServiceLease;
use crate::transport::budget::Budget;
use crate::transport::connections::{Connections, relieve};
use crate::transport::listen::{BoundSockets, ListenError};
use crate::transport::udp::Datagrams;
use crate::transport::{ANSWERS_MAX, AnswersMax, Peer, stopping};

/// Buffers that are not used for about so long are given back.
const BUFFERS_KEPT_FOR: Duration = Duration::from_secs(5);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("cannot start worker threads: {0}")]
    Workers(io::Error),
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

/// Why a server ended neither by a clean stop nor by a simulated crash.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ServerError(String);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "after a simulated crash the server is to be started again"]
pub enum ServerExit {
    /// By a clean stop, which the store records.
    Stopped,
    /// By SM_SIMU_CRASH: the caller starts the server again at once, and clients reclaim.
    Crashed,
}

/// Abandons the engine when dropped. No effect after a clean stop.
struct AbandonOnDrop(Engine);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// A server that is listening. [`Server::run`] serves until [`ServerHandle::stop`] is called. A
/// server that is dropped instead ends as by a crash.
pub struct Server {
    control: Control,
    files: Arc<Files>,
    ports: Vec<Arc<Connections>>,
    budget: Arc<Budget>,
    workers: Arc<Workers>,
    addresses: Vec<SocketAddr>,
    registrar: Registrar,
    tasks: JoinSet<()>,
    peers: Peers,
    /// The UDP sockets, so that a stop can send the last callbacks through them.
    datagrams: Vec<Arc<Datagrams>>,
    stop: watch::Sender<AnswersMax>,
    engine: AbandonOnDrop,
    lease: ServiceLease,
    epoch: Epoch,
    roster_copy: Option<(RosterFile, CopyHealth)>,
    crash: Arc<Notify>,
    // `ServerEffects` has only a weak reference.
    _dispatcher: Arc<Dispatcher>,
}

/// Stops a server or replaces its exports, from any thread.
#[derive(Clone)]
pub struct ServerHandle {
    stop: watch::Sender<AnswersMax>,
    files: Arc<Files>,
    ports: Vec<Arc<Connections>>,
    budget: Arc<Budget>,
}

impl ServerHandle {
    /// Begins a clean stop; [`Server::run`] then returns.
    pub fn stop(&self) {
        stop::begin(&self.stop, ANSWERS_MAX);
    }

    /// Requests that arrive later are served from these exports. Connections from addresses that none
    /// of them admits are closed, unless their hosts have locks.
    pub fn replace_exports(&self, exports: Exports) {
        self.files.replace_exports(exports);
        self.ports.iter().for_each(|port| port.reconsider());
    }

    /// The most bytes that requests and replies held since the last call: memory that an allocator
    /// may keep.
    pub fn take_peak_bytes(&self) -> usize {
        self.budget.take_peak()
    }
}

impl Server {
    /// Restores the locks, opens the sockets and starts to serve. When this returns, clients can
    /// mount. Must be called inside a tokio runtime; blocks while the store is loaded.
    pub async fn start(
        config: Config,
        exports: Exports,
        key: HandleKey,
        mut locks: LockConfig,
    ) -> Result<Self, BootError> {
        let limits = config.limits;
        let require_reserved_ports = locks.require_reserved_ports;
        let metrics = config.metrics.then(|| Arc::new(Metrics::default()));
        let lock_hook = locks.lock_hook.take();
        let restored = restore(locks, limits.lock_requests_max, metrics.clone())?;
        let event_log = Arc::new(EventLog::new(restored.epoch.get()));
        let lease = restored.lease;
        let workers = Workers::start(limits.workers, vfs::local::prepare_worker_thread)
            .map_err(BootError::Workers)?;
        let workers = Arc::new(workers);
        let files =
            Arc::new(Files::new(exports, key, limits.names_max, lease.clone(), restored.fences));

        let sockets = BoundSockets::bind(config.listen, config.udp, &lease, restored.epoch)?;
        let abandon_on_drop = AbandonOnDrop(restored.engine);
        let engine = &abandon_on_drop.0;
        files.fences.report_to(engine.reporter());
        let settings = peer::Settings {
            rpcbind_port: config.peer_rpcbind_port,
            send_from_reserved_ports: rustix::process::geteuid().is_root(),
            lease: lease.clone(),
            ..peer::Settings::default()
        };
        let datagrams = sockets.datagrams();
        let peers = Peers::new(settings, &datagrams);
        let settings = callbacks::Settings {
            in_flight_max: limits.callbacks_max,
            metrics: metrics.clone(),
            ..callbacks::Settings::default()
        };
        let report = report_callbacks(engine, metrics.clone());
        let callbacks = Callbacks::new(settings, peers.clone(), report);
        let settings = liveness::Settings::default();
        let liveness = Liveness::new(settings, peers.clone(), report_resets(engine));

        let refusals = Refusals::new(event_log.clone(), metrics.clone(), engine.clock());
        let refusals = Arc::new(refusals);
        let nlm = Nlm::new(
            files.clone(),
            engine.clone(),
            callbacks.clone(),
            liveness.clone(),
            refusals.clone(),
            require_reserved_ports,
        );
        let crash = Arc::new(Notify::new());
        let nsm = Nsm::new(
            files.clone(),
            engine.clone(),
            restored.epoch.get().nsm_state(),
            refusals.clone(),
            require_reserved_ports,
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
        let callers = Callers::new(files.clone(), liveness.clone(), require_reserved_ports);
        let budget = Arc::new(Budget::new(limits.total_bytes_max));
        let shared = Shared {
            workers: workers.clone(),
            limits: limits.clone(),
            budget: budget.clone(),
            callers: callers.clone(),
            liveness: liveness.clone(),
            lease: lease.clone(),
            metrics: metrics.clone(),
        };
        let new_port =
            |limits: &Limits| Arc::new(Connections::new(callers.clone(), limits, metrics.clone()));
        let on_heard = report_heard(engine, files.clone());
        let dispatcher = Arc::new(Dispatcher::new(services, shared.clone(), on_heard));

        let addresses = sockets.addresses().to_vec();
        let registrar = Registrar::new(served, &addresses, config.udp, config.rpcbind_port);
        let (stop, stopped) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let rpcbind = choose_rpcbind(config.rpcbind, &registrar).await?;
        let (rpcbind, rpcbind_listeners) = match rpcbind {
            RpcbindState::Embedded { .. } => {
                match registrar.listen(config.listen, &lease, restored.epoch) {
                    Ok(listeners) => (rpcbind, Some(listeners)),
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
        // The NFS port opens after port 111: a Linux client that reconnects to the former and is
        // then refused by the latter pauses for five seconds.
        let mut ports = vec![new_port(&limits)];
        sockets.listen()?.serve(&dispatcher, &ports[0], &stopped, &mut tasks);
        if let Some(listeners) = rpcbind_listeners {
            let table = Rpcbind::new(registrar.table());
            let services: Vec<Arc<dyn Service>> = vec![Arc::new(table)];
            let dispatcher = Arc::new(Dispatcher::new(services, shared, Box::new(|_| true)));
            let port = new_port(&limits.of_rpcbind());
            listeners.serve(&dispatcher, &port, &stopped, &mut tasks);
            ports.push(port);
        }
        tasks.spawn(relieve(ports.clone(), budget.clone(), stopped.clone()));
        if let RpcbindState::Off { reason } = &rpcbind
            && config.rpcbind == RpcbindMode::Auto
        {
            warn!("no rpcbind: {reason}");
        }

        let control = Control {
            engine: engine.clone(),
            files: files.clone(),
            liveness: liveness.clone(),
            event_log: event_log.clone(),
            metrics: metrics.clone(),
            rpcbind,
            open_reason: restored.open_reason,
            roster_copy: restored.roster_copy.as_ref().map(|(_, health)| health.clone()),
            lookups: Arc::default(),
            budget: None,
        };
        let effects = ServerEffects {
            reporter: engine.reporter(),
            callbacks,
            liveness: liveness.clone(),
            files: files.clone(),
            dispatcher: Arc::downgrade(&dispatcher),
            event_log,
            refusals,
            metrics: metrics.clone(),
            clock: engine.clock(),
            lock_hook,
        };
        // Sends the notices of the restart, so clients must be able to reach the server by now.
        engine.begin(Box::new(effects), restored.first);
        tokio::spawn(watch_holders(engine.clone(), liveness));
        tokio::spawn(report_addresses(engine.clone()));
        tokio::spawn(release_buffers(engine.clone()));
        if let Some((file, health)) = restored.roster_copy.clone() {
            let epoch = restored.epoch.get();
            tokio::spawn(refresh_regularly(
                engine.clone(),
                epoch,
                file,
                health,
                Schedule::default(),
            ));
        }
        Ok(Self {
            control,
            files,
            ports,
            budget,
            workers,
            addresses,
            registrar,
            tasks,
            peers,
            datagrams: datagrams.into_iter().map(|(_, socket)| socket).collect(),
            stop,
            engine: abandon_on_drop,
            lease,
            epoch: restored.epoch.get(),
            roster_copy: restored.roster_copy,
            crash,
            _dispatcher: dispatcher,
        })
    }

    /// Not part of the interface of the library.
    #[doc(hidden)]
    pub fn engine(&self) -> &Engine {
        &self.engine.0
    }

    /// The addresses on which it listens, without that of an embedded rpcbind.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The port of all programs but rpcbind.
    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// Whether more than rpcbind is served over UDP.
    pub fn serves_udp(&self) -> bool {
        !self.datagrams.is_empty()
    }

    /// How clients find the lock service.
    pub fn rpcbind(&self) -> &RpcbindState {
        self.control.rpcbind()
    }

    /// Reads the server's state and carries out operators' commands.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Stops the server or replaces its exports.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle {
            stop: self.stop.clone(),
            files: self.files.clone(),
            ports: self.ports.clone(),
            budget: self.budget.clone(),
        }
    }

    /// Serves until [`ServerHandle::stop`], then stops cleanly: accepts nothing more, unregisters
    /// from rpcbind, sends the last replies and commits the stop. Fails if the engine or its store
    /// failed, if a standby took over, or if the stop was not committed in time.
    pub async fn run(self) -> Result<ServerExit, ServerError> {
        let mut stopped = self.stop.subscribe();
        let (mut failure, mut crashed) = (None, false);
        tokio::select! {
            // The sender is in `self`, so this resolves only on a stop.
            _ = stopped.wait_for(Option::is_some) => {}
            end = self.engine().ended() => if let End::Failed(why) = end {
                failure = Some(ServerError(why));
            },
            () = self.crash.notified() => crashed = true,
            why = self.lease.clone().wait_until_lost() => failure = Some(ServerError(why)),
        }
        if crashed {
            // The reply to SM_SIMU_CRASH goes out first.
            sleep(stop::LAST_CALLBACKS).await;
            return Ok(ServerExit::Crashed);
        }
        self.stop(failure).await.map(|()| ServerExit::Stopped)
    }
}

/// Reports the results of callbacks and notices to the engine.
fn report_callbacks(engine: &Engine, metrics: Option<Arc<Metrics>>) -> OnReport {
    let reporter = engine.reporter();
    Arc::new(move |report| {
        reporter.report(match report {
            Report::Granted(grant, answer) => {
                if let Some(metrics) = &metrics {
                    metrics.count_callback(answer);
                }
                Input::Granted(grant, answer)
            }
            Report::Noticed(notice, result) => Input::Noticed(notice, result),
        });
    })
}

/// Reports connections that were reset by their peers to the engine.
fn report_resets(engine: &Engine) -> OnReset {
    let (reporter, clock) = (engine.reporter(), engine.clock());
    Arc::new(move |host: &HostKey, life: Instant| {
        let (host, life) = (host.clone(), clock.mono(life));
        reporter.report(Input::Reset { host, life });
    })
}

/// Reports calls from admitted addresses to the engine; the first one from another machine starts
/// the recovery window.
fn report_heard(engine: &Engine, files: Arc<Files>) -> OnHeard {
    let reporter = engine.reporter();
    Box::new(move |peer: &Peer| {
        let (address, local) = (peer.remote.ip(), peer.is_local());
        let admitted = files.admits(address);
        if admitted {
            reporter.report(Input::Heard { address, local });
        }
        admitted && !local
    })
}

/// The reason in [`RpcbindState::Off`] if the configuration turns rpcbind off.
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

/// Returns buffers that no call has used lately to the allocator, until the engine ends.
async fn release_buffers(engine: Engine) {
    let mut every = interval(BUFFERS_KEPT_FOR);
    loop {
        tokio::select! {
            _ = every.tick() => vfs::buffers::release_unused(),
            _ = engine.ended() => return,
        }
    }
}

async fn keep_registered(
    registrar: Registrar,
    every: Duration,
    mut stop: watch::Receiver<AnswersMax>,
) {
    let mut every = interval(every);
    every.tick().await;
    loop {
        tokio::select! {
            _ = every.tick() => registrar.check().await,
            _ = stopping(&mut stop) => return,
        }
    }
}
