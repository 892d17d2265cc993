//! Entries copied from the keeper while the engine waits: only reference counts and integers. Names,
//! paths and times are formatted afterwards.

use std::sync::Arc;

use keeper::Keeper;
use keeper::bytes::FileKey;
use keeper::change::{Client, Lock as LockRecord};
use keeper::identity::{LockId, Owner};
use keeper::range::Range;
use keeper::request::{Access, Mode};
use keeper::view::{LockState as KeeperState, LockView, ShareView, WaiterView};

use crate::api::{ClientName, Lock, LockKind, LockMode, LockState};
use crate::display;
use crate::files::Files;

/// A lock, a share or a waiter.
#[derive(Clone)]
pub(crate) struct Row {
    pub id: LockId,
    pub kind: LockKind,
    pub state: LockState,
    client: Option<Arc<Client>>,
    owner: Arc<Owner>,
    mode: LockMode,
    pub range: Range,
    since_ms: u64,
    pub file: FileKey,
    blocked_by: Option<LockId>,
    pub passed_over: bool,
    denies: Option<Access>,
}

impl Row {
    /// Common fields; the rest are those of a held lock on the whole file.
    fn of(keeper: &Keeper, id: LockId, file: &FileKey, owner: &Arc<Owner>) -> Self {
        Self {
            id,
            kind: LockKind::Lock,
            state: LockState::Held,
            client: keeper.client(owner.host).map(|view| view.client.clone()),
            owner: owner.clone(),
            mode: LockMode::None,
            range: Range::ALL,
            since_ms: 0,
            file: file.clone(),
            blocked_by: None,
            passed_over: false,
            denies: None,
        }
    }

    pub(crate) fn of_lock(keeper: &Keeper, view: &LockView<'_>) -> Self {
        Self {
            state: state(view.state),
            mode: mode(view.mode),
            range: view.range,
            since_ms: view.since_ms,
            ..Self::of(keeper, view.id, view.file, view.owner)
        }
    }

    pub(crate) fn of_share(keeper: &Keeper, view: &ShareView<'_>) -> Self {
        Self {
            kind: LockKind::Share,
            state: match view.confirmed {
                true => LockState::Held,
                false if keeper.in_window() => LockState::Unconfirmed,
                false => LockState::Releasable,
            },
            mode: match (view.access.read, view.access.write) {
                (true, true) => LockMode::ReadWrite,
                (true, false) => LockMode::Read,
                (false, true) => LockMode::Write,
                (false, false) => LockMode::None,
            },
            since_ms: view.since_ms,
            denies: Some(view.deny),
            ..Self::of(keeper, LockId(view.id.0), view.file, view.owner)
        }
    }

    pub(crate) fn of_waiter(keeper: &Keeper, view: &WaiterView<'_>) -> Self {
        Self {
            kind: LockKind::Waiter,
            state: LockState::Waiting,
            mode: mode(view.mode),
            range: view.range,
            since_ms: view.since_ms,
            blocked_by: view.blocked_by,
            passed_over: view.passed_over,
            ..Self::of(keeper, view.id, view.file, view.owner)
        }
    }

    /// A record of an inexact store.
    pub(crate) fn of_record(keeper: &Keeper, record: &LockRecord) -> Self {
        Self {
            state: LockState::Remembered,
            mode: mode(record.mode),
            range: record.range,
            since_ms: record.since_ms,
            ..Self::of(keeper, record.id, &record.file, &record.owner)
        }
    }

    /// Whether `other` must wait for this earlier waiter.
    pub(crate) fn is_in_the_way_of(&self, other: &Row) -> bool {
        self.owner != other.owner
            && self.range.overlaps(other.range)
            && (self.mode == LockMode::Write || other.mode == LockMode::Write)
    }

    pub(crate) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// The row as an API type.
    pub(crate) fn to_api(&self, files: &Files, now_ms: u64) -> Lock {
        Lock {
            id: self.id.to_string(),
            kind: self.kind,
            state: self.state,
            client: match &self.client {
                Some(client) => client_name(client),
                None => ClientName {
                    id: self.owner.host.to_string(),
                    name: String::new(),
                    address: String::new(),
                },
            },
            owner: self.owner.number,
            owner_tag: match files.shows_tags() {
                true => display::bytes(self.owner.tag.bytes()),
                false => String::new(),
            },
            mode: self.mode,
            start: self.range.first(),
            end: (self.range.last() != u64::MAX).then(|| self.range.last()),
            since: display::time(self.since_ms),
            age_seconds: now_ms.saturating_sub(self.since_ms) as f64 / 1e3,
            file: files.to_api(&self.file),
            blocked_by: self.blocked_by.map(|id| id.to_string()),
            passed_over: self.passed_over,
            denies: self.denies.map(|deny| {
                match (deny.read, deny.write) {
                    (false, false) => "none",
                    (true, false) => "read",
                    (false, true) => "write",
                    (true, true) => "read-write",
                }
                .into()
            }),
        }
    }
}

pub(crate) fn client_name(client: &Client) -> ClientName {
    ClientName {
        id: client.id.to_string(),
        name: display::bytes(client.name.bytes()),
        address: client.address.to_string(),
    }
}

fn mode(mode: Mode) -> LockMode {
    match mode {
        Mode::Shared => LockMode::Read,
        Mode::Exclusive => LockMode::Write,
    }
}

fn state(state: KeeperState) -> LockState {
    match state {
        KeeperState::Held => LockState::Held,
        KeeperState::Unconfirmed => LockState::Unconfirmed,
        KeeperState::Releasable => LockState::Releasable,
        KeeperState::Suspect => LockState::Suspect,
        KeeperState::Remembered => LockState::Remembered,
    }
}
