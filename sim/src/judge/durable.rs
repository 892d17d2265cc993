//! Durable before told (I2), the epoch first (I3), and a start that restores exactly what is on disk
//! (I4).

use std::rc::Rc;
use std::sync::Arc;

use keeper::Keeper;
use keeper::change::{Change, Client, Exactness, Snapshot};
use keeper::config::GraceMode;
use keeper::identity::{ClientId, Epoch};
use keeper::step::{Grant, Outcome, Reply, Step};
use store::Token;

use crate::cells::{self, CELLS, strength};
use crate::model::{CellState, ModelWaiter, empty_grid};
use crate::packet::{Call, Request};
use crate::translate::file_key;
use crate::world::World;

impl World {
    pub(crate) fn judge_start(
        &mut self,
        keeper: &Keeper,
        saved: &Snapshot,
        epoch: Epoch,
        step: &Step,
    ) {
        self.model.serial += 1;
        if epoch <= self.model.epoch_told
            || keeper.epoch() != epoch
            || keeper.nsm_state().is_multiple_of(2)
        {
            let last = self.model.epoch_told;
            self.violate("I3", || format!("{epoch:?} comes after {last:?}"));
        }
        let started = step.changes.iter().any(
            |change| matches!(change, Change::Started { epoch: written, .. } if *written == epoch),
        );
        if !started {
            self.violate("I3", || "the first step does not write the new epoch".to_owned());
        }
        // Their owners may move, also those of locks whose end was lost.
        self.model.lock_ids.extend(saved.locks.keys().map(|id| id.0));
        self.model.epoch = epoch;
        self.model.exact = saved.exactness == Exactness::Exact;
        self.model.open = saved.exactness == Exactness::Open;
        self.model.was_open |= self.model.open;
        self.model.started = self.now;
        self.model.grace_over = keeper.grace().is_none();
        if !self.model.exact {
            self.coverage.reach(if self.model.open { "open restore" } else { "roster restore" });
        }
        self.note_notices(step);
        self.restore_table(keeper, saved);
        self.check_notices_owed(keeper, saved);
        self.model.restart_notices =
            keeper.notices().filter_map(|notice| Some((notice.id, notice.client?))).collect();
        let expected = keeper.clients(ClientId(0)).filter(|view| view.missing > 0);
        self.model.expected = expected.map(|view| view.client.id).collect();
        self.check_grace_wanted(keeper, saved);
        self.note_states(keeper);
        self.model.entries = keeper.counts().locks + keeper.counts().shares;
        self.check_conflicts();
        self.check_beliefs();
    }

    fn restore_table(&mut self, keeper: &Keeper, saved: &Snapshot) {
        let seen = self.read_table(keeper);
        if !self.model.exact {
            self.remember(keeper, saved);
            self.model.recovering = keeper.grace().is_some();
            if seen.iter().flatten().flatten().any(|cell| cell.strength > 0) {
                self.violate("I4", || "records of a roster block requests".to_owned());
            }
            self.restore_shares(keeper, saved);
            if !self.model.recovering {
                self.taint_unbacked();
            }
            return;
        }
        self.model.recovering = false;
        self.restore_shares(keeper, saved);
        let written = self.grid_of(keeper, saved.locks.values());
        if written != seen {
            self.violate("I4", || "the table after the start is not what the disk has".to_owned());
        }
        for (process, files) in seen.iter().enumerate() {
            for (file, bytes) in files.iter().enumerate() {
                for (cell, byte) in bytes.iter().enumerate() {
                    let known = &mut self.model.table[process][file][cell];
                    if known.strength != byte.strength {
                        // Not in the model of the last written batch.
                        *known = CellState { life: 0, ..*byte };
                    }
                    known.unconfirmed = byte.strength > 0;
                }
            }
        }
    }

    /// The records of an inexact start: they block no request, and some become releasable when grace
    /// ends.
    fn remember(&mut self, keeper: &Keeper, saved: &Snapshot) {
        let table = empty_grid(self.processes.len());
        let before = std::mem::replace(&mut self.model.table, table);
        let mut written = self.grid_of(keeper, saved.locks.values());
        let known = before.iter().flatten().flatten();
        for (byte, known) in written.iter_mut().flatten().flatten().zip(known) {
            if byte.strength > 0 && byte.strength == known.strength {
                byte.life = known.life;
            }
        }
        self.model.remembered = written;
        self.model.remembered_shares = self.model.shares.clone();
    }

