//! The lock manager of a client that waits for locks: the server calls it when one is granted.
//!
//! A server asks the client's rpcbind for its port. There is one rpcbind in the namespace, on all
//! addresses, and it would name the compared server's own lock manager; so the entry is replaced.
//! Nothing else reads it: the benchmark knows the servers' ports.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use client::rpcbind::{RpcTransport, Rpcbind};
use client::{Connection, Options};
use testbed::peer::{Answer, ReceivedCall, script, serve_streams};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use wire::Decode;
use wire::nlm::{PROGRAM, Status, StatusReply, TestArgs, V4, v4};
use wire::rpc::{Accepted, Procedure};
use wire::rpcbind::{Mapping, PROTOCOL_TCP, v2};

/// How long GRANTED_RES may remain unanswered; a server need not answer it.
const ANSWER_MAX: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Grantee {
    rpcbind: SocketAddr,
    granted: mpsc::Receiver<Instant>,
    listening: JoinHandle<()>,
}

impl Grantee {
    /// Listens at `ip`. A server that only sends a message (GRANTED_MSG) gets its answer, a call in
    /// the other direction, over `server`.
    pub(crate) async fn start(ip: IpAddr, server: Connection) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await?;
        let rpcbind = SocketAddr::new(ip, wire::rpcbind::PORT);
        let port = listener.local_addr()?.port();
        let set = register(rpcbind, Some(port)).await?;
        ensure!(set, "rpcbind does not register a lock manager");
        // One grant is awaited at a time.
        let (grants, granted) = mpsc::channel(16);
        let script = script(move |call| answer(call, &grants, &server));
        let listening = tokio::spawn(serve_streams(listener, script, || ()));
        Ok(Self { rpcbind, granted, listening })
    }

    /// Removes it from rpcbind, where a server that starts again would not replace it.
    pub(crate) async fn unregister(self) -> Result<()> {
        register(self.rpcbind, None).await.map(drop)
    }

    /// When the next GRANTED arrived. It has been answered: nfs-ganesha 4.3 loses five seconds if the
    /// lock is released before that.
    pub(crate) async fn granted(&mut self) -> Option<Instant> {
        self.granted.recv().await
    }

    /// Drops grants that were not awaited.
    pub(crate) fn clear(&mut self) {
        while self.granted.try_recv().is_ok() {}
    }
}

impl Drop for Grantee {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Replaces the lock manager that rpcbind names; without a port, by none. Whether that was done.
async fn register(rpcbind: SocketAddr, port: Option<u16>) -> Result<bool> {
    let options = Options { reserved_port: true, ..Options::default() };
    let mut rpcbind =
        Rpcbind::connect(rpcbind, RpcTransport::Tcp, &options).await.context("rpcbind")?;
    let port = u32::from(port.unwrap_or(0));
    let mapping = Mapping { program: PROGRAM, version: V4, protocol: PROTOCOL_TCP, port };
    let unset = rpcbind.call::<v2::Unset>(&mapping).await?;
    if port == 0 { Ok(unset) } else { Ok(rpcbind.call::<v2::Set>(&mapping).await?) }
}

fn answer(call: &ReceivedCall, grants: &mpsc::Sender<Instant>, server: &Connection) -> Answer {
    if (call.program, call.version) != (PROGRAM, V4) {
        return Answer::Status(Accepted::ProcedureUnavailable);
    }
    let at = call.at;
    match call.procedure {
        v4::Null::NUMBER => Answer::results(&()),
        v4::Granted::NUMBER => accepted(call.args.clone()).map_or(Answer::Close, |reply| {
            report(grants, at);
            Answer::results(&reply)
        }),
        v4::GrantedMsg::NUMBER => accepted(call.args.clone()).map_or(Answer::Close, |reply| {
            let (server, grants) = (server.with_timeout(ANSWER_MAX), grants.clone());
            tokio::spawn(async move {
                let _ = server.call::<v4::GrantedRes>(&reply).await;
                report(&grants, at);
            });
            Answer::results(&())
        }),
        _ => Answer::Status(Accepted::ProcedureUnavailable),
    }
}

fn accepted(args: Bytes) -> Option<StatusReply> {
    let args = TestArgs::from_bytes(args).ok()?;
    Some(StatusReply { cookie: args.cookie, status: Status::Granted })
}

fn report(grants: &mpsc::Sender<Instant>, at: Instant) {
    // A full channel means that no test awaits it.
    let _ = grants.try_send(at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Encode;
    use wire::nlm::{Lock, Range};
    use wire::rpc::Credential;

    async fn server() -> Connection {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Connection::connect(server.local_addr().unwrap(), &Options::default()).await.unwrap()
    }

    fn call(procedure: u32, args: Bytes) -> ReceivedCall {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        ReceivedCall {
            over_tcp: true,
            from: address,
            to: address,
            program: PROGRAM,
            version: V4,
            procedure,
            credential: Credential::None,
            args,
            at: Instant::now(),
            index: 0,
        }
    }

    fn grant() -> Bytes {
        let lock = Lock {
            caller_name: b"waiter"[..].into(),
            file: b"file"[..].into(),
            owner: b"1@waiter"[..].into(),
            svid: 1,
            range: Range::default(),
        };
        TestArgs { cookie: b"biscuit"[..].into(), exclusive: true, lock }.to_bytes()
    }

    #[tokio::test]
    async fn a_grant_is_accepted_with_its_cookie_and_reported() {
        let (grants, mut granted) = mpsc::channel(1);
        let call = call(v4::Granted::NUMBER, grant());
        let Answer::Results(results) = answer(&call, &grants, &server().await) else { panic!() };
        let reply = StatusReply::from_bytes(results).unwrap();
        let cookie = b"biscuit"[..].into();
        assert_eq!(reply, StatusReply { cookie, status: Status::Granted });
        assert_eq!(granted.try_recv(), Ok(call.at));
    }

    #[tokio::test]
    async fn what_is_no_grant_is_not_reported() {
        let (grants, mut granted) = mpsc::channel(1);
        let server = server().await;
        let refused = answer(&call(v4::Test::NUMBER, grant()), &grants, &server);
        assert!(matches!(refused, Answer::Status(Accepted::ProcedureUnavailable)));
        let garbage = call(v4::Granted::NUMBER, Bytes::from_static(b"nonsense"));
        assert!(matches!(answer(&garbage, &grants, &server), Answer::Close));
        assert!(granted.try_recv().is_err());
    }
}
