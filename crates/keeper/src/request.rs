//! The keeper's inputs. Protocol versions and message forms are translated by the server; there is
//! one form of each request here.

use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::{FileKey, Handle, Name, OwnerTag};
use crate::change::Protocol;
use crate::identity::{Caller, ClientId, HostKey, Incarnation, LockId, RequestId, Transport};
use crate::range::Range;

/// The mode of a lock; `Shared < Exclusive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Excludes exclusive locks of other owners.
    Shared,
    /// Excludes all locks of other owners.
    Exclusive,
}

impl Mode {
    /// Whether locks of these modes exclude each other.
    pub fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }
}

/// A lock owner on the calling host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerName {
    /// The client's number for the owner (`svid`).
    pub number: u32,
    /// The owner's opaque part (`oh`).
    pub tag: OwnerTag,
}

/// The form of callback that the client expects: the one it used itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A call with a reply (GRANTED).
    Call,
    /// A message answered by another message (GRANTED_MSG, GRANTED_RES).
    Message,
}

/// LOCK and NM_LOCK.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// The host, and how it reached the server.
    pub caller: Caller,
    /// The lock owner on its host.
    pub owner: OwnerName,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
    /// The client's handle bytes, for the callback.
    pub handle: Handle,
    /// In bytes; may extend to the end of the file.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
    /// Queue the request if another owner holds the lock.
    pub wait: bool,
    /// The owner held this lock before the server restarted.
    pub reclaim: bool,
    /// Of a reclaim: the file's export admits the caller's address (B4.91).
    pub admitted: bool,
    /// False for NM_LOCK: the host is not notified of restarts.
    pub monitored: bool,
    /// The NSM state that the request carries; reclaims carry none.
    pub incarnation: Incarnation,
    /// The form of the callback.
    pub form: Form,
    /// The export's `stateless_clients`: a new connection after a reset is a reboot (B3.15).
    pub stateless: bool,
    /// When the request's connection was opened (`Time::mono`); `None` without a connection. A
    /// connection younger than a reboot carries nothing of the earlier kernel.
    pub connected: Option<Duration>,
}

/// TEST.
#[derive(Clone, Debug)]
pub struct TestRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// The host, and how it reached the server.
    pub caller: Caller,
    /// The lock owner on its host.
    pub owner: OwnerName,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
    /// In bytes; may extend to the end of the file.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
}

/// UNLOCK.
#[derive(Clone, Debug)]
pub struct UnlockRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// The host, and how it reached the server.
    pub caller: Caller,
    /// The lock owner on its host.
    pub owner: OwnerName,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
    /// In bytes; may extend to the end of the file.
    pub range: Range,
}

/// CANCEL. `mode` and `range` are those of the queued request.
#[derive(Clone, Debug)]
pub struct CancelRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// The host, and how it reached the server.
    pub caller: Caller,
    /// The lock owner on its host.
    pub owner: OwnerName,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
    /// In bytes; may extend to the end of the file.
    pub range: Range,
    /// Shared or exclusive.
    pub mode: Mode,
}

/// A set of {read, write}: the access a share wants, or denies to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

impl Access {
    /// Whether they have a kind of access in common.
    pub fn meets(self, other: Access) -> bool {
        (self.read && other.read) || (self.write && other.write)
    }
}

/// SHARE.
#[derive(Clone, Debug)]
pub struct ShareRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// The host, and how it reached the server.
    pub caller: Caller,
    /// The owner's opaque part (`oh`).
    pub tag: OwnerTag,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
    /// The access its owner wants.
    pub access: Access,
    /// The access denied to others.
    pub deny: Access,
    /// The owner held this share before the server restarted.
    pub reclaim: bool,
    /// As in `LockRequest`.
    pub admitted: bool,
}

/// UNSHARE.
#[derive(Clone, Debug)]
pub struct UnshareRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// The host, and how it reached the server.
    pub caller: Caller,
    /// The owner's opaque part (`oh`).
    pub tag: OwnerTag,
    /// The file, whatever handle it was reached by.
    pub file: FileKey,
}

/// The origin of a call that names its host only in its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source address.
    pub address: IpAddr,
    /// The source address of a datagram can be forged.
    pub transport: Transport,
    /// The call came from this machine.
    pub local: bool,
    /// It came from a port below 1024, which users of a machine cannot use.
    pub reserved: bool,
}

