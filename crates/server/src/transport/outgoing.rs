//! The outgoing replies of one TCP connection.
//!
//! The thread that finishes a reply writes it to the socket: the connection's task, a worker or the
//! committer. While one thread writes, others add to the queue, and the writer sends what they added.
//! When the socket is full the connection's task waits until it is writable and goes on.

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
use super::budget::Budget;
use crate::client_io;
use crate::io_counts::CallIo;
use crate::liveness::{ConnectionGuard, Liveness, Opener, Stream};
use crate::service_lease::ServiceLease;

/// See the [module](self). Also counts what the connection has in progress, for back-pressure.
pub(crate) struct OutgoingReplies {
    /// Unique in this process.
    id: u64,
    socket: TcpStream,
    lease: ServiceLease,
    opened: Instant,
    liveness_guard: OnceLock<ConnectionGuard>,
    client_io: OnceLock<client_io::ConnectionGuard>,
    /// A file, lock or status call has arrived.
    had_call: AtomicBool,
    queue: Mutex<WriteQueue>,
    /// Requests in progress.
    unanswered: AtomicUsize,
    /// Repeats of calls under way that came over other connections; not in `unanswered`.
    joined: AtomicUsize,
    /// Those among `unanswered` that have taken so long that they do not count against the limits.
    exempt: AtomicUsize,
    /// Bytes of the others and of their expected replies.
    load: AtomicUsize,
    /// Bytes of replies that are not written yet.
    unsent: AtomicUsize,
    /// Written bytes of a part whose rest is not: the part is in memory as a whole. Changed by the thread that
    /// writes.
    begun: AtomicUsize,
    /// `unsent` and `begun` are charged to it.
    budget: Arc<Budget>,
    /// Bytes written so far: progress shows that the peer reads.
    written: AtomicU64,
    /// The connection's task waits until it may read more requests.
    wants_room: AtomicBool,
    /// Wakes the connection's task.
    wake: Notify,
}

#[derive(Default)]
struct WriteQueue {
    messages: Vec<Message>,
    /// What did not fit into the socket, to be written by the connection's task.
    stuck: VecDeque<Bytes>,
    /// A thread is writing, or the connection's task will when the socket is writable.
    busy: bool,
    broken: bool,
    /// Writing failed because the peer reset the connection.
    reset: bool,
}

/// Parts of replies up to this size are copied into one buffer before they are written.
const SMALL_BYTES: usize = 4096;
/// The most buffers of one system call; below IOV_MAX.
const PIECES_MAX: usize = 128;

impl OutgoingReplies {
    pub(crate) fn new(socket: TcpStream, budget: Arc<Budget>, lease: ServiceLease) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            socket,
            lease,
            opened: Instant::now(),
            liveness_guard: OnceLock::new(),
            client_io: OnceLock::new(),
            had_call: AtomicBool::new(false),
            queue: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            joined: AtomicUsize::new(0),
            exempt: AtomicUsize::new(0),
            load: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            budget,
            written: AtomicU64::new(0),
            wants_room: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Registers the connection with `liveness`.
    pub(crate) fn register(self: &Arc<Self>, liveness: &Liveness, peer: &Peer) {
        let opener = if peer.uses_reserved_port() { Opener::Kernel } else { Opener::User };
        let _ = self.liveness_guard.set(liveness.track(peer.remote.ip(), opener, self.clone()));
    }

    /// `None` before [`register`](Self::register).
    pub(crate) fn liveness_guard(&self) -> Option<&ConnectionGuard> {
        self.liveness_guard.get()
    }

    /// Counts the calls of the connection for its client from now on.
    pub(crate) fn count_for(&self, client: client_io::ConnectionGuard) {
        let _ = self.client_io.set(client);
    }

    pub(crate) fn count(&self, call: CallIo) {
        if let Some(client) = self.client_io.get() {
            client.count(call);
        }
    }

    /// True the first time it is called.
    pub(crate) fn take_first_call(&self) -> bool {
        !self.had_call.load(Ordering::Relaxed) && !self.had_call.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn had_call(&self) -> bool {
        self.had_call.load(Ordering::Relaxed)
    }

    pub(crate) fn opened(&self) -> Instant {
        self.opened
    }

    /// Has the connection's task look what there is to do.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// A request of this weight is in progress.
    pub(crate) fn started(&self, weight: usize) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        self.load.fetch_add(weight, Ordering::Relaxed);
    }

    /// It was answered, or will get no reply.
    pub(crate) fn finished(&self, weight: usize) {
        self.load.fetch_sub(weight, Ordering::Relaxed);
        // Sequentially consistent with `want_room`: either the task sees the new count, or this sees
        // that the task waits.
        self.unanswered.fetch_sub(1, Ordering::SeqCst);
        self.made_room();
    }

    /// It is still in progress, but does not count against the limits any more.
    pub(crate) fn exempted(&self, weight: usize) {
        self.load.fetch_sub(weight, Ordering::Relaxed);
        self.exempt.fetch_add(1, Ordering::SeqCst);
        self.made_room();
    }

