//! TCP: a task per connection that cuts records out of the stream and hands them on.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{debug, warn};

use wire::record::{MARK_BYTES, Next, Records};

use super::connections::Connections;
use super::outgoing::Outgoing;
use super::{Peer, ReplyTo, Transport, canonical, stopping};
use crate::liveness::Acquaintance;
use crate::rarely::Rarely;
use crate::rpc::dispatch::Dispatcher;
use crate::rpc::limits::Limits;

/// Receive buffers hold at least this, and otherwise just one record like the last one: large
/// records come in rows, and a buffer that ends where its record ends leaves no tail to copy.
const BUFFER_MIN: usize = 16 << 10;
/// While the peer has this much to read, nothing new is begun for it: data that waits in a queue
/// is cold by the time it is sent, and costs memory meanwhile.
const UNSENT_MAX: usize = 512 << 10;
/// Replies that are ready at once leave together, up to this many bytes.
const GATHERED_MAX: usize = 128 << 10;
/// How soon a connection that waits for others to need less looks again.
const OVERLOAD_PAUSE: Duration = Duration::from_millis(5);
/// How long requests under way may still be answered when the peer, or the server, has ended the
/// conversation.
const LAST_REPLIES: Duration = Duration::from_secs(1);
/// Bytes that a connection may move before others get their turn.
const TURN_BYTES: usize = 256 << 10;
/// A peer that reads less than this in the time that replies may stay unread is too slow.
const PROGRESS_MIN: u64 = 16 << 10;
/// How long nothing is accepted when there are no descriptors left.
const SCARCITY_PAUSE: Duration = Duration::from_millis(100);
/// Records taken from one buffer before other connections get their turn.
const RECORDS_PER_TURN: usize = 256;

static SCARCE: Rarely = Rarely::new();
static FULL: Rarely = Rarely::new();

/// Accepts until `stop` changes, then waits until the connections have ended by themselves.
pub async fn accept(
    listener: TcpListener,
    dispatcher: Arc<Dispatcher>,
    connections: Arc<Connections>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        let (socket, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: waiting lets some be given back.
                if is_scarcity(&error) {
                    if SCARCE.due() {
                        warn!(
                            "cannot accept connections for now: {error}; allow more with \
                             `ulimit -n` or LimitNOFILE="
                        );
                    }
                    sleep(SCARCITY_PAUSE).await;
                }
                continue;
            }
        };
        let from = canonical(remote).ip();
        let admitted = match connections.admit(from, dispatcher.limits()) {
            Ok(admitted) => admitted,
            Err(too_many) => {
                if FULL.due() {
                    warn!("refused a connection of {from}: {too_many}");
                }
                continue;
            }
        };
        let (dispatcher, stop) = (dispatcher.clone(), stop.clone());
        tokio::spawn(async move {
            if let Err(ended) = serve(socket, dispatcher, stop).await {
                debug!("connection closed: {ended}");
            }
            drop(admitted);
        });
    }
    // Nobody waits in line for one who does not come back.
    drop(listener);
    let _ = timeout(LAST_REPLIES * 2, connections.ended()).await;
}

fn is_scarcity(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// Why a connection was ended by us or by an error.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Record(#[from] wire::record::Error),
    #[error("idle")]
    Idle,
    #[error("a record was not finished in time")]
    SlowRecord,
    #[error("replies were not read in time")]
    Unread,
}

