//! A disk for tests. It knows what is on the platter and what is only in the kernel's cache, breaks
//! at the operation that it is told to, and loses power: of what was not synced, any part may have
//! reached the platter, in any order, sector by sector.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::disk::{Disk, DiskFile};

const SECTOR: usize = 512;

/// Small numbers that depend on the seed alone.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % limit
    }
}

/// What the operation that breaks does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// It fails, and all after it: the machine or the process is gone.
    Dead,
    /// A write is cut short by a full disk, or anything else fails once.
    Once,
}

#[derive(Default)]
struct State {
    names: BTreeMap<String, Arc<Mutex<Blob>>>,
    synced_names: BTreeMap<String, Arc<Mutex<Blob>>>,
    /// What `names` was after each operation since they were synced.
    unsynced_names: Vec<BTreeMap<String, Arc<Mutex<Blob>>>>,
    operations: u64,
    breaks: Option<(u64, Break)>,
    broken: u64,
    /// Another disk of the same machine.
    dies_with: Option<Arc<Mutex<State>>>,
}

#[derive(Clone, Default)]
struct Blob {
    seen: Vec<u8>,
    platter: Vec<u8>,
    unsynced: Vec<Write>,
}

#[derive(Clone)]
enum Write {
    Bytes(usize, Vec<u8>),
    Cut(usize),
}

#[derive(Clone, Default)]
pub struct Platter {
    state: Arc<Mutex<State>>,
    locked: Arc<AtomicBool>,
}

struct Locked(Arc<AtomicBool>);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

struct PlatterFile {
    state: Arc<Mutex<State>>,
    blob: Arc<Mutex<Blob>>,
}

impl Platter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn break_in(&self, operations: u64, how: Break) {
        let mut state = self.state();
        state.breaks = Some((state.operations + operations, how));
    }

    /// From the moment on at which `other` is dead, this one is, too.
    pub fn dies_with(&self, other: &Platter) {
        self.state().dies_with = Some(Arc::clone(&other.state));
    }

    pub fn mend(&self) {
        self.state().breaks = None;
    }

    /// How many operations there were, and how many of them were broken.
    pub fn operations(&self) -> (u64, u64) {
        let state = self.state();
        (state.operations, state.broken)
    }

    /// The process is gone; the kernel goes on with what it was given.
    pub fn after_kill(&self) -> Platter {
        self.copy(|state| state.names.clone(), |_| {})
    }

    /// The power is gone.
    pub fn after_power_loss(&self, random: &mut Random) -> Platter {
        let mut names = random.clone();
        names.below(2);
        let pick = move |state: &State| match names.below(state.unsynced_names.len() as u64 + 1)
            as usize
        {
            0 => state.synced_names.clone(),
            at => state.unsynced_names[at - 1].clone(),
        };
        self.copy(pick, |blob| {
            for write in std::mem::take(&mut blob.unsynced) {
                match write {
                    Write::Cut(length) if random.below(2) == 0 => {
                        apply(&mut blob.platter, &Write::Cut(length));
                    }
                    Write::Cut(_) => {}
                    Write::Bytes(mut at, bytes) => {
                        let luck = random.below(3);
                        // Writes reach the platter by sectors of the file, not of the write.
                        let first = SECTOR - at % SECTOR;
                        let (head, rest) = bytes.split_at(first.min(bytes.len()));
                        for sector in std::iter::once(head).chain(rest.chunks(SECTOR)) {
                            if luck == 0 || (luck == 1 && random.below(2) == 0) {
                                apply(&mut blob.platter, &Write::Bytes(at, sector.to_vec()));
                            }
                            at += sector.len();
                        }
                    }
                }
            }
            blob.seen = blob.platter.clone();
        })
    }

    fn copy(
        &self,
        pick: impl FnOnce(&State) -> BTreeMap<String, Arc<Mutex<Blob>>>,
        mut change: impl FnMut(&mut Blob),
    ) -> Platter {
        let state = self.state();
        let mut copied = |from: &BTreeMap<String, Arc<Mutex<Blob>>>| {
            let blob = |(name, blob): (&String, &Arc<Mutex<Blob>>)| {
                let mut blob = blob.lock().unwrap().clone();
                change(&mut blob);
                (name.clone(), Arc::new(Mutex::new(blob)))
            };
            from.iter().map(blob).collect::<BTreeMap<_, _>>()
        };
        let names = copied(&pick(&state));
        let new = State { synced_names: names.clone(), names, ..State::default() };
        Platter { state: Arc::new(Mutex::new(new)), locked: Arc::default() }
    }

    /// Changes the bytes of a file behind the store's back.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let state = self.state();
        let mut blob = state.names[name].lock().unwrap();
        change(&mut blob.seen);
        blob.platter = blob.seen.clone();
        blob.unsynced.clear();
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.state().names[name].lock().unwrap().seen.clone()
    }
}

