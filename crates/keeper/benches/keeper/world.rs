//! A keeper with hosts, owners and files by number, polled as a driver polls it: several requests
//! per step.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lockkeeper_keeper::Keeper;
use lockkeeper_keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use lockkeeper_keeper::change::{Change, Snapshot};
use lockkeeper_keeper::config::{Config, Limits};
use lockkeeper_keeper::identity::{
    Caller, Epoch, HostKey, Incarnation, OwnerNamespace, RequestId, Transport,
};
use lockkeeper_keeper::range::Range;
use lockkeeper_keeper::request::{
    Form, LockRequest, Mode, OwnerName, ProbeAnswer, RebootNotice, Source, TestRequest,
    UnlockRequest,
};
use lockkeeper_keeper::step::{Message, Outcome, Reply, Step, TestResult};
use lockkeeper_keeper::time::Time;

/// Requests per step.
const BATCH: u32 = 32;
const STATE: Incarnation = Incarnation(3);

#[derive(Clone, Copy)]
pub struct Host(pub u32);

pub struct World {
    keeper: Keeper,
    now: Time,
    requests: u32,
    callers: Vec<Caller>,
    owners: Vec<OwnerName>,
    files: Vec<(FileKey, Handle)>,
}

impl World {
    pub fn new() -> Self {
        Self::with_clients_max(Limits::default().clients)
    }

    pub fn with_clients_max(clients: usize) -> Self {
        let limits = Limits {
            clients,
            locks_per_client: 10_000_000,
            locks_per_file: 10_000_000,
            waiters_per_file: 100_000,
            ..Limits::default()
        };
        let config = Config { limits, seed: 0x5eed_5eed_5eed_5eed, ..Config::default() };
        let now = Time { mono: Duration::from_secs(1), wall_ms: 1_800_000_000_000 };
        let keeper = Keeper::restore(Snapshot::default(), Epoch(1), config, now);
        let (callers, owners, files) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = Self { keeper, now, requests: 0, callers, owners, files };
        world.take_step();
        world
    }

    /// A record of 10 bytes, adjacent to no other.
    pub fn lock(&mut self, host: Host, owner: u32, file: u32, record: u64) {
        let request = self.request(host, owner, file, record, false);
        self.keeper.handle_lock(request, self.now);
        self.count();
    }

    pub fn wait(&mut self, host: Host, owner: u32, file: u32, record: u64) {
        let request = self.request(host, owner, file, record, true);
        self.keeper.handle_lock(request, self.now);
        self.count();
    }

    pub fn wait_to_read(&mut self, host: Host, owner: u32, file: u32, record: u64) {
        let mut request = self.request(host, owner, file, record, true);
        request.mode = Mode::Shared;
        self.keeper.handle_lock(request, self.now);
        self.count();
    }

    pub fn pass(&mut self, time: Duration) {
        self.now.mono += time;
    }

    /// Ends the step: every host that is probed answers, which may lead to further steps. Returns
    /// how many waiters were granted.
    pub fn answer_probes(&mut self) -> usize {
        let mut granted = 0;
        loop {
            let messages = self.take_step().messages;
            if messages.is_empty() {
                return granted;
            }
            for message in messages {
                match message {
                    Message::Grant(_) => granted += 1,
                    Message::Probe(client, question) => {
                        let alive = ProbeAnswer::Alive;
                        self.keeper.handle_probe_answer(client, question, alive, self.now);
                    }
                    _ => {}
                }
            }
        }
    }

    pub fn unlock(&mut self, host: Host, owner: u32, file: u32, record: u64) {
        let (caller, owner, (file, _)) = (self.caller(host), self.owner(owner), self.file(file));
        let range = range(record);
        let request = UnlockRequest { id: self.id(), caller, owner, file, range };
        self.keeper.handle_unlock(request, self.now);
        self.count();
    }

    pub fn test(&mut self, host: Host, owner: u32, file: u32, record: u64) {
        let (caller, owner, (file, _)) = (self.caller(host), self.owner(owner), self.file(file));
        let (id, range, mode) = (self.id(), range(record), Mode::Exclusive);
        self.keeper.handle_test(TestRequest { id, caller, owner, file, range, mode }, self.now);
        self.count();
    }

