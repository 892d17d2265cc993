//! Whom the server serves at all (B7.95 to B7.98): a server in a network of its own, which admits some of the
//! addresses of another. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use client::{Connection, Locker};
use lockkeeper_server::metrics::{EvictionReason, RefusedConnection};
use lockkeeper_server::{Control, Limits, RpcbindMode, ServerHandle};
use support::clients::{CLIENT, OTHER, THIRD, networks, options};
use support::restartable::{MOMENT, ip, server_address};
use support::{
    LIMIT, PATH, RecordStream, TestServer, bounded, call, config, export, key, memory, open_rules,
    range, reply,
};
use testbed::namespace::Namespace;
use testbed::peer::marked;
use tokio::net::{TcpSocket, UdpSocket};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use vfs::memory::MemoryFs;
use vfs::{Export, Exports, FileKey, FileSystem, Rules};
use wire::nfs3::{Access, AccessArgs, GetAttr, GetAttrArgs, Handle};
use wire::nlm::{Status, v4};
use wire::rpc::{AuthStatus, Credential, Denial};
use wire::{mount, nlm, rpcbind};

/// A server in a network, until this is dropped.
struct Served {
    handle: ServerHandle,
    control: Control,
    filesystem: std::sync::Arc<MemoryFs>,
    rules: Rules,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(network: &Namespace, limits: Limits, rules: Rules) -> Self {
        let (ready, is_ready) = mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let filesystem = memory();
        let (served, of_export) = (filesystem.clone(), rules.clone());
        let thread = network.spawn(async move || {
            let listen = "[::]:2049".parse().unwrap();
            let config = config(limits).with_listen(listen).with_rpcbind(RpcbindMode::Embedded);
            let exports = vec![export(PATH, served, of_export)];
            let server = TestServer::try_start(config, exports).await.unwrap();
            ready.send((server.handle.clone(), server.control.clone())).unwrap();
            let _ = ended.await;
        });
        let (handle, control) = is_ready.recv_timeout(LIMIT).expect("the server did not start");
        let (end, thread) = (Some(end), Some(thread));
        Self { handle, control, filesystem, rules, end, thread }
    }

    fn reload(&self, clients: &[&str]) {
        let rules = self.rules.clone().with_clients(admitting(clients).clients);
        let exports = vec![export(PATH, self.filesystem.clone(), rules)];
        self.handle.replace_exports(Exports::new(exports).unwrap());
    }

    fn root(&self) -> Handle {
        let file = FileKey { filesystem: self.filesystem.id(), object: self.filesystem.root() };
        let id = Export::id_of_path(PATH.as_bytes());
        Handle(Bytes::copy_from_slice(key().sign(id, &file).as_bytes()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn admitting(clients: &[&str]) -> Rules {
    let clients: Vec<_> = clients.iter().map(|network| network.parse().unwrap()).collect();
    open_rules().with_clients(clients)
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(server_address().ip(), port)
}

async fn stream(from: &str, port: u16) -> RecordStream {
    try_stream(from, port).await.unwrap()
}

/// `None` if it was reset at once.
async fn try_stream(from: &str, port: u16) -> Option<RecordStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(ip(from), 0)).unwrap();
    let connected = bounded("a connection", socket.connect(at(port))).await;
    match connected {
        Ok(stream) => Some(RecordStream::new(stream)),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            None
        }
    }
}

fn null() -> Bytes {
    call::<wire::nfs3::Null>(1, &Credential::None, &())
}

/// Whether a call is answered over TCP.
async fn is_answered(from: &str, port: u16, record: &[u8]) -> bool {
    let Some(mut stream) = try_stream(from, port).await else { return false };
    stream.try_send(&marked(record)).await.is_ok() && stream.receive().await.is_some()
}

/// The answer to a datagram, if one comes.
async fn datagram(from: &str, port: u16, record: &[u8]) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind(SocketAddr::new(ip(from), 0)).await.unwrap();
    socket.send_to(record, at(port)).await.unwrap();
    let mut buffer = vec![0; 65_536];
    let (length, _) = timeout(MOMENT, socket.recv_from(&mut buffer)).await.ok()?.unwrap();
    buffer.truncate(length);
    Some(buffer)
}