fn is_reset(ended: &Result<(), Ended>) -> bool {
    matches!(ended, Err(Ended::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset)
}

async fn serve(
    socket: TcpStream,
    dispatcher: Arc<Dispatcher>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Ended> {
    socket.set_nodelay(true)?;
    let peer = Peer::new(socket.peer_addr()?, socket.local_addr()?, Transport::Tcp);
    let (load, tenure) = (dispatcher.load().clone(), dispatcher.tenure().clone());
    let outgoing = Arc::new(Outgoing::new(socket, load, tenure));
    outgoing.introduce(dispatcher.liveness(), &peer);
    let limits = dispatcher.limits().clone();
    let mut connection = Connection {
        peer,
        to: ReplyTo::Connection(outgoing.clone()),
        records: Records::new(limits.record()),
        received: BytesMut::new(),
        record_last: 0,
        moved: 0,
        clock: Clock::new(),
        outgoing,
        limits,
        dispatcher,
    };
    let ended = connection.run(&mut stop).await;
    if let Some(acquaintance) = connection.outgoing.acquaintance() {
        acquaintance.ended(connection.outgoing.was_reset() || is_reset(&ended));
    }
    if ended.is_ok() {
        let _ = timeout(LAST_REPLIES, connection.last_replies()).await;
    }
    connection.outgoing.close();
    connection.dispatcher.connection_ended(connection.outgoing.id());
    ended
}

struct Connection {
    peer: Peer,
    to: ReplyTo,
    outgoing: Arc<Outgoing>,
    records: Records,
    received: BytesMut,
    /// How long the last record was: the next one is likely to be as long.
    record_last: usize,
    /// Bytes moved in this turn.
    moved: usize,
    clock: Clock,
    limits: Limits,
    dispatcher: Arc<Dispatcher>,
}

/// Since when the peer has been silent, slow to send, or slow to read.
struct Clock {
    active: Instant,
    record_begun: Option<Instant>,
    stuck_since: Option<(Instant, u64)>,
}

impl Clock {
    fn new() -> Self {
        Self { active: Instant::now(), record_begun: None, stuck_since: None }
    }

    /// Whether the peer has left replies unread for too long. A byte now and then is no progress:
    /// it would hold a reply for ever.
    fn is_unread(&mut self, now: Instant, stuck: bool, written: u64, max: Duration) -> bool {
        let since = match self.stuck_since {
            Some(since) if stuck && written < since.1 + PROGRESS_MIN => since,
            _ => (now, written),
        };
        self.stuck_since = stuck.then_some(since);
        stuck && now - since.0 > max
    }
}

impl Connection {
    async fn run(&mut self, stop: &mut watch::Receiver<bool>) -> Result<(), Ended> {
        let period = self.limits.tick();
        let mut tick = interval_at(tokio::time::Instant::now() + period, period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // What is in the buffer comes before what is in the socket.
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
            let overloaded = self.dispatcher.is_overloaded();
            let room = self.has_room() || self.has_room_after_all();
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
                () = sleep(OVERLOAD_PAUSE), if !room && overloaded => {}
                _ = tick.tick() => self.check_clock()?,
                () = stopping(stop) => return Ok(()),
            }
        }
    }

    /// Waits until what is under way has been answered and written.
    async fn last_replies(&self) {
        loop {
            self.outgoing.want_room();
            let stuck = self.outgoing.is_stuck();
            if self.outgoing.is_broken() || (self.outgoing.unanswered() == 0 && !stuck) {
                return;
            }
            tokio::select! {
                _ = self.outgoing.socket().writable(), if stuck => self.outgoing.resume(),
                () = self.outgoing.woken() => {}
            }
        }
    }

    /// Asks to be woken when there is room, and looks once more.
    fn has_room_after_all(&self) -> bool {
        self.outgoing.want_room();
        self.has_room()
    }

    fn has_room(&self) -> bool {
        self.outgoing.unanswered() < self.limits.requests_in_flight_max
            && self.outgoing.load() < self.limits.connection_bytes_max
            && self.outgoing.unsent() < UNSENT_MAX
            // Who has nothing under way gets one request through even then: others that do not
            // read their replies must not be able to stop it.
            && (!self.dispatcher.is_overloaded() || self.outgoing.load() == 0)
    }

    /// Hands on the records that are complete; replies that are ready at once leave together.
    /// Answers whether complete records may be left.
    fn take_records(&mut self) -> Result<bool, Ended> {
        let mut replies = Vec::new();
        let mut gathered = 0;
        let mut more = false;
        for turn in 0.. {
            if turn == RECORDS_PER_TURN || self.moved > TURN_BYTES || !self.has_room() {
                more = true;
                break;
            }
            match self.records.next(&mut self.received)? {
                Next::Record(record) => {
                    self.record_last = record.len();
                    self.moved += record.len();
                    self.clock.record_begun = None;
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
                    if self.received.is_empty() {
                        // An idle connection holds no buffer.
                        self.received = BytesMut::new();
                    } else if bytes <= MARK_BYTES {
                        // The mark itself is cut: what follows is likely to be as the last one.
                        self.received.reserve(self.record_last.max(BUFFER_MIN));
                    } else {
                        self.received.reserve(bytes);
                    }
                    break;
                }
            }
        }
        if !replies.is_empty() {
            self.outgoing.send(replies);
        }
        self.dispatcher.flush();
        Ok(more)
    }

    /// Reads what the socket has. `false` is the end of the stream.
    fn receive(&mut self) -> Result<bool, Ended> {
        if self.received.capacity() == 0 {
            let likely = self.record_last + MARK_BYTES;
            self.received = BytesMut::with_capacity(likely.max(BUFFER_MIN));
        }
        match self.outgoing.socket().try_read_buf(&mut self.received) {
            Ok(0) => Ok(false),
            Ok(_) => {
                let now = Instant::now();
                self.clock.active = now;
                self.clock.record_begun.get_or_insert(now);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn check_clock(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let waits_for_us = !self.has_room();
        let clock = &mut self.clock;
        if self.records.between(&self.received) {
            clock.record_begun = None;
        } else if waits_for_us || clock.record_begun.is_none() {
            // The first byte may have come together with the end of the record before.
            clock.record_begun = Some(now);
        }
        if clock.record_begun.is_some_and(|begun| now - begun > self.limits.record_time_max) {
            return Err(Ended::SlowRecord);
        }
        let (stuck, written) = (self.outgoing.is_stuck(), self.outgoing.written());
        if clock.is_unread(now, stuck, written, self.limits.unread_time_max) {
            return Err(Ended::Unread);
        }
        let quiet = self.outgoing.unanswered() == 0 && clock.stuck_since.is_none();
        let is_idle = quiet && now - clock.active > self.limits.idle_max;
        if is_idle && !self.outgoing.acquaintance().is_some_and(Acquaintance::is_kept) {
            return Err(Ended::Idle);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_a_byte_now_and_then_does_not_keep_a_reply_for_ever() {
        let (mut clock, start, max) = (Clock::new(), Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..60 {
            assert!(!clock.is_unread(at(second), true, second, max));
        }
        assert!(clock.is_unread(at(61), true, 61, max));
    }

    #[test]
    fn a_peer_that_reads_on_or_has_read_all_is_not_too_slow() {
        let (mut clock, start, max) = (Clock::new(), Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..600 {
            assert!(!clock.is_unread(at(second), true, second * PROGRESS_MIN / 30, max));
        }
        assert!(!clock.is_unread(at(700), false, 0, max));
        assert!(!clock.is_unread(at(800), true, 0, max));
    }
}
