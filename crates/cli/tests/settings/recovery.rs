//! What is seen of a server after it was killed with locks in its store.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use client::{Locker, Options};
use testbed::peer::{Answer, Host, RecordStream, RpcbindKind, call, results, script, user};
use testbed::wait::until;
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};
use wire::Decode as _;
use wire::nlm::Status;
use wire::nsm;

use crate::setup::{HOLDER, Running, Setup, byte};

/// The seconds that the banner names.
pub async fn window(setup: Setup) -> String {
    let seen = setup.restarted().await.banner("grace ends ");
    seen.split(' ').next().unwrap().to_owned()
}

/// A lock that conflicts with nothing.
pub async fn new_lock(setup: Setup) -> String {
    let server = setup.restarted().await;
    let file = server.file(&setup, "a").await;
    format!("{:?}", server.locker("bob").await.lock(&file, byte(9)).await.unwrap())
}

/// The locks of a host that has not answered two notices.
pub async fn silent_holder(setup: Setup) -> String {
    let server = setup.restarted().await;
    // The network works: a client calls.
    server.file(&setup, "a").await;
    second_notice(&server).await;
    format!("{} locks", server.json("/v1/locks").await["total"])
}

/// The pause after the first or second notice to a registrant that does not answer.
pub async fn registrant(setup: Setup) -> String {
    let mut first = setup.start();
    let my_id = nsm::MyId { my_name: b"w"[..].into(), program: 100_021, version: 4, procedure: 16 };
    let mon_id = nsm::MonId { mon_name: b"server"[..].into(), my_id };
    let args = nsm::MonArgs { mon_id, private: [0; 16] };
    let reply = first.monitor().await.call::<nsm::Mon>(&args).await.unwrap();
    assert_eq!(reply.outcome, nsm::Outcome::Success);
    first.server.kill();
    drop(first);
    let server = setup.start();
    match second_notice(&server).await {
        LONG.. => "minutes".into(),
        _ => "seconds".into(),
    }
}

/// Seconds; no pause within a window is longer at first.
const LONG: f64 = 31.0;

/// Waits until two notices to the only client were not answered, or one and the pause is long; the
/// seconds until the next.
async fn second_notice(server: &Running) -> f64 {
    for _ in 0..600 {
        let notices = server.json("/v1/notices").await;
        let (attempts, next) = (notices[0]["attempts"].as_u64(), &notices[0]["next_in_seconds"]);
        // While an attempt is under way, the timer of its lost report runs: 30 s.
        if let (Some(attempts), Some(next)) = (attempts, next.as_f64())
            && (next >= LONG || attempts >= 2 && next < 10.0)
        {
            return next;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("no second notice: {:#}", server.json("/v1/notices").await);
}

/// A name under which a client is notified.
pub async fn notified_name(setup: Setup) -> String {
    let port = setup.number("rpc.peer_rpcbind_port");
    let mut host = Host::bind(HOLDER.into(), port, RpcbindKind::Full).await;
    host.udp(nsm::PROGRAM, 1, script(|_| Answer::results(&()))).await;
    let _server = setup.restarted().await;
    let names = || {
        let notices = host.calls().into_iter().filter(|call| call.procedure == 6);
        notices.map(|call| nsm::NotifyArgs::from_bytes(call.args).unwrap().mon_name.to_vec())
    };
    until("the configured name is told", || names().any(|name| name == b"filer.example")).await;
    "filer.example".into()
}

/// A report that a living host rebooted.
pub async fn reboot_notice(setup: Setup) -> String {
    let server = setup.start();
    let file = server.file(&setup, "a").await;
    let alice = server.locker("alice").await;
    assert_eq!(alice.lock(&file, byte(0)).await.unwrap(), Status::Granted);
    let connection = server.monitor().await;
    let notice = nsm::NotifyArgs { mon_name: b"alice"[..].into(), state: 77 };
    let answered = timeout(Duration::from_secs(8), connection.call::<nsm::Notify>(&notice)).await;
    if answered.is_ok_and(|answer| answer.is_ok()) { "answered" } else { "not answered" }.into()
}

/// Reports that a silent host rebooted, from another address, for longer than the window.
pub async fn roaming_notice(mut setup: Setup) -> String {
    setup.set("recovery.window", "'1s'");
    let server = setup.start();
    let file = server.file(&setup, "a").await;
    let alice = server.locker_at(HOLDER, "alice").await;
    assert_eq!(alice.lock(&file, byte(0)).await.unwrap(), Status::Granted);
    drop(alice);
    let connection = server.monitor().await.with_timeout(Duration::from_secs(1));
    let notice = nsm::NotifyArgs { mon_name: b"alice"[..].into(), state: 77 };
    for _ in 0..30 {
        if connection.call::<nsm::Notify>(&notice).await.is_ok() {
            return "answered".into();
        }
    }
    "not answered".into()
}

/// The answer in grace to a holder that locks again through another address of the server.
pub async fn renumbered(mut setup: Setup) -> String {
    setup.set("rpc.listen", "'0.0.0.0:0'");
    let mut first = setup.start();
    let file = first.file(&setup, "a").await;
    let old = SocketAddr::new([127, 0, 0, 2].into(), first.address().port());
    let options = Options { source: Some(HOLDER.into()), ..Options::default() };
    let alice = Locker::connect(old, "alice", 1, &options).await.unwrap();
    assert_eq!(alice.lock(&file, byte(0)).await.unwrap(), Status::Granted);
    first.server.kill();
    drop(first);
    let server = setup.start();
    format!("{:?}", server.locker_at(HOLDER, "alice").await.lock(&file, byte(0)).await.unwrap())
}

/// A lock whose holder resets its connection and locks again over another, with the same state.
pub async fn reset(setup: Setup) -> String {
    let server = setup.start();
    let file = server.file(&setup, "a").await;
    let to = server.address();
    // Connections from other ports prove no reboot.
    let socket = reserved_socket();
    let stream = socket.connect(to).await.unwrap();
    stream.set_zero_linger().unwrap();
    let from = stream.local_addr().unwrap().port();
    let mut old = RecordStream::new(stream);
    let bob = server.locker("bob").await;
    let alice = Locker::new(bob.connection.clone(), "alice", 1);
    let args = alice.lock_args(&file, byte(0), true);
    let record = call::<wire::nlm::v4::Lock>(1, &user(0, 0, &[]), &args);
    results::<wire::nlm::v4::Lock>(old.exchange(&record).await);
    let process = server.server.id();
    let end = socket_of(to.port(), from);
    assert!(has_open(process, &end));
    drop(old);
    until("the server has seen the reset", || !has_open(process, &end)).await;
    let alice = server.locker("alice").await;
    for _ in 0..40 {
        alice.lock(&file, byte(9)).await.unwrap();
        if bob.lock(&file, byte(0)).await.unwrap() == Status::Granted {
            return "released".into();
        }
        sleep(Duration::from_millis(100)).await;
    }
    "held".into()
}

/// The socket of this machine with these ports, as /proc names it.
fn socket_of(own: u16, peer: u16) -> String {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let (own, peer) = (format!(":{own:04X}"), format!(":{peer:04X}"));
    let line = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut line = line.filter(|line| line[1].ends_with(&own) && line[2].ends_with(&peer));
    format!("socket:[{}]", line.next().unwrap()[9])
}

fn has_open(process: u32, file: &str) -> bool {
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    open.into_iter().any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(file)))
}

fn reserved_socket() -> TcpSocket {
    (600..1000)
        .rev()
        .find_map(|port| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 0, 1], port).into()).ok().map(|()| socket)
        })
        .expect("root, and a free port below 1000")
}
