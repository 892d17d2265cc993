//! What the keeper wants done. A step is one unit of work: commit every change, then send every
//! message, never the reverse (I2). That order is the whole contract with the driver.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::{Handle, Name};
use crate::change::Change;
use crate::event::Event;
use crate::identity::{ClientId, GrantId, Lane, NoticeId, Owner, RequestId};
use crate::range::Range;
use crate::request::{Callback, Form, Mode, OwnerName, Question};

#[derive(Debug, Default)]
pub struct Step {
    pub changes: Vec<Change>,
    pub messages: Vec<Message>,
    pub events: Vec<Event>,
}

impl Step {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.messages.is_empty() && self.events.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Reply(RequestId, Reply),
    Grant(Grant),
    Notice(Notice),
    /// To be answered by `Keeper::handle_probed`.
    Probe(ClientId, Question),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Lock(Outcome),
    Unlock,
    Cancel(Cancelled),
    Test(Tested),
    /// SHARE; UNSHARE is always granted.
    Share(Outcome),
    Unshare,
    /// SM_NOTIFY and FREE_ALL: the void reply.
    Heard,
    /// Nothing is sent; the request is over (a notice that was refused or is undecided, R6.1).
    Nothing,
    /// SM_MON: our state, or why not.
    Monitor(Result<(), Refusal>),
    /// SM_UNMON and SM_UNMON_ALL.
    Unmonitor,
    Operator(Result<OperatorDone, OperatorError>),
}

/// A denial is a value. `Denied` is never the answer to a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Granted,
    Denied,
    Blocked,
    /// Not before the grace period is over.
    Grace,
    Deadlock,
    Refused(Refusal),
}

/// Every bound has its name (I10, R3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    TooManyLocks,
    TooManyLocksOnFile,
    TooManyLocksOfHost,
    TooManyWaitersOnFile,
    TooManyClients,
    TooManyRegistrations,
    /// Too many requests are held back for a probe already.
    TooManyParked,
    Fenced,
    /// The caller cancelled or unlocked while its request was held back.
    Withdrawn,
    /// A late packet of an incarnation that is known to be gone.
    Ghost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It waits no more, or never did.
    Done,
    /// It was granted already: the client must unlock.
    TooLate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tested {
    Free,
    Held(Holder),
    Grace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub owner: OwnerName,
    pub range: Range,
    pub mode: Mode,
}

/// "The lock you wait for is yours." Sent again until answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub id: GrantId,
    pub to: IpAddr,
    /// Who waits. Its lane says from which of our addresses, by which transport and version.
    pub owner: Arc<Owner>,
    /// The client's own name for itself (`caller_name`).
    pub name: Name,
    pub handle: Handle,
    pub range: Range,
    pub mode: Mode,
    pub form: Form,
    pub attempt: u32,
    /// Since when it waited (`Time::mono`).
    pub since: Duration,
}

impl Grant {
    pub fn lane(&self) -> Lane {
        self.owner.lane
    }
}

/// "The machine called so is now in that state." One attempt sends every body once and reports one
/// result: answered if any was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub id: NoticeId,
    pub client: ClientId,
    pub to: IpAddr,
    pub state: u32,
    pub target: NoticeTarget,
    pub attempt: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeTarget {
    /// SM_NOTIFY to the host's own status monitor, from each of our addresses that it used, under
    /// every name that it may know us by.
    Host(Arc<[(IpAddr, Name)]>),
    /// A registrant's own procedure, with what it asked for.
    Registrant { callback: Callback, watched: Name, private: [u8; 16] },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorDone {
    /// Locks and shares released.
    pub released: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperatorError {
    NoSuchLock,
    NoSuchClient,
    /// `Forget` of a client that holds or awaits something, is fenced, or must still be told of our
    /// restart.
    Busy,
    NotInGrace,
}
