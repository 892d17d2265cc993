//! A simulated disk for tests. It distinguishes synced bytes from those in the page cache, fails at a
//! chosen operation, and loses power: any part of what was not synced may have become durable, in any
//! order, sector by sector.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use testbed::random::Random;

use super::disk::{DirectoryId, Disk, DiskFile};

const SECTOR: usize = 512;

thread_local! {
    static SYNCS: Cell<u64> = const { Cell::new(0) };
}

/// How the chosen operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// It and all later ones fail: the machine or the process has ended.
    Crash,
    /// It fails once; a write is cut short, as on a full disk.
    Once,
}

#[derive(Default)]
struct State {
    /// The directory's own; another one in a copy.
    inode: u64,
    names: BTreeMap<String, Arc<Mutex<SimulatedInode>>>,
    synced_names: BTreeMap<String, Arc<Mutex<SimulatedInode>>>,
    /// The names after each operation since they were synced.
    unsynced_names: Vec<BTreeMap<String, Arc<Mutex<SimulatedInode>>>>,
    operations: u64,
    fault: Option<(u64, DiskFault)>,
    failed: u64,
    /// No file can grow.
    is_full: bool,
    refuses_writes: bool,
    /// Another disk of the same machine.
    crashes_with: Option<Arc<Mutex<State>>>,
}

#[derive(Clone, Default)]
struct SimulatedInode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Write>,
}

#[derive(Clone)]
enum Write {
    Bytes(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone, Default)]
pub(super) struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    locked: Arc<AtomicBool>,
}

struct LockGuard(Arc<AtomicBool>);

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

struct SimulatedFile {
    state: Arc<Mutex<State>>,
    inode: Arc<Mutex<SimulatedInode>>,
}

impl SimulatedDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The operation after this many fails.
    pub(super) fn fail_in(&self, operations: u64, fault: DiskFault) {
        let mut state = self.state();
        state.fault = Some((state.operations + operations, fault));
    }

    /// A crash of `other` is a crash of this disk.
    pub(super) fn crashes_with(&self, other: &SimulatedDisk) {
        self.state().crashes_with = Some(Arc::clone(&other.state));
    }

    /// Every write fails, and nothing else does.
    pub(super) fn refuse_writes(&self, refuses_writes: bool) {
        self.state().refuses_writes = refuses_writes;
    }

    /// Writes beyond the end of a file fail, and nothing else does.
    pub(super) fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// How often the calling thread has synced files or names, of any disk.
    pub(super) fn syncs() -> u64 {
        SYNCS.get()
    }

    pub(super) fn repair(&self) {
        self.state().fault = None;
    }

    /// The number of operations so far, and how many of them failed.
    pub(super) fn operations(&self) -> (u64, u64) {
        let state = self.state();
        (state.operations, state.failed)
    }

    /// The disk after the process was killed: the page cache survives.
    pub(super) fn after_kill(&self) -> SimulatedDisk {
        self.copy(|state| state.names.clone(), |_| {})
    }

    /// A copy of the directory beside it.
    pub(super) fn copied(&self) -> SimulatedDisk {
        let copy = self.after_kill();
        copy.state().inode += 1;
        copy
    }

    /// The disk after a power loss.
    pub(super) fn after_power_loss(&self, random: &mut Random) -> SimulatedDisk {
        let mut names = random.clone();
        names.below(2);
        let pick = move |state: &State| match names.below(state.unsynced_names.len() as u64 + 1)
            as usize
        {
            0 => state.synced_names.clone(),
            at => state.unsynced_names[at - 1].clone(),
        };
        self.copy(pick, |inode| {
            for write in std::mem::take(&mut inode.unsynced) {
                match write {
                    Write::Truncate(length) if random.below(2) == 0 => {
                        apply(&mut inode.durable, &Write::Truncate(length));
                    }
                    Write::Truncate(_) => {}
                    Write::Bytes(mut at, bytes) => {
                        let extent = random.below(3);
                        // Sectors are those of the file, not of the write.
                        let first = SECTOR - at % SECTOR;
                        let (head, rest) = bytes.split_at(first.min(bytes.len()));
                        for sector in std::iter::once(head).chain(rest.chunks(SECTOR)) {
                            if extent == 0 || (extent == 1 && random.below(2) == 0) {
                                apply(&mut inode.durable, &Write::Bytes(at, sector.to_vec()));
                            }
                            at += sector.len();
                        }
                    }
                }
            }
            inode.cached = inode.durable.clone();
        })
    }

    fn copy(
        &self,
        pick: impl FnOnce(&State) -> BTreeMap<String, Arc<Mutex<SimulatedInode>>>,
        mut change: impl FnMut(&mut SimulatedInode),
    ) -> SimulatedDisk {
        let state = self.state();
        let mut copied = |from: &BTreeMap<String, Arc<Mutex<SimulatedInode>>>| {
            let inode = |(name, inode): (&String, &Arc<Mutex<SimulatedInode>>)| {
                let mut inode = inode.lock().unwrap().clone();
                change(&mut inode);
                (name.clone(), Arc::new(Mutex::new(inode)))
            };
            from.iter().map(inode).collect::<BTreeMap<_, _>>()
        };
        let names = copied(&pick(&state));
        let inode = state.inode;
        let new = State { inode, synced_names: names.clone(), names, ..State::default() };
        SimulatedDisk { state: Arc::new(Mutex::new(new)), locked: Arc::default() }
    }

    /// Changes the bytes of a file, as damage does.
    pub(super) fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let state = self.state();
        let mut inode = state.names[name].lock().unwrap();
        change(&mut inode.cached);
        inode.durable = inode.cached.clone();
        inode.unsynced.clear();
    }

    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        self.state().names[name].lock().unwrap().cached.clone()
    }
}

