//! What can be asked of the keeper. Protocol versions and forms are gone by the time a request is
//! here: one form for each question.

use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::{FileKey, Handle, Name, OwnerTag};
use crate::identity::{Caller, ClientId, Incarnation, LockId, RequestId, Transport};
use crate::range::Range;

/// `Shared < Exclusive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    Shared,
    Exclusive,
}

impl Mode {
    pub fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }
}

/// Who on the calling host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerName {
    pub number: u32,
    pub tag: OwnerTag,
}

/// How the client wants to be called back: it is told in the form that it used itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A call that is answered (GRANTED).
    Call,
    /// A message that is answered by another message (GRANTED_MSG, GRANTED_RES).
    Message,
}

/// LOCK and NM_LOCK.
#[derive(Clone, Debug)]
pub struct LockRequest {
    pub id: RequestId,
    pub caller: Caller,
    pub owner: OwnerName,
    pub file: FileKey,
    pub handle: Handle,
    pub range: Range,
    pub mode: Mode,
    /// Wait for the lock if somebody else has it.
    pub wait: bool,
    /// "I held this before you restarted."
    pub reclaim: bool,
    /// False for NM_LOCK: the host is not told of our restarts.
    pub monitored: bool,
    /// The NSM state that the request carries; reclaims carry none.
    pub incarnation: Incarnation,
    pub form: Form,
    /// The export's `stateless_clients`: a new connection after a reset is a reboot (R6.2).
    pub stateless: bool,
    /// Since when the connection that it came by is open (`Time::mono`); `None` if it came without
    /// one. A connection that is younger than a reboot carries nothing of the kernel before.
    pub connected: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct TestRequest {
    pub id: RequestId,
    pub caller: Caller,
    pub owner: OwnerName,
    pub file: FileKey,
    pub range: Range,
    pub mode: Mode,
}

#[derive(Clone, Debug)]
pub struct UnlockRequest {
    pub id: RequestId,
    pub caller: Caller,
    pub owner: OwnerName,
    pub file: FileKey,
    pub range: Range,
}

/// Gives up waiting. `mode` and `range` are those of the request that waits.
#[derive(Clone, Debug)]
pub struct CancelRequest {
    pub id: RequestId,
    pub caller: Caller,
    pub owner: OwnerName,
    pub file: FileKey,
    pub range: Range,
    pub mode: Mode,
}

/// A set of {read, write}: what a share wants to do, or what it denies to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    pub read: bool,
    pub write: bool,
}

impl Access {
    pub fn meets(self, other: Access) -> bool {
        (self.read && other.read) || (self.write && other.write)
    }
}

#[derive(Clone, Debug)]
pub struct ShareRequest {
    pub id: RequestId,
    pub caller: Caller,
    pub tag: OwnerTag,
    pub file: FileKey,
    pub access: Access,
    pub deny: Access,
    pub reclaim: bool,
}

#[derive(Clone, Debug)]
pub struct UnshareRequest {
    pub id: RequestId,
    pub caller: Caller,
    pub tag: OwnerTag,
    pub file: FileKey,
}

/// Where a call came from that names its host in its arguments only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub address: IpAddr,
    /// Over UDP anybody can send in another's name.
    pub transport: Transport,
    /// It came from this machine itself.
    pub local: bool,
}

/// SM_NOTIFY as it came: `source` claims that the machine called `name` is now in `incarnation`.
#[derive(Clone, Debug)]
pub struct RebootNotice {
    pub id: RequestId,
    pub source: Source,
    pub name: Name,
    pub incarnation: Incarnation,
}

/// FREE_ALL as it came.
#[derive(Clone, Debug)]
pub struct FreeAllRequest {
    pub id: RequestId,
    pub source: Source,
    pub name: Name,
}

/// Where and how an SM_MON registrant wants to be told (`my_id`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Callback {
    pub name: Name,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

#[derive(Clone, Debug)]
pub struct MonitorRequest {
    pub id: RequestId,
    pub source: Source,
    pub callback: Callback,
    /// Whom to watch (`mon_name`).
    pub watched: Name,
    pub private: [u8; 16],
}

/// SM_UNMON, or SM_UNMON_ALL when `watched` is `None`.
#[derive(Clone, Debug)]
pub struct UnmonitorRequest {
    pub id: RequestId,
    pub source: Source,
    pub callback: Callback,
    pub watched: Option<Name>,
}

/// What the peer said to a GRANTED callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantAnswer {
    Accepted,
    /// "I do not wait for that": the grant is undone, and nothing else (I6).
    Denied,
    /// Any other status, or no answer in time: tried again. The peer may have taken it.
    Unclear,
    /// It certainly never reached the peer (no port, no connection): tried again.
    Unsent,
}

/// What became of one attempt to deliver a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeResult {
    Answered,
    /// The peer did not answer.
    Failed,
    /// We could not even send (no route, address not up): not an attempt (R2.2).
    Unsent,
}

/// What the keeper wants to know about a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// Does the kernel that took the locks of this state still live? Asked of connections older than
    /// the question; a new connection proves nothing.
    SameKernel(Incarnation),
    /// Does anybody answer there (NLM NULL), on whatever connection?
    Reachable,
    /// Which state does its status monitor say it is in (SM_STAT)?
    State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// It acknowledged.
    Alive,
    /// It answered with a reset: that kernel is gone. This is proof.
    Gone,
    /// Nothing came in the time there was, or there was nothing to ask.
    Silent,
    /// The answer to `Question::State`.
    InState(Incarnation),
}

/// Something a person decided, with that person's name for the record.
#[derive(Clone, Debug)]
pub struct OperatorRequest {
    pub id: RequestId,
    pub by: Name,
    pub action: OperatorAction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorAction {
    Release(LockId),
    /// Drops all it holds and refuses its locks (the server refuses its writes).
    Fence(ClientId),
    Unfence(ClientId),
    /// Accepts that this host rebooted: its pending notice if there is one.
    ConfirmReboot(ClientId),
    EndGrace,
    /// Sends the notice of our last restart again.
    Renotify(ClientId),
    /// Forgets a registration; refused while it holds something.
    Forget(ClientId),
}
