//! Calls of several hosts, as bytes, through the real dispatcher, services, engine and keeper, with
//! retransmissions, bent bytes and crashes of the server between them. After every event a judge looks
//! at the keeper and the store: no two owners hold conflicting locks (I1), the store has what the
//! keeper has (I2), and a start restores it (I4).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed check panics")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use keeper::change::{Change, Snapshot};
use keeper::identity::Incarnation;
use keeper::request::ProbeAnswer;
use server::LockConfig;
use server::in_process::InProcess;
use store::{CommitOutcome, Memory, Store, StoreError, Token};
use tokio::runtime::{Builder, Runtime};
use vfs::memory::MemoryFs;
use vfs::{
    BlockingMode, Caller, Context, CreateMode, Export, Exports, FileKey, FileSystem, FileSystemId,
    HandleKey, NewAttributes, Rules,
};
use wire::Decode as _;
use wire::rpc::Reply;

const NLM: u32 = 100_021;
const NSM: u32 = 100_024;
const NFS: u32 = 100_003;
/// Beyond this an input only takes longer.
const EVENTS_MAX: usize = 200;
const FILES: usize = 2;
const SETTLE_MAX: usize = 1000;
const HOSTS: [&[u8]; 4] = [b"alice", b"bob", b"carol.example.com", b"carol"];

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// Events, one after the other. What each takes of the input is at its function.
pub fn calls(data: &[u8]) {
    RUNTIME.with_borrow_mut(|runtime| {
        let runtime = runtime.get_or_insert_with(|| {
            Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
        });
        let mut run = Run::begin(runtime, data);
        for _ in 0..EVENTS_MAX {
            if run.input.0.is_empty() {
                break;
            }
            run.step();
        }
    });
}

/// A store that outlives the servers that use it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Memory>>);

impl Store for Shared {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.0.lock().unwrap().load()
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        self.0.lock().unwrap().commit(changes, token)
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.0.lock().unwrap().last_token()
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.0.lock().unwrap().clear(force)
    }
}

struct Run<'a> {
    runtime: &'a Runtime,
    input: Input<'a>,
    filesystem: Arc<MemoryFs>,
    store: Shared,
    server: InProcess,
    handles: Vec<Vec<u8>>,
    /// The last call, and who sent it.
    last: Option<(Vec<u8>, usize)>,
    xid: u32,
}

impl<'a> Run<'a> {
    fn begin(runtime: &'a Runtime, data: &'a [u8]) -> Self {
        let _inside = runtime.enter();
        let filesystem = Arc::new(MemoryFs::new(FileSystemId(1)));
        let root = Caller::new(0, 0, &[]);
        let context = Context { caller: &root, blocking: BlockingMode::MayBlock };
        let file = |name: &[u8]| {
            let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
            let how = CreateMode::Unchecked(new);
            filesystem.create(&context, &filesystem.root(), name, &how).unwrap().object
        };
        let objects = [file(b"a"), file(b"b"), filesystem.root()];
        let handle = |object| {
            let file = FileKey { filesystem: filesystem.id(), object };
            key().sign(1, &file).as_bytes().to_vec()
        };
        let handles = objects.map(handle).to_vec();
        let store = Shared::default();
        let server = start(&filesystem, &store);
        let input = Input(data);
        Self { runtime, input, filesystem, store, server, handles, last: None, xid: 0 }
    }

    /// `what u8`, and what the event takes.
    fn step(&mut self) {
        match self.input.byte() % 16 {
            0..=6 => self.lock_call(),
            7 | 8 => self.status_call(),
            9 | 10 => self.file_call(),
            11 => self.raw_call(),
            12 => self.bend(),
            13 => {
                if let Some((record, host)) = self.last.clone() {
                    self.send(record, host);
                }
            }
            14 => {
                let answer = match self.input.byte() % 4 {
                    0 => ProbeAnswer::Silent,
                    1 => ProbeAnswer::Alive,
                    2 => ProbeAnswer::Gone,
                    _ => ProbeAnswer::InState(Incarnation(5)),
                };
                self.server.answer_probes(answer);
            }
            _ => self.restart(),
        }
        self.judge();
    }

