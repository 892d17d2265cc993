//! A simulated client machine with its own address: calls the server from there, and runs a minimal
//! rpcbind, status monitor and lock manager for the server's calls.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use client::Options;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::nlm::{self, Status, StatusReply, TestArgs};
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, Procedure as _, write_accepted};
use wire::rpcbind::{self, Mapping};
use wire::{Decode as _, Encode as _, Writer, nsm};

use crate::child_server::free_address;

const LIMITS: Limits = Limits { record_bytes_max: 16 << 10, fragments_max: 4 };
const CONNECTIONS_MAX: usize = 16;
const CALL_MAX: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(super) struct Machine {
    pub name: &'static str,
    pub ip: Ipv4Addr,
    /// Port of its rpcbind.
    pub rpcbind_port: u16,
    notices: mpsc::Receiver<Notice>,
    grants: mpsc::Receiver<TestArgs>,
    _tasks: JoinSet<()>,
}

/// A received SM_NOTIFY.
#[derive(Debug)]
pub(super) struct Notice {
    pub state: i32,
    pub at: Instant,
}

impl Machine {
    /// Two machines whose rpcbinds listen on the same port, as the server expects.
    pub(super) async fn pair(names: [(&'static str, Ipv4Addr); 2]) -> Result<[Self; 2]> {
        let [(first, at_first), (second, at_second)] = names;
        // Another demo may be taking ports at the same time.
        for _ in 0..10 {
            let port = free_address(IpAddr::V4(at_first))?.port();
            if let Ok(one) = Self::start(first, at_first, port).await
                && let Ok(other) = Self::start(second, at_second, port).await
            {
                return Ok([one, other]);
            }
        }
        bail!("no port is free on both {at_first} and {at_second}; is 127.0.0.0/8 on loopback?")
    }

    async fn start(name: &'static str, ip: Ipv4Addr, rpcbind_port: u16) -> Result<Self> {
        let rpcbind_udp = UdpSocket::bind((ip, rpcbind_port)).await?;
        let rpcbind_tcp = TcpListener::bind((ip, rpcbind_port)).await?;
        let listener = TcpListener::bind((ip, 0)).await?;
        // More than the demo can cause.
        let (noticed, notices) = mpsc::channel(64);
        let (granted, grants) = mpsc::channel(64);
        let services = ClientServices { port: listener.local_addr()?.port(), noticed, granted };
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_datagrams(rpcbind_udp, services.clone()));
        tasks.spawn(serve_streams(rpcbind_tcp, services.clone()));
        tasks.spawn(serve_streams(listener, services));
        Ok(Self { name, ip, rpcbind_port, notices, grants, _tasks: tasks })
    }

    /// Options for its calls: source address and credentials.
    pub(super) fn options(&self) -> Options {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        Options { source: Some(IpAddr::V4(self.ip)), timeout: CALL_MAX, ..Options::default() }.user(
            user,
            group,
            &[],
        )
    }

    /// The next SM_NOTIFY.
    pub(super) async fn notice(&mut self, limit: Duration) -> Result<Notice> {
        let heard = timeout(limit, self.notices.recv()).await;
        heard.ok().flatten().with_context(|| format!("no SM_NOTIFY arrived within {limit:?}"))
    }

    /// The next GRANTED callback, already accepted.
    pub(super) async fn grant(&mut self, limit: Duration) -> Result<TestArgs> {
        let heard = timeout(limit, self.grants.recv()).await;
        heard.ok().flatten().with_context(|| format!("no GRANTED arrived within {limit:?}"))
    }
}

/// The RPC services of a machine.
#[derive(Debug, Clone)]
struct ClientServices {
    /// TCP port of its status monitor and lock manager.
    port: u16,
    noticed: mpsc::Sender<Notice>,
    granted: mpsc::Sender<TestArgs>,
}

impl ClientServices {
    /// `None` if the call is malformed.
    fn answer(&self, record: Bytes) -> Option<Bytes> {
        let call = Call::parse(record).ok()?;
        let mut out = Writer::new();
        match self.results(&call)? {
            Ok(results) => {
                write_accepted(&mut out, call.xid, Accepted::Success);
                out.fixed(&results);
            }
            Err(verdict) => write_accepted(&mut out, call.xid, verdict),
        }
        Some(out.finish().to_bytes())
    }

    fn results(&self, call: &Call) -> Option<Result<Bytes, Accepted>> {
        let args = call.args.clone();
        Some(match (call.program, call.version, call.procedure) {
            (rpcbind::PROGRAM | nsm::PROGRAM | nlm::PROGRAM, _, 0) => Ok(Bytes::new()),
            (rpcbind::PROGRAM, rpcbind::V2, rpcbind::v2::GetPort::NUMBER) => {
                Ok(self.port_of(&Mapping::from_bytes(args).ok()?).to_bytes())
            }
            (nsm::PROGRAM, nsm::VERSION, nsm::Notify::NUMBER) => {
                let state = nsm::NotifyArgs::from_bytes(args).ok()?.state;
                let _ = self.noticed.try_send(Notice { state, at: Instant::now() });
                Ok(Bytes::new())
            }
            (nlm::PROGRAM, nlm::V4, nlm::v4::Granted::NUMBER) => {
                let args = TestArgs::from_bytes(args).ok()?;
                let cookie = args.cookie.clone();
                let _ = self.granted.try_send(args);
                Ok(StatusReply { cookie, status: Status::Granted }.to_bytes())
            }
            (rpcbind::PROGRAM | nsm::PROGRAM | nlm::PROGRAM, ..) => {
                Err(Accepted::ProcedureUnavailable)
            }
            _ => Err(Accepted::ProgramUnavailable),
        })
    }

    fn port_of(&self, asked: &Mapping) -> u32 {
        let here = matches!(
            (asked.program, asked.version),
            (nsm::PROGRAM, nsm::VERSION) | (nlm::PROGRAM, nlm::V4)
        );
        if here && asked.protocol == rpcbind::PROTOCOL_TCP { self.port.into() } else { 0 }
    }
}

async fn serve_datagrams(socket: UdpSocket, services: ClientServices) {
    let mut buffer = vec![0; LIMITS.record_bytes_max];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Some(reply) = services.answer(Bytes::copy_from_slice(&buffer[..length])) {
                    let _ = socket.send_to(&reply, from).await;
                }
            }
            // Errors of single datagrams pass; a socket that keeps failing must not spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn serve_streams(listener: TcpListener, services: ClientServices) {
    let mut streams = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) if streams.len() < CONNECTIONS_MAX => {
                streams.spawn(serve_stream(stream, services.clone()));
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        while streams.try_join_next().is_some() {}
    }
}

async fn serve_stream(mut stream: TcpStream, services: ClientServices) {
    let mut records = Records::new(LIMITS);
    let mut received = BytesMut::new();
    loop {
        match records.next(&mut received) {
            Ok(Next::Record(record)) => {
                let Some(reply) = services.answer(record) else { return };
                let mark = mark(reply.len()).to_be_bytes();
                if stream.write_all(&[&mark[..], &reply].concat()).await.is_err() {
                    return;
                }
            }
            Ok(Next::Missing(_)) => {
                if stream.read_buf(&mut received).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
