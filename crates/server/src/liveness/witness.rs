//! A witness: one connection to the lock manager of a watched host, kept open so that there is one to
//! probe when a reboot of the host is reported, even if the client has closed all others.

use std::io;
use std::sync::Weak;
use std::time::Duration;

use keeper::bytes::Name;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, interval_at, sleep};

use super::tcp_info::is_reset;
use super::{ConnectionGuard, Inner, Opener};
use crate::peer::{LockManager, PeerStream};

/// Limit on port lookup and connecting.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const BACK_OFF_MIN: Duration = Duration::from_secs(2);
const BACK_OFF_MAX: Duration = Duration::from_secs(5 * 60);
/// A connection that lasted this long resets the back-off.
const STEADY: Duration = Duration::from_secs(60);

/// The task of a witness, which is aborted when this is dropped.
pub(super) struct Witness(AbortHandle);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl From<JoinHandle<()>> for Witness {
    fn from(task: JoinHandle<()>) -> Self {
        Self(task.abort_handle())
    }
}

/// Connects, and reconnects with back-off, until `Liveness` is dropped.
pub(super) async fn run(inner: Weak<Inner>, lock_manager: LockManager, name: Name) {
    let mut back_off = BACK_OFF_MIN;
    loop {
        if let Some(session) = Session::begin(&inner, lock_manager, &name).await {
            let begun = Instant::now();
            session.run().await;
            // A lock manager that accepts and then closes is not tried more often for that.
            if begun.elapsed() > STEADY {
                back_off = BACK_OFF_MIN;
            }
        }
        sleep(back_off).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
        if inner.strong_count() == 0 {
            return;
        }
    }
}

struct Session {
    stream: PeerStream,
    guard: ConnectionGuard,
    null_interval: Duration,
}

impl Session {
    async fn begin(inner: &Weak<Inner>, lock_manager: LockManager, name: &Name) -> Option<Self> {
        let (connecting, peers) = {
            let inner = inner.upgrade()?;
            (inner.connecting.clone(), inner.peers.clone())
        };
        let permit = connecting.acquire().await.ok()?;
        // TCP even for a host that locks over UDP: only a connection can be probed.
        let stream = peers.stream(&lock_manager, Instant::now() + CONNECT_MAX).await.ok()?;
        drop(permit);
        let inner = inner.upgrade()?;
        let guard = inner.track(lock_manager.host, Opener::Kernel, stream.socket().clone());
        guard.add_name(name.bytes());
        Some(Self { stream, guard, null_interval: inner.settings.null_interval })
    }

    /// Returns when the connection has ended.
    async fn run(self) {
        let ended = self.converse().await;
        self.guard.ended(ended.is_err_and(|error| is_reset(&error)));
    }

    /// Calls NULL at intervals, so that the lock manager does not close the connection as idle. The
    /// replies are discarded.
    async fn converse(&self) -> io::Result<()> {
        let mut interval = interval_at(Instant::now(), self.null_interval);
        let socket = self.stream.socket();
        let mut is_answered = true;
        loop {
            tokio::select! {
                _ = interval.tick() => {
                    if is_answered {
                        is_answered = !self.stream.send_null()?;
                    }
                }
                ready = socket.readable() => {
                    ready?;
                    match socket.try_read(&mut [0; 512]) {
                        Ok(0) => return Ok(()),
                        Ok(_) => is_answered = true,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
}
