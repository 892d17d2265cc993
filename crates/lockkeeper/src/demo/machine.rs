//! A client machine on an address of its own: it calls the server from there, and has a little
//! rpcbind, status monitor and lock manager there, which the server calls.

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

use crate::own_server::free_address;

const LIMITS: Limits = Limits { record_bytes_max: 16 << 10, fragments_max: 4 };
const CONNECTIONS_MAX: usize = 16;
const CALL_MAX: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub struct Machine {
    pub name: &'static str,
    pub ip: Ipv4Addr,
    /// The port of its rpcbind.
    pub rpcbind_port: u16,
    notices: mpsc::Receiver<Notice>,
    grants: mpsc::Receiver<TestArgs>,
    _tasks: JoinSet<()>,
}

/// SM_NOTIFY: "I have restarted".
#[derive(Debug)]
pub struct Notice {
    pub state: i32,
    pub at: Instant,
}

impl Machine {
    /// Two machines whose rpcbinds listen on the same port, as rpcbinds do.
    pub async fn pair(names: [(&'static str, Ipv4Addr); 2]) -> Result<[Self; 2]> {
        let [(first, at_first), (second, at_second)] = names;
        // Two demonstrations may be looking at the same time.
        for _ in 0..10 {
            let port = free_address(IpAddr::V4(at_first))?.port();
            if let Ok(one) = Self::start(first, at_first, port).await
                && let Ok(other) = Self::start(second, at_second, port).await
            {
                return Ok([one, other]);
            }
        }
        bail!(
            "no port is free on both {at_first} and {at_second}; has this host all of 127.0.0.0/8?"
        )
    }

    async fn start(name: &'static str, ip: Ipv4Addr, rpcbind_port: u16) -> Result<Self> {
        let rpcbind_udp = UdpSocket::bind((ip, rpcbind_port)).await?;
        let rpcbind_tcp = TcpListener::bind((ip, rpcbind_port)).await?;
        let services = TcpListener::bind((ip, 0)).await?;
        // More than a demonstration can bring about.
        let (noticed, notices) = mpsc::channel(64);
        let (granted, grants) = mpsc::channel(64);
        let clerk = Clerk { port: services.local_addr()?.port(), noticed, granted };
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_datagrams(rpcbind_udp, clerk.clone()));
        tasks.spawn(serve_streams(rpcbind_tcp, clerk.clone()));
        tasks.spawn(serve_streams(services, clerk));
        Ok(Self { name, ip, rpcbind_port, notices, grants, _tasks: tasks })
    }

    /// How it calls.
    pub fn options(&self) -> Options {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        Options { source: Some(IpAddr::V4(self.ip)), timeout: CALL_MAX, ..Options::default() }.user(
            user,
            group,
            &[],
        )
    }

    /// The next notice that the server has restarted.
    pub async fn notice(&mut self, patience: Duration) -> Result<Notice> {
        let heard = timeout(patience, self.notices.recv()).await;
        heard.ok().flatten().with_context(|| format!("no SM_NOTIFY came within {patience:?}"))
    }

    /// The next lock that it is given after having waited. It has accepted by then.
    pub async fn grant(&mut self, patience: Duration) -> Result<TestArgs> {
        let heard = timeout(patience, self.grants.recv()).await;
        heard.ok().flatten().with_context(|| format!("no GRANTED came within {patience:?}"))
    }
}

/// Answers for all programs of a machine.
#[derive(Debug, Clone)]
struct Clerk {
    /// Where its status monitor and its lock manager listen, over TCP.
    port: u16,
    noticed: mpsc::Sender<Notice>,
    granted: mpsc::Sender<TestArgs>,
}

impl Clerk {
    /// `None` if the call makes no sense.
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

async fn serve_datagrams(socket: UdpSocket, clerk: Clerk) {
    let mut buffer = vec![0; LIMITS.record_bytes_max];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Some(reply) = clerk.answer(Bytes::copy_from_slice(&buffer[..length])) {
                    let _ = socket.send_to(&reply, from).await;
                }
            }
            // What one datagram did does not last; a socket that fails for ever must not spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn serve_streams(listener: TcpListener, clerk: Clerk) {
    let mut streams = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) if streams.len() < CONNECTIONS_MAX => {
                streams.spawn(serve_stream(stream, clerk.clone()));
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        while streams.try_join_next().is_some() {}
    }
}

async fn serve_stream(mut stream: TcpStream, clerk: Clerk) {
    let mut records = Records::new(LIMITS);
    let mut received = BytesMut::new();
    loop {
        match records.next(&mut received) {
            Ok(Next::Record(record)) => {
                let Some(reply) = clerk.answer(record) else { return };
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
