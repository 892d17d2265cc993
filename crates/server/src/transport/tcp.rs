//! TCP: one task per connection, which reads records, passes them to the dispatcher and enforces the
//! limits on slow and idle peers.

use std::cell::RefCell;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{debug, warn};

use vfs::buffers::Buffer;
use wire::record::{MARK_BYTES, Next, Records};

use super::budget::{ALLOWANCE, Charge};
use super::connections::{ConnectionPermit, ConnectionRefusal, Connections};
use super::large_record::LargeRecord;
use super::outgoing::OutgoingReplies;
use super::peer_timers::PeerTimers;
use super::{AnswersMax, Peer, ReplyTo, Transport, stopping};
use crate::liveness::ConnectionGuard;
use crate::log_rate_limit::LogRateLimit;
use crate::metrics::EvictionReason;
use crate::rpc::dispatch::Dispatcher;
use crate::rpc::limits::Limits;

/// The most that is read at once, except of a large record.
const SCRATCH_BYTES: usize = 16 << 10;
/// While this many bytes of replies are unsent, no more requests are read: replies in a queue cost
/// memory, and have left the processor's cache by the time they are sent.
const UNSENT_MAX: usize = 512 << 10;
/// Replies that are ready at once are sent together, up to this many bytes.
const GATHERED_MAX: usize = 128 << 10;
/// How often a connection looks whether the budget has room again: the more often in vain, the less often.
const BUDGET_PAUSE_MIN: Duration = Duration::from_millis(5);
const BUDGET_PAUSE_MAX: Duration = Duration::from_millis(80);
/// How long requests in progress may still be answered after the peer has closed the connection, and
/// how long a peer may take to read the last replies.
const LAST_REPLIES: Duration = Duration::from_secs(1);
/// Bytes that a connection may receive and send before it yields.
const TURN_BYTES: usize = 256 << 10;
/// The pause in accepting when the process is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Records that a connection may take from its buffer before it yields.
const RECORDS_PER_TURN: usize = 256;

static NO_DESCRIPTORS: LogRateLimit = LogRateLimit::new();
static CONNECTION_REFUSED: LogRateLimit = LogRateLimit::new();
static STRANGER_REFUSED: LogRateLimit = LogRateLimit::new();

