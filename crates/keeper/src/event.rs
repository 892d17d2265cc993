//! What people want to hear of. Locks taken and given back are not here: the changes of a step say
//! that already, and the hot path pays for nothing else.

use std::net::IpAddr;

use crate::bytes::Name;
use crate::identity::{ClientId, Epoch, GrantId, Incarnation, LockId, NoticeId};
use crate::range::Range;
use crate::request::Mode;
use crate::step::Refusal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Started {
        epoch: Epoch,
        clients: u64,
        locks: u64,
        exact: bool,
    },
    GraceStarted {
        hosts: u64,
    },
    GraceEnded {
        why: GraceEnd,
    },
    Stopped,
    Registered {
        client: ClientId,
    },
    Unregistered {
        client: ClientId,
    },
    /// A reboot was accepted, and this much was freed.
    Rebooted {
        client: ClientId,
        to: Incarnation,
        proof: Proof,
        released: u64,
    },
    /// A notice was not accepted; it waits for a repeat or for an operator.
    RebootPending {
        client: ClientId,
        to: Incarnation,
        why: Doubt,
    },
    /// A notice that concerns nobody we know.
    NoticeUnknown {
        source: IpAddr,
        name: Name,
    },
    /// Signs of a reboot without proof.
    Suspect {
        client: ClientId,
        was: Incarnation,
        is: Incarnation,
    },
    /// Not heard of in the whole recovery window.
    Crashed {
        client: ClientId,
    },
    /// Locks went that nobody gave back.
    Released {
        client: ClientId,
        count: u64,
        why: Release,
    },
    /// An operator took this one away.
    ReleasedByHand {
        client: ClientId,
        id: LockId,
        what: Taken,
        by: Name,
    },
    /// A late packet of an incarnation that is gone.
    Ghost {
        client: ClientId,
        incarnation: Incarnation,
    },
    /// A host has everything back that it held before we restarted.
    Reclaimed {
        client: ClientId,
    },
    ReclaimRefused {
        client: ClientId,
    },
    Deadlock {
        client: ClientId,
    },
    GrantUndone {
        client: ClientId,
        grant: GrantId,
    },
    /// A waiter that does not answer was passed over; it keeps its place.
    PassedOver {
        client: ClientId,
    },
    NoticeSent {
        notice: NoticeId,
        client: ClientId,
        attempt: u32,
    },
    NoticeAnswered {
        notice: NoticeId,
        client: ClientId,
    },
    NoticeFailed {
        notice: NoticeId,
        client: ClientId,
    },
    NoticeGivenUp {
        notice: NoticeId,
        client: ClientId,
    },
    Refused {
        client: Option<ClientId>,
        why: Refusal,
    },
    Fenced {
        client: ClientId,
        by: Name,
    },
    Unfenced {
        client: ClientId,
        by: Name,
    },
    /// An operator had our notice sent again.
    Renotified {
        client: ClientId,
        by: Name,
    },
    /// An operator took a client off the list; what it was called, because it is gone.
    Forgotten {
        client: ClientId,
        name: Name,
        address: IpAddr,
        by: Name,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraceEnd {
    /// Everybody has reclaimed everything, or was proven rebooted.
    Complete,
    Deadline,
    Operator(Name),
}

/// Why a reboot was believed (R6.1, R6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It held nothing: there was nothing to take away.
    NothingHeld,
    /// Its old connection was reset.
    Reset,
    /// Its address sent the notice, and nothing shows that the old kernel lives.
    Notice,
    /// `stateless_clients`: a new connection after a reset.
    Stateless,
    /// Its address sent the notice, and it reclaimed nothing of what it held before our restart,
    /// in the time that it had.
    Unreclaimed,
    Operator(Name),
}

/// Why a reboot was not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The old kernel answers.
    Alive,
    /// The notice came from another address or speaks of the past, and only a reset would prove it.
    Unproven,
    /// Its connections are of this epoch: they may be the old kernel's or the new one's. A reclaim
    /// would refute the notice; without one it is believed in time (R6.1).
    Unreclaimed,
    /// `verify = "ask"`: its status monitor has not answered the notified state.
    Unverified,
}

/// Why locks went that nobody gave back (I6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    FreeAll,
    /// Unconfirmed after the window, wanted by somebody, and its host fails a probe.
    Unanswered,
    /// `unreachable = "immediate"`.
    Unreachable,
    /// Not reclaimed by a host that reported a reboot, and has taken other locks since.
    Unreclaimed,
    /// Taken by a kernel that is proven gone, while a later one is not.
    OldKernel,
    /// Recovered from a roster and not reclaimed.
    RosterEnd,
    Operator(Name),
}

/// What an operator took away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Lock(Range, Mode),
    Share,
}