    /// B4.2: every registered client is notified.
    fn check_notices_owed(&mut self, keeper: &Keeper, saved: &Snapshot) {
        for client in saved.clients.values() {
            let owed = client.monitored || client.registrant.is_some();
            if owed && !keeper.notices().any(|notice| notice.client == Some(client.id)) {
                let name = client.name.clone();
                return self.violate("B4.2", || format!("{name} is not told of the restart"));
            }
        }
    }

    fn check_grace_wanted(&mut self, keeper: &Keeper, saved: &Snapshot) {
        let wanted = if self.model.exact {
            saved.locks.values().any(|lock| lock.monitored) || !saved.shares.is_empty()
        } else {
            let host = |client: &Arc<Client>| client.monitored && client.registrant.is_none();
            self.model.open || saved.clients.values().any(host)
        };
        if wanted != keeper.grace().is_some() {
            self.violate("B4.11", || {
                format!("grace is needed: {wanted}, and the keeper disagrees")
            });
        }
    }

    /// The disk has the locks of the table.
    pub(crate) fn check_disk(&mut self) {
        if self.model.recovering {
            return;
        }
        let Some(engine) = self.server.engine.take() else { return };
        let locks: Vec<_> = self.disk.written().locks.values().cloned().collect();
        let written = self.grid_of(&engine.decider.keeper, locks.iter());
        self.server.engine = Some(engine);
        for process in 0..self.processes.len() {
            for file in 0..cells::FILES {
                for cell in 0..CELLS {
                    let (disk, table) =
                        (written[process][file][cell], self.model.table[process][file][cell]);
                    if disk.strength != table.strength {
                        let who = self.who(process);
                        return self.violate("I2", || {
                            format!(
                                "{who}, byte {cell} of file {file}: {} in the table, {} on the disk",
                                table.strength, disk.strength
                            )
                        });
                    }
                }
            }
        }
    }

    /// Ids are never reused, not even after a crash.
    pub(crate) fn check_ids(&mut self, changes: &[Change]) {
        let mut fresh = Vec::new();
        for change in changes {
            let (id, already) = match change {
                Change::Lock(lock) => (lock.id.0, self.model.lock_ids.contains(&lock.id.0)),
                Change::LockGone(id) => {
                    self.model.lock_ids.remove(&id.0);
                    continue;
                }
                Change::Client(client) => (client.id.0, self.model.lock_ids.contains(&client.id.0)),
                _ => continue,
            };
            if !already && self.model.ids.contains(&id) {
                return self.violate("ids", || format!("id {id} is used again: {change:?}"));
            }
            fresh.push(id);
            self.model.lock_ids.insert(id);
        }
        self.model.ids.extend(fresh);
    }

    /// Applying all changes yields the keeper's durable state.
    pub(crate) fn check_snapshot(&mut self) {
        if !self.model.serial.is_multiple_of(3) {
            return;
        }
        let Some(engine) = &self.server.engine else { return };
        if engine.stage.is_some() || self.disk.is_behind() {
            return;
        }
        let kept = engine.decider.keeper.snapshot();
        if kept != *self.disk.written() {
            let written = self.disk.written().clone();
            self.violate("snapshot", || {
                format!("the keeper says\n{kept:?}\nthe disk has\n{written:?}")
            });
        }
    }

    pub(crate) fn check_clean_stop(&mut self) {
        if !self.disk.written().stopped_cleanly {
            self.violate("B4.17", || "a clean stop left no marker".to_owned());
        }
    }

    fn row(&self, request: &Request) -> Option<ClientId> {
        let clients = &self.disk.written().clients;
        clients
            .values()
            .find(|client| {
                client.registrant.is_none()
                    && client.address == request.from
                    && client.name == request.name
            })
            .map(|client| client.id)
    }

