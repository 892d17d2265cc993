//! The keeper's output. A step is one unit of work: commit every change, then send every message,
//! never the reverse (I2).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::{Handle, Name};
use crate::change::Change;
use crate::event::Event;
use crate::identity::{ClientId, GrantId, NoticeId, Owner, OwnerNamespace, RequestId};
use crate::range::Range;
use crate::request::{Callback, Form, Mode, OwnerName, Question};

/// One unit of work. The driver makes all `changes` durable, in order and atomically, before it
/// sends any of the `messages` (I2); steps are committed and sent in the order in which they were
/// polled.
#[derive(Debug, Default)]
pub struct Step {
    /// To be committed first.
    pub changes: Vec<Change>,
    /// To be sent once the changes are durable.
    pub messages: Vec<Message>,
    /// To be published once the changes are durable.
    pub events: Vec<Event>,
}

impl Step {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.messages.is_empty() && self.events.is_empty()
    }
}

/// Something to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The reply to a request.
    Reply(RequestId, Reply),
    /// A GRANTED callback, to be answered by `Keeper::handle_grant_answer`.
    Grant(Grant),
    /// A notice, to be answered by `Keeper::handle_notice_result`.
    Notice(Notice),
    /// A probe, to be answered by `Keeper::handle_probe_answer`.
    Probe(ClientId, Question),
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The reply to LOCK and NM_LOCK.
    Lock(Outcome),
    /// The reply to UNLOCK: always granted.
    Unlock,
    /// The reply to CANCEL.
    Cancel(CancelOutcome),
    /// The reply to TEST.
    Test(TestResult),
    /// The reply to SHARE.
    Share(Outcome),
    /// The reply to UNSHARE: always granted.
    Unshare,
    /// The void reply to SM_NOTIFY and FREE_ALL.
    Acknowledged,
    /// Send no reply: the request is dropped, and the client may repeat it (for example a report
    /// that was rejected or is undecided, B3.12).
    NoReply,
    /// The reply to SM_MON: success with the server's state, or a refusal.
    Monitor(Result<(), Refusal>),
    /// The reply to SM_UNMON and SM_UNMON_ALL.
    Unmonitor,
    /// The result of `Keeper::handle_register`.
    Registered(Result<ClientId, Refusal>),
    /// The result of `Keeper::handle_unregister`: whether there was such a client.
    Unregistered(bool),
    /// The result of an operator's action.
    Operator(Result<OperatorOutcome, OperatorError>),
}

/// The decision on a LOCK or SHARE. `Denied` is never the answer to a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The owner has it.
    Granted,
    /// Another owner has it.
    Denied,
    /// Queued; a GRANTED callback will follow.
    Blocked,
    /// Refused until the grace period is over.
    Grace,
    /// Waiting would close a cycle of waiting owners.
    Deadlock,
    /// Refused for a reason other than a conflict.
    Refused(Refusal),
}

/// Why a request was refused; each limit has its own value (I10, B7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// `Limits::locks` is reached.
    TooManyLocks,
    /// `Limits::locks_per_file` is reached.
    TooManyLocksOnFile,
    /// `Limits::locks_per_client` is reached.
    TooManyLocksOfHost,
    /// `Limits::locks_per_address` is reached.
    TooManyLocksOfAddress,
    /// `Limits::waiters_per_file` is reached.
    TooManyWaitersOnFile,
    /// `Limits::clients` is reached and no client may be evicted.
    TooManyClients,
    /// `Limits::clients_per_address` is reached and no host there may be evicted.
    TooManyClientsOfAddress,
    /// `Limits::registrations_per_address` is reached.
    TooManyRegistrations,
    /// A client of NLM or NSM cannot be registered by an embedding program.
    OwnProtocol,
    /// Too many requests are parked.
    TooManyParked,
    /// `Limits::parked_per_address` is reached.
    TooManyParkedOfAddress,
    /// An operator has shut the host out.
    Fenced,
    /// The caller cancelled or unlocked while its request was parked.
    Withdrawn,
    /// Sent by an incarnation that is known to be gone.
    StaleRequest,
}

/// The result of CANCEL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The request no longer waits, or never did.
    Done,
    /// The lock was granted already; the client must unlock.
    TooLate,
}

/// The result of TEST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestResult {
    /// The lock could be granted.
    Free,
    /// Another owner holds a conflicting lock.
    Held(Holder),
    /// Unknown until the grace period is over.
    Grace,
}

/// The holder of a conflicting lock, as TEST reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The lock owner on its host.
    pub owner: OwnerName,
    /// In bytes; may extend to the end of the file.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
}

/// A GRANTED callback: the lock now belongs to the waiter. Repeated until answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Carried back in the answer.
    pub id: GrantId,
    /// The destination address.
    pub to: IpAddr,
    /// The owner that waited. Its namespace determines the source address, transport and version.
    pub owner: Arc<Owner>,
    /// The client's own name for itself (`caller_name`).
    pub name: Name,
    /// The handle bytes as the client sent them.
    pub handle: Handle,
    /// In bytes; may extend to the end of the file.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
    /// The form of the callback.
    pub form: Form,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Since when the request waited (`Time::mono`).
    pub since: Duration,
}

impl Grant {
    /// How the client reaches the server, and so how the callback is sent.
    pub fn namespace(&self) -> OwnerNamespace {
        self.owner.namespace
    }
}

/// A notice that the server or a watched host is in a new state. One attempt sends every body once
/// and has one result: answered if any body was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Carried back in the result.
    pub id: NoticeId,
    /// The client notified; `None` if the address alone is known (B4.93, B4.94).
    pub client: Option<ClientId>,
    /// The destination address.
    pub to: IpAddr,
    /// The new NSM state.
    pub state: u32,
    /// What to call.
    pub target: NoticeTarget,
    /// The number of this attempt, from 1.
    pub attempt: u32,
}

/// What a notice calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeTarget {
    /// SM_NOTIFY to the host's status monitor: from each server address the host used, or any if
    /// unspecified, under every name by which it may know the server.
    Host(Arc<[(IpAddr, Name)]>),
    /// A registrant's own procedure: `name` is in a new state. After the server's restart it is the
    /// server's name, after a reboot of the watched host the name that was registered.
    #[allow(missing_docs, reason = "as in `change::Registrant`")]
    Registrant { callback: Callback, name: Name, private: [u8; 16] },
}

/// What an operator's action did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorOutcome {
    /// Locks and shares released.
    pub released: u64,
}

/// Why an operator's action was not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperatorError {
    /// No lock or share has this id.
    NoSuchLock,
    /// No client of the required kind has this id.
    NoSuchClient,
    /// `Forget` of a client that holds or awaits something, is fenced, or has an unfinished notice.
    Busy,
    /// There is no grace period to end.
    NotInGrace,
    /// `ConfirmReboot` without `force` of a host that has no pending report.
    NoReport,
}

impl fmt::Display for OperatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchLock => "no lock or share has this id; it may be released already",
            Self::NoSuchClient => "no client of this kind has this id",
            Self::Busy => {
                "the client holds or awaits locks, is fenced, or is being notified; release its \
                 locks first"
            }
            Self::NotInGrace => "there is no grace period to end",
            Self::NoReport => "the host has not reported a reboot; force it if it is gone",
        })
    }
}

impl std::error::Error for OperatorError {}