    /// An NLM call: `procedure u8 | host u8 | file u8 | flags u8 | owner u8 | first u8 | length u8`.
    fn lock_call(&mut self) {
        // TEST, LOCK, CANCEL, UNLOCK, their messages, SHARE, UNSHARE, NM_LOCK, FREE_ALL.
        const PROCEDURES: [u32; 12] = [1, 2, 3, 4, 6, 7, 8, 9, 20, 21, 22, 23];
        let procedure = PROCEDURES[usize::from(self.input.byte()) % PROCEDURES.len()];
        let [host, file, flags, owner, first, length] = [0; 6].map(|_| self.input.byte());
        let host = usize::from(host) % HOSTS.len();
        let handle = &self.handles[usize::from(file) % FILES];
        let bit = |bit: u8| u32::from(flags >> bit & 1);
        let mut args = Xdr::default();
        match procedure {
            20 | 21 => args
                .opaque(b"c")
                .opaque(HOSTS[host])
                .opaque(handle)
                .opaque(&[owner])
                .word(u32::from(flags & 3))
                .word(u32::from(flags >> 2 & 3))
                .word(bit(4)),
            23 => args.opaque(HOSTS[usize::from(owner) % HOSTS.len()]).word(u32::from(flags)),
            _ => {
                args.opaque(b"c");
                match procedure {
                    1 | 6 => args.word(bit(0)),
                    2 | 7 | 22 | 3 | 8 => args.word(bit(1)).word(bit(0)),
                    _ => &mut args,
                };
                args.opaque(HOSTS[host])
                    .opaque(handle)
                    .opaque(&[b'o', owner % 4])
                    .word(u32::from(owner % 4))
                    .long(u64::from(first))
                    .long(u64::from(length));
                if matches!(procedure, 2 | 7 | 22) {
                    args.word(bit(2)).word(1 + 2 * u32::from(flags >> 4));
                }
                &mut args
            }
        };
        self.call((NLM, 4, procedure), args.0, host);
    }

    /// An NSM call: `procedure u8 | host u8 | name u8 | state u8`.
    fn status_call(&mut self) {
        let [procedure, host, name, state] = [0; 4].map(|_| self.input.byte());
        let host = usize::from(host) % HOSTS.len();
        let mut args = Xdr::default();
        args.opaque(HOSTS[usize::from(name) % HOSTS.len()]);
        let procedure = match procedure % 5 {
            0 | 1 => {
                args.word(1 + 2 * u32::from(state % 8));
                6
            }
            2 => {
                args.opaque(b"watcher").word(NLM).word(4).word(16).long(1).long(2);
                2
            }
            3 => {
                args.opaque(b"watcher").word(NLM).word(4).word(16);
                3
            }
            _ => 1,
        };
        self.call((NSM, 1, procedure), args.0, host);
    }

    /// An NFS call: `procedure u8 | host u8 | name u8`. Files with locks are removed and made again.
    fn file_call(&mut self) {
        let [procedure, host, name] = [0; 3].map(|_| self.input.byte());
        let host = usize::from(host) % HOSTS.len();
        let name: &[u8] = if name % 2 == 0 { b"a" } else { b"new" };
        let mut args = Xdr::default();
        args.opaque(&self.handles[FILES]);
        let procedure = match procedure % 4 {
            0 => 1,
            1 => {
                args.opaque(name);
                3
            }
            2 => {
                // UNCHECKED, and no attribute set.
                args.opaque(name).word(0).long(0).long(0).long(0);
                8
            }
            _ => {
                args.opaque(name);
                12
            }
        };
        self.call((NFS, 3, procedure), args.0, host);
    }

