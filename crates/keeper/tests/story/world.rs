//! The world of a story: a keeper, its store, its peers and two clocks.
//!
//! The store is a sequence of changes. After each command it must equal the keeper's snapshot, and
//! no two owners may hold conflicting locks (I1).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use lockkeeper_keeper::Keeper;
use lockkeeper_keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use lockkeeper_keeper::change::{Exactness, Protocol, Snapshot};
use lockkeeper_keeper::config::{Config, RosterEntry};
use lockkeeper_keeper::identity::{
    Caller, ClientId, Epoch, GrantId, HostKey, Incarnation, LockId, RequestId, Transport,
};
use lockkeeper_keeper::request::{self, *};
use lockkeeper_keeper::step::{Message, Step};
use lockkeeper_keeper::time::Time;
use lockkeeper_keeper::view::LockView;

use super::language::{
    self, Command, ConnectionAge, OperatorCommand, Process, SERVER_ADDRESS, Setting, Source, parse,
};
use super::notation::{Names, span};

/// Predefined peers; each has the address of its position.
const CAST: [&str; 6] = ["alice", "bob", "carol", "dave", "erin", "frank"];
const LOST: &str = ", and the server crashes before the commit";

pub(super) struct Peer {
    pub(super) key: HostKey,
    /// The state that its LOCKs carry.
    state: u32,
    /// The result of notices sent to it.
    notices: NoticeResult,
    /// No callback to it is answered in time.
    ignores_grants: bool,
}

pub struct World {
    pub(super) keeper: Option<Keeper>,
    durable: Snapshot,
    config: Config,
    pub(super) names: Names,
    peers: BTreeMap<String, Peer>,
    pub(super) now: Time,
    requests: u64,
    fresh: bool,
    /// Kernels with an outstanding probe, oldest first.
    kernels_asked: Vec<(ClientId, Incarnation)>,
}

pub type Played<T> = Result<T, String>;

impl World {
    pub fn new() -> Self {
        let mut world = Self {
            keeper: None,
            durable: Snapshot::default(),
            config: Config { host_name: Name::from("keeper"), ..Config::default() },
            names: Names::default(),
            peers: BTreeMap::new(),
            now: Time { mono: Duration::ZERO, wall_ms: 1_800_000_000_000 },
            requests: 0,
            fresh: true,
            kernels_asked: Vec::new(),
        };
        for (at, peer) in CAST.iter().enumerate() {
            world.introduce(peer, IpAddr::from([10, 0, 0, at as u8 + 1]), peer.as_bytes());
        }
        world
    }

    fn introduce(&mut self, peer: &str, address: IpAddr, name: &[u8]) {
        let key = HostKey::new(address, Name::new(name));
        self.names.peers.retain(|_, known| known != peer);
        self.names.peers.insert(key.clone(), peer.to_owned());
        let notices = NoticeResult::Answered;
        let introduced = Peer { key, state: 3, notices, ignores_grants: false };
        self.peers.insert(peer.to_owned(), introduced);
    }

    /// Runs the commands of one block; returns its outcome line by line.
    pub fn play(&mut self, sentences: &[&str]) -> Played<Vec<String>> {
        let lost = sentences.last().is_some_and(|last| last.ends_with(LOST));
        let mut lines = Vec::new();
        let mut asked = Vec::new();
        for sentence in sentences {
            let sentence = sentence.strip_suffix(LOST).unwrap_or(sentence);
            let trouble = |trouble| format!("{sentence:?}: {trouble}");
            let command = parse(sentence).map_err(trouble)?;
            if std::mem::take(&mut self.fresh) && !matches!(command, Command::Start { .. }) {
                self.start(Exactness::Exact);
                self.settle(None);
            }
            asked.extend(self.hand_in(command, sentence, &mut lines).map_err(trouble)?);
        }
        // With several requests, each reply names the one it answers.
        let asked = asked.first().copied().filter(|_| asked.len() == 1);
        if lost {
            let names = self.names.clone();
            let step = self.keeper().poll_step().unwrap_or_default();
            lines.extend(self.names.step(&step, asked).iter().map(|line| format!("lost   {line}")));
            self.names = names;
            self.crash();
        } else if self.keeper.is_some() {
            lines.extend(self.settle(asked));
            self.check();
        }
        if lines.is_empty() {
            lines.push("nothing".into());
        }
        Ok(lines)
    }

