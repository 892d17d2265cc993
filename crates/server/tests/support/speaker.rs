//! One who speaks over UDP with numbers of its own choice: the same call can be sent twice.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use wire::rpc::{Credential, Procedure};

use super::line::{call, user};
use super::until;

pub struct Speaker {
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    credential: Credential,
    /// The replies that came.
    heard: Arc<Mutex<Vec<Bytes>>>,
    reader: JoinHandle<()>,
}

impl Speaker {
    pub async fn new(from: IpAddr, port: u16, to: SocketAddr) -> Self {
        let socket = Arc::new(UdpSocket::bind((from, port)).await.unwrap());
        let heard = Arc::<Mutex<Vec<Bytes>>>::default();
        let reader = tokio::spawn({
            let (socket, heard) = (socket.clone(), heard.clone());
            async move {
                let mut buffer = vec![0; 9000];
                while let Ok(length) = socket.recv(&mut buffer).await {
                    heard.lock().unwrap().push(Bytes::copy_from_slice(&buffer[..length]));
                }
            }
        });
        Self { socket, to, credential: user(0, 0, &[]), heard, reader }
    }

    pub async fn say<P: Procedure>(&self, xid: u32, args: &P::Args) {
        let bytes = call::<P>(xid, &self.credential, args);
        self.socket.send_to(&bytes, self.to).await.unwrap();
    }

    /// Replies to the call of that number.
    pub fn replies(&self, xid: u32) -> Vec<Bytes> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|reply| reply.starts_with(&xid.to_be_bytes())).cloned().collect()
    }

    pub async fn reply(&self, xid: u32) -> Bytes {
        until("a reply came", || !self.replies(xid).is_empty()).await;
        self.replies(xid).remove(0)
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
