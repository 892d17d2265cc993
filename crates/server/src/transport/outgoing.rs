//! The replies of one connection on their way out.
//!
//! Whoever finishes a reply sends it: the connection's task or a worker thread. While one of them
//! writes, others only add to the queue, and the writer takes along what was added. Only when the
//! socket is full does the connection's own task take over and wait.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use wire::{Message, record};

use super::Peer;
use crate::liveness::{Acquaintance, Liveness, Opener, Stream};
use crate::tenure::Tenure;

pub struct Outgoing {
    /// Never used again for another connection.
    id: u64,
    socket: TcpStream,
    tenure: Tenure,
    opened: Instant,
    acquaintance: OnceLock<Acquaintance>,
    /// A call that is a sign of life came on it.
    heard: AtomicBool,
    queue: Mutex<Queue>,
    /// Requests handed to workers and not yet answered.
    unanswered: AtomicUsize,
    /// Bytes that those requests stand for.
    load: AtomicUsize,
    /// Bytes of replies that the socket has not taken yet.
    unsent: AtomicUsize,
    /// Bytes under way over all connections, these among them.
    total: Arc<AtomicUsize>,
    /// Bytes written so far: what shows that the peer reads.
    written: AtomicU64,
    /// The connection's task waits for room; nobody needs to wake it otherwise.
    wants_room: AtomicBool,
    /// Tells the connection's task that there is something for it to look at.
    wake: Notify,
}

#[derive(Default)]
struct Queue {
    messages: Vec<Message>,
    /// What a full socket left over, to be written by the connection's task.
    stuck: VecDeque<Bytes>,
    /// Somebody is writing, or the task has been told to.
    busy: bool,
    broken: bool,
    /// Writing failed because the peer reset the connection.
    reset: bool,
}

/// Replies up to this size are gathered into one buffer before they are written.
const SMALL: usize = 4096;
/// The most pieces that one system call takes here; fewer than the system's own limit.
const PIECES_MAX: usize = 128;

impl Outgoing {
    pub fn new(socket: TcpStream, total: Arc<AtomicUsize>, tenure: Tenure) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            socket,
            tenure,
            opened: Instant::now(),
            acquaintance: OnceLock::new(),
            heard: AtomicBool::new(false),
            queue: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            load: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            total,
            written: AtomicU64::new(0),
            wants_room: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// From now on `liveness` knows of this connection.
    pub fn introduce(self: &Arc<Self>, liveness: &Liveness, peer: &Peer) {
        let opener = if peer.uses_reserved_port() { Opener::Kernel } else { Opener::User };
        let _ = self.acquaintance.set(liveness.opened(peer.remote.ip(), opener, self.clone()));
    }

    pub fn acquaintance(&self) -> Option<&Acquaintance> {
        self.acquaintance.get()
    }

    /// True for the first call.
    pub fn hears_first(&self) -> bool {
        !self.heard.load(Ordering::Relaxed) && !self.heard.swap(true, Ordering::Relaxed)
    }

