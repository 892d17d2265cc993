//! One TCP connection with a host, opened by either side, and what it says about the host's kernel.
//! No I/O and no clock: the simulator runs the same code on simulated sockets.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use keeper::bytes::Name;

use super::socket::{NORMAL, Socket, SocketStatus, URGENT};

/// Longer names are ignored (B7.3).
const NAME_BYTES_MAX: usize = 1024;
/// The machine name of the credential and the caller name of lock requests may differ.
const NAMES_MAX: usize = 3;

/// Who can end a connection at the host's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// The connection comes from a reserved port, or goes to the host's lock manager: only root or
    /// the kernel closes or resets it.
    Kernel,
    /// The connection comes from any other port: a user of the host may reset it at will, so its end
    /// proves nothing (B3.8).
    User,
}

pub struct TrackedConnection {
    pub address: IpAddr,
    pub opened: Instant,
    opener: Opener,
    socket: Weak<dyn Socket>,
    /// An NFS or NLM request arrived on it. A connection that carries only notices says nothing about
    /// the kernel that took the locks.
    has_requests: AtomicBool,
    /// The first name is nearly always the only one; it is read without a lock.
    name: OnceLock<Name>,
    other_names: Mutex<Vec<Name>>,
    /// Since when the host's kernel is known to be up: since this connection was opened, or an
    /// earlier one that was alive at that time.
    kernel_since: Mutex<Instant>,
    probes: Mutex<ActiveProbes>,
    end: OnceLock<ConnectionEnd>,
}

/// How many inquiries probe this connection now, and how many of those accept its end as proof.
#[derive(Default)]
struct ActiveProbes {
    total: usize,
    for_proof: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct ConnectionEnd {
    pub cause: EndCause,
    pub at: Instant,
    pub last_ack: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// A reset in answer to a probe of ours.
    ResetByProbe,
    /// A reset without a probe: a reboot, or a program that closed its socket with unread data.
    ResetUnprompted,
    /// A FIN of either side, or a timeout. Proves nothing.
    Other,
}

impl TrackedConnection {
    pub fn new(address: IpAddr, opener: Opener, socket: Weak<dyn Socket>, opened: Instant) -> Self {
        Self {
            address: address.to_canonical(),
            opened,
            opener,
            socket,
            has_requests: AtomicBool::new(false),
            name: OnceLock::new(),
            other_names: Mutex::default(),
            kernel_since: Mutex::new(opened),
            probes: Mutex::default(),
            end: OnceLock::new(),
        }
    }

    /// Records the host name of an NFS or NLM request, which may be empty. Costs one comparison if
    /// the name is known.
    pub fn add_name(&self, name: &[u8]) {
        if self.name.get().is_some_and(|known| known.bytes() == name) {
            return;
        }
        self.has_requests.store(true, Ordering::Relaxed);
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return;
        }
        let mut others = lock(&self.other_names);
        if self.name.get().is_none() {
            let _ = self.name.set(Name::new(name));
        } else if others.len() + 1 < NAMES_MAX && others.iter().all(|other| other.bytes() != name) {
            others.push(Name::new(name));
        }
    }

    pub fn names(&self) -> Vec<Name> {
        let others = lock(&self.other_names);
        self.name.get().into_iter().chain(others.iter()).cloned().collect()
    }

    pub fn has_requests(&self) -> bool {
        self.has_requests.load(Ordering::Relaxed)
    }

    /// Whether its end is evidence about the kernel. Its acknowledgements always are.
    pub fn end_is_evidence(&self) -> bool {
        self.opener == Opener::Kernel
    }

    pub fn is_named(&self) -> bool {
        self.name.get().is_some()
    }

    pub fn belongs_to(&self, name: &Name) -> bool {
        self.name.get().is_some_and(|known| known.names_same_machine(name))
            || lock(&self.other_names).iter().any(|known| known.names_same_machine(name))
    }

    pub fn kernel_since(&self) -> Instant {
        *lock(&self.kernel_since)
    }

    /// The host's kernel was already up at `earlier`.
    pub fn extend_kernel_since(&self, earlier: Instant) {
        let mut since = lock(&self.kernel_since);
        *since = earlier.min(*since);
    }

    pub fn socket(&self) -> Option<Arc<dyn Socket>> {
        self.socket.upgrade()
    }

    pub fn status(&self) -> Option<SocketStatus> {
        self.socket()?.status()
    }

    pub fn end(&self) -> Option<ConnectionEnd> {
        self.end.get().copied()
    }

    /// Records the end. Only the first call counts; later ones return `None`.
    pub fn set_ended(&self, by_reset: bool, at: Instant) -> Option<ConnectionEnd> {
        let last_ack = self.status().map_or(self.opened, |s| s.last_ack.max(self.opened));
        let cause = match by_reset {
            true if lock(&self.probes).for_proof > 0 => EndCause::ResetByProbe,
            true => EndCause::ResetUnprompted,
            false => EndCause::Other,
        };
        let end = ConnectionEnd { cause, at, last_ack };
        self.end.set(end).ok().map(|()| end)
    }
}

/// While this exists, the kernel probes the connection every few seconds, the first time at once.
pub struct ProbeGuard {
    connection: Arc<TrackedConnection>,
    for_proof: bool,
}

impl ProbeGuard {
    pub fn new(connection: Arc<TrackedConnection>, for_proof: bool) -> Self {
        // Dropped after the lock is released: dropping the last reference to a socket ends the
        // connection.
        let socket = connection.socket();
        let mut probes = lock(&connection.probes);
        probes.total += 1;
        probes.for_proof += usize::from(for_proof);
        if probes.total == 1
            && let Some(socket) = &socket
        {
            socket.set_keep_alive(URGENT);
        }
        drop(probes);
        Self { connection, for_proof }
    }

    pub fn connection(&self) -> &Arc<TrackedConnection> {
        &self.connection
    }
}

impl Drop for ProbeGuard {
    fn drop(&mut self) {
        let socket = self.connection.socket();
        let mut probes = lock(&self.connection.probes);
        probes.total -= 1;
        probes.for_proof -= usize::from(self.for_proof);
        if probes.total == 0
            && let Some(socket) = &socket
        {
            socket.set_keep_alive(NORMAL);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
