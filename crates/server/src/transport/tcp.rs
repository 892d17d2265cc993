//! TCP: a task per connection that cuts records out of the stream and hands them on.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{debug, warn};

use wire::record::{Next, Records};

use super::outgoing::Outgoing;
use super::{Peer, ReplyTo, Transport};
use crate::dispatch::Dispatcher;
use crate::limits::Limits;
use crate::rarely::Rarely;

/// Receive buffers hold at least this, and otherwise just one record like the last one: large
/// records come in rows, and a buffer that ends where its record ends leaves no tail to copy.
const BUFFER_MIN: usize = 16 << 10;
const MARK: usize = 4;
/// While the peer has this much to read, nothing new is begun for it: data that waits in a queue
/// is cold by the time it is sent, and costs memory meanwhile.
const UNSENT_MAX: usize = 512 << 10;
/// Replies that are ready at once leave together, up to this many bytes.
const GATHERED_MAX: usize = 128 << 10;
/// How soon a connection that waits for others to need less looks again.
const OVERLOAD_PAUSE: Duration = Duration::from_millis(5);
/// How long requests under way may still be answered when the peer, or the server, has ended the
/// conversation. Less than what a stop of the server waits for.
const LAST_REPLIES: Duration = Duration::from_millis(150);
/// Bytes that a connection may move before others get their turn.
const TURN_BYTES: usize = 256 << 10;
/// How long nothing is accepted when there are no descriptors left.
const SCARCITY_PAUSE: Duration = Duration::from_millis(100);
/// Records taken from one buffer before other connections get their turn.
const RECORDS_PER_TURN: usize = 256;

static SCARCE: Rarely = Rarely::new();
static FULL: Rarely = Rarely::new();

/// Accepts until `stop` changes, then waits for nobody: connections end by themselves.
pub async fn accept(
    listener: TcpListener,
    dispatcher: Arc<Dispatcher>,
    connections: Arc<AtomicUsize>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
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
        let connections_max = dispatcher.limits().connections_max;
        if connections.fetch_add(1, Ordering::Relaxed) >= connections_max {
            connections.fetch_sub(1, Ordering::Relaxed);
            if FULL.due() {
                warn!(
                    "refused a connection: {connections_max} are open, the most allowed; allow \
                     more with `connections` in [limits]"
                );
            }
            continue;
        }
        let (dispatcher, connections) = (dispatcher.clone(), connections.clone());
        let stop = stop.clone();
        tokio::spawn(async move {
            if let Err(ended) = serve(socket, dispatcher, stop).await {
                debug!("connection closed: {ended}");
            }
            connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
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

async fn serve(
    socket: TcpStream,
    dispatcher: Arc<Dispatcher>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Ended> {
    socket.set_nodelay(true)?;
    let peer = Peer::new(socket.peer_addr()?, socket.local_addr()?, Transport::Tcp);
    let outgoing = Arc::new(Outgoing::new(socket, dispatcher.load()));
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
    if ended.is_ok() {
        let _ = timeout(LAST_REPLIES, connection.last_replies()).await;
    }
    connection.outgoing.close();
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
                    } else if bytes <= MARK {
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
        Ok(more)
    }

    /// Reads what the socket has. `false` is the end of the stream.
    fn receive(&mut self) -> Result<bool, Ended> {
        if self.received.capacity() == 0 {
            let likely = self.record_last + MARK;
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
        clock.stuck_since = match (self.outgoing.is_stuck(), clock.stuck_since) {
            (false, _) => None,
            // Any byte that left is progress.
            (true, Some((since, written))) if written == self.outgoing.written() => {
                if now - since > self.limits.unread_time_max {
                    return Err(Ended::Unread);
                }
                Some((since, written))
            }
            (true, _) => Some((now, self.outgoing.written())),
        };
        let quiet = self.outgoing.unanswered() == 0 && clock.stuck_since.is_none();
        if quiet && now - clock.active > self.limits.idle_max {
            return Err(Ended::Idle);
        }
        Ok(())
    }
}

/// Resolves when the server stops; never, if it cannot.
async fn stopping(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stopped| *stopped).await.is_err() {
        pending::<()>().await;
    }
}