    pub fn opened(&self) -> Instant {
        self.opened
    }

    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// A request of this weight goes to a worker.
    pub fn started(&self, weight: usize) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        self.load.fetch_add(weight, Ordering::Relaxed);
    }

    /// It was answered, or will not be.
    pub fn finished(&self, weight: usize) {
        self.load.fetch_sub(weight, Ordering::Relaxed);
        // Ordered against `want_room`: either the task sees this, or this sees that it waits.
        self.unanswered.fetch_sub(1, Ordering::SeqCst);
        if self.wants_room.swap(false, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// From now on the next answer wakes the task. It must look once more before it waits.
    pub fn want_room(&self) {
        self.wants_room.store(true, Ordering::SeqCst);
    }

    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst)
    }

    /// Bytes that are under way, as requests or as replies.
    pub fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed) + self.unsent()
    }

    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Sends now as much as the socket takes.
    pub fn send(&self, messages: impl IntoIterator<Item = Message>) {
        let mut queue = self.lock();
        if queue.broken {
            return;
        }
        for message in messages {
            self.unsent.fetch_add(record::MARK_BYTES + message.len(), Ordering::Relaxed);
            self.total.fetch_add(record::MARK_BYTES + message.len(), Ordering::Relaxed);
            queue.messages.push(message);
        }
        if queue.busy || queue.messages.is_empty() {
            return;
        }
        queue.busy = true;
        self.write_on(queue, VecDeque::new());
    }

    /// What the connection's task does after the socket became writable again.
    pub fn resume(&self) {
        let mut queue = self.lock();
        let stuck = std::mem::take(&mut queue.stuck);
        if !stuck.is_empty() {
            self.write_on(queue, stuck);
        }
    }

    /// Whether the task must wait for the socket and then [`resume`](Self::resume).
    pub fn is_stuck(&self) -> bool {
        !self.lock().stuck.is_empty()
    }

    pub fn is_broken(&self) -> bool {
        self.lock().broken
    }

    pub fn was_reset(&self) -> bool {
        self.lock().reset
    }

    /// Nothing more will be sent: answers of workers still under way are dropped.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.broken = true;
        queue.messages.clear();
        queue.stuck.clear();
        let socket = socket2::SockRef::from(&self.socket);
        if !self.tenure.holds() {
            // Our address may be another machine's by now: a farewell would reach nobody, and the
            // kernel would remember the connection, and stand in the peer's way, when the address
            // comes back.
            let _ = socket.set_linger(Some(Duration::ZERO));
            return;
        }
        // Workers may keep the socket for as long as they need; the peer shall not wait for that.
        let _ = socket.shutdown(Shutdown::Both);
    }

    /// Writes `pieces` and then whatever has been queued, until there is nothing or no room.
    /// Called by the one who holds `busy`.
    fn write_on<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, mut pieces: VecDeque<Bytes>) {
        loop {
            if pieces.is_empty() {
                if queue.messages.is_empty() {
                    queue.busy = false;
                    // A worker of another connection may have written (a repeated request), and
                    // this connection's task may have waited for the room that this made.
                    if self.wants_room.swap(false, Ordering::SeqCst) {
                        self.wake.notify_one();
                    }
                    return;
                }
                let messages = std::mem::take(&mut queue.messages);
                drop(queue);
                pieces = in_pieces(messages);
            } else {
                drop(queue);
            }
            let outcome = self.write(&mut pieces);
            queue = self.lock();
            match outcome {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !queue.broken => {
                    queue.stuck = pieces;
                    self.wake.notify_one();
                    return;
                }
                Err(error) => {
                    queue.broken = true;
                    queue.reset = error.kind() == io::ErrorKind::ConnectionReset;
                    queue.messages.clear();
                    self.wake.notify_one();
                    return;
                }
            }
        }
    }

    fn write(&self, pieces: &mut VecDeque<Bytes>) -> io::Result<()> {
        while !pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = pieces.len().min(PIECES_MAX);
            if !self.tenure.holds() {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            for (slice, piece) in slices.iter_mut().zip(pieces.iter()) {
                *slice = IoSlice::new(piece);
            }
            let mut written = match self.socket.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.unsent.fetch_sub(written, Ordering::Relaxed);
            self.total.fetch_sub(written, Ordering::Relaxed);
            self.written.fetch_add(written as u64, Ordering::Relaxed);
            while written > 0 {
                let Some(front) = pieces.front_mut() else { break };
                let step = written.min(front.len());
                front.advance(step);
                written -= step;
                if front.is_empty() {
                    pieces.pop_front();
                }
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream for Outgoing {
    fn stream(&self) -> &TcpStream {
        &self.socket
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.total.fetch_sub(*self.unsent.get_mut(), Ordering::Relaxed);
    }
}

/// Messages as records: small heads gathered, payloads sent from where they lie.
fn in_pieces(messages: Vec<Message>) -> VecDeque<Bytes> {
    let mut pieces = VecDeque::with_capacity(messages.len() * 2);
    let mut gathered = BytesMut::new();
    for message in messages {
        gathered.put_u32(record::mark(message.len()));
        let padding = message.padding();
        for part in [message.head, message.payload] {
            if part.len() <= SMALL {
                gathered.put_slice(&part);
            } else {
                pieces.push_back(gathered.split().freeze());
                pieces.push_back(part);
            }
        }
        gathered.put_bytes(0, padding);
    }
    if !gathered.is_empty() {
        pieces.push_back(gathered.freeze());
    }
    pieces
}
