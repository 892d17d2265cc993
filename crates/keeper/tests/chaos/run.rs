//! A run: a keeper, a store of changes, and the ids seen so far.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use lockkeeper_keeper::Keeper;
use lockkeeper_keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use lockkeeper_keeper::change::{Change, Exactness, Protocol, Snapshot};
use lockkeeper_keeper::config::Config;
use lockkeeper_keeper::identity::{
    Caller, ClientId, Epoch, GrantId, HostKey, Incarnation, LockId, NoticeId, OwnerNamespace,
    RequestId, Transport,
};
use lockkeeper_keeper::request::*;
use lockkeeper_keeper::step::{Message, Step};
use lockkeeper_keeper::time::Time;

use super::input::{IdChoice, Input, Process};

/// Addresses of the server that come and go.
const ADDRESSES: [&str; 2] = ["10.0.0.100", "10.0.0.101"];

pub struct Run {
    keeper: Keeper,
    config: Config,
    durable: Snapshot,
    /// The store began as a roster, and that grace has not ended durably.
    inexact: bool,
    now: Time,
    requests: u64,
    unanswered: BTreeSet<RequestId>,
    grants: Vec<u64>,
    notices: Vec<u64>,
    locks: Vec<u64>,
    clients: Vec<u64>,
    probes: Vec<(u64, Question)>,
}

impl Run {
    pub fn new(config: Config) -> Self {
        let now = Time { mono: Duration::ZERO, wall_ms: 1_800_000_000_000 };
        let keeper = Keeper::restore(Snapshot::default(), Epoch(1), config.clone(), now);
        let mut run = Self {
            keeper,
            config,
            durable: Snapshot::default(),
            inexact: false,
            now,
            requests: 0,
            unanswered: BTreeSet::new(),
            grants: Vec::new(),
            notices: Vec::new(),
            locks: Vec::new(),
            clients: Vec::new(),
            probes: Vec::new(),
        };
        run.commit();
        run
    }

    pub fn play(&mut self, input: Input) {
        self.requests += 1;
        let (id, now) = (RequestId(self.requests), self.now);
        let keeper = &mut self.keeper;
        let is_request = match input {
            Input::Lock { who, file, range, mode, state, terms } => {
                let request = LockRequest {
                    id,
                    caller: caller(who),
                    owner: owner(who),
                    file: self::file(file),
                    handle: Handle::new(&[file, who.tag]),
                    range,
                    mode,
                    wait: terms.wait,
                    reclaim: terms.reclaim,
                    admitted: true,
                    monitored: terms.monitored,
                    incarnation: Incarnation(if terms.reclaim { 0 } else { state }),
                    form: if terms.message { Form::Message } else { Form::Call },
                    stateless: terms.stateless,
                    connected: None,
                };
                keeper.handle_lock(request, now);
                true
            }
            Input::Test { who, file, range, mode } => {
                let (caller, owner, file) = (caller(who), owner(who), self::file(file));
                keeper.handle_test(TestRequest { id, caller, owner, file, range, mode }, now);
                true
            }
            Input::Unlock { who, file, range } => {
                let (caller, owner, file) = (caller(who), owner(who), self::file(file));
                keeper.handle_unlock(UnlockRequest { id, caller, owner, file, range }, now);
                true
            }
            Input::Cancel { who, file, range, mode } => {
                let (caller, owner, file) = (caller(who), owner(who), self::file(file));
                keeper.handle_cancel(CancelRequest { id, caller, owner, file, range, mode }, now);
                true
            }
            Input::Share { who, file, access, deny, reclaim } => {
                let (caller, tag, file) = (caller(who), owner(who).tag, self::file(file));
                let request =
                    ShareRequest { id, caller, tag, file, access, deny, reclaim, admitted: true };
                keeper.handle_share(request, now);
                true
            }
            Input::Unshare { who, file } => {
                let (caller, tag, file) = (caller(who), owner(who).tag, self::file(file));
                keeper.handle_unshare(UnshareRequest { id, caller, tag, file }, now);
                true
            }
            Input::Reboot { source, name, state } => {
                let (source, name) = (self::source(source), self::name(name));
                let incarnation = Incarnation(state);
                keeper.handle_reboot(RebootNotice { id, source, name, incarnation }, now);
                true
            }
            Input::FreeAll { source, name } => {
                let (source, name) = (self::source(source), self::name(name));
                keeper.handle_free_all(FreeAllRequest { id, source, name }, now);
                true
            }
            Input::Monitor { source, watched } => {
                let (callback, watched) = (callback(source), name(watched));
                let (source, private) = (self::source(source), [7; 16]);
                let ours = IpAddr::from([10, 0, 0, 100]);
                let request = MonitorRequest { id, source, ours, callback, watched, private };
                keeper.handle_monitor(request, now);
                true
            }
            Input::Unmonitor { source, watched } => {
                let (callback, watched) = (callback(source), watched.map(name));
                let source = self::source(source);
                keeper.handle_unmonitor(UnmonitorRequest { id, source, callback, watched }, now);
                true
            }
            Input::Operator { action, which } => {
                let client = ClientId(seen(&self.clients, which));
                let action = match action {
                    0 => OperatorAction::Release(LockId(seen(&self.locks, which))),
                    1 => OperatorAction::Fence(client),
                    2 => OperatorAction::Unfence(client),
                    3 => OperatorAction::ConfirmReboot { client, force: true },
                    4 => OperatorAction::EndGrace,
                    5 => OperatorAction::Renotify(client),
                    _ => OperatorAction::Forget(client),
                };
                keeper.handle_operator(OperatorRequest { id, by: name(0), action }, now);
                true
            }
            Input::Register { source, protocol, state } => {
                let (client, protocol) = (caller_of(source), self::protocol(protocol));
                let incarnation = Incarnation(state);
                let request = RegisterRequest { id, protocol, client, incarnation };
                keeper.handle_register(request, now);
                true
            }
            Input::Unregister { source, protocol } => {
                let (client, protocol) = (caller_of(source), self::protocol(protocol));
                keeper.handle_unregister(UnregisterRequest { id, protocol, client }, now);
                true
            }
            other => {
                self.play_other(other);
                false
            }
        };
        if is_request {
            self.unanswered.insert(id);
        }
    }