    /// I2, for each reply as it is sent.
    pub(crate) fn check_durable(
        &mut self,
        request: &Rc<Request>,
        reply: &Reply,
        decided: u64,
        committed: Option<(Token, &[Change])>,
    ) {
        // What was acknowledged before is on its way back (B6.62).
        if self.disk.is_behind() {
            return;
        }
        if let Some((token, _)) = committed
            && self.disk.written_token() != token
        {
            return self.violate("I2", || format!("{reply:?} leaves before its commit"));
        }
        let changes = committed.map_or(&[][..], |(_, changes)| changes);
        let Some((file, range)) = request.target() else { return };
        match (reply, &request.call) {
            (Reply::Lock(Outcome::Granted), Call::Lock { mode, .. }) => {
                let missing = self.missing_on_disk(request, file, range, strength(*mode), changes);
                // Granted, and released by a rule before the batch was written.
                let gone = request.truth.process.is_some_and(|process| {
                    let released = &self.model.released_at[process][file];
                    cells::cells(range).any(|cell| released[cell] > decided)
                });
                if !gone {
                    self.check_registered(request);
                }
                let touched = request.truth.process.map(|p| self.model.touched_at[p][file]);
                if missing && !gone && touched <= Some(decided) {
                    self.violate("I2", || format!("granted, and not on the disk: {request:?}"));
                }
            }
            (Reply::Lock(Outcome::Blocked), Call::Lock { mode, .. }) => {
                let waits = |w: &ModelWaiter| {
                    Some(w.key()) == request.truth.process.map(|p| (p, file, range, *mode))
                };
                if self.model.waiters.iter().any(waits) {
                    self.check_registered(request);
                }
            }
            (Reply::Unlock, _) => {
                let Some(client) = self.row(request) else { return };
                let key = file_key(file);
                let left = self.disk.written().locks.values().find(|lock| {
                    lock.owner.host == client
                        && self.renumbering.outward(lock.owner.namespace) == request.namespace
                        && lock.owner.number == request.number
                        && lock.owner.tag == request.tag
                        && lock.file == key
                        && lock.range.overlaps(range)
                });
                let left = left.filter(|lock| {
                    let fresh =
                        |change: &Change| matches!(change, Change::Lock(l) if l.id == lock.id);
                    // A record that became releasable may stay under a former address (B2.80).
                    let kept = request
                        .truth
                        .process
                        .is_some_and(|process| self.model.kept.contains(&(process, file)));
                    !self.model.recovering && !kept && !changes.iter().any(fresh)
                });
                if let Some(lock) = left {
                    let id = lock.id;
                    self.violate("I2", || format!("unlocked, and {id:?} is still on the disk"));
                }
            }
            _ => {}
        }
    }

    /// B3.1: registered in the same commit, with the server address that the client used.
    fn check_registered(&mut self, request: &Rc<Request>) {
        let row = self.row(request).and_then(|id| self.disk.written().clients.get(&id)).cloned();
        let fine = row.as_ref().is_some_and(|row| {
            (row.monitored || !request.monitored)
                && row.used.contains(&self.renumbering.inward(request.namespace).server_address())
        });
        if !fine {
            self.violate("I2", || format!("told before it was registered ({row:?}): {request:?}"));
        }
        if self.disk.written().epoch != self.model.epoch {
            self.violate("I3", || "told before the epoch was written".to_owned());
        }
    }

    fn missing_on_disk(
        &self,
        request: &Request,
        file: usize,
        range: keeper::range::Range,
        strength: u8,
        changes: &[Change],
    ) -> bool {
        let Some(client) = self.row(request) else { return true };
        let mut held = [0u8; CELLS];
        let key = file_key(file);
        let fresh = changes.iter().filter_map(|change| match change {
            Change::Lock(lock) => Some(lock),
            _ => None,
        });
        for lock in self.disk.written().locks.values().chain(fresh) {
            if lock.owner.host == client
                && self.renumbering.outward(lock.owner.namespace) == request.namespace
                && lock.owner.number == request.number
                && lock.owner.tag == request.tag
                && lock.file == key
            {
                for cell in cells::cells(lock.range) {
                    held[cell] = held[cell].max(cells::strength(lock.mode));
                }
            }
        }
        cells::cells(range).any(|cell| held[cell] < strength)
    }

    /// I2 and I9, for each callback as it is sent or sent again.
    pub(crate) fn check_grant_durable(&mut self, grant: &Grant) {
        let Some(open) = self.model.grants.get(&grant.id) else { return };
        let durable = &self.model.durable[open.process][open.file];
        if cells::cells(open.range).any(|cell| durable[cell].strength < strength(open.mode)) {
            let id = grant.id;
            self.violate("I9", || format!("{id:?} is announced, and not on the disk"));
        }
    }

    pub(crate) fn strict(&self) -> bool {
        self.scenario.config.grace == GraceMode::Strict || !self.model.exact
    }
}
