//! A machine that locks: its kernel, its processes and what they believe. What it does is in
//! `host/lockd.rs` (the lock client) and `host/statd.rs` (notices, boots, reclaims).

mod lockd;
mod sharer;
mod statd;

use std::net::IpAddr;
use std::rc::Rc;

use keeper::bytes::{Name, OwnerTag};
use keeper::identity::Lane;
use keeper::range::Range;
use keeper::request::{Access, GrantAnswer, Mode};

use crate::cells::{self, CELLS, FILES, Strength};
use crate::engine::Answered;
use crate::packet::Request;
use crate::queue::Ms;
use crate::scenario::{FORGED_NUMBER, Kind};

pub struct Host {
    pub kind: Kind,
    pub name: Name,
    pub address: IpAddr,
    /// Where its reboot notices come from; another address on a dual-stack host.
    pub notice_address: IpAddr,
    pub lanes: Vec<Lane>,
    pub first_process: usize,
    pub last_process: usize,
    /// Its status monitor answers notices but matches none of them (DNS that disagrees).
    pub deaf: bool,
    /// A firewall lets none of our calls through: no notice, no callback, no witness.
    pub firewalled: bool,
    /// A firewall drops segments of connections that it does not know, instead of a reset.
    pub drops_unknown: bool,
    /// The same machine under another address: as that it boots the next time.
    pub successor: Option<usize>,
    /// It waits for GRANTED and hardly ever asks again.
    pub waits_only: bool,
    /// Its status monitor starts before its notifier, and answers the state before (SM_STAT).
    pub answers_old_state: bool,
    /// False if it only ever sends NM_LOCK.
    pub monitored: bool,

    pub up: bool,
    /// Counts boots: the truth that the server has to guess.
    pub life: u32,
    /// Its NSM state.
    pub state: u32,
    pub xid: u32,
    /// The server state last seen in a notice; 0 after a boot.
    pub server_state: u32,
    /// Counts accepted notices (`h_state`): a grant from before one is asked for again.
    pub generation: u32,
    pub reclaim: Option<Reclaim>,
    pub announcement: Option<Announcement>,
    /// Its notice of this boot went unanswered for a quarter of an hour.
    pub gave_up_announcing: bool,
    /// Callbacks answered lately: a repeated packet gets the same answer. (A client without this
    /// memory denies the copy of what it has just accepted; over UDP no server can tell.)
    pub granted: Vec<(Answered, GrantAnswer)>,
    pub never_back: bool,
    /// When it last came up, or its link or its ears were last mended.
    pub healthy_since: Ms,
}

/// The reclaimer thread: one lock after the other.
pub struct Reclaim {
    pub left: Vec<Held>,
    pub current: Option<(Held, Rc<Request>)>,
    pub generation: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub process: usize,
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    /// A share instead of a lock.
    pub share: Option<(Access, Access)>,
}

/// A share that a process relies on: what it does, and what it denies to others.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    pub access: Access,
    pub deny: Access,
    pub tainted: bool,
    pub given_up: bool,
}

/// `sm-notify` at work.
#[derive(Clone, Copy, Debug)]
pub struct Announcement {
    pub id: u64,
    pub state: u32,
    pub honest: bool,
    pub started: Ms,
    pub pause: Ms,
}

impl Host {
    pub fn new(kind: Kind, name: &str, address: IpAddr, lanes: Vec<Lane>) -> Self {
        Self {
            kind,
            name: Name::from(name),
            address,
            notice_address: address,
            lanes,
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

    pub fn is(&self, address: IpAddr, name: &Name) -> bool {
        self.address == address && self.name == *name
    }

    pub fn short_name(&self) -> String {
        let name = self.name.to_string();
        name.split('.').next().unwrap_or_default().to_owned()
    }

    pub fn processes(&self) -> std::ops::Range<usize> {
        self.first_process..self.last_process
    }
}

/// A process on a host, and what it relies on.
pub struct Process {
    pub host: usize,
    pub lane: usize,
    pub number: u32,
    pub tag: OwnerTag,
    pub belief: [[Strength; CELLS]; FILES],
    /// The server took it away by a rule that allows that (I6), and nobody told the process.
    pub tainted: [[bool; CELLS]; FILES],
    /// A reclaim failed; the kernel has no record of it any more, the program still relies on it.
    pub given_up: [[bool; CELLS]; FILES],
    pub shares: [Option<Sharing>; FILES],
    pub doing: Doing,
    pub call: Option<Rc<Request>>,
    /// The answer to that call is in the kernel, and waits for the reclaimer to be done.
    pub answered: bool,
    /// Counts what it does, so that a timer of something past does nothing.
    pub turn: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub file: usize,
    pub range: Range,
    pub mode: Mode,
    pub wait: bool,
    pub block: u64,
    /// The host's generation when this was last asked for.
    pub generation: u32,
    pub blocked: bool,
    /// A callback granted it; the number of the decision.
    pub granted: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub enum Doing {
    Idle,
    Locking(Want),
    Cancelling(Want),
    Testing,
    Unlocking,
    Sharing { file: usize, access: Access, deny: Access, generation: u32 },
    Unsharing,
    Finished,
}

impl Process {
    pub fn new(host: usize, lane: usize, number: u32, tag: OwnerTag) -> Self {
        Self {
            host,
            lane,
            number,
            tag,
            belief: [[0; CELLS]; FILES],
            tainted: [[false; CELLS]; FILES],
            given_up: [[false; CELLS]; FILES],
            shares: [None; FILES],
            doing: Doing::Idle,
            call: None,
            answered: false,
            turn: 0,
        }
    }

    /// All it knew, it knew in memory.
    pub fn die(&mut self) {
        let turn = self.turn + 1;
        let fresh = Self::new(self.host, self.lane, self.number, self.tag.clone());
        let doing = if self.number == FORGED_NUMBER { Doing::Finished } else { Doing::Idle };
        *self = Self { turn, doing, ..fresh };
    }

    /// What it relies on in a cell. Who asks for less has given up the rest already: the server may
    /// act on that before the answer is back.
    pub fn relies_on(&self, file: usize, cell: usize) -> Strength {
        let belief = self.belief[file][cell];
        match self.doing {
            Doing::Locking(want) | Doing::Cancelling(want)
                if want.file == file && cells::cells(want.range).contains(&cell) =>
            {
                belief.min(cells::strength(want.mode))
            }
            _ => belief,
        }
    }

    pub fn believes_anything(&self, file: usize) -> bool {
        self.belief[file].iter().any(|strength| *strength > 0)
    }

    pub fn forget(&mut self, file: usize, range: Range) {
        for cell in cells::cells(range) {
            self.belief[file][cell] = 0;
            self.tainted[file][cell] = false;
            self.given_up[file][cell] = false;
        }
    }
}