    fn play_other(&mut self, input: Input) {
        let now = self.now;
        match input {
            Input::Granted { grant, answer } => {
                self.keeper.handle_grant_answer(GrantId(seen(&self.grants, grant)), answer, now);
            }
            Input::Noticed { notice, result } => {
                self.keeper.handle_notice_result(
                    NoticeId(seen(&self.notices, notice)),
                    result,
                    now,
                );
            }
            Input::Probed { probe: IdChoice::Seen(at), answer } if at < self.probes.len() => {
                let (client, question) = self.probes.remove(self.probes.len() - 1 - at);
                self.keeper.handle_probe_answer(ClientId(client), question, answer, now);
            }
            Input::Probed { .. } => {}
            Input::Volunteered { client, question, answer } => {
                let client = ClientId(seen(&self.clients, client));
                self.keeper.handle_probe_answer(client, question, answer, now);
            }
            Input::Reset { client } => {
                let client = ClientId(seen(&self.clients, client));
                self.keeper.handle_connection_reset(client, now.mono / 2, now);
            }
            Input::Heard { source } => self.keeper.handle_heard(address(source), source == 0, now),
            Input::Renumber { first, second, formerly } => {
                let [old, new] = ADDRESSES.map(|address| address.parse().unwrap());
                let up = [(first, old), (second, new)].into_iter().filter(|(is_up, _)| *is_up);
                let addresses: BTreeSet<IpAddr> = up.map(|(_, address)| address).collect();
                self.config.addresses = Some(addresses.clone());
                self.config.formerly = if formerly { [(new, old)].into() } else { [].into() };
                self.keeper.handle_addresses(Some(addresses), now);
            }
            Input::Stop => self.keeper.handle_stop(now),
            Input::Wait { milliseconds, wall_jump } => self.wait(milliseconds, wall_jump),
            Input::Restart { roster, lose } => self.restart(roster, lose),
            Input::Poll => self.commit(),
            _ => unreachable!("requests are played above"),
        }
    }

    fn wait(&mut self, milliseconds: u64, wall_jump: i64) {
        let until = self.now.mono + Duration::from_millis(milliseconds);
        let wall_ms = self.now.wall_ms.saturating_add_signed(wall_jump) + milliseconds;
        // Notices to hosts that never answer repeat every minute, as long as no peer was heard.
        for _ in 0..100_000 {
            match self.keeper.poll_timeout() {
                Some(due) if due <= until => {
                    self.now.mono = self.now.mono.max(due);
                    self.keeper.handle_timeout(self.now);
                    self.commit();
                }
                _ => {
                    self.now = Time { mono: until, wall_ms };
                    // A call without need must do no harm.
                    return self.keeper.handle_timeout(self.now);
                }
            }
        }
        panic!("time does not pass");
    }

    fn restart(&mut self, roster: bool, lose: bool) {
        if !lose {
            self.commit();
        }
        self.inexact |= roster;
        let mut saved = self.durable.clone();
        saved.exactness = if self.inexact { Exactness::Roster } else { Exactness::Exact };
        let epoch = Epoch::after(saved.epoch, None, 0);
        self.now.mono = Duration::ZERO;
        self.keeper = Keeper::restore(saved, epoch, self.config.clone(), self.now);
        self.unanswered.clear();
        self.probes.clear();
        self.commit();
    }

