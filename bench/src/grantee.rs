//! The lock manager of a machine that waits for locks: it is called when one is granted.
//!
//! A server asks the machine's rpcbind for its port. There is one rpcbind in our namespace, on all
//! addresses, and it would name the compared server's own lock manager; so the entry is replaced.
//! Nobody else needs it: the benchmark knows the servers' ports.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use client::rpcbind::{Over, Rpcbind};
use client::{Connection, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use wire::nlm::{PROGRAM, Status, StatusReply, TestArgs, V4, v4};
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, Procedure, write_accepted};
use wire::rpcbind::{Mapping, PROTOCOL_TCP, v2};
use wire::{Decode, Encode, Writer};

/// How long the answer to a message may itself remain unanswered.
const ANSWER_MAX: Duration = Duration::from_millis(500);
const LIMITS: Limits = Limits { record_bytes_max: 64 << 10, fragments_max: 4 };

#[derive(Debug)]
pub(crate) struct Grantee {
    granted: mpsc::Receiver<Instant>,
    listening: JoinHandle<()>,
}

impl Grantee {
    /// Listens at `ip`. A server that only sends a message (GRANTED_MSG) gets its answer, a call in
    /// the other direction, over `server`.
    pub(crate) async fn start(ip: IpAddr, server: Connection) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await?;
        register(SocketAddr::new(ip, wire::rpcbind::PORT), listener.local_addr()?.port()).await?;
        // One is awaited at a time.
        let (told, granted) = mpsc::channel(16);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let clerk = Clerk { told: told.clone(), server: server.clone() };
                tokio::spawn(clerk.serve(stream));
            }
        });
        Ok(Self { granted, listening })
    }

    /// When the next GRANTED came. It is answered by now: nfs-ganesha 4.3 loses five seconds if the
    /// lock is given back before that.
    pub(crate) async fn granted(&mut self) -> Option<Instant> {
        self.granted.recv().await
    }

    /// Forgets those that nobody waited for.
    pub(crate) fn clear(&mut self) {
        while self.granted.try_recv().is_ok() {}
    }
}

impl Drop for Grantee {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn register(rpcbind: SocketAddr, port: u16) -> Result<()> {
    let options = Options { reserved_port: true, ..Options::default() };
    let mut rpcbind = Rpcbind::connect(rpcbind, Over::Tcp, &options).await.context("rpcbind")?;
    let mapping =
        Mapping { program: PROGRAM, version: V4, protocol: PROTOCOL_TCP, port: port.into() };
    rpcbind.call::<v2::Unset>(&mapping).await?;
    ensure!(rpcbind.call::<v2::Set>(&mapping).await?, "rpcbind does not register a lock manager");
    Ok(())
}

/// Answers on one connection.
struct Clerk {
    told: mpsc::Sender<Instant>,
    server: Connection,
}

impl Clerk {
    async fn serve(self, mut stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut records = Records::new(LIMITS);
        let mut received = BytesMut::new();
        while stream.read_buf(&mut received).await.is_ok_and(|bytes| bytes > 0) {
            let now = Instant::now();
            loop {
                let record = match records.next(&mut received) {
                    Ok(Next::Record(record)) => record,
                    Ok(Next::Missing(_)) => break,
                    Err(_) => return,
                };
                let Some(reply) = self.answer(record, now) else { return };
                if stream.write_all(&reply).await.is_err() {
                    return;
                }
            }
        }
    }

    /// The reply, mark included; `None` if the call makes no sense.
    fn answer(&self, record: Bytes, now: Instant) -> Option<Vec<u8>> {
        let call = Call::parse(record).ok()?;
        let mut out = Writer::new();
        let is_ours = (call.program, call.version) == (PROGRAM, V4);
        match call.procedure {
            v4::Null::NUMBER if is_ours => write_accepted(&mut out, call.xid, Accepted::Success),
            v4::Granted::NUMBER if is_ours => {
                write_accepted(&mut out, call.xid, Accepted::Success);
                accepted(call.args)?.encode(&mut out);
                tell(&self.told, now);
            }
            v4::GrantedMsg::NUMBER if is_ours => {
                write_accepted(&mut out, call.xid, Accepted::Success);
                let answer = accepted(call.args)?;
                let server = self.server.with_timeout(ANSWER_MAX);
                let told = self.told.clone();
                tokio::spawn(async move {
                    // It need not be answered itself.
                    let _ = server.call::<v4::GrantedRes>(&answer).await;
                    tell(&told, now);
                });
            }
            _ => write_accepted(&mut out, call.xid, Accepted::ProcedureUnavailable),
        }
        let reply = out.finish().to_bytes();
        Some([&mark(reply.len()).to_be_bytes()[..], &reply].concat())
    }
}

fn accepted(args: Bytes) -> Option<StatusReply> {
    let args = TestArgs::from_bytes(args).ok()?;
    Some(StatusReply { cookie: args.cookie, status: Status::Granted })
}

fn tell(told: &mpsc::Sender<Instant>, when: Instant) {
    // If nobody takes it out, nobody waits for it.
    let _ = told.try_send(when);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nlm::{Lock, Range};
    use wire::rpc::{Credential, Reply, write_call};

    async fn clerk() -> (Clerk, mpsc::Receiver<Instant>) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = server.local_addr().unwrap();
        let (told, granted) = mpsc::channel(1);
        let server = Connection::connect(at, &Options::default()).await.unwrap();
        (Clerk { told, server }, granted)
    }

    fn call(procedure: u32) -> Bytes {
        let lock = Lock {
            caller_name: b"waiter"[..].into(),
            file: b"file"[..].into(),
            owner: b"1@waiter"[..].into(),
            svid: 1,
            range: Range::default(),
        };
        let mut out = Writer::new();
        write_call(&mut out, 7, (PROGRAM, V4, procedure), &Credential::None);
        TestArgs { cookie: b"biscuit"[..].into(), exclusive: true, lock }.encode(&mut out);
        out.finish().to_bytes()
    }

    fn reply(bytes: Vec<u8>) -> Reply {
        Reply::from_bytes(Bytes::from(bytes).split_off(4)).unwrap()
    }

    #[tokio::test]
    async fn a_grant_is_accepted_with_its_cookie_and_passed_on() {
        let (clerk, mut granted) = clerk().await;
        let now = Instant::now();
        let reply = reply(clerk.answer(call(v4::Granted::NUMBER), now).unwrap());
        let answer = StatusReply::from_bytes(reply.results).unwrap();
        let cookie = b"biscuit"[..].into();
        assert_eq!((reply.xid, answer), (7, StatusReply { cookie, status: Status::Granted }));
        assert_eq!(granted.try_recv(), Ok(now));
    }

    #[tokio::test]
    async fn what_is_no_grant_is_not_passed_on() {
        let (clerk, mut granted) = clerk().await;
        let reply = reply(clerk.answer(call(v4::Test::NUMBER), Instant::now()).unwrap());
        assert_eq!(reply.verdict, Ok(Accepted::ProcedureUnavailable));
        assert!(clerk.answer(Bytes::from_static(b"nonsense"), Instant::now()).is_none());
        assert!(granted.try_recv().is_err());
    }
}
