//! A line: one TCP connection between a host and us, opened by either side. No I/O and no clock, so that
//! the simulator runs the same code on connections of its own.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use keeper::bytes::Name;

use super::pulse::{CALM, Pulse, Rhythm, URGENT};

/// Longer names are nobody's (R6.4).
const NAME_BYTES_MAX: usize = 1024;
/// The machine name in the credential and the caller of lock requests may be spelled differently.
const NAMES_MAX: usize = 3;

/// What can be seen of a connection, and asked of it.
pub trait Socket: Send + Sync {
    /// `None` if it cannot be seen.
    fn pulse(&self) -> Option<Pulse>;

    fn set_rhythm(&self, rhythm: Rhythm);

    /// How a connection that is closed ended: true if by a reset. Each end is told once, to its
    /// owner or here.
    fn take_end(&self) -> Option<bool>;
}

/// Who can end a connection at its other end: its kernel alone, or a user as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// From a reserved port, or by us to its lock manager: only root or the kernel closes or resets
    /// it.
    Kernel,
    /// From any other port: a user of that machine may reset it at will, so its end proves nothing
    /// (R6.1).
    User,
}

pub struct Line {
    pub address: IpAddr,
    pub opened: Instant,
    /// Whether its end counts, too; its life does in any case.
    opener: Opener,
    socket: Weak<dyn Socket>,
    /// A file or lock request came on it. A connection that only brings notices says nothing about
    /// the kernel that took the locks.
    spoke: AtomicBool,
    /// The first name is nearly always the only one: it is read without a lock.
    name: OnceLock<Name>,
    others: Mutex<Vec<Name>>,
    /// Since when the kernel at the other end is known to have lived: this line's beginning, or that
    /// of a line that was alive when this one opened.
    since: Mutex<Instant>,
    /// How many probes ask this line right now, and how many of them want proof.
    asking: Mutex<Asking>,
    end: OnceLock<End>,
}

#[derive(Default)]
struct Asking {
    all: usize,
    for_proof: usize,
}

/// How a line ended, and when there was the last sign of life on it.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub how: How,
    pub at: Instant,
    pub life: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// In answer to a segment that we sent because we wanted to know.
    ResetWhenAsked,
    /// By itself: a reboot, or a program that closed its socket without reading all.
    Reset,
    /// A goodbye of either side, or nobody answered for long: this proves nothing.
    Otherwise,
}

impl Line {
    pub fn new(address: IpAddr, opener: Opener, socket: Weak<dyn Socket>, opened: Instant) -> Self {
        Self {
            address: address.to_canonical(),
            opened,
            opener,
            socket,
            spoke: AtomicBool::new(false),
            name: OnceLock::new(),
            others: Mutex::default(),
            since: Mutex::new(opened),
            asking: Mutex::default(),
            end: OnceLock::new(),
        }
    }

    /// A file or lock request on this line came from a machine of that name, which may be empty.
    /// Costs a comparison if that is known.
    pub fn named(&self, name: &[u8]) {
        if self.name.get().is_some_and(|known| known.bytes() == name) {
            return;
        }
        self.spoke.store(true, Ordering::Relaxed);
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return;
        }
        let mut others = lock(&self.others);
        if self.name.get().is_none() {
            let _ = self.name.set(Name::new(name));
        } else if others.len() + 1 < NAMES_MAX && others.iter().all(|other| other.bytes() != name) {
            others.push(Name::new(name));
        }
    }

    pub fn names(&self) -> Vec<Name> {
        let others = lock(&self.others);
        self.name.get().into_iter().chain(others.iter()).cloned().collect()
    }

    pub fn has_spoken(&self) -> bool {
        self.spoke.load(Ordering::Relaxed)
    }

    /// Whether its end says something about the kernel.
    pub fn testifies_death(&self) -> bool {
        self.opener == Opener::Kernel
    }

    pub fn is_named(&self) -> bool {
        self.name.get().is_some()
    }

    pub fn is_of(&self, name: &Name) -> bool {
        self.name.get().is_some_and(|known| known.names_same_machine(name))
            || lock(&self.others).iter().any(|known| known.names_same_machine(name))
    }

    pub fn since(&self) -> Instant {
        *lock(&self.since)
    }

    /// The kernel at the other end lived already then.
    pub fn lived_at(&self, earlier: Instant) {
        let mut since = lock(&self.since);
        *since = earlier.min(*since);
    }

    pub fn socket(&self) -> Option<Arc<dyn Socket>> {
        self.socket.upgrade()
    }

    pub fn pulse(&self) -> Option<Pulse> {
        self.socket()?.pulse()
    }

    pub fn end(&self) -> Option<End> {
        self.end.get().copied()
    }

    /// Only the first word on how it ended counts; `None` for later ones.
    pub fn set_ended(&self, by_reset: bool, at: Instant) -> Option<End> {
        let life = self.pulse().map_or(self.opened, |pulse| pulse.life.max(self.opened));
        let how = match by_reset {
            true if lock(&self.asking).for_proof > 0 => How::ResetWhenAsked,
            true => How::Reset,
            false => How::Otherwise,
        };
        let end = End { how, at, life };
        self.end.set(end).ok().map(|()| end)
    }
}

/// While this is held, the kernel asks the other end every few seconds, the first time at once.
pub struct Urgent(Arc<Line>, bool);

impl Urgent {
    pub fn new(line: Arc<Line>, for_proof: bool) -> Self {
        // Before the lock: if this is the last one, letting go of it ends the line.
        let socket = line.socket();
        let mut asking = lock(&line.asking);
        asking.all += 1;
        asking.for_proof += usize::from(for_proof);
        if asking.all == 1
            && let Some(socket) = &socket
        {
            socket.set_rhythm(URGENT);
        }
        drop(asking);
        Self(line, for_proof)
    }

    pub fn line(&self) -> &Arc<Line> {
        &self.0
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        let socket = self.0.socket();
        let mut asking = lock(&self.0.asking);
        asking.all -= 1;
        asking.for_proof -= usize::from(self.1);
        if asking.all == 0
            && let Some(socket) = &socket
        {
            socket.set_rhythm(CALM);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
