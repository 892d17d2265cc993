//! A server without sockets, for fuzz targets: the dispatcher, the services and the engine of
//! [`Server`](crate::Server), with calls that are passed to it as records.
//!
//! Replies that are not ready at once go nowhere, and nothing is ever sent to a peer: callbacks and
//! notices are dropped, probes are answered as [`InProcess::answer_probes`] says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use keeper::Keeper;
use keeper::change::{Change, Client};
use keeper::event::Event;
use keeper::identity::{ClientId, Incarnation};
use keeper::request::{ProbeAnswer, Question};
use keeper::step::{Grant, Notice};
use vfs::{Exports, HandleKey};
use wire::Message;

use crate::boot::BootError;
use crate::callbacks::{self, Callbacks};
use crate::control::Control;
use crate::engine::{Effects, Engine, Input, Reporter};
use crate::event_log::EventLog;
use crate::event_text;
use crate::files::Files;
use crate::liveness::{self, Liveness};
use crate::lock_config::LockConfig;
use crate::metrics::Metrics;
use crate::peer::{self, Peers};
use crate::refusals::Refusals;
use crate::registrar::RpcbindState;
use crate::restore::restore;
use crate::rpc::callers::Callers;
use crate::rpc::dispatch::{Dispatcher, Shared};
use crate::rpc::limits::Limits;
use crate::rpc::workers::Workers;
use crate::service::Service;
use crate::service::mount::MountService;
use crate::service::nfs3::Nfs3;
use crate::service::nlm::Nlm;
use crate::service::nsm::Nsm;
use crate::transport::budget::Budget;
use crate::transport::udp::Answering;
use crate::transport::{Peer, ReplyTo, Transport};

/// See the [module](self). Ends as by a crash when dropped.
pub struct InProcess {
    dispatcher: Arc<Dispatcher>,
    services: Vec<Arc<dyn Service>>,
    control: Control,
    probes: Arc<AtomicU32>,
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.crash();
    }
}

impl InProcess {
    /// To be called inside a runtime.
    pub fn start(exports: Exports, key: HandleKey, locks: LockConfig) -> Result<Self, BootError> {
        let limits = Limits::default();
        let require_reserved_ports = locks.require_reserved_ports;
        let metrics = Some(Arc::new(Metrics::default()));
        let restored = restore(locks, limits.lock_requests_max, metrics.clone())?;
        let (engine, lease) = (restored.engine, restored.lease);
        let event_log = Arc::new(EventLog::new(restored.epoch.get()));
        let workers = Workers::start(limits.workers, vfs::local::prepare_worker_thread);
        let workers = Arc::new(workers.map_err(BootError::Workers)?);
        let files =
            Arc::new(Files::new(exports, key, limits.names_max, lease.clone(), restored.fences));
        files.fences.report_to(engine.reporter());
        let peers = Peers::new(peer::Settings::default(), &[]);
        let callbacks = callbacks::Settings::default();
        let callbacks = Callbacks::new(callbacks, peers.clone(), Arc::new(|_| ()));
        let liveness = Liveness::new(liveness::Settings::default(), peers, Arc::new(|_, _| ()));
        let refusals = Refusals::new(event_log.clone(), metrics.clone(), engine.clock());
        let refusals = Arc::new(refusals);
        let nlm = Nlm::new(
            files.clone(),
            engine.clone(),
            callbacks,
            liveness.clone(),
            refusals.clone(),
            require_reserved_ports,
        );
        let state = restored.epoch.get().nsm_state();
        let (nsm_files, nsm_engine) = (files.clone(), engine.clone());
        let nsm =
            Nsm::new(nsm_files, nsm_engine, state, refusals.clone(), require_reserved_ports, None);
        let services: Vec<Arc<dyn Service>> = vec![
            Arc::new(Nfs3::new(files.clone())),
            Arc::new(MountService::new(files.clone())),
            Arc::new(nlm),
            Arc::new(nsm),
        ];
        let shared = Shared {
            workers,
            budget: Arc::new(Budget::new(limits.total_bytes_max)),
            limits,
            callers: Callers::new(files.clone(), liveness.clone(), require_reserved_ports),
            liveness: liveness.clone(),
            lease,
            metrics: metrics.clone(),
        };
        let dispatcher = Arc::new(Dispatcher::new(services.clone(), shared, Box::new(|_| true)));
        let control = Control {
            engine: engine.clone(),
            files: files.clone(),
            liveness,
            event_log: event_log.clone(),
            metrics,
            rpcbind: RpcbindState::Off { reason: crate::SWITCHED_OFF.into() },
            open_reason: restored.open_reason,
            roster_copy: None,
            lookups: Arc::default(),
            budget: None,
        };
        let probes = Arc::new(AtomicU32::new(0));
        let effects = Unsent {
            reporter: engine.reporter(),
            dispatcher: Arc::downgrade(&dispatcher),
            files,
            event_log,
            probes: probes.clone(),
            clock: engine.clock(),
        };
        engine.begin(Box::new(effects), restored.first);
        Ok(Self { dispatcher, services, control, probes })
    }