impl State {
    fn next(&mut self) -> io::Result<()> {
        self.operations += 1;
        let fails = match self.fault {
            Some((at, DiskFault::Once)) => self.operations == at,
            Some((at, DiskFault::Crash)) => self.operations >= at,
            None => false,
        };
        let fails = fails || self.other_has_crashed();
        self.failed += u64::from(fails);
        if fails { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    }

    /// Whether a crash happened before the present operation.
    fn has_crashed(&self) -> bool {
        matches!(self.fault, Some((at, DiskFault::Crash)) if self.operations > at)
            || self.other_has_crashed()
    }

    fn other_has_crashed(&self) -> bool {
        self.crashes_with.as_ref().is_some_and(|other| {
            let other = other.lock().unwrap();
            matches!(other.fault, Some((at, DiskFault::Crash)) if other.operations >= at)
        })
    }

    fn drops_dirty_pages(&self) -> bool {
        matches!(self.fault, Some((_, DiskFault::Once)))
    }

    fn change_names(
        &mut self,
        change: impl FnOnce(&mut BTreeMap<String, Arc<Mutex<SimulatedInode>>>),
    ) {
        change(&mut self.names);
        let now = self.names.clone();
        self.unsynced_names.push(now);
    }
}

fn apply(bytes: &mut Vec<u8>, write: &Write) {
    match write {
        Write::Truncate(length) => bytes.resize(*length, 0),
        Write::Bytes(at, new) => {
            let end = at + new.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at..end].copy_from_slice(new);
        }
    }
}

impl Disk for SimulatedDisk {
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        match self.locked.swap(true, Ordering::SeqCst) {
            true => Ok(None),
            false => Ok(Some(Box::new(LockGuard(Arc::clone(&self.locked))))),
        }
    }

    fn id(&self) -> io::Result<DirectoryId> {
        Ok(DirectoryId { device: 1, inode: self.state().inode })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn network_kind(&self) -> io::Result<Option<&'static str>> {
        Ok(None)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let state = self.state();
        let inode = state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(inode.lock().unwrap().cached.clone())))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.next()?;
        if !state.names.contains_key(name) {
            state.change_names(|names| {
                names.insert(name.to_owned(), Arc::default());
            });
        }
        let inode = Arc::clone(&state.names[name]);
        Ok(Arc::new(SimulatedFile { state: Arc::clone(&self.state), inode }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.next()?;
        state.change_names(|names| {
            let inode = names.remove(from).unwrap();
            names.insert(to.to_owned(), inode);
        });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.next()?;
        state.change_names(|names| {
            names.remove(name);
        });
        Ok(())
    }

    fn length(&self, name: &str) -> io::Result<u64> {
        Ok(self.bytes(name).len() as u64)
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        SYNCS.set(SYNCS.get() + 1);
        state.next()?;
        state.synced_names = state.names.clone();
        state.unsynced_names.clear();
        Ok(())
    }

    fn display_path(&self, name: &str) -> String {
        format!("simulated/{name}")
    }
}

impl DiskFile for SimulatedFile {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let mut outcome = state.next();
        if state.has_crashed() {
            return outcome;
        }
        let grows = at as usize + bytes.len() > self.inode.lock().unwrap().cached.len();
        if state.refuses_writes || (state.is_full && grows) {
            outcome = Err(io::Error::from_raw_os_error(28));
        }
        let part = if outcome.is_ok() { bytes.len() } else { bytes.len() / 2 };
        let write = Write::Bytes(at as usize, bytes[..part].to_vec());
        let mut inode = self.inode.lock().unwrap();
        apply(&mut inode.cached, &write);
        inode.unsynced.push(write);
        outcome
    }

    /// A sync that fails drops the dirty pages, as Linux does: they can still be read.
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        SYNCS.set(SYNCS.get() + 1);
        let outcome = state.next();
        let mut inode = self.inode.lock().unwrap();
        if outcome.is_ok() {
            let unsynced = std::mem::take(&mut inode.unsynced);
            unsynced.iter().for_each(|write| apply(&mut inode.durable, write));
        } else if state.drops_dirty_pages() {
            inode.unsynced.clear();
        }
        outcome
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.state.lock().unwrap().next()?;
        let write = Write::Truncate(length as usize);
        let mut inode = self.inode.lock().unwrap();
        apply(&mut inode.cached, &write);
        inode.unsynced.push(write);
        Ok(())
    }
}
