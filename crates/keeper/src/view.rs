//! What a reader sees: borrowed rows, made as they are asked for, never a copy of the table.

use std::sync::Arc;
use std::time::Duration;

use crate::bytes::{FileKey, Name};
use crate::change::{Client, Exactness};
use crate::event::Doubt;
use crate::identity::{Incarnation, LockId, NoticeId, Owner, ShareId};
use crate::range::Range;
use crate::request::{Access, Mode};

#[derive(Clone, Debug)]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockState {
    Held,
    /// Recovered, not yet reclaimed.
    Unconfirmed,
    /// Unconfirmed after the window (R4.5).
    Releasable,
    /// Of another incarnation than its host seems to be in.
    Suspect,
    /// Recovered from a roster: shown, denies nobody.
    Remembered,
}

#[derive(Clone, Debug)]
pub struct ShareView<'a> {
    pub id: ShareId,
    pub file: &'a FileKey,
    pub owner: &'a Arc<Owner>,
    pub access: Access,
    pub deny: Access,
    pub confirmed: bool,
    pub since_ms: u64,
}

#[derive(Clone, Debug)]
pub struct WaiterView<'a> {
    /// From the same counter as the ids of locks.
    pub id: LockId,
    pub file: &'a FileKey,
    pub owner: &'a Arc<Owner>,
    pub range: Range,
    pub mode: Mode,
    pub since_ms: u64,
    /// A lock that is in its way, if one is.
    pub blocked_by: Option<LockId>,
    /// It does not answer; it keeps its place.
    pub passed_over: bool,
}

#[derive(Clone, Debug)]
pub struct ClientView<'a> {
    pub client: &'a Arc<Client>,
    /// When it was last heard of (`Time::mono`), in this epoch.
    pub last_seen: Option<Duration>,
    pub locks: usize,
    pub shares: usize,
    pub waiting: usize,
    /// Locks and shares it has not reclaimed yet.
    pub unconfirmed: usize,
    /// The first incarnation that it holds or awaits something of.
    pub oldest: Incarnation,
    pub suspect: bool,
    pub crashed: bool,
    pub pending: Option<&'a PendingReboot>,
}

/// A notice that was not believed (R6.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingReboot {
    pub name: Name,
    pub source: std::net::IpAddr,
    pub incarnation: Incarnation,
    pub why: Doubt,
    pub repeats: u32,
    pub first_at_ms: u64,
    /// Since when a reclaim would have refuted it (`Time::mono`).
    pub since: Duration,
    /// Everything taken before it arrived has an id below this.
    pub arrived: u64,
}

impl PendingReboot {
    /// Since when a reclaim would have refuted a report of this state by the host itself. Before
    /// that, there was no such report, or something else spoke against it.
    pub(crate) fn refutable(&self, to: Option<Incarnation>) -> Option<Duration> {
        let same = Some(self.incarnation) == to && self.why == Doubt::Unreclaimed;
        same.then_some(self.since)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraceView {
    pub exactness: Exactness,
    /// How long the window is; it runs from the first call of a client.
    pub window: Duration,
    /// When it ends (`Time::mono`); `None` before that call.
    pub ends: Option<Duration>,
    /// Monitored locks and shares that are still missing.
    pub missing: usize,
    pub parked: usize,
}

impl GraceView {
    /// How long it lasts at most, as things are now.
    pub fn remaining(&self, now: Duration) -> Duration {
        self.ends.map_or(self.window, |ends| ends.saturating_sub(now))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeView {
    pub id: NoticeId,
    pub client: crate::identity::ClientId,
    pub attempts: u32,
    pub answered: bool,
    pub next: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub clients: usize,
    pub locks: usize,
    pub shares: usize,
    pub waiters: usize,
    pub unconfirmed: usize,
    pub parked: usize,
    pub open_grants: usize,
}
