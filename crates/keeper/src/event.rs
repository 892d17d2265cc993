//! Events for operators. Taking and giving up locks emits none: the changes of a step show that
//! already, and the hot path pays for nothing else.

use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::Exactness;
use crate::identity::{ClientId, Epoch, GrantId, Incarnation, LockId, NoticeId};
use crate::range::Range;
use crate::request::Mode;
use crate::step::Refusal;

/// Something an operator may want to know. Events are informative: no decision depends on one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are named by their types")]
pub enum Event {
    /// The server started, with what it recovered.
    Started { epoch: Epoch, clients: u64, locks: u64, exactness: Exactness },
    /// A grace period began; `hosts` are expected to reclaim.
    GraceStarted { hosts: u64 },
    /// The grace period ended.
    GraceEnded { why: GraceEnd },
    /// The server stopped cleanly.
    Stopped,
    /// A client is now monitored.
    Registered { client: ClientId },
    /// A monitored client was removed.
    Unregistered { client: ClientId },
    /// A reboot was accepted.
    Rebooted { client: ClientId, to: Incarnation, proof: Proof, released: u64 },
    /// A machine that is no lock host rebooted; the registrants that watch it are notified.
    WatchedRebooted { source: IpAddr, name: Name, to: Incarnation, registrants: u64 },
    /// A reboot report was not accepted; it waits for a repeat or an operator.
    RebootPending { client: ClientId, to: Incarnation, why: Rejection },
    /// A FREE_ALL was not accepted; it waits for a repeat or an operator.
    FreeAllPending { client: ClientId, source: IpAddr, why: Rejection },
    /// A reboot report concerned no registered host.
    NoticeUnknown { source: IpAddr, name: Name },
    /// The host shows signs of a reboot, but no proof.
    Suspect { client: ClientId, was: Incarnation, is: Incarnation },
    /// The states of the host's LOCKs went back and forth: these may be two machines with one name
    /// behind one address.
    StatesAlternate { client: ClientId, one: Incarnation, other: Incarnation },
    /// The host was not heard in the whole recovery window.
    Crashed { client: ClientId },
    /// A client of an embedding program's protocol was not heard in its recovery window.
    NotReconnected { client: ClientId },
    /// Locks or shares were released without their owner's request.
    Released { client: ClientId, count: u64, why: Release },
    /// An operator released a lock or share.
    ReleasedByOperator { client: ClientId, id: LockId, what: ReleasedItem, by: Name },
    /// A request of an incarnation that is gone was refused.
    StaleRequest { client: ClientId, incarnation: Incarnation },
    /// The host has reclaimed everything it held before the restart.
    Reclaimed { client: ClientId },
    /// A reclaim was denied.
    ReclaimRefused { client: ClientId },
    /// The host reclaimed what an exact store does not have: the store may have lost it.
    ReclaimUnrecorded { client: ClientId },
    /// An open start registered so many hosts that only the copy of the roster has.
    RosterCopyUsed { hosts: u64 },
    /// A roster or open grace ended, and the host was not heard: so many of its locks and shares
    /// are releasable from here on.
    Releasable { client: ClientId, count: u64 },
    /// The host's owners moved to another address of the server, with so many locks and shares.
    OwnersMoved { client: ClientId, from: IpAddr, to: IpAddr, count: u64 },
    /// The host reclaims or unlocks, through this address, what more than one owner under former
    /// addresses may hold; or owners that would become one hold the same. Nothing moved.
    OwnersAmbiguous { client: ClientId, at: IpAddr },
    /// A request was refused because waiting would have closed a cycle.
    Deadlock { client: ClientId },
    /// A lock given to this host closed a cycle of waiting owners. A reply can no longer say so: the
    /// next request in the cycle that is repeated is refused.
    CycleClosed { client: ClientId },
    /// The client denied a GRANTED callback; the grant was undone.
    GrantUndone { client: ClientId, grant: GrantId },
    /// A waiter that does not answer was passed over; it keeps its place.
    PassedOver { client: ClientId },
    /// An attempt to deliver a notice was started; `client` as in `step::Notice`.
    NoticeSent { notice: NoticeId, client: Option<ClientId>, to: IpAddr, attempt: u32 },
    /// The peer answered the notice for the first time.
    NoticeAnswered { notice: NoticeId, client: Option<ClientId>, to: IpAddr },
    /// An attempt was not answered.
    NoticeFailed { notice: NoticeId, client: Option<ClientId>, to: IpAddr },
    /// The notice was never answered; no further attempt is made.
    NoticeGivenUp { notice: NoticeId, client: Option<ClientId>, to: IpAddr },
    /// Every notice of the restart is over. `failed` clients never answered; those in neither count
    /// reclaimed everything without an answer, or are clients no longer.
    NotificationEnded { told: u64, answered: u64, failed: u64, took: Duration },
    /// A request was refused.
    Refused { client: Option<ClientId>, why: Refusal },
    /// SM_MON was refused.
    MonitorRefused { source: IpAddr, watched: Name, why: Refusal },
    /// FREE_ALL named no known host.
    FreeAllRefused { source: IpAddr, name: Name },
    /// An operator shut a host out.
    Fenced { client: ClientId, by: Name },
    /// The name of a fenced machine appeared at this host's address, which is fenced now as well.
    FenceExtended { client: ClientId },
    /// An operator readmitted a host.
    Unfenced { client: ClientId, by: Name },
    /// An operator repeated the notice of the restart.
    Renotified { client: ClientId, by: Name },
    /// An operator had so many addresses notified of the restart.
    AddressesNotified { count: u64, by: Name },
    /// An operator unregistered a client; its name and address are included because its row is
    /// gone.
    Forgotten { client: ClientId, name: Name, address: IpAddr, by: Name },
}