    pub(super) fn keeper(&mut self) -> &mut Keeper {
        self.keeper.as_mut().expect("the server runs")
    }

    /// Commits and sends until nothing is left to do at this time.
    fn settle(&mut self, asked: Option<RequestId>) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..1000 {
            if let Some(step) = self.keeper().poll_step() {
                lines.extend(self.names.step(&step, asked));
                self.carry_out(step);
            } else if self.keeper().poll_timeout().is_some_and(|due| due <= self.now.mono) {
                let now = self.now;
                self.keeper().handle_timeout(now);
            } else {
                return lines;
            }
        }
        panic!("the keeper does not come to rest");
    }

    fn carry_out(&mut self, step: Step) {
        for change in step.changes {
            self.durable.apply(change);
        }
        let now = self.now;
        for message in step.messages {
            match message {
                Message::Notice(notice) => {
                    let peer = self.peer_at(notice.to);
                    let result = peer.map_or(NoticeResult::Failed, |peer| peer.notices);
                    self.keeper().handle_notice_result(notice.id, result, now);
                    // A second result for the same attempt must change nothing.
                    self.keeper().handle_notice_result(notice.id, result, now);
                }
                Message::Probe(client, Question::SameKernel(kernel)) => {
                    self.kernels_asked.push((client, kernel));
                }
                Message::Grant(grant)
                    if self.peer_at(grant.to).is_some_and(|p| p.ignores_grants) =>
                {
                    self.keeper().handle_grant_answer(grant.id, GrantAnswer::Unclear, now);
                }
                _ => {}
            }
        }
    }

    fn check(&mut self) {
        let snapshot = self.keeper().snapshot();
        assert_eq!(
            self.durable, snapshot,
            "the changes say one thing (left), the keeper another (right)"
        );
        let locks: Vec<LockView> = self.keeper().locks(LockId(0)).collect();
        for (at, one) in locks.iter().enumerate() {
            for other in locks[at + 1..].iter().filter(|other| other.file == one.file) {
                let conflict = one.range.overlaps(other.range) && one.mode.conflicts(other.mode);
                assert!(!conflict || one.owner == other.owner, "I1: {one:?} and {other:?}");
            }
        }
    }

    fn crash(&mut self) {
        self.keeper = None;
        self.kernels_asked.clear();
        self.names.open.clear();
    }

    /// The store is no more exact than `exactness`, nor than the last start recorded.
    fn start(&mut self, exactness: Exactness) {
        let mut saved = self.durable.clone();
        saved.exactness = saved.exactness.max(exactness);
        let epoch = Epoch::after(saved.epoch, None, 0);
        self.now.mono = Duration::ZERO;
        self.keeper = Some(Keeper::restore(saved, epoch, self.config.clone(), self.now));
    }

    fn pass(&mut self, span_of_time: Duration, lines: &mut Vec<String>) {
        lines.extend(self.settle(None));
        let begin = self.now;
        let until = begin.mono + span_of_time;
        for _ in 0..100_000 {
            let due = self.keeper().poll_timeout().filter(|due| *due <= until);
            let gone = due.unwrap_or(until).max(self.now.mono) - begin.mono;
            self.now.mono = begin.mono + gone;
            self.now.wall_ms = begin.wall_ms + gone.as_millis() as u64;
            if due.is_none() {
                return;
            }
            let happened = self.settle(None);
            if !happened.is_empty() {
                lines.push(format!("after {}:", span(gone)));
                lines.extend(happened);
            }
        }
        panic!("the keeper does not let time pass");
    }

    /// Passes one command to the keeper; returns the id of a request.
    fn hand_in(
        &mut self,
        command: Command,
        sentence: &str,
        lines: &mut Vec<String>,
    ) -> Played<Option<RequestId>> {
        self.requests += 1;
        let id = RequestId(self.requests);
        if self.hand_in_request(&command, id)? {
            self.names.open.insert(id, sentence.to_owned());
            return Ok(Some(id));
        }
        let now = self.now;
        match command {
            Command::AnswerGrant { grant, answer } => {
                let grant = GrantId(self.names.grants.id(grant)?);
                self.keeper().handle_grant_answer(grant, answer, now);
            }
            Command::Probed { host, question, answer } => {
                let client = self.client(&host)?;
                let question = self.question_asked(client, question);
                self.keeper().handle_probe_answer(client, question, answer, now);
            }
            Command::Reset { host, silent } => {
                let client = self.client(&host)?;
                self.keeper().handle_connection_reset(client, now.mono - silent, now);
            }
            Command::Heard { host } => {
                let address = self.peer(&host)?.key.address();
                self.keeper().handle_heard(address, is_local(address), now);
            }
            Command::Mounted { host } => {
                let address = self.peer(&host)?.key.address();
                let ours = language::namespace().server_address();
                self.keeper().handle_mounted(address, ours, now);
            }
            Command::Pass(time) => self.pass(time, lines),
            Command::Stall(time) => {
                self.now.mono += time;
                self.now.wall_ms += time.as_millis() as u64;
                self.keeper().handle_stall(time);
            }
            Command::HasAddresses(addresses) => {
                self.keeper().handle_addresses(Some(addresses), now);
            }
            Command::ClockJumps { back, by } => {
                let by = by.as_millis() as u64;
                let wall = self.now.wall_ms;
                self.now.wall_ms = if back { wall.saturating_sub(by) } else { wall + by };
            }
            Command::Start { crash, exactness, settings } => {
                if crash {
                    self.keeper();
                    self.crash();
                }
                assert!(self.keeper.is_none(), "the server runs already");
                settings.into_iter().try_for_each(|setting| self.set(setting))?;
                self.start(exactness);
            }
            Command::StoreLost => {
                assert!(self.keeper.is_none(), "the server runs");
                self.durable = Snapshot { epoch: self.durable.epoch, ..Snapshot::default() };
            }
            Command::Crash => self.crash(),
            Command::Stop => {
                self.keeper().handle_stop(now);
                lines.extend(self.settle(None));
                self.check();
                self.crash();
            }
            Command::Show(show) => self.show(show, lines)?,
            Command::IsAt { peer, address, called } => {
                let called = called.unwrap_or(peer.clone().into_bytes());
                self.introduce(&peer, address, &called);
            }
            Command::IsInState { peer, state } => self.peer_mut(&peer)?.state = state,
            Command::IgnoresGrants { peer } => self.peer_mut(&peer)?.ignores_grants = true,
            Command::AnswersNotices { peer, result } => self.peer_mut(&peer)?.notices = result,
            _ => unreachable!("requests are handed in above"),
        }
        Ok(None)
    }

    /// Passes a request that gets a reply; false if the command is of another kind.
    fn hand_in_request(&mut self, command: &Command, id: RequestId) -> Played<bool> {
        let now = self.now;
        match command {
            Command::Lock { who, file, range, mode, terms } => {
                let state = terms.state.unwrap_or(self.peer(&who.peer)?.state);
                let handle = terms.handle.as_ref().unwrap_or(file);
                let (caller, owner) = (self.caller(who)?, owner(who));
                let request = LockRequest {
                    id,
                    caller,
                    owner,
                    file: FileKey::from(file.as_str()),
                    handle: Handle::from(handle.as_str()),
                    range: *range,
                    mode: *mode,
                    wait: terms.wait,
                    reclaim: terms.reclaim,
                    admitted: terms.admitted,
                    monitored: terms.monitored,
                    incarnation: Incarnation(state),
                    form: terms.form,
                    stateless: terms.stateless,
                    connected: terms.connection.as_ref().map(|age| match age {
                        ConnectionAge::New => now.mono,
                        ConnectionAge::Old => Duration::ZERO,
                    }),
                };
                self.keeper().handle_lock(request, now);
            }
            Command::Unlock { who, file, range } => {
                let (caller, owner) = (self.caller(who)?, owner(who));
                let file = FileKey::from(file.as_str());
                let request = UnlockRequest { id, caller, owner, file, range: *range };
                self.keeper().handle_unlock(request, now);
            }
            Command::Cancel { who, file, range, mode } => {
                let (caller, owner) = (self.caller(who)?, owner(who));
                let file = FileKey::from(file.as_str());
                let request = CancelRequest { id, caller, owner, file, range: *range, mode: *mode };
                self.keeper().handle_cancel(request, now);
            }
            Command::Test { who, file, range, mode } => {
                let (caller, owner) = (self.caller(who)?, owner(who));
                let file = FileKey::from(file.as_str());
                let request = TestRequest { id, caller, owner, file, range: *range, mode: *mode };
                self.keeper().handle_test(request, now);
            }
            Command::Share { who, file, access, deny, reclaim } => {
                let (caller, tag) = (self.caller(who)?, share_tag(who));
                let (file, access, deny) = (FileKey::from(file.as_str()), *access, *deny);
                let request = ShareRequest {
                    id,
                    caller,
                    tag,
                    file,
                    access,
                    deny,
                    reclaim: *reclaim,
                    admitted: true,
                };
                self.keeper().handle_share(request, now);
            }
            Command::Unshare { who, file } => {
                let (caller, tag) = (self.caller(who)?, share_tag(who));
                let request =
                    UnshareRequest { id, caller, tag, file: FileKey::from(file.as_str()) };
                self.keeper().handle_unshare(request, now);
            }
            Command::Notify { source, name, state, transport, reserved } => {
                let (source, name) = (self.source(source)?, Name::new(name));
                let (transport, reserved) = (*transport, *reserved);
                let source = request::Source { transport, reserved, ..source };
                let notice = RebootNotice { id, source, name, incarnation: Incarnation(*state) };
                self.keeper().handle_reboot(notice, now);
            }
            Command::FreeAll { source, name, transport } => {
                let own = match source {
                    Source::Peer(peer) => self.peer(peer)?.key.name().clone(),
                    Source::Address(address) => Name::from(address.to_string().as_str()),
                };
                let name = name.as_ref().map_or(own, |name| Name::new(name));
                let source = request::Source { transport: *transport, ..self.source(source)? };
                let request = FreeAllRequest { id, source, name };
                self.keeper().handle_free_all(request, now);
            }
            Command::Register { peer, protocol } => {
                let (client, protocol) = (self.peer(peer)?.key.clone(), foreign(protocol)?);
                let incarnation = Incarnation(self.peer(peer)?.state);
                let request = RegisterRequest { id, protocol, client, incarnation };
                self.keeper().handle_register(request, now);
            }
            Command::Unregister { peer, protocol } => {
                let (client, protocol) = (self.peer(peer)?.key.clone(), foreign(protocol)?);
                self.keeper().handle_unregister(UnregisterRequest { id, protocol, client }, now);
            }
            Command::Watch { by, watched } => {
                let (source, callback) = self.watcher(by)?;
                let (watched, private) = (Name::from(watched.as_str()), [7; 16]);
                let ours = super::language::namespace().server_address();
                let request = MonitorRequest { id, source, ours, callback, watched, private };
                self.keeper().handle_monitor(request, now);
            }
            Command::StopWatching { by, watched } => {
                let (source, callback) = self.watcher(by)?;
                let watched = watched.as_ref().map(|watched| Name::from(watched.as_str()));
                let request = UnmonitorRequest { id, source, callback, watched };
                self.keeper().handle_unmonitor(request, now);
            }
            Command::Operator(wish) => {
                let action = self.action(wish)?;
                let request = OperatorRequest { id, by: Name::from("the operator"), action };
                self.keeper().handle_operator(request, now);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The kernel that the oldest outstanding probe of a host asks about.
    fn question_asked(&mut self, client: ClientId, question: Question) -> Question {
        let Question::SameKernel(_) = question else { return question };
        let asked = self.kernels_asked.iter().position(|(host, _)| *host == client);
        let kernel = asked.map(|at| self.kernels_asked.remove(at).1);
        Question::SameKernel(kernel.unwrap_or(Incarnation::UNKNOWN))
    }

    fn action(&mut self, wish: &OperatorCommand) -> Played<OperatorAction> {
        Ok(match wish {
            OperatorCommand::Release(lock) => {
                OperatorAction::Release(LockId(self.names.locks.id(*lock)?))
            }
            OperatorCommand::Fence(host) => OperatorAction::Fence(self.client(host)?),
            OperatorCommand::Unfence(host) => OperatorAction::Unfence(self.client(host)?),
            OperatorCommand::ConfirmReboot { host, force } => {
                OperatorAction::ConfirmReboot { client: self.client(host)?, force: *force }
            }
            OperatorCommand::EndGrace => OperatorAction::EndGrace,
            OperatorCommand::Renotify(host) => OperatorAction::Renotify(self.client(host)?),
            OperatorCommand::NotifyAddress(address) => {
                OperatorAction::NotifyAddresses(vec![*address])
            }
            OperatorCommand::Forget(host) => OperatorAction::Forget(self.client(host)?),
        })
    }

    pub(super) fn peer(&self, peer: &str) -> Played<&Peer> {
        self.peers.get(peer).ok_or(format!("who is {peer}?"))
    }

    fn peer_at(&self, address: IpAddr) -> Option<&Peer> {
        self.peers.values().find(|peer| peer.key.address() == address)
    }

    fn peer_mut(&mut self, peer: &str) -> Played<&mut Peer> {
        self.peers.get_mut(peer).ok_or(format!("who is {peer}?"))
    }

    fn client(&mut self, peer: &str) -> Played<ClientId> {
        let key = self.peer(peer)?.key.clone();
        let host = self.keeper().host(&key).map(|client| client.id);
        host.ok_or(format!("the keeper does not know {peer}"))
    }

    fn caller(&self, who: &Process) -> Played<Caller> {
        Ok(Caller { host: self.peer(&who.peer)?.key.clone(), namespace: who.namespace })
    }

    fn source(&self, source: &Source) -> Played<request::Source> {
        let address = match source {
            Source::Peer(peer) => self.peer(peer)?.key.address(),
            Source::Address(address) => *address,
        };
        let local = is_local(address);
        Ok(request::Source { address, transport: Transport::Tcp, local, reserved: true })
    }

    fn watcher(&self, peer: &str) -> Played<(request::Source, Callback)> {
        let name = self.peer(peer)?.key.name().clone();
        let source = self.source(&Source::Peer(peer.to_owned()))?;
        Ok((source, Callback { name, program: 100_021, version: 3, procedure: 16 }))
    }

    fn set(&mut self, setting: Setting) -> Played<()> {
        let limits = &mut self.config.limits;
        match setting {
            Setting::Grace(grace) => self.config.grace = grace,
            Setting::Unreachable(unreachable) => self.config.unreachable = unreachable,
            Setting::Verify(verify) => self.config.verify = verify,
            Setting::Roaming => self.config.roaming = true,
            Setting::Copy(hosts) => {
                for host in hosts {
                    let key = self.peers.get(&host).ok_or(format!("who is {host}?"))?.key.clone();
                    let used = vec![language::namespace().server_address()];
                    let (address, name) = (key.address(), key.name().clone());
                    self.config.roster.push(RosterEntry { address, name, used });
                }
            }
            Setting::Window(protocol, window) => {
                self.config.windows.insert(protocol, window);
            }
            Setting::AtMost(count, what) => match what.as_str() {
                "locks" => limits.locks = count,
                "locks per file" => limits.locks_per_file = count,
                "locks per host" => limits.locks_per_client = count,
                "waiters per file" => limits.waiters_per_file = count,
                "clients" => limits.clients = count,
                "clients per address" => limits.clients_per_address = count,
                "locks per address" => limits.locks_per_address = count,
                "parked per address" => limits.parked_per_address = count,
                "registrations per address" => limits.registrations_per_address = count,
                "parked" => limits.parked = count,
                other => return Err(format!("{other:?} has no limit")),
            },
            Setting::KnownAs(name) => self.config.names.push(Name::new(&name)),
            Setting::ReverseName(address, name) => {
                self.config.reverse_names.insert(address, Name::new(&name));
            }
            Setting::Addresses(addresses) => self.config.addresses = Some(addresses),
            Setting::Formerly(new, old) => {
                self.config.formerly.insert(new, old);
            }
        }
        Ok(())
    }
}

fn foreign(name: &str) -> Played<Protocol> {
    Protocol::new(name).ok_or(format!("{name:?} is no protocol"))
}

fn is_local(address: IpAddr) -> bool {
    address.to_string() == SERVER_ADDRESS
}

fn owner(who: &Process) -> OwnerName {
    let tag = who.tag.clone().unwrap_or(format!("{}@{}", who.number, who.peer));
    OwnerName { number: who.number, tag: OwnerTag::from(tag.as_str()) }
}

fn share_tag(who: &Process) -> OwnerTag {
    OwnerTag::from(who.tag.as_deref().unwrap_or(&who.peer))
}
