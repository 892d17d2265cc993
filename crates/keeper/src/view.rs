//! Read-only views: rows that borrow from the keeper, built on demand.

use std::sync::Arc;
use std::time::Duration;

use crate::bytes::{FileKey, Name};
use crate::change::{Client, Exactness};
use crate::event::Rejection;
use crate::identity::{Incarnation, LockId, NoticeId, Owner, ShareId};
use crate::incarnations::ALTERNATION_SHOWN_FOR;
use crate::range::Range;
use crate::reboot_reports::Arrival;
use crate::request::{Access, Mode};

/// A held lock.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct LockView<'a> {
    pub id: LockId,
    pub file: &'a FileKey,
    pub owner: &'a Arc<Owner>,
    pub range: Range,
    pub mode: Mode,
    pub incarnation: Incarnation,
    pub monitored: bool,
    pub since_ms: u64,
    pub state: LockState,
}

/// The state of a lock, as shown to operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockState {
    /// Taken or reclaimed in this epoch.
    Held,
    /// Recovered and not yet reclaimed.
    Unconfirmed,
    /// Unconfirmed after the window (B4.15).
    Releasable,
    /// Of an incarnation other than the recorded one of its host.
    Suspect,
    /// Recovered from a roster: shown, conflicts with nothing.
    Remembered,
}

/// A held share.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct ShareView<'a> {
    pub id: ShareId,
    pub file: &'a FileKey,
    pub owner: &'a Arc<Owner>,
    pub access: Access,
    pub deny: Access,
    pub confirmed: bool,
    pub since_ms: u64,
}

/// A queued request.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct WaiterView<'a> {
    /// From the same counter as lock ids.
    pub id: LockId,
    pub file: &'a FileKey,
    pub owner: &'a Arc<Owner>,
    pub range: Range,
    pub mode: Mode,
    pub since_ms: u64,
    /// A lock that prevents it, if there is one.
    pub blocked_by: Option<LockId>,
    /// It does not answer; it keeps its place.
    pub passed_over: bool,
}

/// A client.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct ClientView<'a> {
    pub client: &'a Arc<Client>,
    /// When it was last heard in this epoch (`Time::mono`).
    pub last_seen: Option<Duration>,
    pub locks: usize,
    pub shares: usize,
    pub waiting: usize,
    /// Locks and shares not yet reclaimed.
    pub unconfirmed: usize,
    /// Those of them that grace waits for: the monitored ones.
    pub missing: usize,
    /// The oldest incarnation of its locks and waiters.
    pub oldest: Incarnation,
    pub suspect: bool,
    /// When the states of its LOCKs last went back and forth (`Time::mono`).
    pub alternated: Option<Duration>,
    pub crashed: bool,
    pub pending: Option<&'a PendingReboot>,
}

/// A reboot report that was not accepted (B3.12).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct PendingReboot {
    pub name: Name,
    pub source: std::net::IpAddr,
    /// The reported state; `None` for FREE_ALL.
    pub to: Option<Incarnation>,
    pub why: Rejection,
    pub repeats: u32,
    pub first_at_ms: u64,
    /// Since when the same has spoken against it (`Time::mono`).
    pub since: Duration,
    /// Its repeats against which the same spoke, from the same address if that is what spoke.
    pub(crate) same_repeats: u32,
    /// When it last arrived (`Time::mono`).
    pub last_at: Duration,
    /// Its first arrival: a kernel that came up with it has taken everything since.
    pub(crate) first: Arrival,
    pub(crate) last: Arrival,
}

impl ClientView<'_> {
    /// Whether the states of its LOCKs went back and forth within the last hour (B3.74).
    pub fn alternates(&self, now: Duration) -> bool {
        self.alternated.is_some_and(|at| now <= at + ALTERNATION_SHOWN_FOR)
    }
}

impl PendingReboot {
    /// Since when a reclaim would have refuted this host's own report of `to`; `None` if there was
    /// no such report or something else spoke against it.
    pub(crate) fn refutable(&self, to: Option<Incarnation>) -> Option<Duration> {
        let same = to.is_some() && self.to == to && self.why == Rejection::Unreclaimed;
        same.then_some(self.since)
    }
}

/// The state of a grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct GraceView {
    pub exactness: Exactness,
    /// The length of the window, which runs from the first call of a client.
    pub window: Duration,
    /// When it ends (`Time::mono`); `None` before that call.
    pub ends: Option<Duration>,
    /// Monitored locks and shares not yet reclaimed.
    pub missing: usize,
    pub parked: usize,
}

impl GraceView {
    /// The longest that grace can last, unless it is extended.
    pub fn remaining(&self, now: Duration) -> Duration {
        self.ends.map_or(self.window, |ends| ends.saturating_sub(now))
    }
}

/// A notice that is still being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct NoticeView {
    pub id: NoticeId,
    /// `None` if the address alone is known.
    pub client: Option<crate::identity::ClientId>,
    pub to: std::net::IpAddr,
    pub attempts: u32,
    pub answered: bool,
    pub next: Option<Duration>,
}

/// Sizes of the keeper's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields named as in the rows they show")]
pub struct Counts {
    pub clients: usize,
    pub locks: usize,
    pub shares: usize,
    pub waiters: usize,
    pub unconfirmed: usize,
    pub parked: usize,
    pub open_grants: usize,
}
