//! TCP: one task per connection, which reads records, passes them to the dispatcher and enforces the
//! limits on slow and idle peers.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{debug, warn};

use wire::record::{MARK_BYTES, Next, Records};

use super::budget::{ALLOWANCE, Charge};
use super::connections::{ConnectionPermit, ConnectionRefusal, Connections};
use super::outgoing::OutgoingReplies;
use super::{AnswersMax, Peer, ReplyTo, Transport, stopping};
use crate::liveness::ConnectionGuard;
use crate::log_rate_limit::LogRateLimit;
use crate::metrics::EvictionReason;
use crate::rpc::dispatch::Dispatcher;
use crate::rpc::limits::Limits;

/// The minimum size of a receive buffer. A larger one fits one record of the previous one's size:
/// large records come in sequences, and a buffer that ends with its record leaves no tail to copy.
const BUFFER_MIN: usize = 16 << 10;
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
/// A peer that reads fewer bytes than this within `unread_time_max` is too slow.
const PROGRESS_MIN: u64 = 16 << 10;
/// A peer that sends fewer bytes of a record than this within `record_time_max` is too slow.
const RECORD_PROGRESS_MIN: u64 = 4 << 10;
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
        received_total: 0,
        record_last: 0,
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
    /// Bytes received since the connection was opened.
    received_total: u64,
    /// The size of the last record, as a guess for the next.
    record_last: usize,
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

/// Since when the peer has been idle, slow to send or slow to read.
struct PeerTimers {
    /// When bytes were last received.
    active: Instant,
    /// When a record was found incomplete, or the peer last made progress with it; and the bytes
    /// received by then.
    record_since: Option<(Instant, u64)>,
    /// When the socket became full, or the peer last made progress; and the bytes written by then.
    stuck_since: Option<(Instant, u64)>,
}

impl PeerTimers {
    fn new() -> Self {
        Self { active: Instant::now(), record_since: None, stuck_since: None }
    }

    /// Whether the peer has sent too little of a record for too long. Less than
    /// [`RECORD_PROGRESS_MIN`] is no progress, so the total time depends on the size of the record and
    /// not on the speed of the link.
    fn is_slow_record(&mut self, now: Instant, waits: bool, received: u64, max: Duration) -> bool {
        let since = match self.record_since {
            Some(since) if waits && received < since.1 + RECORD_PROGRESS_MIN => since,
            _ => (now, received),
        };
        self.record_since = waits.then_some(since);
        waits && now - since.0 > max
    }

    /// Whether the peer has left replies unread for too long. Less than [`PROGRESS_MIN`] is no
    /// progress: a byte now and then would hold a reply forever.
    fn is_unread(&mut self, now: Instant, stuck: bool, written: u64, max: Duration) -> bool {
        let since = match self.stuck_since {
            Some(since) if stuck && written < since.1 + PROGRESS_MIN => since,
            _ => (now, written),
        };
        self.stuck_since = stuck.then_some(since);
        stuck && now - since.0 > max
    }
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
                None => self.records.next(&mut self.received)?,
            };
            match next {
                Next::Record(record) if !self.fits(&record) => {
                    self.put_back = Some(record);
                    self.wait = waited;
                    self.wait_for_room();
                    break;
                }
                Next::Record(record) => {
                    self.record_last = record.len();
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
                Next::Missing(bytes) => {
                    if self.records.between(&self.received) {
                        // An idle connection holds no buffer.
                        self.received = BytesMut::new();
                        self.charge.cover(0);
                    } else if bytes <= MARK_BYTES {
                        // The record mark is incomplete, so the size is a guess.
                        let _ = self.reserve(self.record_last.max(BUFFER_MIN))
                            || self.reserve(BUFFER_MIN / 2);
                    } else if !self.reserve(bytes) {
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
        self.dispatcher.flush();
        if !self.is_known && self.outgoing.had_call() {
            self.is_known = true;
            self.permit.has_called();
        }
        Ok(more)
    }

    /// Reads from the socket. Returns `false` at the end of the stream.
    fn receive(&mut self) -> Result<bool, CloseReason> {
        if self.received.capacity() == 0 {
            let likely = self.record_last + MARK_BYTES;
            let _ = self.reserve(likely.max(BUFFER_MIN)) || self.reserve(BUFFER_MIN);
        }
        match self.outgoing.socket().try_read_buf(&mut self.received) {
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
        let timers = &mut self.timers;
        // The timer stands still while the server does not read.
        let waits = !is_paused && !self.records.between(&self.received);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// B1.81
    #[test]
    fn a_record_may_take_any_time_while_it_makes_progress() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(30));
        let at = |seconds| start + Duration::from_secs(seconds);
        // 1 MiB at 9.6 kbit/s takes a quarter of an hour.
        for second in 0..900 {
            assert!(!timers.is_slow_record(at(second), true, second * 1200, max), "{second}");
        }
        // The server did not read for a minute.
        assert!(!timers.is_slow_record(at(960), false, 900 * 1200, max));
        assert!(!timers.is_slow_record(at(961), true, 900 * 1200, max));
        assert!(!timers.is_slow_record(at(991), true, 900 * 1200, max));
        assert!(timers.is_slow_record(at(992), true, 900 * 1200, max));
    }

    #[test]
    fn a_byte_now_and_then_does_not_keep_a_record_incomplete_for_ever() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(30));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..=30 {
            assert!(!timers.is_slow_record(at(second), true, second, max));
        }
        assert!(timers.is_slow_record(at(31), true, 31, max));
    }

    #[test]
    fn reading_a_byte_now_and_then_does_not_keep_a_reply_for_ever() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..60 {
            assert!(!timers.is_unread(at(second), true, second, max));
        }
        assert!(timers.is_unread(at(61), true, 61, max));
    }

    #[test]
    fn a_peer_that_reads_on_or_has_read_all_is_not_too_slow() {
        let (mut timers, start, max) = (PeerTimers::new(), Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..600 {
            assert!(!timers.is_unread(at(second), true, second * PROGRESS_MIN / 30, max));
        }
        assert!(!timers.is_unread(at(700), false, 0, max));
        assert!(!timers.is_unread(at(800), true, 0, max));
    }
}
