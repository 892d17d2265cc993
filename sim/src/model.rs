//! The judges' model of the lock table: who holds which byte, who waits, what was requested, what
//! probes returned. Built from requests, replies and events; shares no code with the keeper.

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

/// What one owner holds of one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellState {
    pub strength: Strength,
    pub incarnation: u32,
    /// The boot of the host that took it (ground truth).
    pub life: u32,
    /// Restored from the store and not reclaimed since.
    pub unconfirmed: bool,
    /// The decision that took it.
    pub taken: u64,
    /// A callback may have given it: its request may be older than `taken`.
    pub by_callback: bool,
}

/// A share of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelShare {
    pub access: Access,
    pub deny: Access,
    pub incarnation: u32,
    pub life: u32,
    pub unconfirmed: bool,
}

/// Lock state by process, file and cell.
pub(crate) type LockGrid = Vec<[[CellState; CELLS]; FILES]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelWaiter {
    pub process: usize,
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    pub passed_over: bool,
}

impl ModelWaiter {
    pub(crate) fn key(&self) -> WaitKey {
        (self.process, self.file, self.range, self.mode)
    }
}

/// The wait as the host that began it knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitRecord {
    pub id: u64,
    pub life: u32,
    pub state: u32,
    /// The NSM state in the last request for it, answered or not.
    pub newest: u32,
    /// When it was last requested: the host is heard when a request arrives, not when it is decided.
    pub polled: Ms,
}

/// Process, file, range and mode: identifies a waiter.
pub(crate) type WaitKey = (usize, usize, Range, Mode);

#[derive(Clone, Debug)]
pub(crate) struct OpenGrant {
    pub process: usize,
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    /// What the owner held before the grant.
    pub before: [CellState; CELLS],
    /// An attempt went unanswered: the client may have accepted it.
    pub unclear: bool,
}

impl OpenGrant {
    /// The wait that it ends.
    pub(crate) fn key(&self) -> WaitKey {
        (self.process, self.file, self.range, self.mode)
    }
}

/// A received SM_NOTIFY or FREE_ALL about a host.
#[derive(Clone, Debug)]
pub(crate) struct HostReport {
    pub source: IpAddr,
    pub name: Name,
    /// `None` for FREE_ALL.
    pub state: Option<u32>,
    /// The host that honestly sent it; `None` if forged.
    pub speaker: Option<usize>,
    /// When it was received, plus the time in which the store stalled.
    pub at: Ms,
    /// The decision that received it.
    pub serial: u64,
}

/// A report that the keeper shows as pending (B3.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingReport {
    /// `None` for FREE_ALL.
    pub state: Option<u32>,
    /// When the keeper says that it first came.
    pub first_at_ms: u64,
    /// The decision after which it was first shown.
    pub shown: u64,
}

pub(crate) struct Model {
    /// The table when all decisions so far are committed.
    pub table: LockGrid,
    /// The table on disk.
    pub durable: LockGrid,
    /// The decision that last released a byte without its owner's UNLOCK.
    pub released_at: Vec<[[u64; CELLS]; FILES]>,
    /// Shares, by process and file.
    pub shares: BTreeMap<(usize, usize), ModelShare>,
    /// The decision that last released a share without its owner's UNSHARE.
    pub unshared_at: Vec<[u64; FILES]>,
    /// The decision that last did something for an owner on a file.
    pub touched_at: Vec<[u64; FILES]>,
    pub waiters: Vec<ModelWaiter>,
    /// The waiters before the current step.
    pub waiters_before: Vec<ModelWaiter>,
    /// Since when a waiter could be granted.
    pub grantable: BTreeMap<WaitKey, Ms>,
    blocks: BTreeMap<WaitKey, WaitRecord>,
    /// Waits that began in the current step.
    pub blocked_in_step: BTreeSet<WaitKey>,
    pub grants: BTreeMap<GrantId, OpenGrant>,
    /// Unanswered requests, with the number of decisions made before.
    pub pending_requests: BTreeMap<RequestId, (Rc<Request>, u64)>,
    /// The number of decisions.
    pub serial: u64,
    pub epoch: Epoch,
    /// The last epoch that was committed, and so may be known to clients.
    pub epoch_told: Epoch,
    pub exact: bool,
    /// Hosts may be missing from the store of this start.
    pub open: bool,
    /// The same of any start so far.
    pub was_open: bool,
    /// The records of an inexact start, with the boots that took them.
    pub remembered: LockGrid,
    pub remembered_shares: BTreeMap<(usize, usize), ModelShare>,
    /// Processes and files with a record that became releasable at the end of an inexact grace. If it
    /// is obsolete, its host never reclaims it, and it is left for an operator.
    pub kept: BTreeSet<(usize, usize)>,
    /// States of hosts that a false notice made the server believe. What the live kernel reclaims then
    /// gets that state, and stays if the next boot has it.
    pub false_states: BTreeSet<(usize, u32)>,
    /// Between a start from a roster and the end of its grace, when the table is unknown.
    pub recovering: bool,
    pub grace_over: bool,
    /// `grace_over` before the current step.
    pub grace_was_over: bool,
    pub started: Ms,
    /// When the recovery window of this epoch began, plus the time in which the store stalled.
    pub window: Option<Ms>,
    /// When each host last reclaimed something in this epoch, plus the time in which the store
    /// stalled.
    pub reclaims: BTreeMap<usize, Ms>,
    /// When the batch being committed was decided.
    pub commit_began: Ms,
    /// The last answer to each probe in this epoch.
    pub probes: BTreeMap<(ClientId, Question), ProbeAnswer>,
    /// States that status monitors have reported.
    pub reported_states: BTreeSet<(ClientId, u32)>,
    /// The last answer about any kernel of a host.
    pub kernels: BTreeMap<ClientId, ProbeAnswer>,
    pub resets: BTreeSet<ClientId>,
    pub failed_notices: BTreeSet<ClientId>,
    pub notices: BTreeMap<NoticeId, ClientId>,
    /// Notices of this restart, and the clients that have answered one.
    pub restart_notices: BTreeMap<NoticeId, ClientId>,
    pub notified: BTreeSet<ClientId>,
    /// Hosts that were expected to reclaim something, with an exact store.
    pub expected: BTreeSet<ClientId>,
    pub host_reports: Vec<HostReport>,
    /// The state of the last accepted reboot of each host; and the same on disk.
    pub accepted: BTreeMap<usize, u32>,
    pub accepted_durably: BTreeMap<usize, u32>,
    /// The token of the last batch found on disk.
    pub token: Token,
    /// The client record of each host.
    pub rows: BTreeMap<usize, ClientId>,
    /// The recorded NSM state of each host.
    pub states: BTreeMap<usize, u32>,
    /// When a reboot out of a state was last accepted.
    pub gone_states: BTreeMap<(usize, u32), Ms>,
    /// The pending report of each client, and the clients that are suspect, before the current step.
    pub pending_reports: BTreeMap<ClientId, PendingReport>,
    pub suspects: BTreeSet<ClientId>,
    /// When each host last sent a lock request in this epoch.
    pub called: BTreeMap<usize, Ms>,
    /// Processes and files with a request that was given up without telling the server.
    pub abandoned: BTreeSet<(usize, usize)>,
    pub calm_restart: bool,
    /// Locks, shares and waiters before the current step.
    pub entries: usize,
    /// Every id of a lock or client ever written.
    pub ids: BTreeSet<u64>,
    /// The same, without those of released locks.
    pub lock_ids: BTreeSet<u64>,
    pub grant_ids: BTreeSet<GrantId>,
    pub owners: BTreeMap<Owner, Option<usize>>,
    pub hosts: BTreeMap<ClientId, Option<usize>>,
}

