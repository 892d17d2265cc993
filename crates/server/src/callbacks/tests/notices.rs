//! SM_NOTIFY, and the status calls to registrants.

use super::*;
use keeper::request::Callback;
use std::collections::BTreeSet;
use std::time::Instant;
use testbed::peer::{Answer, ReceivedCall, Script, script};
use wire::Decode;
use wire::nsm::{self, NotifyArgs, StatusArgs};
use wire::rpc::Accepted;

fn acknowledge() -> Script {
    script(|_| Answer::results(&()))
}

fn deaf() -> Script {
    script(|_| Answer::Nothing)
}

fn plain(to: IpAddr) -> Notice {
    notice(to, &[(OURS, "127.0.0.1"), (OURS, "server"), (OURS, "server.example.org")])
}

fn names(calls: &[ReceivedCall]) -> BTreeSet<(IpAddr, String)> {
    let named = |call: &ReceivedCall| {
        let numbers = (call.program, call.version, call.procedure);
        assert_eq!(numbers, (nsm::PROGRAM, nsm::VERSION, 6));
        let args = NotifyArgs::from_bytes(call.args.clone()).unwrap();
        assert_eq!(args.state.cast_unsigned(), 4_000_000_001);
        (call.from.ip(), String::from_utf8(args.mon_name.to_vec()).unwrap())
    };
    calls.iter().map(named).collect()
}

