//! Real connections: on loopback, and between two network namespaces, where the peer can crash.

mod connections;
mod loopback;
mod namespaces;
mod transport;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use keeper::bytes::Name;
use keeper::identity::{HostKey, Incarnation};
use keeper::request::{ProbeAnswer, Question};
use testbed::wait::until;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::{Inquiry, Liveness, Opener, Settings};
use crate::peer::{self, Peers};

const STATE: Incarnation = Incarnation(7);

/// A `Liveness` behind a listener; each connection is named by the first byte that it sends.
struct Fixture {
    liveness: Liveness,
    at: SocketAddr,
    /// Names of the hosts that reset a connection.
    resets: Arc<Mutex<Vec<Name>>>,
    open: Arc<AtomicUsize>,
    streams: Streams,
}

/// The sockets that were accepted, in order.
type Streams = Arc<Mutex<Vec<Weak<TcpStream>>>>;

impl Fixture {
    async fn at(address: &str, settings: Settings) -> Self {
        let resets = Arc::<Mutex<Vec<Name>>>::default();
        let seen = resets.clone();
        let on_reset = move |host: &HostKey, _| seen.lock().unwrap().push(host.name().clone());
        let peers = Peers::new(peer::Settings::default(), &[]);
        let liveness = Liveness::new(settings, peers, Arc::new(on_reset));
        let listener = TcpListener::bind(address).await.unwrap();
        let (at, open) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let streams = Streams::default();
        tokio::spawn(accept(listener, liveness.clone(), open.clone(), streams.clone()));
        Self { liveness, at, resets, open, streams }
    }

    fn resets(&self) -> usize {
        self.resets.lock().unwrap().len()
    }

    fn first_stream(&self) -> Arc<TcpStream> {
        self.streams.lock().unwrap()[0].upgrade().unwrap()
    }

    /// Waits until that many connections are open.
    async fn until_open(&self, count: usize) {
        until("connections", || self.open.load(Ordering::SeqCst) == count).await;
    }

    async fn same_kernel(&self, host: &HostKey) -> ProbeAnswer {
        self.liveness.probe(&same_kernel(host)).await
    }
}

async fn accept(
    listener: TcpListener,
    liveness: Liveness,
    open: Arc<AtomicUsize>,
    streams: Streams,
) {
    loop {
        let (stream, remote) = listener.accept().await.unwrap();
        let stream = Arc::new(stream);
        streams.lock().unwrap().push(Arc::downgrade(&stream));
        let guard = liveness.track(remote.ip(), Opener::Kernel, stream.clone());
        let open = open.clone();
        tokio::spawn(async move {
            loop {
                stream.readable().await.unwrap();
                let mut bytes = [0; 16];
                match stream.try_read(&mut bytes) {
                    Ok(0) => return end(&open, &guard, false),
                    Ok(_) => {
                        guard.add_name(&bytes[..1]);
                        open.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        let by_reset = super::tcp_info::is_reset(&error);
                        return end(&open, &guard, by_reset);
                    }
                }
            }
        });
    }
}

fn end(open: &AtomicUsize, guard: &super::ConnectionGuard, by_reset: bool) {
    guard.ended(by_reset);
    open.fetch_sub(1, Ordering::SeqCst);
}

/// Connects as the host of that name.
async fn call(at: SocketAddr, name: &str) -> TcpStream {
    let stream = TcpStream::connect(at).await.unwrap();
    assert_eq!(stream.try_write(name.as_bytes()).unwrap(), 1);
    stream
}

/// Closes by a reset, like a killed program with unread data.
fn abort(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
}

fn host(address: &str, name: &str) -> HostKey {
    HostKey::new(address.parse().unwrap(), Name::from(name))
}

fn same_kernel(host: &HostKey) -> Inquiry {
    let (host, question) = (host.clone(), Question::SameKernel(STATE));
    Inquiry { host, question, asked: Instant::now() }
}
