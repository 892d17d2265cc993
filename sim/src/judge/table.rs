//! The keeper's table, read through its getters byte by byte; its invariants (I1, I10); and the
//! locks that processes rely on (I1, second half).

use std::time::Duration;

use std::net::IpAddr;

use keeper::Keeper;
use keeper::bytes::FileKey;
use keeper::change::{Change, Lock};
use keeper::identity::{ClientId, LockId, Owner};
use keeper::range::Range;
use keeper::step::Step;
use keeper::time::Time;
use keeper::view::{LockState, LockView};

use crate::cells::{self, CELLS, FILES, Strength, clash};
use crate::model::{LockGrid, ModelWaiter, empty_grid};
use crate::translate::file_key;
use crate::world::World;

/// Whether another lock of the same owner has this byte.
fn held_twice(keeper: &Keeper, lock: &LockView<'_>, cell: usize) -> bool {
    keeper.locks_on(lock.file).any(|other| {
        other.id != lock.id
            && other.owner == lock.owner
            && cells::cells(other.range).contains(&cell)
    })
}

impl World {
    /// The host that is up at an address.
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.hosts.iter().position(|host| host.address == address && host.up)
    }

    /// The host of a client record.
    pub(crate) fn host_of(&mut self, client: ClientId) -> Option<usize> {
        if let Some(known) = self.model.hosts.get(&client) {
            return *known;
        }
        let row = match &self.server.engine {
            Some(engine) => engine.decider.keeper.client(client).map(|view| view.client.clone()),
            None => self.disk.written().clients.get(&client).cloned(),
        };
        let row = row?;
        let host = self.hosts.iter().position(|host| host.is(row.address, &row.name));
        self.model.hosts.insert(client, host);
        host
    }

    /// Learns the clients registered in this step, even if they are removed in it.
    pub(crate) fn note_clients(&mut self, step: &Step) {
        for change in &step.changes {
            if let Change::Client(row) = change {
                let host = self.hosts.iter().position(|host| host.is(row.address, &row.name));
                self.model.hosts.insert(row.id, host);
            }
        }
    }

    /// The process of an owner.
    pub(crate) fn process_of(&mut self, keeper: &Keeper, owner: &Owner) -> Option<usize> {
        if let Some(known) = self.model.owners.get(owner) {
            return *known;
        }
        let row = keeper.client(owner.host).map(|view| view.client.clone())?;
        let namespace = self.renumbering.outward(owner.namespace);
        let process = self.processes.iter().position(|process| {
            let host = &self.hosts[process.host];
            host.is(row.address, &row.name)
                && host.namespaces[process.namespace] == namespace
                && process.number == owner.number
                && process.tag == owner.tag
        });
        let host = self.hosts.iter().position(|host| host.is(row.address, &row.name));
        self.model.hosts.insert(owner.host, host);
        self.model.owners.insert(owner.clone(), process);
        process
    }

    pub(crate) fn file_named(&self, key: &FileKey) -> Option<usize> {
        (0..FILES).find(|file| file_key(*file) == *key)
    }

    /// Strength and incarnation of every byte.
    pub(crate) fn read_table(&mut self, keeper: &Keeper) -> LockGrid {
        let mut grid = empty_grid(self.processes.len());
        let mut count = 0;
        for lock in keeper.locks(LockId(0)) {
            if lock.state == LockState::Remembered {
                continue;
            }
            count += 1;
            let Some(file) = self.file_named(lock.file) else {
                self.violate("I6", || format!("a lock on an unknown file: {lock:?}"));
                continue;
            };
            let Some(process) = self.process_of(keeper, lock.owner) else {
                self.violate("I6", || format!("a lock without an owner: {lock:?}"));
                continue;
            };
            for cell in cells::cells(lock.range) {
                let byte = &mut grid[process][file][cell];
                if byte.strength > 0 && held_twice(keeper, &lock, cell) {
                    let who = self.who(process);
                    self.violate("I1", || format!("{who} holds byte {cell} of file {file} twice"));
                    break;
                }
                // Records of an inexact store may name one process under two addresses of the
                // server.
                byte.strength = byte.strength.max(cells::strength(lock.mode));
                byte.incarnation = lock.incarnation.0;
            }
        }
        if count != keeper.counts().locks {
            let counted = keeper.counts().locks;
            self.violate("getters", || format!("{count} locks are shown, {counted} counted"));
        }
        grid
    }

    pub(crate) fn read_waiters(&mut self, keeper: &Keeper) -> Vec<ModelWaiter> {
        let mut waiters = Vec::new();
        if keeper.counts().waiters == 0 {
            return waiters;
        }
        for file in 0..FILES {
            for waiter in keeper.waiters_on(&file_key(file)) {
                let Some(process) = self.process_of(keeper, waiter.owner) else {
                    self.violate("I6", || format!("a waiter without an owner: {waiter:?}"));
                    continue;
                };
                waiters.push(ModelWaiter {
                    process,
                    file,
                    range: waiter.range,
                    mode: waiter.mode,
                    passed_over: waiter.passed_over,
                });
            }
        }
        if waiters.len() != keeper.counts().waiters {
            let (shown, counted) = (waiters.len(), keeper.counts().waiters);
            self.violate("getters", || format!("{shown} waiters are shown, {counted} counted"));
        }
        waiters
    }

    /// I1: no two owners hold conflicting locks.
    pub(crate) fn check_conflicts(&mut self) {
        for file in 0..FILES {
            for cell in 0..CELLS {
                let mut first: Option<(usize, Strength)> = None;
                for process in 0..self.processes.len() {
                    let strength = self.model.table[process][file][cell].strength;
                    match first {
                        _ if strength == 0 => {}
                        None => first = Some((process, strength)),
                        Some((other, theirs)) if clash(strength, theirs) => {
                            let (a, b) = (self.who(other), self.who(process));
                            self.violate("I1", || {
                                format!("{a} and {b} both hold byte {cell} of file {file}")
                            });
                            return;
                        }
                        Some(_) => {}
                    }
                }
            }
        }
    }

    /// I1: the server has every lock that a live process relies on, unless released by a rule.
    pub(crate) fn check_beliefs(&mut self) {
        if self.model.recovering {
            return;
        }
        for process in 0..self.processes.len() {
            for file in 0..FILES {
                for cell in 0..CELLS {
                    let it = &self.processes[process];
                    let relied = it.relies_on(file, cell);
                    if relied > self.model.table[process][file][cell].strength
                        && !it.tainted[file][cell]
                    {
                        let who = self.who(process);
                        self.violate("I1", || {
                            format!(
                                "{who} relies on byte {cell} of file {file}, and the server has \
                                 no record of that"
                            )
                        });
                        return;
                    }
                }
            }
        }
    }

    /// A process begins to rely on a lock; no other may rely on a conflicting one.
    pub(crate) fn believe(
        &mut self,
        process: usize,
        file: usize,
        range: Range,
        strength: Strength,
        decided: u64,
    ) {
        let who = self.who(process);
        self.trace(|_| {
            let mode = cells::mode(strength);
            format!("{who} now relies on {range:?} of file {file} ({mode:?})")
        });
        for cell in cells::cells(range) {
            let gone = self.model.released_at[process][file][cell] > decided;
            let it = &mut self.processes[process];
            it.belief[file][cell] = strength;
            it.given_up[file][cell] = false;
            it.tainted[file][cell] = gone;
            if gone {
                continue;
            }
            for other in 0..self.processes.len() {
                let it = &self.processes[other];
                if other != process
                    && clash(strength, it.relies_on(file, cell))
                    && !it.tainted[file][cell]
                {
                    let theirs = self.who(other);
                    self.violate("I1", || {
                        format!("{who} and {theirs} both rely on byte {cell} of file {file}")
                    });
                    return;
                }
            }
        }
        self.check_beliefs();
    }

    /// I10, and the end of grace in time.
    pub(crate) fn check_bounds(&mut self, keeper: &Keeper, now: Time) {
        let counts = keeper.counts();
        let limits = self.scenario.config.limits;
        // An open grace registers up to twice as many; they leave as others do.
        let clients = limits.clients * if self.model.was_open { 2 } else { 1 };
        // Unlocking may split locks beyond the bound for new ones.
        if counts.locks > limits.locks * 2
            || counts.parked > limits.parked + counts.waiters
            || counts.clients > clients
        {
            self.violate("I10", || format!("{counts:?} is more than {limits:?}"));
        }
        let most = self.scenario.config.limits.waiters_per_file;
        for file in 0..FILES {
            let waiting = self.model.waiters.iter().filter(|w| w.file == file).count();
            if waiting > most {
                self.violate("I10", || format!("{waiting} wait for file {file}, {most} may"));
            }
        }
        if let Some(ends) = keeper.grace().and_then(|grace| grace.ends)
            && now.mono > ends + Duration::from_secs(15)
        {
            self.violate("liveness", || format!("grace should have ended at {ends:?}"));
        }
    }

    /// The locks on disk as a grid, with strength and incarnation only.
    pub(crate) fn grid_of<'a>(
        &mut self,
        keeper: &Keeper,
        locks: impl Iterator<Item = &'a Lock>,
    ) -> LockGrid {
        let mut grid = empty_grid(self.processes.len());
        for lock in locks {
            let (Some(file), Some(process)) =
                (self.file_named(&lock.file), self.process_of(keeper, &lock.owner))
            else {
                continue;
            };
            for cell in cells::cells(lock.range) {
                grid[process][file][cell].strength = cells::strength(lock.mode);
                grid[process][file][cell].incarnation = lock.incarnation.0;
            }
        }
        grid
    }
}
