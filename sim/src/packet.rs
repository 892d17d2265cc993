//! What travels, and beside it what is true: the server sees the first half of a `Request` only.

use std::net::IpAddr;
use std::rc::Rc;

use keeper::bytes::{Name, OwnerTag};
use keeper::identity::{Lane, NoticeId};
use keeper::range::Range;
use keeper::request::{Access, Form, Mode};
use keeper::step::{Grant, Reply};

use crate::host::Host;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Lock { file: usize, range: Range, mode: Mode, wait: bool, reclaim: bool, state: u32 },
    Test { file: usize, range: Range, mode: Mode },
    Unlock { file: usize, range: Range },
    Cancel { file: usize, range: Range, mode: Mode },
    Share { file: usize, access: Access, deny: Access, reclaim: bool },
    Unshare { file: usize },
    FreeAll { name: Name },
    Notify { name: Name, state: u32 },
    Monitor { watched: Name },
    Unmonitor { watched: Option<Name> },
}

#[derive(Clone, Debug)]
pub struct Request {
    pub call: Call,
    pub xid: u32,
    pub from: IpAddr,
    pub name: Name,
    pub lane: Lane,
    pub number: u32,
    pub tag: OwnerTag,
    pub form: Form,
    pub monitored: bool,
    pub stateless: bool,
    pub truth: Truth,
}

impl Request {
    /// Whether its source is an address of this host.
    pub fn comes_from(&self, host: &Host) -> bool {
        self.from == host.address || self.from == host.notice_address
    }
}

/// Who really sent it, and why.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    pub host: usize,
    pub life: u32,
    /// The process that waits for the answer.
    pub process: Option<usize>,
    /// Which wait of that process this LOCK belongs to: a real client cannot tell a grant of an
    /// earlier wait from one of this, so the world keeps those ghosts out by this number.
    pub block: u64,
    /// False for what an adversary, or a status monitor restarted in a container, makes up.
    pub honest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Keeper(Reply),
    /// The store is stalled (R5.4).
    NoLocks,
}

#[derive(Clone, Debug)]
pub enum ToHost {
    /// `decided` numbers the keeper's decision: a repeat from the replay cache is old news.
    Answer {
        request: Rc<Request>,
        answer: Answer,
        decided: u64,
    },
    Grant {
        grant: Rc<Grant>,
        block: u64,
        decided: u64,
    },
    Notice {
        notice: NoticeId,
        attempt: u32,
        state: u32,
    },
}
