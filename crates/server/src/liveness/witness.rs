//! The witness: one connection to the lock manager of a host that holds locks. It is there to be
//! asked when somebody claims that the host rebooted, also if the client has closed all others.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use keeper::bytes::Name;
use keeper::identity::Transport;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, interval_at, sleep, timeout};
use wire::{Writer, nlm, record};

use super::lockd::LockManager;
use super::round::is_reset;
use super::{Acquaintance, Opener, Shared};

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
    stream: Arc<TcpStream>,
    acquaintance: Acquaintance,
    version: u32,
    null_every: Duration,
}

impl Session {
    async fn begin(shared: &Weak<Shared>, lock_manager: LockManager, name: &Name) -> Option<Self> {
        let places = shared.upgrade()?.connecting.clone();
        let place = places.acquire().await.ok()?;
        let stream = timeout(CONNECT_MAX, connect(lock_manager)).await.ok()?.ok()?;
        drop(place);
        let (stream, shared) = (Arc::new(stream), shared.upgrade()?);
        let acquaintance = shared.opened(lock_manager.host, Opener::Kernel, stream.clone());
        acquaintance.named(name.bytes());
        let version = u32::from(lock_manager.lane.version());
        Some(Self { stream, acquaintance, version, null_every: shared.settings.null_every })
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
        let mut calls = 0;
        let mut is_answered = true;
        loop {
            tokio::select! {
                _ = every.tick() => {
                    if is_answered {
                        calls += 1;
                        self.stream.try_write(&null_call(calls, self.version))?;
                        is_answered = false;
                    }
                }
                ready = self.stream.readable() => {
                    ready?;
                    match self.stream.try_read(&mut [0; 512]) {
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

/// Only a stream is a witness, also for a host that locks over UDP.
async fn connect(lock_manager: LockManager) -> io::Result<TcpStream> {
    let at = lock_manager.find(Transport::Tcp).await.map_err(io::Error::other)?;
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(lock_manager.lane.ours(), 0))?;
    let stream = socket.connect(at).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A whole record: NLM NULL without a credential.
fn null_call(xid: u32, version: u32) -> Vec<u8> {
    const CALL: u32 = 0;
    const RPC_VERSION: u32 = 2;
    const NULL: u32 = 0;
    let mut out = Writer::new();
    for word in [xid, CALL, RPC_VERSION, nlm::PROGRAM, version, NULL, 0, 0, 0, 0] {
        out.u32(word);
    }
    let call = out.finish().to_bytes();
    [&record::mark(call.len()).to_be_bytes(), &call[..]].concat()
}