    /// The host's kernel is gone; returns the locks released and the waiters granted.
    pub fn reboot(&mut self, host: Host) -> (usize, usize) {
        self.take_step();
        let host = self.caller(host).host;
        let (address, name) = (host.address(), host.name().clone());
        let source = Source { address, transport: Transport::Udp, local: false, reserved: true };
        let notice = RebootNotice { id: self.id(), source, name, incarnation: Incarnation(5) };
        self.keeper.handle_reboot(notice, self.now);
        for message in self.take_step().messages {
            if let Message::Probe(client, question) = message {
                self.keeper.handle_probe_answer(client, question, ProbeAnswer::Gone, self.now);
            }
        }
        let Step { changes, messages, .. } = self.take_step();
        let freed = changes.iter().filter(|change| matches!(change, Change::LockGone(_)));
        let granted = messages.iter().filter(|message| matches!(message, Message::Grant(_)));
        (freed.count(), granted.count())
    }

    /// The host reports a reboot.
    pub fn notify(&mut self, host: Host) {
        let host = self.caller(host).host;
        let (address, name) = (host.address(), host.name().clone());
        let source = Source { address, transport: Transport::Udp, local: false, reserved: true };
        let notice = RebootNotice { id: self.id(), source, name, incarnation: Incarnation(5) };
        self.keeper.handle_reboot(notice, self.now);
        self.count();
    }

    pub fn locks(&self) -> usize {
        self.keeper.counts().locks
    }

    /// Creates names beforehand, so that their creation is not measured.
    pub fn prepare(&mut self, hosts: u32, owners: u32, files: u32) {
        for host in 0..hosts {
            self.caller(Host(host));
        }
        for owner in 0..owners {
            self.owner(owner);
        }
        for file in 0..files {
            self.file(file);
        }
    }

    fn request(
        &mut self,
        host: Host,
        owner: u32,
        file: u32,
        record: u64,
        wait: bool,
    ) -> LockRequest {
        let (file, handle) = self.file(file);
        LockRequest {
            id: self.id(),
            caller: self.caller(host),
            owner: self.owner(owner),
            file,
            handle,
            range: range(record),
            mode: Mode::Exclusive,
            wait,
            reclaim: false,
            admitted: true,
            monitored: true,
            incarnation: STATE,
            form: Form::Call,
            stateless: false,
            connected: None,
        }
    }

    fn id(&self) -> RequestId {
        RequestId(u64::from(self.requests))
    }

    fn count(&mut self) {
        self.requests += 1;
        if self.requests.is_multiple_of(BATCH) {
            self.take_step();
        }
    }

    /// Every request must have been granted or queued; otherwise the figures mean nothing.
    fn take_step(&mut self) -> Step {
        let step = self.keeper.poll_step().unwrap_or_default();
        for message in &step.messages {
            match message {
                Message::Reply(_, Reply::Lock(Outcome::Granted | Outcome::Blocked)) => {}
                Message::Reply(_, Reply::Lock(_) | Reply::Test(TestResult::Held(_))) => {
                    eprintln!("not as it should be: {message:?}");
                    std::process::exit(2);
                }
                _ => {}
            }
        }
        step
    }

    fn caller(&mut self, host: Host) -> Caller {
        while self.callers.len() <= host.0 as usize {
            let number = self.callers.len() as u32;
            let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0001 + number));
            let name = Name::from(format!("host{number}.example.com").as_str());
            let ours = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
            let namespace = OwnerNamespace::new(ours, Transport::Tcp, 4);
            self.callers.push(Caller { host: HostKey::new(address, name), namespace });
        }
        self.callers[host.0 as usize].clone()
    }

    fn owner(&mut self, owner: u32) -> OwnerName {
        while self.owners.len() <= owner as usize {
            let number = self.owners.len() as u32;
            let tag = OwnerTag::from(format!("{number}@host.example.com").as_str());
            self.owners.push(OwnerName { number, tag });
        }
        self.owners[owner as usize].clone()
    }

    fn file(&mut self, file: u32) -> (FileKey, Handle) {
        while self.files.len() <= file as usize {
            let mut bytes = [7; 32];
            bytes[..4].copy_from_slice(&(self.files.len() as u32).to_le_bytes());
            self.files.push((FileKey::new(&bytes), Handle::new(&bytes)));
        }
        self.files[file as usize].clone()
    }
}

fn range(record: u64) -> Range {
    let first = 20 * record;
    Range::between(first, first + 9).unwrap_or(Range::ALL)
}