#[tokio::test]
async fn every_name_is_sent_from_every_address_over_one_connection_each() {
    let mut host = a_host().await;
    host.tcp(nsm::PROGRAM, 1, acknowledge()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let second: IpAddr = "127.0.0.2".parse().unwrap();
    let pairs = [(OURS, "one"), (second, "two"), (OURS, "server"), (second, "server")];
    assert_eq!(fixture.notice(notice(host.ip, &pairs)).await, NoticeResult::Answered);
    let expected = pairs.map(|(ours, name)| (ours, name.to_string()));
    assert_eq!(names(&host.calls()), BTreeSet::from(expected));
    assert_eq!((host.calls().len(), host.connections()), (4, 2));
    let asked: BTreeSet<IpAddr> = host.lookups().iter().map(|(_, from)| from.ip()).collect();
    assert_eq!((asked, host.lookups().len()), (BTreeSet::from([OURS, second]), 2));
    // The next attempt looks up the port again and opens new connections.
    assert_eq!(fixture.notice(notice(host.ip, &pairs)).await, NoticeResult::Answered);
    assert_eq!((host.calls().len(), host.connections(), host.lookups().len()), (8, 4, 4));
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn a_host_that_has_only_udp_is_notified_over_udp() {
    let mut host = a_host().await;
    host.udp(nsm::PROGRAM, 1, acknowledge()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let start = Instant::now();
    assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
    assert!(start.elapsed() < quick_peers().fallback_after, "{:?}", start.elapsed());
    assert_eq!(names(&host.calls()).len(), 3);
    assert!(host.calls().iter().all(|call| !call.over_tcp && call.from.ip() == OURS));
}

#[tokio::test]
async fn a_host_that_is_slow_over_tcp_is_told_over_udp_too() {
    let late = || script(|_| Answer::Delayed(Duration::from_secs(30), Default::default()));
    let nobody: Option<Script> = None;
    for tcp in [Some(deaf()), Some(late()), Some(script(|_| Answer::Close)), nobody] {
        let mut host = a_host().await;
        match tcp {
            Some(script) => drop(host.tcp(nsm::PROGRAM, 1, script).await),
            None => host.register(nsm::PROGRAM, 1, true, 9),
        }
        host.udp(nsm::PROGRAM, 1, acknowledge()).await;
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        let start = Instant::now();
        assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
        assert!(start.elapsed() < quick().attempt_max, "{:?}", start.elapsed());
        let by_udp: Vec<_> = host.calls().into_iter().filter(|call| !call.over_tcp).collect();
        assert_eq!(names(&by_udp).len(), 3);
        fixture.no_more_reports().await;
    }
}

#[tokio::test]
async fn only_unanswered_calls_are_sent_again() {
    let mut host = a_host().await;
    let first_only = |call: &ReceivedCall| match call.index {
        0 => Answer::results(&()),
        _ => Answer::Nothing,
    };
    host.tcp(nsm::PROGRAM, 1, script(first_only)).await;
    host.udp(nsm::PROGRAM, 1, acknowledge()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
    let by_udp: Vec<_> = host.calls().into_iter().filter(|call| !call.over_tcp).collect();
    assert_eq!(names(&by_udp).len(), 2);
}

#[tokio::test]
async fn one_answer_to_one_name_is_an_answer() {
    let mut host = a_host().await;
    let first_only = |call: &ReceivedCall| match call.index {
        0 => Answer::results(&()),
        _ => Answer::Nothing,
    };
    host.tcp(nsm::PROGRAM, 1, script(first_only)).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
}

#[tokio::test]
async fn an_attempt_without_an_answer_fails_in_time() {
    let attempt = quick().attempt_max;
    let timed = async |host: &Host| {
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        let start = Instant::now();
        assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Failed);
        assert!(start.elapsed() < 2 * attempt, "{:?}", start.elapsed());
        fixture.no_more_reports().await;
    };
    // A machine without rpcbind; one with an rpcbind that is silent.
    let mut fixture = Fixture::new(9).await;
    assert_eq!(fixture.notice(plain(address())).await, NoticeResult::Failed);
    let silent = Host::bind(address(), 0, RpcbindKind::Silent).await;
    // No status monitor; one that is gone; one that is silent.
    let (without, gone, mut mute) = (a_host().await, a_host().await, a_host().await);
    gone.register(nsm::PROGRAM, 1, true, 9);
    gone.register(nsm::PROGRAM, 1, false, 9);
    mute.tcp(nsm::PROGRAM, 1, deaf()).await;
    mute.udp(nsm::PROGRAM, 1, deaf()).await;
    tokio::join!(timed(&silent), timed(&without), timed(&gone), timed(&mute));
}

/// B4.3: look-up, connection, call and reply share the 5 s of an attempt.
#[tokio::test]
async fn one_attempt_has_5_seconds_in_all() {
    let settings = Settings::default();
    assert_eq!(settings.attempt_max, Duration::from_secs(5));
    let slow = RpcbindKind::Slow(Duration::from_millis(3_500));
    let mut host = Host::bind(address(), 0, slow).await;
    host.tcp(nsm::PROGRAM, 1, deaf()).await;
    host.udp(nsm::PROGRAM, 1, deaf()).await;
    let peers = peer::Settings { rpcbind_port: host.rpcbind_port, ..peer::Settings::default() };
    let mut fixture = Fixture::with(peers, settings).await;
    let start = Instant::now();
    assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Failed);
    let took = start.elapsed();
    // With 5 s of its own, the call alone would end after 8.5 s.
    assert!((4_900..7_000).contains(&took.as_millis()), "{took:?}");
    assert!(!host.calls().is_empty(), "the look-up was answered in time");
}

#[tokio::test]
async fn only_an_accepted_reply_with_our_xid_is_an_answer() {
    let told = async |answer: Answer, by_tcp: bool| {
        let mut host = a_host().await;
        let script = script(move |_| answer.clone());
        match by_tcp {
            true => host.tcp(nsm::PROGRAM, 1, script).await,
            false => host.udp(nsm::PROGRAM, 1, script).await,
        };
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        fixture.notice(plain(host.ip)).await
    };
    let others = [
        Answer::WrongXid(Default::default()),
        Answer::Status(Accepted::ProgramUnavailable),
        Answer::Status(Accepted::SystemError),
    ];
    for answer in others {
        let (by_tcp, by_udp) = tokio::join!(told(answer.clone(), true), told(answer, false));
        assert_eq!((by_tcp, by_udp), (NoticeResult::Failed, NoticeResult::Failed));
    }
}

#[tokio::test]
async fn a_local_failure_is_not_an_attempt() {
    let mut fixture = Fixture::new(9).await;
    let absent: IpAddr = "198.51.100.1".parse().unwrap();
    let elsewhere: IpAddr = "198.51.100.2".parse().unwrap();
    let start = Instant::now();
    let told = notice(elsewhere, &[(absent, "server"), (absent, "other")]);
    assert_eq!(fixture.notice(told).await, NoticeResult::Unsent);
    assert_eq!(fixture.notice(notice(elsewhere, &[])).await, NoticeResult::Unsent);
    // A host that may not be called.
    let inside = notice(address(), &[(absent, "server")]);
    assert_eq!(fixture.notice(inside).await, NoticeResult::Unsent);
    assert!(start.elapsed() < quick().attempt_max, "{:?}", start.elapsed());
    // One address of ours that is down does not hold up another.
    let mut host = a_host().await;
    host.tcp(nsm::PROGRAM, 1, acknowledge()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let told = notice(host.ip, &[(absent, "server"), (OURS, "server")]);
    assert_eq!(fixture.notice(told).await, NoticeResult::Answered);
    let gone = notice(address(), &[(absent, "server"), (OURS, "server")]);
    assert_eq!(fixture.notice(gone).await, NoticeResult::Failed);
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn a_registrant_is_called_by_its_own_procedure() {
    let mut host = a_host().await;
    host.udp(200_000, 7, acknowledge()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let callback = Callback { name: Name::from("me"), program: 200_000, version: 7, procedure: 16 };
    let name = Name::from("bob");
    let target = NoticeTarget::Registrant { callback, name, private: [9; 16] };
    let told = Notice { target, ..notice(host.ip, &[]) };
    assert_eq!(fixture.notice(told).await, NoticeResult::Answered);
    let [call] = &host.calls()[..] else { panic!("{:?}", host.calls()) };
    assert_eq!((call.program, call.version, call.procedure), (200_000, 7, 16));
    let args = StatusArgs::from_bytes(call.args.clone()).unwrap();
    let state = 4_000_000_001_u32.cast_signed();
    assert_eq!(args, StatusArgs { mon_name: b"bob"[..].into(), state, private: [9; 16] });
}

#[tokio::test]
async fn with_root_all_calls_come_from_reserved_ports() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut host = a_host().await;
    host.tcp(nsm::PROGRAM, 1, acknowledge()).await;
    let mut other = Host::bind(address(), host.rpcbind_port, RpcbindKind::Full).await;
    other.udp(nsm::PROGRAM, 1, acknowledge()).await;
    let rpcbind_port = host.rpcbind_port;
    let mut fixture = Fixture::calling(peer::Settings {
        rpcbind_port,
        send_from_reserved_ports: true,
        ..quick_peers()
    })
    .await;
    for host in [&host, &other] {
        assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
        assert!(host.calls().iter().all(|call| (512..1024).contains(&call.from.port())));
    }
}

#[tokio::test]
async fn over_ipv6_too() {
    let ip: IpAddr = "::1".parse().unwrap();
    let mut host = Host::bind(ip, 0, RpcbindKind::Full).await;
    host.tcp(nsm::PROGRAM, 1, acknowledge()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.notice(notice(ip, &[(ip, "::1")])).await, NoticeResult::Answered);
    assert_eq!(names(&host.calls()).len(), 1);
}

#[tokio::test]
async fn over_ipv6_one_transport_is_enough() {
    let ip: IpAddr = "::1".parse().unwrap();
    for kind in [RpcbindKind::UdpOnly, RpcbindKind::TcpOnly] {
        let mut host = Host::bind(ip, 0, kind).await;
        host.tcp(nsm::PROGRAM, 1, acknowledge()).await;
        host.udp(nsm::PROGRAM, 1, acknowledge()).await;
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        let result = fixture.notice(notice(ip, &[(ip, "::1")])).await;
        assert_eq!(result, NoticeResult::Answered, "{kind:?}");
        let call = host.calls();
        assert!(
            call.iter().all(|call| call.over_tcp == (kind == RpcbindKind::TcpOnly)),
            "{call:?}"
        );
    }
}