    /// A request that was exempted was answered, or will get no reply.
    pub(crate) fn finished_exempt(&self) {
        self.exempt.fetch_sub(1, Ordering::SeqCst);
        self.unanswered.fetch_sub(1, Ordering::SeqCst);
        self.made_room();
    }

    /// A repeat of a call that is under way elsewhere waits for its reply.
    pub(crate) fn joined(&self) {
        self.joined.fetch_add(1, Ordering::SeqCst);
    }

    /// It was answered, or will get no reply.
    pub(crate) fn left(&self) {
        self.joined.fetch_sub(1, Ordering::SeqCst);
        self.made_room();
    }

    fn made_room(&self) {
        if self.wants_room.swap(false, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Lets the next answer wake the task, which must check for room once more before it waits.
    pub(crate) fn want_room(&self) {
        self.wants_room.store(true, Ordering::SeqCst);
    }

    /// Requests in progress, and repeats that wait for a reply.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst) + self.joined.load(Ordering::SeqCst)
    }

    /// Requests in progress that count against the limits.
    pub(crate) fn counted(&self) -> usize {
        let unanswered = self.unanswered.load(Ordering::SeqCst);
        unanswered.saturating_sub(self.exempt.load(Ordering::SeqCst))
    }

    /// Bytes of those, of their expected replies and of unsent replies.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed) + self.unsent()
    }

    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Queues the messages and writes as much as the socket takes. Never blocks.
    pub(crate) fn send(&self, messages: impl IntoIterator<Item = Message>) {
        let mut queue = self.lock();
        if queue.broken {
            return;
        }
        for message in messages {
            self.unsent.fetch_add(record::MARK_BYTES + message.len(), Ordering::Relaxed);
            self.budget.add(record::MARK_BYTES + message.len());
            queue.messages.push(message);
        }
        if queue.busy || queue.messages.is_empty() {
            return;
        }
        queue.busy = true;
        self.write_on(queue, VecDeque::new());
    }

    /// To be called by the connection's task when the socket is writable again.
    pub(crate) fn resume(&self) {
        let mut queue = self.lock();
        let stuck = std::mem::take(&mut queue.stuck);
        if !stuck.is_empty() {
            self.write_on(queue, stuck);
        }
    }

    /// Whether the task must wait for the socket and then [`resume`](Self::resume).
    pub(crate) fn is_stuck(&self) -> bool {
        !self.lock().stuck.is_empty()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    pub(crate) fn was_reset(&self) -> bool {
        self.lock().reset
    }

    /// Closes the connection. Replies to requests still in progress are dropped.
    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        queue.broken = true;
        queue.messages.clear();
        queue.stuck.clear();
        let socket = socket2::SockRef::from(&self.socket);
        if !self.lease.is_held() {
            // The standby may have this address by now. An orderly close could not reach the peer,
            // and would leave the connection in the kernel, in the peer's way when the address
            // comes back.
            let _ = socket.set_linger(Some(Duration::ZERO));
            return;
        }
        // Requests in progress keep the socket open; the peer must not wait for them.
        let _ = socket.shutdown(Shutdown::Both);
    }

    /// Writes `pieces` and then what has been queued, until the queue is empty or the socket full.
    /// Only for the thread that has set `busy`, or the connection's task if `stuck` is not empty.
    fn write_on<'a>(&'a self, mut queue: MutexGuard<'a, WriteQueue>, mut pieces: VecDeque<Bytes>) {
        loop {
            if pieces.is_empty() {
                if queue.messages.is_empty() {
                    queue.busy = false;
                    // The writer may have been serving another connection (a retransmission), while
                    // this connection's task waited for room.
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
            if !self.lease.is_held() {
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
            self.written.fetch_add(written as u64, Ordering::Relaxed);
            let mut begun = self.begun.load(Ordering::Relaxed);
            let mut freed = 0;
            while written > 0 {
                let Some(front) = pieces.front_mut() else { break };
                let step = written.min(front.len());
                front.advance(step);
                written -= step;
                begun += step;
                if front.is_empty() {
                    pieces.pop_front();
                    freed += std::mem::take(&mut begun);
                }
            }
            self.begun.store(begun, Ordering::Relaxed);
            self.budget.subtract(freed);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, WriteQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream for OutgoingReplies {
    fn stream(&self) -> &TcpStream {
        &self.socket
    }
}

impl Drop for OutgoingReplies {
    fn drop(&mut self) {
        self.budget.subtract(*self.unsent.get_mut() + *self.begun.get_mut());
    }
}

/// Messages as records: small parts copied into one buffer, large payloads not copied.
fn in_pieces(messages: Vec<Message>) -> VecDeque<Bytes> {
    let mut pieces = VecDeque::with_capacity(messages.len() * 2);
    let mut gathered = BytesMut::new();
    for message in messages {
        gathered.put_u32(record::mark(message.len()));
        let padding = message.padding();
        for part in [message.head, message.payload] {
            if part.len() <= SMALL_BYTES {
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
