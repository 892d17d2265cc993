//! What a patient observer with a pencil knows: who holds which byte, told byte by byte, who waits,
//! what was asked, what the probes said. It learns from requests, replies and events; it shares no
//! code with the keeper and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use keeper::bytes::Name;
use keeper::identity::{ClientId, Epoch, GrantId, NoticeId, Owner, RequestId};
use keeper::range::Range;
use keeper::request::{Access, Mode, ProbeAnswer, Question};
use keeper::step::Grant;
use store::Token;

use crate::cells::{CELLS, FILES, Strength};
use crate::packet::Request;
use crate::queue::Ms;

/// One byte of one file in the hands of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub strength: Strength,
    pub incarnation: u32,
    /// The life of the host that took it: the truth.
    pub life: u32,
    /// Recovered, and not asked for since.
    pub unconfirmed: bool,
}

/// A whole file in the hands of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    pub access: Access,
    pub deny: Access,
    pub incarnation: u32,
    pub life: u32,
    pub unconfirmed: bool,
}

pub type Picture = Vec<[[Cell; CELLS]; FILES]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub process: usize,
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    pub passed_over: bool,
}

impl Waiting {
    pub fn key(&self) -> Wait {
        (self.process, self.file, self.range, self.mode)
    }
}

/// A wait as its host began it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    pub id: u64,
    pub life: u32,
    pub state: u32,
    /// The state in the last request for it, answered or not.
    pub newest: u32,
    /// When it was last asked for.
    pub polled: Ms,
}

/// One entry among the waiters.
pub type Wait = (usize, usize, Range, Mode);

#[derive(Clone, Debug)]
pub struct OpenGrant {
    pub process: usize,
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    /// What the owner had there before.
    pub before: [Cell; CELLS],
    /// An attempt went unanswered: the client may have accepted it.
    pub unclear: bool,
}

impl OpenGrant {
    /// The wait that it ends.
    pub fn key(&self) -> Wait {
        (self.process, self.file, self.range, self.mode)
    }
}

/// A claim about a host as it came in, for what is judged later.
#[derive(Clone, Debug)]
pub struct Claim {
    pub source: IpAddr,
    pub name: Name,
    /// `None` for FREE_ALL.
    pub state: Option<u32>,
    /// The host that truly says so, if somebody does.
    pub speaker: Option<usize>,
    /// When it came, moved by the time in which the store stalled.
    pub at: Ms,
}

pub struct Model {
    /// As it is once everything so far is committed.
    pub table: Picture,
    /// As it is on the disk.
    pub durable: Picture,
    /// The decision that last took a byte from its owner against its will.
    pub released_at: Vec<[[u64; CELLS]; FILES]>,
    /// Shares, by process and file.
    pub shares: BTreeMap<(usize, usize), Shared>,
    /// The decision that last took a share from its owner against its will.
    pub unshared_at: Vec<[u64; FILES]>,
    /// The decision that last did something for an owner on a file.
    pub touched: Vec<[u64; FILES]>,
    pub waiters: Vec<Waiting>,
    /// As they were before the step that is judged.
    pub waited: Vec<Waiting>,
    /// Since when a waiter could be granted.
    pub grantable: BTreeMap<Wait, Ms>,
    blocks: BTreeMap<Wait, Block>,
    /// Waits that began in the step that is judged.
    pub just_blocked: BTreeSet<Wait>,
    pub grants: BTreeMap<GrantId, OpenGrant>,
    /// With the decision before which it came.
    pub asked: BTreeMap<RequestId, (Rc<Request>, u64)>,
    /// Counts decisions.
    pub serial: u64,
    pub epoch: Epoch,
    /// The last one that was committed, and so may have been told.
    pub epoch_told: Epoch,
    pub exact: bool,
    /// Between a start from a roster and the end of its grace nothing says who holds what.
    pub recovering: bool,
    pub grace_over: bool,
    /// As it was before the step that is judged.
    pub grace_was_over: bool,
    pub started: Ms,
    /// When the recovery window of this epoch began, moved by the time in which the store stalled.
    pub window: Option<Ms>,
    /// When each host last reclaimed something in this epoch.
    pub reclaims: BTreeMap<usize, Ms>,
    /// When the batch that is being committed was decided.
    pub commit_began: Ms,
    /// Of this epoch.
    pub probes: BTreeMap<(ClientId, Question), ProbeAnswer>,
    /// States that the status monitors of hosts have answered.
    pub vouched: BTreeSet<(ClientId, u32)>,
    /// What was last said of any kernel of a host.
    pub kernels: BTreeMap<ClientId, ProbeAnswer>,
    pub resets: BTreeSet<ClientId>,
    pub failed_notices: BTreeSet<ClientId>,
    pub notices: BTreeMap<NoticeId, ClientId>,
    /// Notices of our own restart, and who has answered one.
    pub owed: BTreeMap<NoticeId, ClientId>,
    pub told: BTreeSet<ClientId>,
    pub claims: Vec<Claim>,
    /// The last reboot that was accepted of each host, by its state; and those on the disk.
    pub accepted: BTreeMap<usize, u32>,
    pub accepted_durably: BTreeMap<usize, u32>,
    /// The last batch that was seen on the disk.
    pub token: Token,
    /// The row of each host.
    pub rows: BTreeMap<usize, ClientId>,
    /// The state each host was last known to be in.
    pub states: BTreeMap<usize, u32>,
    /// When a state of a host was last accepted to be gone.
    pub gone_states: BTreeMap<(usize, u32), Ms>,
    /// Waits that a client gave up without a word: the protocol has no way to know.
    pub abandoned: BTreeSet<(usize, usize)>,
    pub calm_restart: bool,
    /// Locks, shares and waiters before the step that is judged.
    pub entries: usize,
    /// Every id of a lock, share or client that was ever written, and every callback's.
    pub ids: BTreeSet<u64>,
    /// Those of them that are in use.
    pub lock_ids: BTreeSet<u64>,
    pub grant_ids: BTreeSet<GrantId>,
    pub owners: BTreeMap<Owner, Option<usize>>,
    pub hosts: BTreeMap<ClientId, Option<usize>>,
}