/// Accepts connections until a stop, then waits for the open ones to answer what is under way.
pub(crate) async fn accept(
    listener: TcpListener,
    dispatcher: Arc<Dispatcher>,
    connections: Arc<Connections>,
    mut stop: watch::Receiver<AnswersMax>,
) {
    let answers_max = loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            answers_max = stopping(&mut stop) => break answers_max,
        };
        let (socket, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Other errors concern one connection only.
                if is_out_of_resources(&error) {
                    if NO_DESCRIPTORS.due() {
                        warn!(
                            "cannot accept connections for now: {error}; allow more with \
                             `ulimit -n` or LimitNOFILE="
                        );
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        let Ok(local) = socket.local_addr() else { continue };
        let peer = Peer::new(remote, local, Transport::Tcp);
        let permit = match connections.admit(&peer) {
            Ok(permit) => permit,
            Err(refusal) => {
                let log_rate_limit = match refusal {
                    ConnectionRefusal::Stranger => &STRANGER_REFUSED,
                    ConnectionRefusal::Slots(_) => &CONNECTION_REFUSED,
                };
                if log_rate_limit.due() {
                    warn!("refused a connection from {}: {refusal}", peer.remote.ip());
                }
                // A reset: nothing of it remains in the kernel.
                let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                // Refusals alone must not keep the thread.
                tokio::task::consume_budget().await;
                continue;
            }
        };
        let (dispatcher, stop) = (dispatcher.clone(), stop.clone());
        tokio::spawn(async move {
            if let Err(reason) = serve(socket, peer, &permit, dispatcher, stop).await {
                debug!("connection closed: {reason}");
            }
            drop(permit);
        });
    };
    // Resets connections that wait to be accepted.
    drop(listener);
    let _ = timeout(answers_max + LAST_REPLIES, connections.ended()).await;
}

fn is_out_of_resources(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// Why a connection ended, if neither the peer closed it nor the server was stopped.
#[derive(Debug, thiserror::Error)]
enum CloseReason {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Record(#[from] wire::record::Error),
    #[error("idle")]
    Idle,
    #[error("a record was not complete in time")]
    SlowRecord,
    #[error("replies were not read in time")]
    Unread,
    #[error("evicted: {0:?}")]
    Evicted(EvictionReason),
}

fn is_reset(ended: &Result<(), CloseReason>) -> bool {
    matches!(ended, Err(CloseReason::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset)
}

async fn serve(
    socket: TcpStream,
    peer: Peer,
    permit: &ConnectionPermit,
    dispatcher: Arc<Dispatcher>,
    mut stop: watch::Receiver<AnswersMax>,
) -> Result<(), CloseReason> {
    socket.set_nodelay(true)?;
    let (budget, lease) = (dispatcher.budget().clone(), dispatcher.lease().clone());
    let outgoing = Arc::new(OutgoingReplies::new(socket, budget.clone(), lease));
    outgoing.register(dispatcher.liveness(), &peer);
    if let Some(clients) = dispatcher.client_io() {
        outgoing.count_for(clients.track(peer.remote.ip()));
    }
    permit.connection.set_outgoing(&outgoing);
    let limits = dispatcher.limits().clone();
    let mut connection = Connection {
        peer,
        to: ReplyTo::Connection(outgoing.clone()),
        records: Records::new(limits.record()),
        received: BytesMut::new(),
        large: None,
        received_total: 0,
        large_last: 0,
        moved: 0,
        timers: PeerTimers::new(),
        charge: Charge::new(budget, permit.connection.charged().clone()),
        put_back: None,
        wait: None,
        is_known: false,
        permit,
        outgoing,
        limits,
        dispatcher,
    };
    let ended = connection.run(&mut stop).await;
    if let Some(guard) = connection.outgoing.liveness_guard() {
        guard.ended(connection.outgoing.was_reset() || is_reset(&ended));
    }
    if matches!(ended, Err(CloseReason::Evicted(_))) {
        // A reset: the kernel drops what the peer has not read, too.
        let socket = socket2::SockRef::from(connection.outgoing.socket());
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
    if ended.is_ok() {
        let answers_max = stop.borrow().unwrap_or(LAST_REPLIES);
        let _ = timeout(answers_max, connection.last_replies(true)).await;
        let _ = timeout(LAST_REPLIES, connection.last_replies(false)).await;
    }
    connection.outgoing.close();
    connection.dispatcher.connection_ended(connection.outgoing.id());
    ended
}

struct Connection<'a> {
    permit: &'a ConnectionPermit,
    peer: Peer,
    to: ReplyTo,
    outgoing: Arc<OutgoingReplies>,
    records: Records,
    received: BytesMut,
    /// What is received at present, if it is large; `received` is empty then.
    large: Option<LargeRecord>,
    /// Bytes received since the connection was opened.
    received_total: u64,
    /// The length of the last record if it was large: mostly the next one is as large.
    large_last: usize,
    /// Bytes received and sent since the last yield.
    moved: usize,
    timers: PeerTimers,
    /// For the record that is being received.
    charge: Charge,
    /// A record for whose reply there was no room.
    put_back: Option<Bytes>,
    /// How long to wait before room is looked for again; `None` if there is room.
    wait: Option<Duration>,
    /// It has made a call, and its address is known for that.
    is_known: bool,
    limits: Limits,
    dispatcher: Arc<Dispatcher>,
}

impl Connection<'_> {
    async fn run(&mut self, stop: &mut watch::Receiver<AnswersMax>) -> Result<(), CloseReason> {
        let period = self.limits.tick();
        let mut tick = interval_at(tokio::time::Instant::now() + period, period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(reason) = self.permit.connection.evicted() {
                return Err(CloseReason::Evicted(reason));
            }
            let more = self.take_records()?;
            if self.dispatcher.gathers(self.outgoing.id()) {
                // Runs on when no other connection is ready.
                tokio::task::yield_now().await;
            }
            self.dispatcher.flush();
            if self.moved > TURN_BYTES {
                self.moved = 0;
                tokio::task::yield_now().await;
            }
            let outgoing = self.outgoing.clone();
            if outgoing.is_broken() {
                return Ok(());
            }
            let stuck = outgoing.is_stuck();
            let room = self.wait.is_none() && (self.has_room() || self.has_room_after_all());
            self.permit.connection.set_is_read(room);
            tokio::select! {
                _ = tokio::task::yield_now(), if more && room => {}
                ready = outgoing.socket().readable(), if room && !more => {
                    ready?;
                    if !self.receive()? {
                        return Ok(());
                    }
                }
                ready = outgoing.socket().writable(), if stuck => {
                    ready?;
                    outgoing.resume();
                }
                () = outgoing.woken() => {}
                () = sleep(self.wait.unwrap_or_default()), if self.wait.is_some() => {}
                _ = tick.tick() => self.check_timers()?,
                _ = stopping(stop) => return Ok(()),
            }
        }
    }

    /// Writes replies until all requests in progress are answered, or until all replies are written.
    async fn last_replies(&self, to_be_answered: bool) {
        loop {
            self.outgoing.want_room();
            let stuck = self.outgoing.is_stuck();
            let done = if to_be_answered { self.outgoing.unanswered() == 0 } else { !stuck };
            if self.outgoing.is_broken() || done {
                return;
            }
            tokio::select! {
                _ = self.outgoing.socket().writable(), if stuck => self.outgoing.resume(),
                () = self.outgoing.woken() => {}
            }
        }
    }

    /// Asks to be woken when there is room, then checks once more.
    fn has_room_after_all(&self) -> bool {
        self.outgoing.want_room();
        self.has_room()
    }

    /// Whether another request may be read.
    fn has_room(&self) -> bool {
        self.outgoing.counted() < self.limits.requests_in_flight_max
            && self.outgoing.load() < self.limits.connection_bytes_max
            && self.outgoing.unsent() < UNSENT_MAX
    }

    /// Whether the budget has room for this request and its reply. What is charged for the record
    /// already need not fit once more, so that those who wait hold nothing that others wait for.
    fn fits(&self, record: &Bytes) -> bool {
        let budget = self.dispatcher.budget();
        let fits_anyway = || self.dispatcher.weight(record) <= ALLOWANCE + self.charge.bytes();
        budget.has_plenty()
            || (self.outgoing.load() == 0 && (!budget.is_used_up() || fits_anyway()))
    }

    /// There is no room in the budget: pauses, the longer the more often.
    fn wait_for_room(&mut self) {
        let wait = self.wait.map_or(BUDGET_PAUSE_MIN, |wait| wait * 2);
        self.wait = Some(wait.min(BUDGET_PAUSE_MAX));
        // The end of a request of its own wakes it earlier.
        self.outgoing.want_room();
        if self.put_back.is_none() || self.dispatcher.budget().is_used_up() {
            self.dispatcher.budget().want();
        }
    }

    /// Makes room for `bytes` more in the receive buffer, which are charged before they are allocated.
    fn reserve(&mut self, bytes: usize) -> bool {
        let mut buffer = self.received.len() + bytes;
        let gathered = self.records.gathered();
        if gathered > 0 {
            // The length of a record in fragments is not known, and those who hold a part of one must not wait
            // for each other. A copy may be made as it grows.
            buffer += gathered + 2 * self.limits.record_bytes_max;
        }
        let fits = self.charge.cover(buffer);
        if fits {
            self.received.reserve(bytes);
        }
        fits
    }

    /// Passes the complete records in the buffer to the dispatcher, and sends the replies that are
    /// ready. Returns whether complete records may be left.
    fn take_records(&mut self) -> Result<bool, CloseReason> {
        let mut replies = Vec::new();
        let mut gathered = 0;
        let mut more = false;
        let waited = self.wait.take();
        for turn in 0.. {
            if turn == RECORDS_PER_TURN || self.moved > TURN_BYTES || !self.has_room() {
                more = true;
                break;
            }
            let next = match self.put_back.take() {
                Some(record) => Next::Record(record),
                None => self.next_record()?,
            };
            match next {
                Next::Record(record) if !self.fits(&record) => {
                    self.put_back = Some(record);
                    self.wait = waited;
                    self.wait_for_room();
                    break;
                }
                Next::Record(record) => {
                    self.moved += record.len();
                    self.timers.record_since = None;
                    if let Some(reply) = self.dispatcher.receive(record, &self.peer, &self.to) {
                        gathered += reply.len();
                        self.moved += reply.len();
                        replies.push(reply);
                    }
                    if gathered > GATHERED_MAX {
                        self.outgoing.send(replies.drain(..));
                        gathered = 0;
                    }
                }
                Next::Missing(_) if self.large.is_some() => break,
                Next::Missing(bytes) => {
                    if self.records.between(&self.received) {
                        // An idle connection holds no buffer.
                        self.received = BytesMut::new();
                        self.charge.cover(0);
                    } else if let Some(length) = self.large_length() {
                        if self.charge.cover(length) {
                            self.large = Some(LargeRecord::begin(length, &mut self.received));
                        } else {
                            self.wait = waited;
                            self.wait_for_room();
                        }
                    } else if bytes > MARK_BYTES && !self.reserve(bytes) {
                        self.wait = waited;
                        self.wait_for_room();
                    }
                    break;
                }
            }
        }
        if !replies.is_empty() {
            self.outgoing.send(replies);
        }
        if !self.is_known && self.outgoing.had_call() {
            self.is_known = true;
            self.permit.has_called();
        }
        Ok(more)
    }

    /// Reads through memory of the thread, so that a connection holds no more than it has received.
    fn receive_small(&mut self) -> io::Result<usize> {
        thread_local! {
            static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into());
        }
        let allowed = (ALLOWANCE + self.charge.bytes()).saturating_sub(self.received.len());
        SCRATCH.with_borrow_mut(|scratch| {
            let into = &mut scratch[..allowed.clamp(MARK_BYTES, SCRATCH_BYTES)];
            let read = try_read(self.outgoing.socket(), into)?;
            self.received.extend_from_slice(&into[..read]);
            Ok(read)
        })
    }

    /// Reads the mark of the next record and the record itself at once, if it is as large as the last one.
    fn receive_as_large(&mut self) -> io::Result<usize> {
        let expected = MARK_BYTES + self.large_last;
        if !self.is_between_records() || !self.charge.cover(expected) {
            return self.receive_small();
        }
        let mut buffer = Buffer::with_capacity(expected);
        let read = try_read(self.outgoing.socket(), buffer.rest(expected))?;
        buffer.fill(read);
        let length = self.records.whole(buffer.as_ref());
        match LargeRecord::within(buffer, length, expected) {
            Ok(large) => self.large = Some(large),
            Err(buffer) => {
                self.large_last = 0;
                self.received.extend_from_slice(buffer.as_ref());
            }
        }
        Ok(read)
    }

    fn next_record(&mut self) -> Result<Next, wire::record::Error> {
        let Some(large) = self.large.take() else { return self.records.next(&mut self.received) };
        match large.missing() {
            0 => {
                self.large_last = large.length();
                Ok(Next::Record(large.finish()))
            }
            missing => {
                self.large = Some(large);
                Ok(Next::Missing(missing))
            }
        }
    }

    /// The length of the record at the front of `received`, if it is large and not complete.
    fn large_length(&self) -> Option<usize> {
        self.records.whole(&self.received).filter(|length| LargeRecord::is_large(*length))
    }

    /// Whether no part of a record has been received.
    fn is_between_records(&self) -> bool {
        self.large.is_none() && self.records.between(&self.received)
    }

    /// Reads from the socket. Returns `false` at the end of the stream.
    fn receive(&mut self) -> Result<bool, CloseReason> {
        let read = match &mut self.large {
            Some(large) if large.missing() == 0 => return Ok(true),
            Some(large) => {
                let read = try_read(self.outgoing.socket(), large.rest());
                large.fill(*read.as_ref().unwrap_or(&0));
                read
            }
            None if self.large_last > 0 && self.received.is_empty() => self.receive_as_large(),
            None => self.receive_small(),
        };
        match read {
            Ok(0) => Ok(false),
            Ok(bytes) => {
                let now = Instant::now();
                self.timers.active = now;
                // A record that is complete already ends this at once.
                self.timers.record_since.get_or_insert((now, self.received_total));
                self.received_total += bytes as u64;
                self.permit.connection.set_received(self.received_total);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn check_timers(&mut self) -> Result<(), CloseReason> {
        let now = Instant::now();
        let is_paused = self.wait.is_some() || !self.has_room();
        let is_between = self.is_between_records();
        let timers = &mut self.timers;
        // The timer stands still while the server does not read.
        let waits = !is_paused && !is_between;
        if timers.is_slow_record(now, waits, self.received_total, self.limits.record_time_max) {
            return Err(CloseReason::SlowRecord);
        }
        let (stuck, written) = (self.outgoing.is_stuck(), self.outgoing.written());
        if timers.is_unread(now, stuck, written, self.limits.unread_time_max) {
            return Err(CloseReason::Unread);
        }
        let quiet = self.outgoing.unanswered() == 0 && timers.stuck_since.is_none();
        let is_idle = quiet && now - timers.active > self.limits.idle_max;
        let is_watched = || {
            self.dispatcher.callers().can_lock(&self.peer)
                && self.outgoing.liveness_guard().is_some_and(ConnectionGuard::is_watched)
        };
        if is_idle && !is_watched() {
            return Err(CloseReason::Idle);
        }
        Ok(())
    }
}

/// Reads what is there. A read that leaves room has emptied the socket: it is not tried again before more
/// arrives, which saves a system call.
fn try_read(socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    let (room, mut read) = (into.len(), 0);
    let read_once = || {
        read = (&*SockRef::from(socket)).read(into)?;
        let empties = 0 < read && read < room;
        if empties { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    };
    match socket.try_io(Interest::READABLE, read_once) {
        Err(error) if read == 0 => Err(error),
        _ => Ok(read),
    }
}
