//! The witness: one connection to the lock manager of a host that holds locks. It is there to be
//! asked when somebody claims that the host rebooted, also if the client has closed all others.

use std::io;
use std::sync::Weak;
use std::time::Duration;

use keeper::bytes::Name;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, interval_at, sleep};

use super::tcp_info::is_reset;
use super::{Acquaintance, Opener, Shared};
use crate::peer::{LockManager, PeerStream};

/// How long finding and connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const BACK_OFF_MIN: Duration = Duration::from_secs(2);
/// A connection that lasts so long works.
const STEADY: Duration = Duration::from_secs(60);
const BACK_OFF_MAX: Duration = Duration::from_secs(5 * 60);

/// It ends when this is dropped.
pub struct Witness(AbortHandle);

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

/// Keeps up the connection for as long as there is somebody to report to.
pub async fn stand(shared: Weak<Shared>, lock_manager: LockManager, name: Name) {
    let mut back_off = BACK_OFF_MIN;
    loop {
        if let Some(session) = Session::begin(&shared, lock_manager, &name).await {
            let begun = Instant::now();
            session.run().await;
            // Who accepts us only to throw us out is not tried more often for that.
            if begun.elapsed() > STEADY {
                back_off = BACK_OFF_MIN;
            }
        }
        sleep(back_off).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
        if shared.strong_count() == 0 {
            return;
        }
    }
}

struct Session {
    stream: PeerStream,
    acquaintance: Acquaintance,
    null_every: Duration,
}

impl Session {
    async fn begin(shared: &Weak<Shared>, lock_manager: LockManager, name: &Name) -> Option<Self> {
        let (places, peers) = {
            let shared = shared.upgrade()?;
            (shared.connecting.clone(), shared.peers.clone())
        };
        let place = places.acquire().await.ok()?;
        // Only a stream is a witness, also for a host that locks over UDP.
        let stream = peers.stream(&lock_manager, Instant::now() + CONNECT_MAX).await.ok()?;
        drop(place);
        let shared = shared.upgrade()?;
        let socket = stream.socket().clone();
        let acquaintance = shared.opened(lock_manager.host, Opener::Kernel, socket);
        acquaintance.named(name.bytes());
        Some(Self { stream, acquaintance, null_every: shared.settings.null_every })
    }

    /// Until the connection ends.
    async fn run(self) {
        let ended = self.converse().await;
        self.acquaintance.ended(ended.is_err_and(|error| is_reset(&error)));
    }

    /// Calls NULL now and then, so that the lock manager does not close an idle connection. The
    /// answers are of no interest, that there is a connection is.
    async fn converse(&self) -> io::Result<()> {
        let mut every = interval_at(Instant::now(), self.null_every);
        let socket = self.stream.socket();
        let mut is_answered = true;
        loop {
            tokio::select! {
                _ = every.tick() => {
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