    /// `program u8 | version u8 | procedure u8 | host u8 | length u8 | arguments`.
    fn raw_call(&mut self) {
        let [program, version, procedure, host, length] = [0; 5].map(|_| self.input.byte());
        let program = [NLM, NSM, NFS, 100_005][usize::from(program) % 4];
        let args = self.input.bytes(length.into());
        let to = (program, u32::from(version % 5), u32::from(procedure % 32));
        self.call(to, args, usize::from(host) % HOSTS.len());
    }

    /// The last call with another xid and one byte changed: `at u8 | value u8`.
    fn bend(&mut self) {
        let [at, value] = [0; 2].map(|_| self.input.byte());
        let Some((mut record, host)) = self.last.clone() else { return };
        let at = usize::from(at) % record.len();
        record[at] ^= value;
        record[3] ^= 0x80;
        self.send(record, host);
    }

    fn call(&mut self, (program, version, procedure): (u32, u32, u32), args: Vec<u8>, host: usize) {
        self.xid += 1;
        let mut record = Xdr::default();
        for word in [self.xid, 0, 2, program, version, procedure] {
            record.word(word);
        }
        // AUTH_SYS of root without groups, and AUTH_NONE.
        record.word(1).word(20).word(0).word(0).word(0).word(0).word(0).word(0).word(0);
        record.0.extend(args);
        self.send(record.0, host);
    }

    fn send(&mut self, record: Vec<u8>, host: usize) {
        // The last two hosts share an address.
        let from = SocketAddr::from(([10, 0, 0, 1 + host.min(2) as u8], 700));
        let to = SocketAddr::from(([10, 0, 0, 100], 2049));
        let _inside = self.runtime.enter();
        let reply = self.server.receive(Bytes::copy_from_slice(&record), from, to);
        if let Some(reply) = reply {
            assert!(Reply::from_bytes(reply.to_bytes()).is_ok(), "a reply is garbled");
        }
        self.last = Some((record, host));
    }

    /// The server ends as by a crash and starts again.
    fn restart(&mut self) {
        let (before, _) = self.settled();
        let inside = self.runtime.enter();
        self.server.crash();
        self.server = start(&self.filesystem, &self.store);
        drop(inside);
        let after = self.snapshot();
        assert!(after.epoch > before.epoch, "I3: the epoch does not grow");
        assert_eq!(after.locks, before.locks, "I4: a start changes the locks");
        assert_eq!(after.shares, before.shares, "I4: a start changes the shares");
    }

    /// What the keeper has, when it has decided everything so far.
    fn snapshot(&self) -> Snapshot {
        let read = self.server.engine().read(|keeper| keeper.snapshot());
        self.runtime.block_on(read).unwrap_or_else(|| panic!("the engine has ended"))
    }

    /// What keeper and store have when nothing is being decided: probes are answered in the background.
    fn settled(&mut self) -> (Snapshot, Snapshot) {
        let mut before = self.snapshot();
        for _ in 0..SETTLE_MAX {
            // Whatever an earlier read has seen is committed when a later one is answered.
            let now = self.snapshot();
            let saved = self.store.load().unwrap();
            let after = self.snapshot();
            if before == now && now == after {
                return (now, saved);
            }
            before = after;
        }
        panic!("the keeper does not come to rest");
    }

    fn judge(&mut self) {
        let (now, saved) = self.settled();
        let locks: Vec<_> = now.locks.values().collect();
        for (at, one) in locks.iter().enumerate() {
            for other in &locks[at + 1..] {
                let both = one.file == other.file && one.range.overlaps(other.range);
                assert!(
                    !(both && one.owner != other.owner && one.mode.conflicts(other.mode)),
                    "I1: {one:?} and {other:?}"
                );
            }
        }
        assert_eq!(saved.locks, now.locks, "I2: the store has other locks than the keeper");
        assert_eq!(saved.shares, now.shares, "I2: the store has other shares than the keeper");
        assert_eq!(saved.clients, now.clients, "I2: the store has other clients than the keeper");
    }
}

