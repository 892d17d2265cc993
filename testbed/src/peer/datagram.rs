//! Peers over UDP that the test drives call by call.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use wire::rpc::{Call, Credential, Procedure};

use super::{call, user};
use crate::wait::{bounded, until};

/// A client, as root, that chooses its transaction ids: the same call can be sent twice.
pub struct UdpCaller {
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    credential: Credential,
    received: Arc<Mutex<Vec<Bytes>>>,
    reader: JoinHandle<()>,
}

impl UdpCaller {
    pub async fn bind(from: IpAddr, port: u16, to: SocketAddr) -> Self {
        let socket = Arc::new(UdpSocket::bind((from, port)).await.unwrap());
        let received = Arc::<Mutex<Vec<Bytes>>>::default();
        let reader = tokio::spawn({
            let (socket, received) = (socket.clone(), received.clone());
            async move {
                let mut buffer = vec![0; 9000];
                while let Ok(length) = socket.recv(&mut buffer).await {
                    received.lock().unwrap().push(Bytes::copy_from_slice(&buffer[..length]));
                }
            }
        });
        Self { socket, to, credential: user(0, 0, &[]), received, reader }
    }

    pub async fn send<P: Procedure>(&self, xid: u32, args: &P::Args) {
        let bytes = call::<P>(xid, &self.credential, args);
        self.socket.send_to(&bytes, self.to).await.unwrap();
    }

    /// Every reply with that transaction id so far.
    pub fn replies(&self, xid: u32) -> Vec<Bytes> {
        let received = self.received.lock().unwrap();
        received.iter().filter(|reply| reply.starts_with(&xid.to_be_bytes())).cloned().collect()
    }

    /// The first reply with that transaction id.
    pub async fn reply(&self, xid: u32) -> Bytes {
        until("a reply", || !self.replies(xid).is_empty()).await;
        self.replies(xid).remove(0)
    }
}

impl Drop for UdpCaller {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A socket on a free port of loopback.
pub async fn udp_socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The next call that arrives, and its source.
pub async fn receive_call(socket: &UdpSocket) -> (Call, SocketAddr) {
    let mut buffer = vec![0; 9000];
    let (length, from) = bounded("a call", socket.recv_from(&mut buffer)).await.unwrap();
    (Call::parse(Bytes::copy_from_slice(&buffer[..length])).unwrap(), from)
}