impl Model {
    pub(crate) fn new(processes: usize) -> Self {
        Self {
            table: empty_grid(processes),
            durable: empty_grid(processes),
            released_at: vec![[[0; CELLS]; FILES]; processes],
            shares: BTreeMap::new(),
            unshared_at: vec![[0; FILES]; processes],
            touched_at: vec![[0; FILES]; processes],
            waiters: Vec::new(),
            waiters_before: Vec::new(),
            grantable: BTreeMap::new(),
            blocks: BTreeMap::new(),
            blocked_in_step: BTreeSet::new(),
            grants: BTreeMap::new(),
            pending_requests: BTreeMap::new(),
            serial: 0,
            epoch: Epoch(0),
            epoch_told: Epoch(0),
            exact: true,
            open: false,
            was_open: false,
            remembered: empty_grid(processes),
            remembered_shares: BTreeMap::new(),
            kept: BTreeSet::new(),
            false_states: BTreeSet::new(),
            recovering: false,
            grace_over: true,
            grace_was_over: true,
            started: 0,
            window: None,
            reclaims: BTreeMap::new(),
            commit_began: 0,
            probes: BTreeMap::new(),
            reported_states: BTreeSet::new(),
            kernels: BTreeMap::new(),
            resets: BTreeSet::new(),
            failed_notices: BTreeSet::new(),
            notices: BTreeMap::new(),
            restart_notices: BTreeMap::new(),
            expected: BTreeSet::new(),
            notified: BTreeSet::new(),
            host_reports: Vec::new(),
            accepted: BTreeMap::new(),
            accepted_durably: BTreeMap::new(),
            token: Token(0),
            rows: BTreeMap::new(),
            states: BTreeMap::new(),
            gone_states: BTreeMap::new(),
            pending_reports: BTreeMap::new(),
            suspects: BTreeSet::new(),
            called: BTreeMap::new(),
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

    /// Forgets what the server had in memory only.
    pub(crate) fn server_died(&mut self) {
        self.table = self.durable.clone();
        self.accepted = self.accepted_durably.clone();
        self.waiters.clear();
        self.grantable.clear();
        self.blocks.clear();
        self.grants.clear();
        self.pending_requests.clear();
        self.probes.clear();
        self.kernels.clear();
        self.reported_states.clear();
        self.resets.clear();
        self.failed_notices.clear();
        self.notices.clear();
        self.restart_notices.clear();
        self.notified.clear();
        self.host_reports.clear();
        self.reclaims.clear();
        self.window = None;
        self.gone_states.clear();
        self.pending_reports.clear();
        self.suspects.clear();
        self.called.clear();
        self.states.clear();
    }

    pub(crate) fn note_block(&mut self, wait: WaitKey, block: WaitRecord) {
        self.blocks.insert(wait, block);
    }

    /// The wait that a grant ends, and the boot of the host that began it.
    pub(crate) fn block_of(&self, grant: &Grant) -> (u64, u32) {
        let Some(open) = self.grants.get(&grant.id) else { return (0, 0) };
        let block = self.block(open.key());
        (block.id, block.life)
    }

    pub(crate) fn block(&self, wait: WaitKey) -> WaitRecord {
        self.blocks.get(&wait).copied().unwrap_or_default()
    }
}

pub(crate) fn empty_grid(processes: usize) -> LockGrid {
    vec![[[CellState::default(); CELLS]; FILES]; processes]
}