fn port_of_nfs() -> Bytes {
    let (program, version, protocol) = (wire::nfs3::PROGRAM, 3, rpcbind::PROTOCOL_UDP);
    let asked = rpcbind::Mapping { program, version, protocol, port: 0 };
    call::<rpcbind::v2::GetPort>(1, &Credential::None, &asked)
}

/// B7.95
#[test]
fn strangers_are_reset_unread_and_their_datagrams_dropped() {
    let (ours, theirs) = networks();
    let served = Served::start(&ours, Limits::default(), admitting(&["10.99.0.2/32"]));
    let seen = theirs.block_on(async || {
        let mut seen = Vec::new();
        for from in [CLIENT, OTHER] {
            for (port, record) in [(2049, null()), (111, port_of_nfs())] {
                let over_tcp = is_answered(from, port, &record).await;
                let over_udp = datagram(from, port, &record).await.is_some();
                println!("{from} at {port}: answered over TCP {over_tcp}, over UDP {over_udp}");
                seen.push((from, over_tcp, over_udp));
            }
        }
        seen
    });
    for (from, over_tcp, over_udp) in seen {
        assert_eq!((over_tcp, over_udp), (from == CLIENT, from == CLIENT), "{from}");
    }
    let metrics = served.control.metrics().unwrap();
    assert_eq!(metrics.refused_connections(RefusedConnection::NotAdmitted), 2);
    assert_eq!(metrics.dropped_datagrams.get(), 2);
    ours.block_on(async || {
        let mut here = RecordStream::connect((Ipv4Addr::LOCALHOST, 2049).into()).await;
        here.assert_answers_null().await;
        let mut here = RecordStream::connect(at(2049)).await;
        here.assert_answers_null().await;
    });
}

/// B7.95
#[test]
fn a_reload_closes_strangers_and_leaves_lock_holders_what_they_need() {
    let (ours, theirs) = networks();
    let served = Served::start(&ours, Limits::default(), admitting(&["10.99.0.0/24"]));
    let (root, handle) = (served.root(), served.handle.clone());
    let reload = {
        let (filesystem, rules) = (served.filesystem.clone(), admitting(&["10.99.0.4/32"]));
        move || {
            let exports = vec![export(PATH, filesystem, rules)];
            handle.replace_exports(Exports::new(exports).unwrap());
        }
    };
    theirs.block_on(async move || {
        let holder = |from: &'static str| async move {
            let connection = Connection::connect(at(2049), &options(from, true)).await.unwrap();
            Locker::new(connection, "holder", 1)
        };
        let locked = holder(CLIENT).await;
        assert_eq!(locked.lock(&root, range(0, 1)).await.unwrap(), Status::Granted);
        let (mut stranger, mut client) = (stream(OTHER, 2049).await, stream(THIRD, 2049).await);
        stranger.assert_answers_null().await;
        client.assert_answers_null().await;
        reload();
        stranger.assert_closed().await;
        client.assert_answers_null().await;
        assert!(!is_answered(OTHER, 2049, &null()).await);
        // Also over a new connection, as a client does after a pause.
        assert_ne!(locked.lock(&root, range(1, 1)).await.unwrap(), Status::Granted);
        let again = holder(CLIENT).await;
        assert_eq!(again.unlock(&root, range(0, 1)).await.unwrap(), Status::Granted);
    });
    let metrics = served.control.metrics().unwrap();
    assert_eq!(metrics.evicted_connections(EvictionReason::NotAdmitted), 1);
    served.reload(&["10.99.0.0/24"]);
    theirs.block_on(async || assert!(is_answered(OTHER, 2049, &null()).await));
}