/// SM_NOTIFY: `source` reports that the machine `name` is now in state `incarnation`.
#[derive(Clone, Debug)]
pub struct RebootNotice {
    /// Carried back in the reply.
    pub id: RequestId,
    /// Where the call came from.
    pub source: Source,
    /// The machine reported to have rebooted (`mon_name`).
    pub name: Name,
    /// Its new state.
    pub incarnation: Incarnation,
}

/// FREE_ALL: `source` reports that the machine `name` holds no locks.
#[derive(Clone, Debug)]
pub struct FreeAllRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// Where the call came from.
    pub source: Source,
    /// The machine that holds no locks.
    pub name: Name,
}

/// Where and how an SM_MON registrant wants to be notified (`my_id`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Callback {
    /// The registrant's host name.
    pub name: Name,
    /// RPC program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Its procedure.
    pub procedure: u32,
}

/// SM_MON.
#[derive(Clone, Debug)]
pub struct MonitorRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// Where the call came from.
    pub source: Source,
    /// The server address that was called.
    pub ours: IpAddr,
    /// The registrant's procedure (`my_id`).
    pub callback: Callback,
    /// The machine to watch (`mon_name`).
    pub watched: Name,
    /// Passed back unchanged (`priv`).
    pub private: [u8; 16],
}

/// SM_UNMON, or SM_UNMON_ALL when `watched` is `None`.
#[derive(Clone, Debug)]
pub struct UnmonitorRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// Where the call came from.
    pub source: Source,
    /// The registrant's procedure (`my_id`).
    pub callback: Callback,
    /// The machine no longer to be watched; `None` for all.
    pub watched: Option<Name>,
}

/// A client of a protocol that an embedding program serves.
#[derive(Clone, Debug)]
pub struct RegisterRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// Neither NLM nor NSM.
    pub protocol: Protocol,
    /// The client's address and its name for itself.
    pub client: HostKey,
    /// Its state, in the terms of the protocol; 0 if unknown.
    pub incarnation: Incarnation,
}

/// Such a client leaves.
#[derive(Clone, Debug)]
pub struct UnregisterRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// As it was registered.
    pub protocol: Protocol,
    /// As it was registered.
    pub client: HostKey,
}

/// The peer's answer to a GRANTED callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantAnswer {
    /// The peer has taken the lock.
    Accepted,
    /// The peer does not wait for this lock: the grant is undone, and nothing else (I6).
    Denied,
    /// Any other status, or no answer in time. The peer may have taken the lock; the callback is
    /// repeated.
    Unclear,
    /// The callback certainly did not reach the peer (no port, no connection); it is repeated.
    Unsent,
}

/// The result of one attempt to deliver a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeResult {
    /// The peer answered.
    Answered,
    /// The peer did not answer.
    Failed,
    /// Nothing could be sent (no route, address not up); does not count as an attempt (B4.3).
    Unsent,
}

/// A question about a host, carried out by the server as a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// Is the kernel that took the locks of this state alive? Only connections older than the
    /// question count; a new connection proves nothing.
    SameKernel(Incarnation),
    /// Does the host answer NLM NULL, on any connection?
    Reachable,
    /// Which state does its status monitor report (SM_STAT)?
    State,
}

/// The answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// The host acknowledged.
    Alive,
    /// The host answered with a reset: that kernel is gone. This is proof.
    Gone,
    /// No answer in time, or no connection to ask on.
    Silent,
    /// The answer to `Question::State`.
    InState(Incarnation),
}

/// An operator's action, with the operator's name for the record.
#[derive(Clone, Debug)]
pub struct OperatorRequest {
    /// Carried back in the reply.
    pub id: RequestId,
    /// The operator's name.
    pub by: Name,
    /// What to do.
    pub action: OperatorAction,
}

/// What an operator may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorAction {
    /// Releases one lock or share.
    Release(LockId),
    /// Releases everything the host holds and refuses its locks; the server refuses its writes.
    Fence(ClientId),
    /// Readmits a fenced host.
    Unfence(ClientId),
    /// Accepts the host's pending report: releases what it held when the report arrived. Without
    /// one, releases everything if `force` is set, and is refused otherwise.
    #[allow(missing_docs, reason = "explained above")]
    ConfirmReboot { client: ClientId, force: bool },
    /// Ends grace and the recovery window now.
    EndGrace,
    /// Sends the notice of the server's last restart again.
    Renotify(ClientId),
    /// Sends it to addresses, whether or not a client is registered there (B4.94).
    NotifyAddresses(Vec<IpAddr>),
    /// Unregisters a client; refused while it holds something.
    Forget(ClientId),
}