fn key() -> HandleKey {
    HandleKey::new([7; 16])
}

fn start(filesystem: &Arc<MemoryFs>, store: &Shared) -> InProcess {
    let rules = Rules { lock_auth: false, ..Rules::default() };
    let export =
        Export { id: 1, path: "/srv".into(), filesystem: filesystem.clone(), rules: rules.into() };
    let exports = Exports::new(vec![export]).unwrap();
    let locks = LockConfig { store: Box::new(store.clone()), ..LockConfig::in_memory() };
    InProcess::start(exports, key(), locks).unwrap()
}

/// Bytes from a fuzzer; zeros after their end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

/// XDR by hand, so that it does not depend on the encoders under test.
#[derive(Default)]
struct Xdr(Vec<u8>);

impl Xdr {
    fn word(&mut self, word: u32) -> &mut Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    fn long(&mut self, long: u64) -> &mut Self {
        self.0.extend(long.to_be_bytes());
        self
    }

    fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        self.word(bytes.len() as u32);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use testbed::corpus;

    use super::*;

    /// LOCK by `host` as `owner`, exclusive, of one byte; it waits if `flags` says so.
    fn lock(host: u8, flags: u8, owner: u8, first: u8) -> Vec<u8> {
        vec![0, 1, host, 0, flags | 1, owner, first, 1]
    }

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let unlock = |host, owner, first| vec![0, 3, host, 0, 0, owner, first, 1];
        let restart = || vec![15];
        let notify = |host, state| vec![7, 0, host, host, state];
        vec![
            ("lock", [lock(0, 0, 0, 5), unlock(0, 0, 5)].concat()),
            ("wait", [lock(0, 0, 0, 5), lock(1, 2, 1, 5), unlock(0, 0, 5)].concat()),
            ("repeat", [lock(0, 0, 0, 5), vec![13], lock(1, 0, 1, 5), vec![13]].concat()),
            (
                "reclaim",
                [lock(0, 0, 0, 5), restart(), lock(0, 4, 0, 5), restart(), unlock(0, 0, 5)]
                    .concat(),
            ),
            ("reboot", [vec![14, 2], lock(0, 0, 0, 5), notify(0, 3), lock(1, 0, 1, 5)].concat()),
            ("free-all", [lock(2, 0, 0, 5), vec![0, 11, 3, 0, 0, 2, 0, 0]].concat()),
            ("share", [vec![0, 8, 0, 0, 0b1010, 1, 0, 0], vec![0, 9, 0, 0, 0, 1, 0, 0]].concat()),
            ("monitor", vec![8, 2, 0, 1, 0, 8, 3, 0, 1, 0]),
            ("files", [lock(0, 0, 0, 5), vec![9, 3, 1, 0, 9, 2, 1, 0], lock(0, 0, 0, 9)].concat()),
            ("bent", [lock(0, 0, 0, 5), vec![12, 90, 0xff, 12, 60, 1]].concat()),
            ("raw", vec![11, 0, 4, 2, 1, 8, 0, 0, 0, 1, b'c', 0, 0, 0]),
        ]
    }

    #[test]
    fn the_corpus_passes_and_its_seeds_are_what_is_written_here() {
        for (name, bytes) in seeds() {
            corpus::is_seed("calls", name, &bytes);
        }
        corpus::each("calls", calls);
    }

    #[test]
    fn the_calls_of_an_input_reach_the_keeper() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bytes =
            [lock(0, 0, 0, 5), lock(1, 0, 1, 6), vec![0, 8, 2, 1, 0b1010, 1, 0, 0]].concat();
        let mut run = Run::begin(&runtime, &bytes);
        while !run.input.0.is_empty() {
            run.step();
        }
        let found = run.snapshot();
        assert_eq!((found.locks.len(), found.shares.len()), (2, 1));
        run.restart();
        assert_eq!(run.snapshot().locks.len(), 2);
    }
}