/// B7.96
#[test]
fn connections_without_a_call_make_room_for_clients() {
    let (ours, theirs) = networks();
    let limits = Limits { connections_max: 8, ..Limits::default() };
    let served = Served::start(&ours, limits, admitting(&["10.99.0.0/24"]));
    let object = served.root();
    theirs.block_on(async || {
        let getattr = call::<GetAttr>(1, &Credential::None, &GetAttrArgs { object });
        let mut used = stream(CLIENT, 2049).await;
        used.exchange(&getattr).await;
        let mut idle = Vec::new();
        for _ in 0..6 {
            idle.push(stream(OTHER, 2049).await);
        }
        sleep(Duration::from_millis(100)).await;
        assert!(!is_answered(OTHER, 2049, &getattr).await, "the last one is reserved");
        assert!(is_answered(CLIENT, 2049, &getattr).await, "for this one");
        sleep(Duration::from_secs(11)).await;
        for _ in 0..6 {
            assert!(is_answered(THIRD, 2049, &getattr).await);
        }
        used.exchange(&getattr).await;
    });
    let metrics = served.control.metrics().unwrap();
    assert_eq!(metrics.evicted_connections(EvictionReason::Slots), 6);
}

/// B7.141
#[test]
fn a_kernel_is_served_although_a_user_of_its_machine_has_all_connections() {
    let (ours, theirs) = networks();
    let limits = Limits { connections_per_address_max: 4, ..Limits::default() };
    let rules = admitting(&["10.99.0.0/24"]).with_require_reserved_ports(true);
    let served = Served::start(&ours, limits, rules);
    let root = served.root();
    theirs.block_on(async move || {
        let getattr = call::<GetAttr>(1, &Credential::None, &GetAttrArgs { object: root.clone() });
        let mut users = Vec::new();
        for _ in 0..4 {
            let mut user = stream(CLIENT, 2049).await;
            user.exchange(&getattr).await;
            users.push(user);
        }
        assert!(!is_answered(CLIENT, 2049, &getattr).await, "a user makes no room for a user");
        let kernel = Connection::connect(at(2049), &options(CLIENT, true)).await.unwrap();
        let kernel = Locker::new(kernel, "client", 1);
        assert_eq!(kernel.lock(&root, range(0, 1)).await.unwrap(), Status::Granted);
    });
    assert!(served.control.metrics().unwrap().evicted_connections(EvictionReason::Slots) > 0);
}

/// B7.144
#[test]
fn rpcbind_has_a_quarter_of_the_connections_of_nfs() {
    let (ours, theirs) = networks();
    let limits = Limits { connections_max: 16, ..Limits::default() };
    let _served = Served::start(&ours, limits, admitting(&["10.99.0.0/24"]));
    theirs.block_on(async move || {
        for (port, record, expected) in [(111, port_of_nfs(), 4), (2049, null(), 14)] {
            let mut open = Vec::new();
            for _ in 0..20 {
                let Some(mut stream) = try_stream(CLIENT, port).await else { continue };
                if stream.try_send(&marked(&record)).await.is_ok()
                    && stream.receive().await.is_some()
                {
                    open.push(stream);
                }
            }
            assert_eq!(open.len(), expected, "port {port}");
        }
    });
}

/// B7.97
#[test]
fn a_user_of_a_lock_holder_keeps_no_idle_connection() {
    let (ours, theirs) = networks();
    let limits = Limits { idle_max: Duration::from_millis(300), ..Limits::default() };
    let rules = admitting(&["10.99.0.0/24"]).with_require_reserved_ports(true);
    let served = Served::start(&ours, limits, rules);
    let root = served.root();
    theirs.block_on(async move || {
        let connection = Connection::connect(at(2049), &options(CLIENT, true)).await.unwrap();
        let locked = Locker::new(connection, "holder", 1);
        assert_eq!(locked.lock(&root, range(0, 1)).await.unwrap(), Status::Granted);
        let mut user = stream(CLIENT, 2049).await;
        let null = call::<wire::nfs3::Null>(1, &named("holder"), &());
        user.exchange(&null).await;
        user.assert_closed().await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(locked.unlock(&root, range(0, 1)).await.unwrap(), Status::Granted);
    });
}

