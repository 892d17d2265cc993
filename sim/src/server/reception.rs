//! Packets that arrive, and the answers to them: each request is done once (I8), and none enters the
//! keeper while the store stalls (I11).

use std::rc::Rc;
use std::time::Duration;

use keeper::identity::{RequestId, Transport};
use server::engine::request::{STALL_MAX, WhenStalled};
use server::rpc::admission::Admission;
use server::rpc::duplicates::Begun;

use crate::ask;
use crate::connections::Purpose;
use crate::engine::{Engine, Input, REPLY_BYTES, Received, key};
use crate::packet::{Answer, Call, Request, ToHost};
use crate::queue::Ms;
use crate::world::{Event, World};

impl World {
    pub fn arrive(&mut self, request: Rc<Request>) {
        if !self.server.open {
            return;
        }
        let now = self.now;
        // Every host of this world speaks from a reserved port, and an export admits it.
        let admitted = self.hosts.iter().any(|host| request.comes_from(host));
        let admission = Admission { admitted, local: false, reserved_port: true };
        if matches!(request.call, Call::Notify { .. }) && !admission.speaks_for_host(true) {
            return self.tally.reach("stranger refused");
        }
        let Some(engine) = &mut self.server.engine else { return };
        let mono = engine.mono(now);
        let (key, origin) = (key(&request), engine.origin(&request));
        match engine.duplicates.begin(key, origin, request.clone(), mono, Rc::ptr_eq) {
            Begun::InProgress => {}
            Begun::Full => self.fault("no room for a duplicate"),
            Begun::Again((answer, decided)) => {
                self.tally.reach("repeat answered from the replay cache");
                let Request { truth, .. } = *request;
                let message = ToHost::Answer { request, answer, decided };
                self.send_to_host(truth.host, truth.life, message);
            }
            Begun::New => {
                let connected = self.note_connection(&request);
                self.admit((request, connected));
            }
        }
    }

    /// Requests enter the inbox in the order of their receipt; some have to wait for a worker first,
    /// which finds out whether their caller may lock that file.
    fn admit(&mut self, received: Received) {
        let request = &received.0;
        let looks = matches!(request.call, Call::Lock { reclaim: false, .. } | Call::Test { .. })
            && self.random.percent(self.scenario.looks);
        let life = self.server.life;
        let Some(engine) = &mut self.server.engine else { return };
        let asked = ask::ask(RequestId(0), request, None);
        let Some(key) = Engine::order_key(&asked) else { return self.enter(received) };
        if !looks && !engine.order.is_busy(&key) {
            return self.enter(received);
        }
        match engine.order.enter(key, received) {
            None => self.tally.reach("request behind one that waits for a worker"),
            Some(first) => {
                engine.working.push(first.0.clone());
                self.tally.reach("request waits for a worker");
                let pause = self.random.between(1, 6000);
                self.later(pause, Event::Looked { life, received: first });
            }
        }
    }

    /// A worker is done with a request: the next of its owner on that file has its turn.
    pub fn looked(&mut self, received: Received) {
        let life = self.server.life;
        let Some(engine) = &mut self.server.engine else { return };
        engine.working.retain(|other| !Rc::ptr_eq(other, &received.0));
        let asked = ask::ask(RequestId(0), &received.0, None);
        self.enter(received);
        let Some(engine) = &mut self.server.engine else { return };
        if let Some(key) = Engine::order_key(&asked)
            && let Some(next) = engine.order.finish(&key)
        {
            engine.working.push(next.0.clone());
            let pause = self.random.below(3);
            self.later(pause, Event::Looked { life, received: next });
        }
    }

    fn enter(&mut self, (request, connected): Received) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        let id = engine.new_id();
        let asked = ask::ask(id, &request, connected);
        engine.entered.insert(id, now);
        if !engine.push(Input::Request(asked, Some(request.clone())), now) {
            engine.duplicates.abandoned(&key(&request));
            return self.fault("queue full");
        }
        if engine.is_stalled() {
            let life = self.server.life;
            self.later(STALL_MAX.as_millis() as Ms, Event::Expire { life });
        }
        self.wake_engine();
    }

    /// Since when the connection of a request is open; one that carries datagrams has none.
    fn note_connection(&mut self, request: &Request) -> Option<Duration> {
        if request.lane.transport() != Transport::Tcp || request.truth.process.is_none() {
            return None;
        }
        let truth = request.truth;
        let lane = self.hosts[truth.host].lanes.iter().position(|lane| *lane == request.lane)?;
        let opened = self.connected(truth.host, truth.life, Purpose::Lock(lane))?;
        self.server.engine.as_ref().map(|engine| engine.mono(opened))
    }

    /// What comes while the store stalls does not enter the keeper (I11).
    pub fn expire(&mut self) {
        let now = self.now;
        let Some(engine) = &mut self.server.engine else { return };
        if !engine.is_stalled() {
            return;
        }
        let mono = engine.mono(now);
        for (asked, sink) in engine.inbox.take_expired(mono) {
            let Some(request) = sink else { continue };
            if asked.when_stalled() == WhenStalled::Refuse {
                self.tally.reach("refused while the store stalls");
                self.answer(request, Answer::NoLocks, self.model.serial);
            } else if let Some(engine) = &mut self.server.engine {
                engine.duplicates.abandoned(&key(&request));
            }
        }
    }

    /// To everybody who waits for this answer.
    pub fn answer(&mut self, request: Rc<Request>, answer: Answer, decided: u64) {
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
