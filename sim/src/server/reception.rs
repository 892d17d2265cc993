//! Packets that arrive, and the answers to them: each request is done once (I8), and none enters the
//! keeper while the store stalls (I11).

use std::rc::Rc;
use std::time::Duration;

use keeper::identity::{HostKey, Transport};
use server::driver::core::STALL_MAX;
use server::replay::Verdict;

use crate::ask;
use crate::driver::{Input, Key, REPLY_BYTES};
use crate::packet::{Answer, Request, ToHost};
use crate::queue::Ms;
use crate::scenario::Kind;
use crate::world::{Event, World};

impl World {
    pub fn arrive(&mut self, request: Rc<Request>) {
        if !self.server.open {
            return;
        }
        let now = self.now;
        let Some(driver) = &mut self.server.driver else { return };
        let mono = driver.mono(now);
        match driver.replay.begin(&Key::of(&request), request.clone(), mono, Rc::ptr_eq) {
            Verdict::Started => {}
            Verdict::Again((answer, decided)) => {
                self.tally.reach("repeat answered from the replay cache");
                let Request { truth, .. } = *request;
                let message = ToHost::Answer { request, answer, decided };
                self.send_to_host(truth.host, truth.life, message);
            }
            Verdict::New => {
                let connected = self.note_connection(&request);
                let Some(driver) = &mut self.server.driver else { return };
                let question = ask::ask(driver.new_id(), &request, connected);
                if !driver.push(Input::Ask(question, Some(request.clone())), now) {
                    driver.replay.abandoned(&Key::of(&request));
                    return self.fault("queue full");
                }
                if driver.committing.is_some() {
                    let life = self.server.life;
                    self.later(STALL_MAX.as_millis() as Ms, Event::Expire { life });
                }
                self.wake_driver();
            }
        }
    }

    /// The server sees that a connection is there, and since when; the world notes whose kernel it
    /// leads to.
    fn note_connection(&mut self, request: &Request) -> Option<Duration> {
        if request.lane.transport() != Transport::Tcp || request.truth.process.is_none() {
            return None;
        }
        let now = self.now;
        let key = (request.from, request.name.clone());
        let driver = self.server.driver.as_mut()?;
        let lives = driver.connections.entry(key).or_default();
        let life = request.truth.life;
        let had_another = !lives.is_empty();
        if let Some(since) = lives.get(&life).copied() {
            return Some(driver.mono(since));
        }
        lives.insert(life, now);
        let connected = driver.mono(now);
        // A segment on the old connection of a rebooted host is answered by a reset; the server may
        // come to see that before the first request of the new life.
        let host = HostKey::new(request.from, request.name.clone());
        let known = driver.core.keeper.host(&host).is_some();
        let chance = if self.hosts[request.truth.host].kind == Kind::Netboot { 85 } else { 20 };
        if known && had_another && self.random.percent(chance) {
            self.tally.reach("reset seen");
            self.input(Input::Reset(host));
        }
        Some(connected)
    }

    /// What comes while the store stalls does not enter the keeper (I11).
    pub fn expire(&mut self) {
        let now = self.now;
        let Some(driver) = &mut self.server.driver else { return };
        if driver.committing.is_none() {
            return;
        }
        let mono = driver.mono(now);
        for (question, ticket) in driver.queue.expired(mono) {
            let Some(request) = ticket else { continue };
            if question.may_be_refused() {
                self.tally.reach("refused while the store stalls");
                self.answer(request, Answer::NoLocks, self.model.serial);
            } else if let Some(driver) = &mut self.server.driver {
                driver.replay.abandoned(&Key::of(&request));
            }
        }
    }

    /// To everybody who waits for this answer.
    pub fn answer(&mut self, request: Rc<Request>, answer: Answer, decided: u64) {
        let now = self.now;
        let Some(driver) = &mut self.server.driver else { return };
        let kept = (answer.clone(), decided);
        let mono = driver.mono(now);
        for request in driver.replay.answered(Key::of(&request), kept, REPLY_BYTES, mono) {
            let truth = request.truth;
            let message = ToHost::Answer { request, answer: answer.clone(), decided };
            self.send_to_host(truth.host, truth.life, message);
        }
    }
}
