//! The server's own connections, as `transport/` tracks them.

use client::{Connection, Options};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;
use wire::Message;
use wire::rpc::{Credential, Groups, MachineName, ProcedureId, SysCredential};

use super::super::socket::{Socket, TcpState};
use super::*;
use crate::fences::Fences;
use crate::files::Files;
use crate::lock_config::LockConfig;
use crate::restore::restore;
use crate::rpc::callers::Callers;
use crate::rpc::dispatch::{Dispatcher, Shared};
use crate::rpc::limits::Limits;
use crate::rpc::workers::Workers;
use crate::service_lease::ServiceLease;
use crate::transport::budget::Budget;
use crate::transport::connections::Connections;
use crate::transport::listen::BoundSockets;
use crate::transport::outgoing::OutgoingReplies;

struct Server {
    dispatcher: Arc<Dispatcher>,
    at: SocketAddr,
    _stop: watch::Sender<Option<std::time::Duration>>,
    _tasks: JoinSet<()>,
}

fn budget() -> Arc<Budget> {
    Arc::new(Budget::new(1 << 30))
}

fn server(limits: Limits) -> Server {
    let (lease, liveness) = (ServiceLease::default(), Liveness::default());
    let key = vfs::HandleKey::new([0; 16]);
    let files =
        Arc::new(Files::new(vfs::Exports::default(), key, 1, lease.clone(), Fences::default()));
    let callers = Callers::new(files, liveness.clone(), false);
    let connections = Arc::new(Connections::new(callers.clone(), &limits, None));
    let shared = Shared {
        workers: Arc::new(Workers::start(1, || ()).unwrap()),
        budget: budget(),
        limits,
        callers,
        liveness,
        lease,
        metrics: None,
    };
    let dispatcher = Arc::new(Dispatcher::new(Vec::new(), shared, Box::new(|_| true)));
    let epoch = restore(LockConfig::in_memory(), 1, None).unwrap().epoch;
    let at = "127.0.0.1:0".parse().unwrap();
    let listeners = BoundSockets::bind(at, true, &ServiceLease::default(), epoch).unwrap();
    let (at, mut tasks) = (listeners.addresses()[0], JoinSet::new());
    let (stop, stopped) = watch::channel(None);
    listeners.listen().unwrap().serve(&dispatcher, &connections, &stopped, &mut tasks);
    Server { dispatcher, at, _stop: stop, _tasks: tasks }
}

impl Server {
    /// A connection that has carried a call with a machine name.
    async fn call(&self, machine: &'static str) -> Connection {
        let machine = MachineName::from(machine);
        let groups = Groups::new(&[]);
        let caller = SysCredential { stamp: 0, machine, uid: 0, gid: 0, groups };
        let options = Options { credential: Credential::Sys(caller), ..Options::default() };
        let connection = Connection::connect(self.at, &options).await.unwrap();
        let null = ProcedureId::of::<wire::nfs3::Null>();
        assert!(connection.call_raw(null, &[]).await.is_err(), "nothing is served here");
        connection
    }

    fn sizes(&self) -> (usize, usize) {
        self.dispatcher.liveness().0.lock().sizes()
    }
}

/// Sends an NFS call with that machine name; the reply is not read.
async fn say_name(stream: &mut TcpStream, machine: &'static str) {
    let caller = SysCredential {
        stamp: 0,
        machine: MachineName::from(machine),
        uid: 0,
        gid: 0,
        groups: Groups::new(&[]),
    };
    let mut out = wire::Writer::new();
    wire::rpc::write_call(
        &mut out,
        1,
        ProcedureId::of::<wire::nfs3::Null>(),
        &Credential::Sys(caller),
    );
    let call = out.finish().to_bytes();
    let mark = wire::record::mark(call.len()).to_be_bytes();
    stream.write_all(&[&mark[..], &call].concat()).await.unwrap();
}

#[tokio::test]
async fn the_servers_connections_are_known_by_the_name_in_their_calls() {
    let server = server(Limits::default());
    let connection = server.call("alice").await;
    let liveness = server.dispatcher.liveness();
    let alive = liveness.probe(&same_kernel(&host("127.0.0.1", "alice"))).await;
    assert_eq!(alive, ProbeAnswer::Alive);
    let other = liveness.probe(&same_kernel(&host("127.0.0.1", "bob"))).await;
    assert_eq!(other, ProbeAnswer::Silent);
    drop(connection);
    until("the expected state", || server.sizes() == (0, 0)).await;
}

#[tokio::test]
async fn a_reset_of_a_servers_connection_is_told_from_an_end_if_no_user_can_cause_it() {
    let server = server(Limits::default());
    for reserved_port in [true, false] {
        let mut stream = connect(server.at, reserved_port).await;
        until("the expected state", || server.sizes().0 == 1).await;
        say_name(&mut stream, "a").await;
        let connections = || {
            let liveness = server.dispatcher.liveness();
            liveness.0.lock().connections_of(&host("127.0.0.1", "a"), Instant::now(), 9)
        };
        until("connections", || connections().len() == 1).await;
        abort(stream);
        until("the expected state", || server.sizes() == (0, 1)).await;
    }
}

async fn connect(at: SocketAddr, reserved_port: bool) -> TcpStream {
    if !reserved_port {
        return TcpStream::connect(at).await.unwrap();
    }
    for port in 600..1024 {
        let socket = TcpSocket::new_v4().unwrap();
        if socket.bind(SocketAddr::from(([127, 0, 0, 1], port))).is_ok() {
            return socket.connect(at).await.unwrap();
        }
    }
    panic!("no reserved port is free");
}

#[tokio::test]
async fn a_reset_that_a_write_reports_is_seen() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for resets in [true, false] {
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let outgoing = OutgoingReplies::new(socket, budget(), ServiceLease::default());
        match resets {
            true => abort(peer),
            false => outgoing.close(),
        }
        until("the expected state", || {
            outgoing.socket().status().unwrap().state != TcpState::Established
        })
        .await;
        outgoing.send([Message { head: b"gone"[..].into(), payload: Default::default() }]);
        assert!(outgoing.is_broken());
        assert_eq!(outgoing.was_reset(), resets);
    }
}

#[tokio::test]
async fn the_connection_of_a_lock_holder_is_not_closed_as_idle() {
    let limits = Limits { idle_max: Duration::from_millis(300), ..Limits::default() };
    let server = server(limits);
    let holder = host("127.0.0.1", "alice");
    let namespace = keeper::identity::OwnerNamespace::new(
        "127.0.0.1".parse().unwrap(),
        keeper::identity::Transport::Tcp,
        4,
    );
    server.dispatcher.liveness().watch(&holder, namespace);
    let (_alice, _bob) = (server.call("alice").await, server.call("bob").await);
    until("the expected state", || server.sizes() == (1, 0)).await;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(server.sizes(), (1, 0));
    server.dispatcher.liveness().unwatch_except(&HashSet::new(), Instant::now());
    until("the expected state", || server.sizes() == (0, 0)).await;
}