    /// Ends as by a crash, after the batch that is running.
    pub fn crash(&self) {
        self.control.engine.abandon();
    }

    /// For the admin API.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    pub fn engine(&self) -> &Engine {
        &self.control.engine
    }

    /// Serves one record as a datagram from `from` to `to`. The reply, if it is ready at once.
    pub fn receive(&self, record: Bytes, from: SocketAddr, to: SocketAddr) -> Option<Message> {
        let peer = Peer::new(from, to, Transport::Udp);
        let nowhere = ReplyTo::Datagram(Answering::nowhere(), peer);
        let reply = self.dispatcher.receive(record, &peer, &nowhere);
        self.services.iter().for_each(|service| service.flush());
        reply
    }

    /// From now on every probe ends with this answer.
    pub fn answer_probes(&self, answer: ProbeAnswer) {
        let code = match answer {
            ProbeAnswer::Silent => 0,
            ProbeAnswer::Alive => 1,
            ProbeAnswer::Gone => 2,
            ProbeAnswer::InState(state) => state.0.max(3),
        };
        self.probes.store(code, Ordering::Relaxed);
    }
}

struct Unsent {
    reporter: Reporter,
    dispatcher: Weak<Dispatcher>,
    files: Arc<Files>,
    event_log: Arc<EventLog>,
    probes: Arc<AtomicU32>,
    clock: crate::engine::Clock,
}

impl Effects for Unsent {
    fn grant(&self, _: Grant) {}

    fn notice(&self, _: Notice) {}

    fn probe(&self, _: &Keeper, client: ClientId, question: Question) {
        let answer = match self.probes.load(Ordering::Relaxed) {
            0 => ProbeAnswer::Silent,
            1 => ProbeAnswer::Alive,
            2 => ProbeAnswer::Gone,
            state => ProbeAnswer::InState(Incarnation(state)),
        };
        self.reporter.report(Input::Probed(client, question, answer));
    }

    fn event(&self, keeper: &Keeper, event: Event) {
        match &event {
            Event::Rebooted { client, .. } => {
                if let (Some(view), Some(dispatcher)) =
                    (keeper.client(*client), self.dispatcher.upgrade())
                {
                    dispatcher.forget_host(view.client.address, view.client.name.bytes());
                }
            }
            Event::Fenced { client, .. }
            | Event::FenceExtended { client }
            | Event::Unfenced { client, .. } => {
                if let Some(view) = keeper.client(*client) {
                    let row = view.client;
                    self.files.fences.update(keeper, row.address, &row.name);
                }
            }
            _ => {}
        }
        if let Some(text) = event_text::describe(keeper, &event) {
            self.event_log.write(self.clock.now().wall_ms, text);
        }
    }

    fn client_written(&self, _: &Client) {}
    fn lock_changed(&self, _: &Change) {}
}
