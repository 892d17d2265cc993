//! The sockets of the API: a unix socket, and loopback TCP for browsers and metrics. The number of
//! connections, the time for a request head and the time without progress are bounded.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::debug;

use crate::caller::Peer;
use crate::quota::Quota;
use crate::write_timeout::WriteTimeout;

/// Concurrent connections per listener.
const CONNECTIONS_MAX: usize = 256;
/// Limit for receiving a request head.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a peer may not read.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Connections over the limit that get an error reply at a time, and the limit for each; others are
/// just closed.
const REFUSALS_MAX: usize = 16;
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);
const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\nconnection: close\r\n\r\n\
    {\"title\":\"Service Unavailable\",\"status\":503,\"code\":\"too-many\",\
    \"detail\":\"too many connections\",\"hint\":\"close some connections\"}";

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "another server is listening on {}; stop it, or set another socket in [admin]", path.display()
    )]
    InUse { path: PathBuf },
    #[error("cannot create the socket {}: {error}; set another in [admin]", path.display())]
    Socket { path: PathBuf, error: io::Error },
    #[error("cannot listen on {address}: {error}; set another address or \"off\" in [admin]")]
    Tcp { address: SocketAddr, error: io::Error },
}

/// The socket's file, removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode, to recognise it.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have replaced it.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// A unix socket open to all local users; the kernel identifies them.
pub(crate) async fn unix(path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    let failed = |error| ListenError::Socket { path: path.to_owned(), error };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    remove_stale(path).await?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path) };
    fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(failed)?;
    Ok((listener, file))
}

/// Removes a socket without listener, and nothing else.
async fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |error| ListenError::Socket { path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(failed(io::Error::other("the path exists and is not a socket"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(ListenError::InUse { path: path.to_owned() }),
        // Its backlog is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(ListenError::InUse { path: path.to_owned() })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

pub(crate) async fn tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|error| ListenError::Tcp { address, error })
}

pub(crate) async fn serve_unix(listener: UnixListener, router: Router) {
    let quota = Quota::new(CONNECTIONS_MAX);
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            pause().await;
            continue;
        };
        let Ok(user) = stream.peer_cred() else { continue };
        let peer = Peer::Socket { uid: user.uid(), gid: user.gid() };
        admit(stream, &router, peer, &quota, &refusals);
    }
}

/// Serves a connection, or refuses it if those like it have their share.
fn admit<S>(stream: S, router: &Router, peer: Peer, quota: &Arc<Quota>, refusals: &Arc<Semaphore>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match quota.take(peer.connects_as()) {
        Some(permit) => {
            let router = router.clone();
            tokio::spawn(async move {
                serve_connection(stream, router, peer, UNREAD_TIME_MAX).await;
                drop(permit);
            });
        }
        None => {
            if let Ok(leave) = refusals.clone().try_acquire_owned() {
                tokio::spawn(refuse(stream, leave));
            }
        }
    }
}

/// Replies after the request has arrived: an earlier reply would be lost.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, leave: OwnedSemaphorePermit) {
    let reply = async {
        // Whatever has arrived of it.
        let _part = stream.read(&mut [0; 4096]).await?;
        stream.write_all(FULL.as_bytes()).await
    };
    let _ = timeout(REFUSAL_TIME_MAX, reply).await;
    drop(leave);
}

pub(crate) async fn serve_tcp(listener: TcpListener, router: Router) {
    let quota = Quota::new(CONNECTIONS_MAX);
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            pause().await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        admit(stream, &router, Peer::Tcp { from }, &quota, &refusals);
    }
}

/// After a failed accept, such as for lack of descriptors.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn serve_connection<S>(stream: S, router: Router, peer: Peer, write_timeout: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = router.layer(axum::Extension(peer));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(64 << 10);
    let stream = TokioIo::new(WriteTimeout::new(stream, write_timeout));
    let served = http.serve_connection(stream, TowerToHyperService::new(service));
    if let Err(error) = served.await {
        debug!("admin API connection ended: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net;

    use axum::routing::get;
    use tokio::task::JoinHandle;

    const LARGE: usize = 8 << 20;
    const PATIENCE: Duration = Duration::from_millis(300);

    /// A client that has requested a large reply.
    async fn asked() -> (UnixStream, JoinHandle<()>) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let router = Router::new().route("/", get(|| async { "x".repeat(LARGE) }));
        let peer = Peer::Socket { uid: 65_534, gid: 65_534 };
        let served = tokio::spawn(serve_connection(theirs, router, peer, PATIENCE));
        ours.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        (ours, served)
    }

    #[tokio::test]
    async fn who_does_not_read_is_left() {
        let (asked, served) = asked().await;
        assert!(timeout(Duration::from_secs(10), served).await.is_ok());
        drop(asked);
    }

    #[tokio::test]
    async fn who_reads_slowly_gets_everything() {
        let (mut asked, served) = asked().await;
        let mut buffer = vec![0; 1 << 20];
        let mut got = 0;
        while got < LARGE {
            got += asked.read(&mut buffer).await.unwrap();
            if got % 7 == 0 {
                tokio::time::sleep(PATIENCE / 10).await;
            }
        }
        drop(asked);
        assert!(timeout(Duration::from_secs(10), served).await.is_ok());
    }

    #[tokio::test]
    async fn only_the_socket_of_a_server_that_is_gone_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        fs::write(&path, "mine").unwrap();
        let error = unix(&path).await.unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(unix(&link).await.is_err());
        assert!(fs::symlink_metadata(&link).is_ok());

        let stale = dir.path().join("stale");
        drop(net::UnixListener::bind(&stale).unwrap());
        let (listener, file) = unix(&stale).await.unwrap();
        assert_eq!(fs::metadata(&stale).unwrap().mode() & 0o777, 0o666);
        assert!(matches!(unix(&stale).await, Err(ListenError::InUse { .. })));
        drop((listener, file));
        assert!(!stale.exists());

        let datagrams = dir.path().join("datagrams");
        let _other = net::UnixDatagram::bind(&datagrams).unwrap();
        assert!(matches!(unix(&datagrams).await, Err(ListenError::Socket { .. })));
        assert!(datagrams.exists());
    }
}