fn named(machine: &'static str) -> Credential {
    Credential::Sys(wire::rpc::SysCredential {
        stamp: 0,
        machine: machine.into(),
        uid: 0,
        gid: 0,
        groups: wire::rpc::Groups::default(),
    })
}

/// B7.98
#[test]
fn answers_to_datagrams_are_not_longer_than_questions() {
    let (ours, theirs) = networks();
    let rules = admitting(&["10.99.0.0/24", "10.98.0.0/24", "10.97.0.0/24", "fd99::/64"]);
    let _served = Served::start(&ours, Limits::default(), rules);
    let binding = || rpcbind::Binding {
        program: wire::nfs3::PROGRAM,
        version: 3,
        netid: b"tcp"[..].into(),
        address: rpcbind::Text::default(),
        owner: rpcbind::Text::default(),
    };
    let none = &Credential::None;
    let questions = [
        ("EXPORT", 2049, call::<mount::Exports>(1, none, &())),
        ("MOUNT DUMP", 2049, call::<mount::Dump>(1, none, &())),
        ("NULL", 2049, null()),
        ("GETPORT", 111, port_of_nfs()),
        ("GETADDR", 111, call::<rpcbind::v4::GetAddr>(1, none, &binding())),
        ("GETADDRLIST", 111, call::<rpcbind::v4::GetAddrList>(1, none, &binding())),
        ("rpcbind DUMP", 111, call::<rpcbind::v4::Dump>(1, none, &())),
        ("GETTIME", 111, call::<rpcbind::v4::GetTime>(1, none, &())),
    ];
    theirs.block_on(async move || {
        for (name, port, question) in questions {
            let answer = datagram(CLIENT, port, &question).await.unwrap_or_default();
            println!("{name}: {} bytes asked, {} answered", question.len(), answer.len());
            assert!(answer.len() <= question.len(), "{name}");
        }
        let list = call::<mount::Exports>(1, &Credential::None, &());
        assert!(is_answered(CLIENT, 2049, &list).await);
    });
}

/// B7.98
#[test]
fn a_port_that_cannot_lock_learns_nothing_about_handles() {
    let (ours, theirs) = networks();
    let rules = admitting(&["10.99.0.0/24"]).with_require_reserved_ports(true);
    let served = Served::start(&ours, Limits::default(), rules);
    let root = served.root();
    theirs.block_on(async move || {
        let forged = Handle(Bytes::from(vec![7; root.len()]));
        for file in [root, forged] {
            let lock = nlm::Lock {
                caller_name: b"user"[..].into(),
                file: nlm::FileHandle(file.0.clone()),
                owner: b"o"[..].into(),
                svid: 1,
                range: range(0, 1),
            };
            let cookie = nlm::Cookie::default();
            let args = nlm::TestArgs { cookie, exclusive: true, lock };
            for (program, record) in [
                ("TEST", call::<v4::Test>(1, &Credential::None, &args)),
                ("TEST_MSG", call::<v4::TestMsg>(1, &Credential::None, &args)),
            ] {
                let answer = datagram(CLIENT, 2049, &record).await.unwrap();
                let verdict = reply(answer.into()).verdict;
                println!("{program}: {verdict:?}");
                assert_eq!(verdict, Err(Denial::Auth(AuthStatus::TooWeak)), "{program}");
            }
            let args = AccessArgs { object: file, access: 1 };
            let answer = datagram(CLIENT, 2049, &call::<Access>(1, &Credential::None, &args)).await;
            let status = reply(answer.unwrap().into()).results;
            println!("ACCESS: {status:?}");
            assert_eq!(status[..4], (wire::nfs3::Status::Perm as u32).to_be_bytes(), "ACCESS");
        }
    });
}
