//! Packets. The server sees all of a [`Request`] except its [`GroundTruth`].

use std::net::IpAddr;
use std::rc::Rc;

use keeper::bytes::{Name, OwnerTag};
use keeper::identity::{NoticeId, OwnerNamespace};
use keeper::range::Range;
use keeper::request::{Access, Form, Mode};
use keeper::step::{Grant, Reply};

use crate::host::Host;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
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
pub(crate) struct Request {
    pub call: Call,
    pub xid: u32,
    pub from: IpAddr,
    pub name: Name,
    pub namespace: OwnerNamespace,
    pub number: u32,
    pub tag: OwnerTag,
    pub form: Form,
    pub monitored: bool,
    pub stateless: bool,
    pub truth: GroundTruth,
}

impl Request {
    /// Whether the source is an address of this host.
    pub(crate) fn comes_from(&self, host: &Host) -> bool {
        self.from == host.address || self.from == host.notice_address
    }

    /// The file and range that it is about.
    pub(crate) fn target(&self) -> Option<(usize, Range)> {
        match self.call {
            Call::Lock { file, range, .. }
            | Call::Test { file, range, .. }
            | Call::Unlock { file, range }
            | Call::Cancel { file, range, .. } => Some((file, range)),
            _ => None,
        }
    }
}

/// Who really sent a request, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroundTruth {
    pub host: usize,
    pub life: u32,
    /// The process that awaits the reply.
    pub process: Option<usize>,
    /// The wait that this LOCK belongs to. A real client cannot tell a late grant of an earlier
    /// wait from one of this; the world excludes those by this number.
    pub block: u64,
    /// `false` if forged by an adversary, or sent by a status monitor restarted in a container.
    pub honest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Keeper(Reply),
    /// The store is stalled (B5.4).
    NoLocks,
}

#[derive(Clone, Debug)]
pub(crate) enum ToHost {
    /// `decided` is the number of the decision: a reply from the duplicate request cache is old.
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
