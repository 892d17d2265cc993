//! Outgoing messages: replies, callbacks, notices and probes; and the results of attempts.

use std::net::IpAddr;
use std::rc::Rc;

use keeper::change::Change;
use keeper::event::Event as KeeperEvent;
use keeper::identity::RequestId;
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{Message, Reply};
use server::engine::batch::DurableBatch;

use crate::connections::instant;
use crate::engine::{AttemptKey, Input, MessageTruth, hash, key};
use crate::packet::{Answer, Request, ToHost};
use crate::queue::{Ms, SECOND};
use crate::translate;
use crate::world::{Event, World};

/// The timeout of one attempt to call a peer (B4.3).
const ATTEMPT: Ms = 5 * SECOND;

impl World {
    /// Events come before replies: a reboot drops entries of the duplicate request cache.
    pub(crate) fn send_messages(&mut self, durable: DurableBatch, truths: Vec<MessageTruth>) {
        let now = self.now;
        let (token, changes) = (durable.batch().token(), durable.batch().changes().to_vec());
        let committed = (!changes.is_empty()).then_some((token, &*changes));
        let (events, messages) = durable.into_messages();
        for change in &changes {
            if let Change::Client(row) = change
                && let Some(engine) = &mut self.server.engine
            {
                engine.connections.registry.record_state(row);
            }
        }
        for event in &events {
            if let KeeperEvent::Rebooted { client, .. } = event
                && let Some(engine) = &mut self.server.engine
                && let Some(view) = engine.decider.keeper.client(*client)
            {
                let (address, name) = (view.client.address, hash(&view.client.name));
                let mono = engine.mono(now);
                engine.duplicates.forget(|key| key.from == address && key.name == name, mono);
            }
        }
        for (message, truths) in messages.into_iter().zip(truths) {
            let MessageTruth { decided, block, life } = truths;
            match message {
                Message::Reply(id, reply) => {
                    let Some(engine) = &mut self.server.engine else { return };
                    let Some(sink) = engine.take_sink(id) else {
                        return self.violate("I8", || format!("a reply without a request: {id:?}"));
                    };
                    let Some(request) = sink else { continue };
                    if reply == Reply::NoReply {
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
                    let what = AttemptKey::Grant(grant.id, grant.attempt);
                    let host = self.host_of(grant.owner.host);
                    self.begin_attempt(what, grant.to);
                    if let Some(host) = self.past_firewall(host) {
                        let grant = Rc::new(grant);
                        self.send_to_host(host, life, ToHost::Grant { grant, block, decided });
                    }
                }
                Message::Notice(notice) => {
                    let what = AttemptKey::Notice(notice.id, notice.attempt);
                    if self.random.per_mille(self.chaos_per_mille(30)) {
                        self.fault("notice could not be sent");
                        self.input(Input::Noticed(notice.id, NoticeResult::Unsent));
                        continue;
                    }
                    self.begin_attempt(what, notice.to);
                    let host = match notice.client {
                        Some(client) => self.host_of(client),
                        None => self.host_at(notice.to),
                    };
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

    /// A host holds or awaits a lock: from now on its connections count as evidence.
    fn note_taken(&mut self, request: &Rc<Request>, reply: &Reply, entered: Option<Ms>) {
        let Some(entered) = entered else { return };
        if !server::engine::request::grants_or_queues(reply) {
            return;
        }
        let namespace = self.renumbering.inward(request.namespace);
        let asked = translate::engine_request(RequestId(0), request, namespace, None);
        let Some((caller, by)) = asked.grantee() else { return };
        let (host, namespace) = (caller.host.clone(), caller.namespace);
        self.watch_host(&host, namespace);
        if let Some(engine) = &mut self.server.engine {
            engine.connections.registry.record_lock(&host, by, instant(entered));
        }
    }

    /// The destination of a call, unless a firewall stops it.
    fn past_firewall(&mut self, host: Option<usize>) -> Option<usize> {
        let stopped = host.is_some_and(|host| self.hosts[host].firewalled);
        if stopped {
            self.coverage.reach("call stopped by a firewall");
        }
        host.filter(|_| !stopped)
    }

    fn begin_attempt(&mut self, what: AttemptKey, to: IpAddr) {
        let life = self.server.life;
        if let Some(engine) = &mut self.server.engine {
            engine.attempts.insert(what, to);
            self.later(ATTEMPT, Event::AttemptTimedOut { life, what });
        }
    }

    /// The first answer in time is the result of an attempt; later ones are ignored.
    pub(crate) fn answered(
        &mut self,
        life: u32,
        host: usize,
        what: AttemptKey,
        answer: GrantAnswer,
    ) {
        if life != self.server.life {
            return;
        }
        let Some(engine) = &mut self.server.engine else { return };
        match engine.attempts.get(&what) {
            None => return self.coverage.reach("answer to an attempt that was over"),
            // An answer from another address does not count (B7.9).
            Some(to) if *to != self.hosts[host].address => {
                return self.coverage.reach("forged grant answer");
            }
            Some(_) => engine.attempts.remove(&what),
        };
        self.attempt_ends(what, Some(answer));
    }

    pub(crate) fn attempt_timed_out(&mut self, life: u32, what: AttemptKey) {
        if life != self.server.life {
            return;
        }
        let Some(engine) = &mut self.server.engine else { return };
        if engine.attempts.remove(&what).is_some() {
            self.attempt_ends(what, None);
        }
    }

    fn attempt_ends(&mut self, what: AttemptKey, answer: Option<GrantAnswer>) {
        match what {
            AttemptKey::Grant(grant, _) => {
                self.input(Input::Granted(grant, answer.unwrap_or(GrantAnswer::Unclear)));
            }
            AttemptKey::Notice(notice, _) => {
                let result = match answer {
                    Some(_) => NoticeResult::Answered,
                    None => NoticeResult::Failed,
                };
                self.input(Input::Noticed(notice, result));
            }
        }
    }
}
