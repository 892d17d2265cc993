//! What the server says: replies, callbacks, notices and probes; and what becomes of its attempts.

use std::net::IpAddr;
use std::rc::Rc;

use keeper::event::Event as Happening;
use keeper::identity::RequestId;
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{Message, Reply};
use server::engine::batch::DurableBatch;

use crate::ask;
use crate::connections::instant;
use crate::engine::{Answered, Background, Input, hash, key};
use crate::packet::{Answer, Request, ToHost};
use crate::queue::{Ms, SECOND};
use crate::world::{Event, World};

/// How long one attempt to tell somebody something may take (R2.2).
const ATTEMPT: Ms = 5 * SECOND;

impl World {
    /// What happened comes first: it may concern how the replies are kept.
    pub fn tell_all(&mut self, durable: DurableBatch, background: Vec<Background>) {
        let now = self.now;
        let (token, changes) = (durable.batch().token(), durable.batch().changes().to_vec());
        let committed = (!changes.is_empty()).then_some((token, &*changes));
        let (events, messages) = durable.into_messages();
        for event in &events {
            if let Happening::Rebooted { client, .. } = event
                && let Some(engine) = &mut self.server.engine
                && let Some(view) = engine.decider.keeper.client(*client)
            {
                let (address, name) = (view.client.address, hash(&view.client.name));
                let mono = engine.mono(now);
                engine.duplicates.forget(|key| key.from == address && key.name == name, mono);
            }
        }
        for (message, background) in messages.into_iter().zip(background) {
            let Background { decided, block, life } = background;
            match message {
                Message::Reply(id, reply) => {
                    let Some(engine) = &mut self.server.engine else { return };
                    let Some(sink) = engine.take_sink(id) else {
                        return self
                            .violate("I8", || format!("nobody waits for the reply to {id:?}"));
                    };
                    let Some(request) = sink else { continue };
                    if reply == Reply::Nothing {
                        engine.duplicates.abandoned(&key(&request));
                        continue;
                    }
                    let entered = engine.entered.remove(&id);
                    self.note_taken(&request, &reply, entered);
                    self.check_durable(&request, &reply, decided, committed);
                    self.answer(request, Answer::Keeper(reply), decided);
                }
                Message::Grant(grant) => {
                    self.check_grant_durable(&grant);
                    let what = Answered::Grant(grant.id, grant.attempt);
                    let host = self.host_of(grant.owner.host);
                    self.begin_attempt(what, grant.to);
                    if let Some(host) = self.past_firewall(host) {
                        let grant = Rc::new(grant);
                        self.send_to_host(host, life, ToHost::Grant { grant, block, decided });
                    }
                }
                Message::Notice(notice) => {
                    let what = Answered::Notice(notice.id, notice.attempt);
                    if self.random.per_mille(self.chaos_per_mille(30)) {
                        self.fault("notice could not be sent");
                        self.input(Input::Noticed(notice.id, NoticeResult::Unsent));
                        continue;
                    }
                    self.begin_attempt(what, notice.to);
                    let host = self.host_of(notice.client);
                    if let Some(host) = self.past_firewall(host) {
                        let life = self.hosts[host].life;
                        let (attempt, state) = (notice.attempt, notice.state);
                        let message = ToHost::Notice { notice: notice.id, attempt, state };
                        self.send_to_host(host, life, message);
                    }
                }
                Message::Probe(client, question) => self.begin_probe(client, question),
            }
        }
    }

    /// A host has a lock or a place in line: its connections can testify from then on.
    fn note_taken(&mut self, request: &Rc<Request>, reply: &Reply, entered: Option<Ms>) {
        let Some(entered) = entered else { return };
        if !server::engine::request::is_taken(reply) {
            return;
        }
        let asked = ask::ask(RequestId(0), request, None);
        let Some((caller, incarnation)) = asked.taker() else { return };
        let (host, lane) = (caller.host.clone(), caller.lane);
        self.watch_host(&host, lane);
        if let Some(engine) = &mut self.server.engine {
            engine.connections.registry.took(&host, incarnation, instant(entered));
        }
    }

    /// The host that a call of the server comes to, unless a firewall stops it.
    fn past_firewall(&mut self, host: Option<usize>) -> Option<usize> {
        let stopped = host.is_some_and(|host| self.hosts[host].firewalled);
        if stopped {
            self.tally.reach("call stopped by a firewall");
        }
        host.filter(|_| !stopped)
    }

    fn begin_attempt(&mut self, what: Answered, to: IpAddr) {
        let life = self.server.life;
        if let Some(engine) = &mut self.server.engine {
            engine.attempts.insert(what, to);
            self.later(ATTEMPT, Event::AttemptTimedOut { life, what });
        }
    }

    /// Exactly one result for each attempt: the first answer in time, or none.
    pub fn answered(&mut self, life: u32, host: usize, what: Answered, answer: GrantAnswer) {
        if life != self.server.life {
            return;
        }
        let Some(engine) = &mut self.server.engine else { return };
        match engine.attempts.get(&what) {
            None => return self.tally.reach("answer to an attempt that was over"),
            // Nobody answers for another (R6.3).
            Some(to) if *to != self.hosts[host].address => {
                return self.tally.reach("forged grant answer");
            }
            Some(_) => engine.attempts.remove(&what),
        };
        self.attempt_ends(what, Some(answer));
    }

    pub fn attempt_timed_out(&mut self, life: u32, what: Answered) {
        if life != self.server.life {
            return;
        }
        let Some(engine) = &mut self.server.engine else { return };
        if engine.attempts.remove(&what).is_some() {
            self.attempt_ends(what, None);
        }
    }

    fn attempt_ends(&mut self, what: Answered, answer: Option<GrantAnswer>) {
        match what {
            Answered::Grant(grant, _) => {
                self.input(Input::Granted(grant, answer.unwrap_or(GrantAnswer::Unclear)));
            }
            Answered::Notice(notice, _) => {
                let result = match answer {
                    Some(_) => NoticeResult::Answered,
                    None => NoticeResult::Failed,
                };
                self.input(Input::Noticed(notice, result));
            }
        }
    }
}
