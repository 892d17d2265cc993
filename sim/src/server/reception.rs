//! Incoming packets and their replies: each request takes effect once (I8), and none enters the
//! keeper while the store stalls (I11).

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use keeper::identity::{RequestId, Transport};
use server::engine::request::{STALL_MAX, StallPolicy};
use server::rpc::admission::{Action, admit};
use server::rpc::duplicate_cache::CacheLookup;
use server::transport::Peer;

use crate::connections::Purpose;
use crate::engine::{Engine, Input, REPLY_BYTES, ReceivedRequest, key};
use crate::packet::{Answer, Call, Request, ToHost};
use crate::queue::Ms;
use crate::translate;
use crate::world::{Event, World};

/// All hosts call from a reserved port.
const RESERVED_PORT: u16 = 700;

impl World {
    pub(crate) fn arrive(&mut self, request: Rc<Request>) {
        if !self.server.open {
            return;
        }
        let now = self.now;
        // Every simulated host uses reserved ports and is admitted by an export.
        let admitted = self.hosts.iter().any(|host| request.comes_from(host));
        let remote = SocketAddr::new(request.from, RESERVED_PORT);
        let local = SocketAddr::new(request.namespace.server_address(), 2049);
        let peer = Peer::new(remote, local, key(&request).transport);
        if matches!(request.call, Call::Notify { .. })
            && admit(Action::ReportReboot, &peer, admitted, true).is_err()
        {
            return self.coverage.reach("unknown host refused");
        }
        let Some(engine) = &mut self.server.engine else { return };
        let mono = engine.mono(now);
        let (key, origin) = (key(&request), engine.origin(&request));
        match engine.duplicates.begin(key, origin, request.clone(), mono, Rc::ptr_eq, |_| ()) {
            CacheLookup::InProgress => {}
            CacheLookup::Full => self.fault("duplicate request cache full"),
            CacheLookup::Cached((answer, decided)) => {
                self.coverage.reach("duplicate answered from the cache");
                let Request { truth, .. } = *request;
                let message = ToHost::Answer { request, answer, decided };
                self.send_to_host(truth.host, truth.life, message);
            }
            CacheLookup::New => {
                let connected = self.note_connection(&request);
                self.admit((request, connected));
            }
        }
    }

    /// Requests enter the inbox in the order of receipt; some wait for a worker first, which checks
    /// whether the caller may lock the file.
    fn admit(&mut self, received: ReceivedRequest) {
        let request = &received.0;
        let needs_worker =
            matches!(request.call, Call::Lock { reclaim: false, .. } | Call::Test { .. })
                && self.random.percent(self.scenario.worker_percent);
        let life = self.server.life;
        let namespace = self.renumbering.inward(request.namespace);
        let Some(engine) = &mut self.server.engine else { return };
        let asked = translate::engine_request(RequestId(0), request, namespace, None);
        let Some(key) = Engine::order_key(&asked) else { return self.enter(received) };
        if !needs_worker && !engine.order.is_busy(&key) {
            return self.enter(received);
        }
        match engine.order.enter(key, received) {
            None => self.coverage.reach("request behind one that waits for a worker"),
            Some(first) => {
                engine.working.push(first.0.clone());
                self.coverage.reach("request waits for a worker");
                let pause = self.random.between(1, 6000);
                self.later(pause, Event::PermissionChecked { life, received: first });
            }
        }
    }

    /// A worker has finished with a request: the next one of the same owner and file follows.
    pub(crate) fn permission_checked(&mut self, received: ReceivedRequest) {
        let life = self.server.life;
        let Some(engine) = &mut self.server.engine else { return };
        engine.working.retain(|other| !Rc::ptr_eq(other, &received.0));
        let namespace = self.renumbering.inward(received.0.namespace);
        let asked = translate::engine_request(RequestId(0), &received.0, namespace, None);
        self.enter(received);
        let Some(engine) = &mut self.server.engine else { return };
        if let Some(key) = Engine::order_key(&asked)
            && let Some(next) = engine.order.finish(&key)
        {
            engine.working.push(next.0.clone());
            let pause = self.random.below(3);
            self.later(pause, Event::PermissionChecked { life, received: next });
        }
    }

    fn enter(&mut self, (request, connected): ReceivedRequest) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let id = engine.new_id();
        let namespace = self.renumbering.inward(request.namespace);
        let asked = translate::engine_request(id, &request, namespace, connected);
        engine.entered.insert(id, now);
        if !engine.push(Input::Request(asked, Some(request.clone())), now) {
            engine.duplicates.abandoned(&key(&request));
            return self.fault("queue full");
        }
        if engine.is_stalled() {
            let life = self.server.life;
            self.later(STALL_MAX.as_millis() as Ms, Event::ExpireStalled { life });
        }
        self.wake_engine();
    }

    /// When the connection of a request was opened; `None` for UDP.
    fn note_connection(&mut self, request: &Request) -> Option<Duration> {
        if request.namespace.transport() != Transport::Tcp || request.truth.process.is_none() {
            return None;
        }
        let truth = request.truth;
        let namespace = self.hosts[truth.host]
            .namespaces
            .iter()
            .position(|namespace| *namespace == request.namespace)?;
        let opened = self.connected(truth.host, truth.life, Purpose::Lock(namespace))?;
        self.server.engine.as_ref().map(|engine| engine.mono(opened))
    }

    /// Requests that arrived during a stall do not enter the keeper after `STALL_MAX` (I11).
    pub(crate) fn expire_stalled(&mut self) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        if !engine.is_stalled() {
            return;
        }
        let mono = engine.mono(now);
        for (asked, sink) in engine.inbox.take_expired(mono) {
            let Some(request) = sink else { continue };
            if asked.stall_policy() == StallPolicy::Refuse {
                self.coverage.reach("refused while the store stalls");
                self.answer(request, Answer::NoLocks, self.model.serial);
            } else if let Some(engine) = &mut self.server.engine {
                engine.duplicates.abandoned(&key(&request));
            }
        }
    }

    /// Sends a reply to the request and to all duplicates of it.
    pub(crate) fn answer(&mut self, request: Rc<Request>, answer: Answer, decided: u64) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let kept = (answer.clone(), decided);
        let mono = engine.mono(now);
        for request in engine.duplicates.answered(&key(&request), kept, REPLY_BYTES, mono) {
            let truth = request.truth;
            let message = ToHost::Answer { request, answer: answer.clone(), decided };
            self.send_to_host(truth.host, truth.life, message);
        }
    }
}
