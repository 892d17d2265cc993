//! A client machine: its kernel, its processes and the locks that they believe they hold. Behaviour
//! is in `host/lockd.rs` (lock client), `host/statd.rs` (boots, notices, reclaims) and
//! `host/sharer.rs` (SHARE).

mod lockd;
mod sharer;
mod statd;

use std::net::IpAddr;
use std::rc::Rc;

use keeper::bytes::{Name, OwnerTag};
use keeper::identity::OwnerNamespace;
use keeper::range::Range;
use keeper::request::{Access, GrantAnswer, Mode};

use crate::cells::{self, CELLS, FILES, Strength};
use crate::engine::AttemptKey;
use crate::packet::Request;
use crate::queue::Ms;
use crate::scenario::{FORGED_NUMBER, HostKind};

pub(crate) struct Host {
    pub kind: HostKind,
    pub name: Name,
    pub address: IpAddr,
    /// The source of its reboot notices; on a dual-stack host not `address`.
    pub notice_address: IpAddr,
    pub namespaces: Vec<OwnerNamespace>,
    pub first_process: usize,
    pub last_process: usize,
    /// Its status monitor answers notices but matches none of them (inconsistent DNS).
    pub deaf: bool,
    /// A firewall stops all calls of the server: no notice, no callback, no witness.
    pub firewalled: bool,
    /// A firewall drops segments of unknown connections, so that there is no reset.
    pub drops_unknown: bool,
    /// The same machine under another address, as which it boots the next time.
    pub successor: Option<usize>,
    /// Relies on GRANTED and hardly ever polls.
    pub waits_only: bool,
    /// Its status monitor starts before its notifier and reports the previous state (SM_STAT).
    pub answers_old_state: bool,
    /// `false` if it sends only NM_LOCK.
    pub monitored: bool,

    pub up: bool,
    /// Counts boots: the ground truth that the server must infer.
    pub life: u32,
    /// The NSM state.
    pub state: u32,
    pub xid: u32,
    /// The server state last seen in a notice; 0 after a boot.
    pub server_state: u32,
    /// Counts accepted notices (`h_state` in Linux): a lock granted before one is requested again.
    pub generation: u32,
    pub reclaim: Option<Reclaim>,
    pub announcement: Option<Announcement>,
    /// The notice of this boot was unanswered for 15 minutes.
    pub gave_up_announcing: bool,
    /// Recently answered callbacks: a duplicate packet gets the same answer. (A client without such
    /// a cache denies the copy of a callback that it has accepted, which no server can detect.)
    pub granted: Vec<(AttemptKey, GrantAnswer)>,
    pub never_back: bool,
    /// When it last booted, or its link was last repaired.
    pub healthy_since: Ms,
}

/// The reclaimer thread: reclaims one lock after the other.
pub(crate) struct Reclaim {
    pub left: Vec<ReclaimItem>,
    pub current: Option<(ReclaimItem, Rc<Request>)>,
    pub generation: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReclaimItem {
    pub process: usize,
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    /// Access and deny mode, if it is a share instead of a lock.
    pub share: Option<(Access, Access)>,
}

/// A share that a process believes it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BelievedShare {
    pub access: Access,
    pub deny: Access,
    pub tainted: bool,
    pub given_up: bool,
}

/// A running `sm-notify`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement {
    pub id: u64,
    pub state: u32,
    pub honest: bool,
    pub started: Ms,
    pub pause: Ms,
}

impl Host {
    pub(crate) fn new(
        kind: HostKind,
        name: &str,
        address: IpAddr,
        namespaces: Vec<OwnerNamespace>,
    ) -> Self {
        Self {
            kind,
            name: Name::from(name),
            address,
            notice_address: address,
            namespaces,
            first_process: 0,
            last_process: 0,
            deaf: false,
            firewalled: false,
            drops_unknown: false,
            successor: None,
            waits_only: false,
            answers_old_state: false,
            monitored: true,
            up: true,
            life: 1,
            state: 1,
            xid: 0,
            server_state: 0,
            generation: 0,
            reclaim: None,
            announcement: None,
            gave_up_announcing: false,
            granted: Vec::new(),
            never_back: false,
            healthy_since: 0,
        }
    }

    pub(crate) fn is(&self, address: IpAddr, name: &Name) -> bool {
        self.address == address && self.name == *name
    }

    pub(crate) fn short_name(&self) -> String {
        let name = self.name.to_string();
        name.split('.').next().unwrap_or_default().to_owned()
    }

    pub(crate) fn processes(&self) -> std::ops::Range<usize> {
        self.first_process..self.last_process
    }
}

/// A process on a host, and the locks that it believes it holds.
pub(crate) struct Process {
    pub host: usize,
    pub namespace: usize,
    pub number: u32,
    pub tag: OwnerTag,
    pub belief: [[Strength; CELLS]; FILES],
    /// Released by a rule (I6) without the process being told: belief without a lock is no
    /// violation here.
    pub tainted: [[bool; CELLS]; FILES],
    /// A reclaim failed: the kernel has dropped the lock, the program still relies on it.
    pub given_up: [[bool; CELLS]; FILES],
    pub shares: [Option<BelievedShare>; FILES],
    pub doing: Activity,
    pub call: Option<Rc<Request>>,
    /// The reply to that call has arrived and waits for the reclaimer to finish.
    pub answered: bool,
    /// Counts activities, so that a timer of an earlier one is ignored.
    pub turn: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedLock {
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    pub wait: bool,
    pub block: u64,
    /// The host's generation at the last request.
    pub generation: u32,
    pub blocked: bool,
    /// The decision by which a callback granted it.
    pub granted: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Activity {
    Idle,
    Locking(WantedLock),
    Cancelling(WantedLock),
    Testing,
    Unlocking,
    Sharing { file: usize, access: Access, deny: Access, generation: u32 },
    Unsharing,
    Finished,
}

impl Process {
    pub(crate) fn new(host: usize, namespace: usize, number: u32, tag: OwnerTag) -> Self {
        Self {
            host,
            namespace,
            number,
            tag,
            belief: [[0; CELLS]; FILES],
            tainted: [[false; CELLS]; FILES],
            given_up: [[false; CELLS]; FILES],
            shares: [None; FILES],
            doing: Activity::Idle,
            call: None,
            answered: false,
            turn: 0,
        }
    }

    /// Loses all state.
    pub(crate) fn die(&mut self) {
        let turn = self.turn + 1;
        let fresh = Self::new(self.host, self.namespace, self.number, self.tag.clone());
        let doing = if self.number == FORGED_NUMBER { Activity::Finished } else { Activity::Idle };
        *self = Self { turn, doing, ..fresh };
    }

    /// The lock strength that it relies on in a cell. While a downgrade is under way only the weaker
    /// one, because the server may have applied it before the reply arrives.
    pub(crate) fn relies_on(&self, file: usize, cell: usize) -> Strength {
        let belief = self.belief[file][cell];
        match self.doing {
            Activity::Locking(want) | Activity::Cancelling(want)
                if want.file == file && cells::cells(want.range).contains(&cell) =>
            {
                belief.min(cells::strength(want.mode))
            }
            _ => belief,
        }
    }

    pub(crate) fn believes_anything(&self, file: usize) -> bool {
        self.belief[file].iter().any(|strength| *strength > 0)
    }

    pub(crate) fn forget(&mut self, file: usize, range: Range) {
        for cell in cells::cells(range) {
            self.belief[file][cell] = 0;
            self.tainted[file][cell] = false;
            self.given_up[file][cell] = false;
        }
    }
}
