//! SM_NOTIFY and the procedures of registrants.

use super::scripted::{Answer, Heard, Script, script};
use super::*;
use keeper::request::Callback;
use std::collections::BTreeSet;
use std::time::Instant;
use wire::Decode;
use wire::nsm::{self, NotifyArgs, StatusArgs};
use wire::rpc::Accepted;

fn heard_it() -> Script {
    script(|_| Answer::with(&()))
}

fn deaf() -> Script {
    script(|_| Answer::Nothing)
}

fn plain(to: IpAddr) -> Notice {
    notice(to, &[(OURS, "127.0.0.1"), (OURS, "server"), (OURS, "server.example.org")])
}

fn names(calls: &[Heard]) -> BTreeSet<(IpAddr, String)> {
    let named = |heard: &Heard| {
        let numbers = (heard.program, heard.version, heard.procedure);
        assert_eq!(numbers, (nsm::PROGRAM, nsm::VERSION, 6));
        let args = NotifyArgs::from_bytes(heard.args.clone()).unwrap();
        assert_eq!(args.state.cast_unsigned(), 4_000_000_001);
        (heard.from.ip(), String::from_utf8(args.mon_name.to_vec()).unwrap())
    };
    calls.iter().map(named).collect()
}

#[tokio::test]
async fn every_name_is_told_from_every_address_over_one_connection_each() {
    let mut host = a_host().await;
    host.tcp(nsm::PROGRAM, 1, heard_it()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let second: IpAddr = "127.0.0.2".parse().unwrap();
    let pairs = [(OURS, "one"), (second, "two"), (OURS, "server"), (second, "server")];
    assert_eq!(fixture.notice(notice(host.ip, &pairs)).await, NoticeResult::Answered);
    let expected = pairs.map(|(ours, name)| (ours, name.to_string()));
    assert_eq!(names(&host.calls()), BTreeSet::from(expected));
    assert_eq!((host.calls().len(), host.connections()), (4, 2));
    let asked: BTreeSet<IpAddr> = host.lookups().iter().map(|(_, from)| from.ip()).collect();
    assert_eq!((asked, host.lookups().len()), (BTreeSet::from([OURS, second]), 2));
    // The next attempt asks again, and speaks over new connections.
    assert_eq!(fixture.notice(notice(host.ip, &pairs)).await, NoticeResult::Answered);
    assert_eq!((host.calls().len(), host.connections(), host.lookups().len()), (8, 4, 4));
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn a_host_that_has_only_udp_is_told_so() {
    let mut host = a_host().await;
    host.udp(nsm::PROGRAM, 1, heard_it()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let start = Instant::now();
    assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
    assert!(start.elapsed() < quick_peers().alone, "{:?}", start.elapsed());
    assert_eq!(names(&host.calls()).len(), 3);
    assert!(host.calls().iter().all(|heard| !heard.by_tcp && heard.from.ip() == OURS));
}

#[tokio::test]
async fn a_host_that_is_slow_over_tcp_is_told_over_udp_too() {
    let late = || script(|_| Answer::Late(Duration::from_secs(30), Default::default()));
    let nobody: Option<Script> = None;
    for tcp in [Some(deaf()), Some(late()), Some(script(|_| Answer::Close)), nobody] {
        let mut host = a_host().await;
        match tcp {
            Some(script) => drop(host.tcp(nsm::PROGRAM, 1, script).await),
            None => host.register(nsm::PROGRAM, 1, true, 9),
        }
        host.udp(nsm::PROGRAM, 1, heard_it()).await;
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        let start = Instant::now();
        assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
        assert!(start.elapsed() < quick().attempt, "{:?}", start.elapsed());
        let by_udp: Vec<_> = host.calls().into_iter().filter(|heard| !heard.by_tcp).collect();
        assert_eq!(names(&by_udp).len(), 3);
        fixture.no_more_reports().await;
    }
}

#[tokio::test]
async fn only_what_was_not_answered_is_said_again() {
    let mut host = a_host().await;
    let first_only = |heard: &Heard| match heard.before {
        0 => Answer::with(&()),
        _ => Answer::Nothing,
    };
    host.tcp(nsm::PROGRAM, 1, script(first_only)).await;
    host.udp(nsm::PROGRAM, 1, heard_it()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
    let by_udp: Vec<_> = host.calls().into_iter().filter(|heard| !heard.by_tcp).collect();
    assert_eq!(names(&by_udp).len(), 2);
}

#[tokio::test]
async fn one_answer_to_one_name_is_an_answer() {
    let mut host = a_host().await;
    let first_only = |heard: &Heard| match heard.before {
        0 => Answer::with(&()),
        _ => Answer::Nothing,
    };
    host.tcp(nsm::PROGRAM, 1, script(first_only)).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
}

#[tokio::test]
async fn who_does_not_answer_has_failed_within_the_time_of_one_attempt() {
    let attempt = quick().attempt;
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
    let silent = Host::at(address(), 0, Rpcbind::Silent).await;
    // No status monitor; one that is gone; one that is silent.
    let (without, gone, mut mute) = (a_host().await, a_host().await, a_host().await);
    gone.register(nsm::PROGRAM, 1, true, 9);
    gone.register(nsm::PROGRAM, 1, false, 9);
    mute.tcp(nsm::PROGRAM, 1, deaf()).await;
    mute.udp(nsm::PROGRAM, 1, deaf()).await;
    tokio::join!(timed(&silent), timed(&without), timed(&gone), timed(&mute));
}

#[tokio::test]
async fn only_an_accepted_reply_with_our_number_is_an_answer() {
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
        Answer::OtherXid(Default::default()),
        Answer::Verdict(Accepted::ProgramUnavailable),
        Answer::Verdict(Accepted::SystemError),
    ];
    for answer in others {
        let (by_tcp, by_udp) = tokio::join!(told(answer.clone(), true), told(answer, false));
        assert_eq!((by_tcp, by_udp), (NoticeResult::Failed, NoticeResult::Failed));
    }
}

#[tokio::test]
async fn our_own_trouble_is_not_an_attempt() {
    let mut fixture = Fixture::new(9).await;
    let absent: IpAddr = "198.51.100.1".parse().unwrap();
    let elsewhere: IpAddr = "198.51.100.2".parse().unwrap();
    let start = Instant::now();
    let told = notice(elsewhere, &[(absent, "server"), (absent, "other")]);
    assert_eq!(fixture.notice(told).await, NoticeResult::Unsent);
    assert_eq!(fixture.notice(notice(elsewhere, &[])).await, NoticeResult::Unsent);
    // Whom we may not call, we did not call.
    let inside = notice(address(), &[(absent, "server")]);
    assert_eq!(fixture.notice(inside).await, NoticeResult::Unsent);
    assert!(start.elapsed() < quick().attempt, "{:?}", start.elapsed());
    // One address that is not up does not stand in the way of another.
    let mut host = a_host().await;
    host.tcp(nsm::PROGRAM, 1, heard_it()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let told = notice(host.ip, &[(absent, "server"), (OURS, "server")]);
    assert_eq!(fixture.notice(told).await, NoticeResult::Answered);
    let gone = notice(address(), &[(absent, "server"), (OURS, "server")]);
    assert_eq!(fixture.notice(gone).await, NoticeResult::Failed);
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn a_registrant_is_told_by_its_own_procedure() {
    let mut host = a_host().await;
    host.udp(200_000, 7, heard_it()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    let callback = Callback { name: Name::from("me"), program: 200_000, version: 7, procedure: 16 };
    let watched = Name::from("bob");
    let target = NoticeTarget::Registrant { callback, watched, private: [9; 16] };
    let told = Notice { target, ..notice(host.ip, &[]) };
    assert_eq!(fixture.notice(told).await, NoticeResult::Answered);
    let [heard] = &host.calls()[..] else { panic!("{:?}", host.calls()) };
    assert_eq!((heard.program, heard.version, heard.procedure), (200_000, 7, 16));
    let args = StatusArgs::from_bytes(heard.args.clone()).unwrap();
    let state = 4_000_000_001_u32.cast_signed();
    assert_eq!(args, StatusArgs { mon_name: b"bob"[..].into(), state, private: [9; 16] });
}

#[tokio::test]
async fn with_root_everything_is_said_from_reserved_ports() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut host = a_host().await;
    host.tcp(nsm::PROGRAM, 1, heard_it()).await;
    let mut other = Host::at(address(), host.rpcbind_port, Rpcbind::Usual).await;
    other.udp(nsm::PROGRAM, 1, heard_it()).await;
    let rpcbind_port = host.rpcbind_port;
    let mut fixture =
        Fixture::calling(peer::Settings { rpcbind_port, reserved_ports: true, ..quick_peers() })
            .await;
    for host in [&host, &other] {
        assert_eq!(fixture.notice(plain(host.ip)).await, NoticeResult::Answered);
        assert!(host.calls().iter().all(|heard| (512..1024).contains(&heard.from.port())));
    }
}

#[tokio::test]
async fn over_ipv6_too() {
    let ip: IpAddr = "::1".parse().unwrap();
    let mut host = Host::at(ip, 0, Rpcbind::Usual).await;
    host.tcp(nsm::PROGRAM, 1, heard_it()).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.notice(notice(ip, &[(ip, "::1")])).await, NoticeResult::Answered);
    assert_eq!(names(&host.calls()).len(), 1);
}

#[tokio::test]
async fn over_ipv6_one_transport_is_enough() {
    let ip: IpAddr = "::1".parse().unwrap();
    for kind in [Rpcbind::Udp, Rpcbind::Tcp] {
        let mut host = Host::at(ip, 0, kind).await;
        host.tcp(nsm::PROGRAM, 1, heard_it()).await;
        host.udp(nsm::PROGRAM, 1, heard_it()).await;
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        let result = fixture.notice(notice(ip, &[(ip, "::1")])).await;
        assert_eq!(result, NoticeResult::Answered, "{kind:?}");
        let heard = host.calls();
        assert!(heard.iter().all(|heard| heard.by_tcp == (kind == Rpcbind::Tcp)), "{heard:?}");
    }
}
