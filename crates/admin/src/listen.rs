//! The sockets of the API: one that only this host can reach, and loopback TCP for browsers and
//! metrics. Every connection has bounds: how many there are, and how long a question may take.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tracing::debug;

use crate::caller::Way;

/// Connections at once, over each way.
const CONNECTIONS_MAX: usize = 256;
/// From the first byte of a question to the end of its head.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "another server answers at {}; stop it, or name another socket in [admin]", path.display()
    )]
    InUse { path: PathBuf },
    #[error("cannot make the socket {}: {error}; name another in [admin]", path.display())]
    Socket { path: PathBuf, error: io::Error },
    #[error("cannot listen on {address}: {error}; name another address in [admin], or \"off\"")]
    Tcp { address: SocketAddr, error: io::Error },
}

/// A unix socket that everybody on the host may connect to: who it is, the kernel says.
pub async fn unix(path: &Path) -> Result<UnixListener, ListenError> {
    let failed = |error| ListenError::Socket { path: path.to_owned(), error };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(ListenError::InUse { path: path.to_owned() });
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(failed)?;
    Ok(listener)
}

pub fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|found| found.ino())
}

pub async fn tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|error| ListenError::Tcp { address, error })
}

pub fn serve_unix(listener: UnixListener, router: Router) -> JoinHandle<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::spawn(async move {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                pause().await;
                continue;
            };
            let Ok(peer) = stream.peer_cred() else { continue };
            let way = Way::Socket { uid: peer.uid(), gid: peer.gid() };
            let router = router.clone();
            tokio::spawn(async move {
                converse(stream, router, way).await;
                drop(place);
            });
        }
    })
}

pub fn serve_tcp(listener: TcpListener, router: Router) -> JoinHandle<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::spawn(async move {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, from)) = listener.accept().await else {
                pause().await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let router = router.clone();
            tokio::spawn(async move {
                converse(stream, router, Way::Tcp { from }).await;
                drop(place);
            });
        }
    })
}

/// After a failed accept, for want of descriptors say.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn converse<S>(stream: S, router: Router, way: Way)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = router.layer(axum::Extension(way));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(64 << 10);
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    if let Err(error) = served.await {
        debug!("a connection to the API ended: {error}");
    }
}