    /// Commits the step and compares the store with the keeper's snapshot.
    fn commit(&mut self) {
        if let Some(step) = self.keeper.poll_step() {
            self.see(step);
        }
        assert!(self.keeper.poll_step().is_none(), "one call takes everything");
        let mut believed = self.keeper.snapshot();
        // Exactness is the store's own judgement, not a change.
        believed.exactness = self.durable.exactness;
        assert_eq!(self.durable, believed, "the store (left), the keeper (right)");
        let counts = self.keeper.counts();
        assert_eq!(counts.clients, believed.clients.len());
        assert_eq!(counts.locks, self.keeper.locks(LockId(0)).count());
        assert_eq!(counts.waiters, self.keeper.waiters(LockId(0)).count());
        self.no_two_conflict();
    }

    fn see(&mut self, step: Step) {
        for change in step.changes {
            match &change {
                Change::Lock(lock) => self.locks.push(lock.id.0),
                Change::Client(client) => self.clients.push(client.id.0),
                Change::GraceEnded => self.inexact = false,
                _ => {}
            }
            self.durable.apply(change);
        }
        for message in step.messages {
            match message {
                Message::Reply(request, _) => {
                    assert!(self.unanswered.remove(&request), "one reply for each request");
                }
                Message::Grant(grant) => self.grants.push(grant.id.0),
                Message::Notice(notice) => self.notices.push(notice.id.0),
                Message::Probe(client, question) => self.probes.push((client.0, question)),
            }
        }
    }

    /// I1.
    fn no_two_conflict(&self) {
        let locks: Vec<_> = self.keeper.locks(LockId(0)).collect();
        for (at, one) in locks.iter().enumerate() {
            for other in &locks[at + 1..] {
                let meet = one.file == other.file && one.range.overlaps(other.range);
                let conflict = meet && one.mode.conflicts(other.mode) && one.owner != other.owner;
                assert!(!conflict, "{one:?} and {other:?}");
                assert!(!meet || one.owner != other.owner, "twice: {one:?} and {other:?}");
            }
        }
    }
}

/// The n-th latest of the ids seen, or any number.
fn seen(ids: &[u64], which: IdChoice) -> u64 {
    match which {
        IdChoice::Seen(back) => ids.iter().rev().nth(back).copied().unwrap_or(0),
        IdChoice::Any(id) => id,
    }
}

fn caller(who: Process) -> Caller {
    let [first, second] = ADDRESSES;
    let namespaces =
        [(first, Transport::Tcp), ("fd00::100", Transport::Udp), (second, Transport::Tcp)];
    let (ours, transport) = namespaces[usize::from(who.namespace)];
    let host = caller_of(who.host);
    Caller { host, namespace: OwnerNamespace::new(ours.parse().unwrap(), transport, 4) }
}

fn caller_of(host: u8) -> HostKey {
    HostKey::new(address(host), name(host))
}

fn protocol(protocol: u8) -> Protocol {
    Protocol::new(["lease", "other", "nlm"][usize::from(protocol)]).unwrap()
}

fn owner(who: Process) -> OwnerName {
    OwnerName { number: who.number, tag: OwnerTag::new(&[0xff, who.tag]) }
}

fn file(file: u8) -> FileKey {
    FileKey::new(&[file])
}

/// Two hosts share an address, one address is IPv4-mapped, one is unknown.
fn source(host: u8) -> Source {
    let transport = if host.is_multiple_of(2) { Transport::Udp } else { Transport::Tcp };
    Source { address: address(host), transport, local: host == 0, reserved: host != 1 }
}

fn address(host: u8) -> IpAddr {
    let addresses =
        ["10.0.0.1", "10.0.0.2", "10.0.0.2", "::ffff:10.0.0.3", "fd00::4", "255.255.255.255"];
    addresses[usize::from(host)].parse().unwrap()
}

/// Names as peers send them: short, full, empty, prefixes of one another, and arbitrary bytes.
fn name(name: u8) -> Name {
    let long = [0xfe; 1024];
    let names: [&[u8]; 8] = [
        b"client1",
        b"client10",
        b"CLIENT1.lan",
        b"",
        b"a:b/../\x1b[31m\n",
        &long,
        b"client1.lan",
        b"10.0.0.2",
    ];
    Name::new(names[usize::from(name)])
}

fn callback(source: u8) -> Callback {
    Callback { name: name(source), program: 100_021, version: 3, procedure: 16 }
}