impl Model {
    pub fn new(processes: usize) -> Self {
        Self {
            table: blank(processes),
            durable: blank(processes),
            released_at: vec![[[0; CELLS]; FILES]; processes],
            shares: BTreeMap::new(),
            unshared_at: vec![[0; FILES]; processes],
            touched: vec![[0; FILES]; processes],
            waiters: Vec::new(),
            waited: Vec::new(),
            grantable: BTreeMap::new(),
            blocks: BTreeMap::new(),
            just_blocked: BTreeSet::new(),
            grants: BTreeMap::new(),
            asked: BTreeMap::new(),
            serial: 0,
            epoch: Epoch(0),
            epoch_told: Epoch(0),
            exact: true,
            recovering: false,
            grace_over: true,
            grace_was_over: true,
            started: 0,
            window: None,
            reclaims: BTreeMap::new(),
            commit_began: 0,
            probes: BTreeMap::new(),
            vouched: BTreeSet::new(),
            kernels: BTreeMap::new(),
            resets: BTreeSet::new(),
            failed_notices: BTreeSet::new(),
            notices: BTreeMap::new(),
            owed: BTreeMap::new(),
            told: BTreeSet::new(),
            claims: Vec::new(),
            accepted: BTreeMap::new(),
            accepted_durably: BTreeMap::new(),
            token: Token(0),
            rows: BTreeMap::new(),
            states: BTreeMap::new(),
            gone_states: BTreeMap::new(),
            abandoned: BTreeSet::new(),
            calm_restart: false,
            entries: 0,
            ids: BTreeSet::new(),
            lock_ids: BTreeSet::new(),
            grant_ids: BTreeSet::new(),
            owners: BTreeMap::new(),
            hosts: BTreeMap::new(),
        }
    }

    /// What was in the server's memory is gone; what is on the disk is not.
    pub fn server_died(&mut self) {
        self.table = self.durable.clone();
        self.accepted = self.accepted_durably.clone();
        self.waiters.clear();
        self.grantable.clear();
        self.blocks.clear();
        self.grants.clear();
        self.asked.clear();
        self.probes.clear();
        self.kernels.clear();
        self.vouched.clear();
        self.resets.clear();
        self.failed_notices.clear();
        self.notices.clear();
        self.owed.clear();
        self.told.clear();
        self.claims.clear();
        self.reclaims.clear();
        self.window = None;
        self.gone_states.clear();
        self.states.clear();
    }

    pub fn note_block(&mut self, wait: Wait, block: Block) {
        self.blocks.insert(wait, block);
    }

    /// Which wait a grant ends, and in which life of its host that wait began.
    pub fn block_of(&self, grant: &Grant) -> (u64, u32) {
        let Some(open) = self.grants.get(&grant.id) else { return (0, 0) };
        let block = self.block(open.key());
        (block.id, block.life)
    }

    pub fn block(&self, wait: Wait) -> Block {
        self.blocks.get(&wait).copied().unwrap_or_default()
    }
}

pub fn blank(processes: usize) -> Picture {
    vec![[[Cell::default(); CELLS]; FILES]; processes]
}