impl State {
    fn next(&mut self) -> io::Result<()> {
        self.operations += 1;
        let broken = match self.breaks {
            Some((at, Break::Once)) => self.operations == at,
            Some((at, Break::Dead)) => self.operations >= at,
            None => false,
        };
        let broken = broken || self.died_with_the_other();
        self.broken += u64::from(broken);
        if broken { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    }

    /// Nobody is left to do anything.
    fn is_dead(&self) -> bool {
        matches!(self.breaks, Some((at, Break::Dead)) if self.operations > at)
            || self.died_with_the_other()
    }

    fn died_with_the_other(&self) -> bool {
        self.dies_with.as_ref().is_some_and(|other| {
            let other = other.lock().unwrap();
            matches!(other.breaks, Some((at, Break::Dead)) if other.operations >= at)
        })
    }

    fn gives_up(&self) -> bool {
        matches!(self.breaks, Some((_, Break::Once)))
    }

    fn change_names(&mut self, change: impl FnOnce(&mut BTreeMap<String, Arc<Mutex<Blob>>>)) {
        change(&mut self.names);
        let now = self.names.clone();
        self.unsynced_names.push(now);
    }
}

fn apply(bytes: &mut Vec<u8>, write: &Write) {
    match write {
        Write::Cut(length) => bytes.resize(*length, 0),
        Write::Bytes(at, new) => {
            let end = at + new.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at..end].copy_from_slice(new);
        }
    }
}

impl Disk for Platter {
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        match self.locked.swap(true, Ordering::SeqCst) {
            true => Ok(None),
            false => Ok(Some(Box::new(Locked(Arc::clone(&self.locked))))),
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let state = self.state();
        let blob = state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(blob.lock().unwrap().seen.clone())))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.next()?;
        if !state.names.contains_key(name) {
            state.change_names(|names| {
                names.insert(name.to_owned(), Arc::default());
            });
        }
        let blob = Arc::clone(&state.names[name]);
        Ok(Arc::new(PlatterFile { state: Arc::clone(&self.state), blob }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.next()?;
        state.change_names(|names| {
            let blob = names.remove(from).unwrap();
            names.insert(to.to_owned(), blob);
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

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        state.next()?;
        state.synced_names = state.names.clone();
        state.unsynced_names.clear();
        Ok(())
    }

    fn place(&self, name: &str) -> String {
        format!("platter/{name}")
    }
}

impl DiskFile for PlatterFile {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let outcome = state.next();
        if state.is_dead() {
            return outcome;
        }
        let part = if outcome.is_ok() { bytes.len() } else { bytes.len() / 2 };
        let write = Write::Bytes(at as usize, bytes[..part].to_vec());
        let mut blob = self.blob.lock().unwrap();
        apply(&mut blob.seen, &write);
        blob.unsynced.push(write);
        outcome
    }

    /// A sync that fails has given up on what it did not write: it still seems to be there.
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let outcome = state.next();
        let mut blob = self.blob.lock().unwrap();
        if outcome.is_ok() {
            let unsynced = std::mem::take(&mut blob.unsynced);
            unsynced.iter().for_each(|write| apply(&mut blob.platter, write));
        } else if state.gives_up() {
            blob.unsynced.clear();
        }
        outcome
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.state.lock().unwrap().next()?;
        let write = Write::Cut(length as usize);
        let mut blob = self.blob.lock().unwrap();
        apply(&mut blob.seen, &write);
        blob.unsynced.push(write);
        Ok(())
    }
}