/// Why grace ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraceEnd {
    /// Every host has reclaimed everything or is proven rebooted.
    Complete,
    /// The window is over.
    Deadline,
    /// An operator, by name, ended it.
    Operator(Name),
}

/// Why a reboot was accepted (B3.8, B3.14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The host held nothing.
    NothingHeld,
    /// Its old connection was reset.
    Reset,
    /// The report came from its address, and nothing shows that the old kernel is alive.
    Notice,
    /// `stateless_clients`: a new connection after a reset.
    Stateless,
    /// The report came from its address, and it reclaimed nothing of what it held before the
    /// restart in the time it had.
    Unreclaimed,
    /// `roaming`: the report came from this address, repeatedly, while the recorded one was silent.
    Roamed(IpAddr),
    /// An operator, by name, confirmed it.
    Operator(Name),
}

/// Why a reboot report was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The old kernel answers.
    Alive,
    /// The report came under another name or is older than what is recorded; only a reset would
    /// prove it.
    Unproven,
    /// The report came from another address than the recorded one; only a reset would prove it, or
    /// the silence of that address with `roaming`.
    Elsewhere,
    /// Its connections are of this epoch and may belong to either kernel. A reclaim would refute
    /// the report; without one it is accepted in time (B3.11).
    Unreclaimed,
    /// `verify = "ask"`: its status monitor has not confirmed the reported state.
    Unverified,
}

/// Why locks were released without their owner's request (I6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// FREE_ALL from the host.
    FreeAll,
    /// Unconfirmed after the window, wanted by another owner, and the host failed a probe.
    Unanswered,
    /// `unreachable = "immediate"`: the host did not answer its notice.
    Unreachable,
    /// Not reclaimed by a host that reported a reboot and has taken other locks since.
    Unreclaimed,
    /// Taken by a kernel that is proven gone, while a later one is not.
    OldKernel,
    /// Recovered from a roster and not reclaimed by the end of grace.
    RosterEnd,
    /// An operator, by name, fenced the host.
    Operator(Name),
}

/// What an operator released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleasedItem {
    /// A lock.
    Lock(Range, Mode),
    /// A share.
    Share,
}
