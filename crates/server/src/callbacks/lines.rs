//! Connections to lock managers. One for each (host, our address, version) is kept for a while
//! after it was used, so that the next callback needs neither a look-up nor a handshake.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use client::{ConnectError, Connection, Options};
use keeper::identity::{Lane, Transport};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;
use wire::nlm;

use super::ports::{Missing, Service};
use super::{Inner, lacks_reserved_port, rest, short_replies};

/// The two ends of a line, and what is spoken over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ends {
    pub host: IpAddr,
    pub ours: IpAddr,
    pub version: u32,
}

impl Ends {
    pub fn new(host: IpAddr, lane: Lane) -> Self {
        Self { host, ours: lane.ours(), version: lane.version().into() }
    }

    pub fn service(&self, transport: Transport) -> Service {
        Service { host: self.host, program: nlm::PROGRAM, version: self.version, transport }
    }
}

pub struct Lines {
    max: usize,
    kept: Mutex<HashMap<Ends, Arc<Slot>>>,
}

/// A connection or the place of one. Whoever finds it empty fills it while the others wait, so
/// that a burst of callbacks makes one connection.
struct Slot {
    line: tokio::sync::Mutex<Option<Line>>,
    used: Mutex<Instant>,
}

/// A connection to a lock manager.
#[derive(Clone)]
pub struct Line {
    pub connection: Connection,
    /// It was there before.
    pub kept: bool,
    abandoned: Arc<AtomicBool>,
}

impl Line {
    /// It is of no use any more: nobody shall be given it again.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn is_good(&self) -> bool {
        !self.abandoned.load(Ordering::Relaxed) && !self.connection.has_ended()
    }
}

impl Slot {
    fn new() -> Self {
        Self { line: tokio::sync::Mutex::default(), used: Mutex::new(Instant::now()) }
    }

    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Lines {
    pub fn new(max: usize) -> Self {
        Self { max, kept: Mutex::default() }
    }

    /// When all places are taken, the one that was not used for longest goes; if all are in use,
    /// this one is not kept.
    fn slot(&self, ends: &Ends) -> Arc<Slot> {
        let mut kept = self.lock();
        if let Some(slot) = kept.get(ends) {
            slot.touch();
            return slot.clone();
        }
        let slot = Arc::new(Slot::new());
        if kept.len() >= self.max {
            let idle = kept.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used()).map(|(ends, _)| *ends)
            else {
                return slot;
            };
            kept.remove(&oldest);
        }
        kept.insert(*ends, slot.clone());
        slot
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ends, Arc<Slot>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A connection to the lock manager of a host; an error means that nothing was sent.
    pub async fn line(&self, ends: &Ends, until: Instant) -> Result<Line, Missing> {
        let slot = self.lines.slot(ends);
        let held = timeout_at(until, slot.line.lock()).await;
        let mut held = held.map_err(|_| Missing::NoAnswer)?;
        slot.touch();
        if let Some(line) = held.as_ref().filter(|line| line.is_good()) {
            return Ok(Line { kept: true, ..line.clone() });
        }
        *held = None;
        let connection = self.new_line(ends, until).await?;
        let line = Line { connection, kept: false, abandoned: Arc::default() };
        *held = Some(line.clone());
        Ok(line)
    }

    async fn new_line(&self, ends: &Ends, until: Instant) -> Result<Connection, Missing> {
        let service = ends.service(Transport::Tcp);
        let remembered = self.ports.known(&service);
        if let Some(port) = remembered {
            match self.connect(ends, port, until).await {
                Err(Missing::NoAnswer) => self.ports.forget(&service),
                connected => return connected,
            }
        }
        let port = self.ports.port(&self.posts, service, ends.ours, until).await?;
        let connected = self.connect(ends, port, until).await;
        if connected.is_err() {
            self.ports.forget(&service);
        }
        connected
    }

    async fn connect(&self, ends: &Ends, port: u16, until: Instant) -> Result<Connection, Missing> {
        let to = SocketAddr::new(ends.host, port);
        let options = Options { credential: self.credential.clone(), ..short_replies() };
        let options = self.from(ends.ours, until, options);
        let connected = match Connection::connect(to, &options).await {
            Err(error) if options.reserved_port && lacks_reserved_port(&error) => {
                let any = Options { reserved_port: false, ..options };
                Connection::connect(to, &any).await
            }
            connected => connected,
        };
        connected.map_err(|error| {
            debug!("lock manager at {to}: {error}");
            match error {
                ConnectError::Bind(_) | ConnectError::NoReservedPort => Missing::Local,
                ConnectError::Timeout(_) | ConnectError::Connect(_) => Missing::NoAnswer,
            }
        })
    }

    /// Options for a stream from one of our addresses that must be there by `until`.
    pub fn from(&self, ours: IpAddr, until: Instant, options: Options) -> Options {
        Options {
            source: Some(ours),
            reserved_port: self.settings.reserved_ports,
            connect_timeout: rest(until),
            timeout: rest(until),
            ..options
        }
    }
}

/// Closes connections that were not used for a while, until nobody needs them at all.
pub async fn sweep(inner: Weak<Inner>) {
    loop {
        let Some(keep) = inner.upgrade().map(|inner| inner.settings.keep) else { return };
        sleep((keep / 6).clamp(Duration::from_millis(10), Duration::from_secs(10))).await;
        let Some(inner) = inner.upgrade() else { return };
        let in_use = |slot: &Arc<Slot>| Arc::strong_count(slot) > 1;
        inner.lines.lock().retain(|_, slot| in_use(slot) || slot.used().elapsed() < keep);
    }
}
