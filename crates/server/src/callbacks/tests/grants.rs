//! GRANTED as a call.

use super::*;
use bytes::Bytes;
use std::time::Instant;
use testbed::peer::{Answer, ReceivedCall, Script, script};
use wire::nlm::{self, Status, StatusReply, TestArgs, Version, Versioned};
use wire::rpc::{Accepted, Credential};

fn said(status: Status) -> Bytes {
    StatusReply { cookie: b"cookie"[..].into(), status }.to_bytes_as(Version::V4)
}

fn always(status: Status) -> Script {
    script(move |_| Answer::Results(said(status)))
}

/// A host with a lock manager over TCP that answers so, and a fixture that finds it.
async fn tcp_host(script: Script) -> (Host, Fixture) {
    let mut host = a_host().await;
    host.tcp(nlm::PROGRAM, 4, script).await;
    let fixture = Fixture::new(host.rpcbind_port).await;
    (host, fixture)
}

async fn udp_host(script: Script) -> (Host, Fixture) {
    let mut host = a_host().await;
    host.udp(nlm::PROGRAM, 4, script).await;
    let fixture = Fixture::new(host.rpcbind_port).await;
    (host, fixture)
}

#[tokio::test]
async fn granted_names_exactly_the_lock_that_was_asked_for() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let (host, mut fixture) = match transport {
            Transport::Tcp => tcp_host(always(Status::Granted)).await,
            Transport::Udp => udp_host(always(Status::Granted)).await,
        };
        let grant = grant(host.ip, transport);
        let id = grant.id;
        assert_eq!(fixture.grant(grant).await, GrantAnswer::Accepted);
        let [call] = &host.calls()[..] else { panic!("{:?}", host.calls()) };
        let ReceivedCall { over_tcp, from, program, version, procedure, .. } = call;
        assert_eq!((*over_tcp, from.ip()), (transport == Transport::Tcp, OURS));
        assert_eq!((*program, *version, *procedure), (nlm::PROGRAM, 4, 5));
        let args = TestArgs::from_bytes_as(Version::V4, call.args.clone()).unwrap();
        let expected = TestArgs {
            cookie: id.0.to_be_bytes().to_vec().into(),
            exclusive: true,
            lock: nlm::Lock {
                caller_name: b"alice"[..].into(),
                file: vec![0xfe; 28].into(),
                owner: b"7@alice"[..].into(),
                svid: 7,
                range: nlm::Range { offset: 100, length: 0 },
            },
        };
        assert_eq!(args, expected);
        let Credential::Sys(credential) = &call.credential else { panic!("{call:?}") };
        let name = rustix::system::uname();
        assert_eq!(&credential.machine[..], name.nodename().to_bytes());
        assert_eq!((credential.uid, credential.gid), (0, 0));
        fixture.no_more_reports().await;
    }
}

#[tokio::test]
async fn every_status_maps_to_an_answer() {
    let (host, mut fixture) =
        tcp_host(script(|call| Answer::Results(said(Status::ALL[call.index])))).await;
    for status in Status::ALL {
        let expected = match status {
            Status::Granted => GrantAnswer::Accepted,
            Status::Denied => GrantAnswer::Denied,
            _ => GrantAnswer::Unclear,
        };
        assert_eq!(fixture.grant(grant(host.ip, Transport::Tcp)).await, expected, "{status:?}");
    }
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn old_versions_get_their_own_encoding() {
    for version in [1, 3] {
        let mut host = a_host().await;
        let form = Version::from_number(version).unwrap();
        let answer = StatusReply { cookie: b""[..].into(), status: Status::Denied };
        let answer = answer.to_bytes_as(form);
        let answer = script(move |_| Answer::Results(answer.clone()));
        host.tcp(nlm::PROGRAM, version, answer).await;
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        let namespace = OwnerNamespace::new(OURS, Transport::Tcp, version as u8);
        let grant = Grant { range: Range::at(5, 3).unwrap(), ..grant_in(host.ip, namespace) };
        let grant = Grant { mode: Mode::Shared, ..grant };
        assert_eq!(fixture.grant(grant).await, GrantAnswer::Denied);
        let args = TestArgs::from_bytes_as(form, host.calls()[0].args.clone()).unwrap();
        assert_eq!(args.lock.range, nlm::Range { offset: 5, length: 3 });
        assert!(!args.exclusive);
    }
}

#[tokio::test]
async fn a_denial_of_what_was_said_twice_is_unclear() {
    let deny_second = |call: &ReceivedCall| match call.index {
        0 => Answer::Nothing,
        _ => Answer::Results(said(Status::Denied)),
    };
    let (host, mut fixture) = udp_host(script(deny_second)).await;
    assert_eq!(fixture.grant(grant(host.ip, Transport::Udp)).await, GrantAnswer::Unclear);
    assert_eq!(host.calls().len(), 2);
    let grant_second = |call: &ReceivedCall| match call.index {
        0 => Answer::Nothing,
        _ => Answer::Results(said(Status::Granted)),
    };
    let (host, mut fixture) = udp_host(script(grant_second)).await;
    assert_eq!(fixture.grant(grant(host.ip, Transport::Udp)).await, GrantAnswer::Accepted);
}

#[tokio::test]
async fn a_call_that_was_never_sent_is_unsent() {
    // No rpcbind: refused, or silent.
    let mut fixture = Fixture::new(9).await;
    assert_eq!(fixture.grant(grant(address(), Transport::Tcp)).await, GrantAnswer::Unsent);
    let silent = Host::bind(address(), 0, RpcbindKind::Silent).await;
    let mut fixture = Fixture::new(silent.rpcbind_port).await;
    for transport in [Transport::Tcp, Transport::Udp] {
        assert_eq!(fixture.grant(grant(silent.ip, transport)).await, GrantAnswer::Unsent);
    }
    // No lock manager, or one that is gone.
    let host = a_host().await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.grant(grant(host.ip, Transport::Tcp)).await, GrantAnswer::Unsent);
    host.register(nlm::PROGRAM, 4, true, 9);
    assert_eq!(fixture.grant(grant(host.ip, Transport::Tcp)).await, GrantAnswer::Unsent);
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn a_call_without_an_answer_is_unclear() {
    let garbage = || Answer::Results(Bytes::from_static(b"what"));
    let refused = || Answer::Status(Accepted::ProgramUnavailable);
    let answers = [Answer::Nothing, Answer::Close, garbage(), refused()];
    for answer in answers {
        let (host, mut fixture) = tcp_host({
            let answer = answer.clone();
            script(move |_| answer.clone())
        })
        .await;
        let result = fixture.grant(grant(host.ip, Transport::Tcp)).await;
        assert_eq!(result, GrantAnswer::Unclear, "{answer:?}");
        assert_eq!(host.calls().len(), 1, "{answer:?}");
    }
    let (host, mut fixture) = udp_host(script(|_| Answer::WrongXid(said(Status::Granted)))).await;
    assert_eq!(fixture.grant(grant(host.ip, Transport::Udp)).await, GrantAnswer::Unclear);
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn the_next_callback_uses_the_same_connection() {
    let (host, mut fixture) = tcp_host(always(Status::Granted)).await;
    for _ in 0..5 {
        assert_eq!(fixture.grant(grant(host.ip, Transport::Tcp)).await, GrantAnswer::Accepted);
    }
    assert_eq!((host.connections(), host.lookups().len(), host.calls().len()), (1, 1, 5));
    // A burst to a new host makes one connection, too.
    let (host, mut fixture) = tcp_host(always(Status::Granted)).await;
    (0..50).for_each(|_| fixture.callbacks.send_grant(grant(host.ip, Transport::Tcp)));
    for _ in 0..50 {
        assert!(matches!(fixture.report().await, Report::Granted(_, GrantAnswer::Accepted)));
    }
    assert_eq!((host.connections(), host.lookups().len(), host.calls().len()), (1, 1, 50));
}

#[tokio::test]
async fn a_kept_connection_that_ended_is_replaced() {
    // It hangs up after its answer, as lock managers do with idle connections.
    let (host, mut fixture) = tcp_host(script(|call| match call.index {
        1 => Answer::Close,
        _ => Answer::Results(said(Status::Granted)),
    }))
    .await;
    let tell = |ip| grant(ip, Transport::Tcp);
    assert_eq!(fixture.grant(tell(host.ip)).await, GrantAnswer::Accepted);
    // It breaks during the second call, which is sent again over a new one.
    assert_eq!(fixture.grant(tell(host.ip)).await, GrantAnswer::Accepted);
    assert_eq!((host.connections(), host.calls().len()), (2, 3));

    // The same, but then it says no: it may have taken what it received first.
    let (host, mut fixture) = tcp_host(script(|call| match call.index {
        0 => Answer::Results(said(Status::Granted)),
        1 => Answer::Close,
        _ => Answer::Results(said(Status::Denied)),
    }))
    .await;
    assert_eq!(fixture.grant(tell(host.ip)).await, GrantAnswer::Accepted);
    assert_eq!(fixture.grant(tell(host.ip)).await, GrantAnswer::Unclear);
    assert_eq!(fixture.grant(tell(host.ip)).await, GrantAnswer::Denied);
}

#[tokio::test]
async fn a_host_that_restarted_elsewhere_is_found_again_in_the_same_attempt() {
    let ip = address();
    let mut host = Host::bind(ip, 0, RpcbindKind::Full).await;
    let port = host.rpcbind_port;
    host.tcp(nlm::PROGRAM, 4, always(Status::Granted)).await;
    let mut fixture = Fixture::new(port).await;
    assert_eq!(fixture.grant(grant(ip, Transport::Tcp)).await, GrantAnswer::Accepted);
    drop(host);
    tokio::time::sleep(MOMENT).await;
    let mut host = Host::bind(ip, port, RpcbindKind::Full).await;
    host.tcp(nlm::PROGRAM, 4, always(Status::Denied)).await;
    assert_eq!(fixture.grant(grant(ip, Transport::Tcp)).await, GrantAnswer::Denied);
    assert_eq!(host.lookups().len(), 1);
}

#[tokio::test]
async fn idle_connections_are_closed_and_their_number_is_bounded() {
    let mut host = a_host().await;
    host.tcp(nlm::PROGRAM, 4, always(Status::Granted)).await;
    let idle_max = Duration::from_millis(300);
    let rpcbind_port = host.rpcbind_port;
    let settings =
        peer::Settings { rpcbind_port, idle_max, kept_connections_max: 2, ..quick_peers() };
    let mut fixture = Fixture::calling(settings).await;
    // Three of our addresses, so three ends.
    for last in 1..=3 {
        let namespace =
            OwnerNamespace::new(Ipv4Addr::new(127, 0, 0, last).into(), Transport::Tcp, 4);
        assert_eq!(fixture.grant(grant_in(host.ip, namespace)).await, GrantAnswer::Accepted);
    }
    assert_eq!(fixture.peers.kept_connections(), 2);
    let sources: Vec<_> = host.calls().iter().map(|call| call.from.ip().to_string()).collect();
    assert_eq!(sources, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    let start = Instant::now();
    while fixture.peers.kept_connections() > 0 {
        assert!(start.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_rpcbind_that_hears_only_tcp_is_asked_so() {
    let mut host = Host::bind(address(), 0, RpcbindKind::TcpOnly).await;
    host.tcp(nlm::PROGRAM, 4, always(Status::Granted)).await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    assert_eq!(fixture.grant(grant(host.ip, Transport::Tcp)).await, GrantAnswer::Accepted);
}

#[tokio::test]
async fn over_ipv6_only_the_port_of_an_address_is_believed() {
    let ip: IpAddr = "::1".parse().unwrap();
    for kind in [RpcbindKind::Full, RpcbindKind::WithoutVersion4] {
        let mut host = Host::bind(ip, 0, kind).await;
        host.tcp(nlm::PROGRAM, 4, always(Status::Granted)).await;
        host.udp(nlm::PROGRAM, 4, always(Status::Denied)).await;
        let mut fixture = Fixture::new(host.rpcbind_port).await;
        for (transport, expected) in
            [(Transport::Tcp, GrantAnswer::Accepted), (Transport::Udp, GrantAnswer::Denied)]
        {
            let told = grant_in(ip, OwnerNamespace::new(ip, transport, 4));
            assert_eq!(fixture.grant(told).await, expected, "{kind:?}");
        }
        let versions: Vec<u32> = host.lookups().iter().map(|(version, _)| *version).collect();
        match kind {
            RpcbindKind::WithoutVersion4 => assert_eq!(versions, [4, 3, 4, 3]),
            _ => assert_eq!(versions, [4, 4]),
        }
    }
}

#[tokio::test]
async fn no_local_address_is_called_for_a_remote_requester() {
    let (host, mut fixture) = tcp_host(always(Status::Granted)).await;
    let namespace = OwnerNamespace::new("198.51.100.1".parse().unwrap(), Transport::Tcp, 4);
    assert_eq!(fixture.grant(grant_in(host.ip, namespace)).await, GrantAnswer::Unsent);
    assert!(host.lookups().is_empty() && host.calls().is_empty());
}

#[tokio::test]
async fn callbacks_beyond_the_limit_are_unsent() {
    let (host, fixture) = tcp_host(script(|_| Answer::Nothing)).await;
    drop(fixture);
    let rpcbind_port = host.rpcbind_port;
    let mut fixture = Fixture::with(
        peer::Settings { rpcbind_port, ..quick_peers() },
        Settings { in_flight_max: 2, ..quick() },
    )
    .await;
    let sent: Vec<Grant> = (0..5).map(|_| grant(host.ip, Transport::Tcp)).collect();
    sent.iter().for_each(|grant| fixture.callbacks.send_grant(grant.clone()));
    let mut reports = Vec::new();
    for _ in 0..5 {
        reports.push(fixture.report().await);
    }
    for (number, grant) in sent.iter().enumerate() {
        let answer = if number < 2 { GrantAnswer::Unclear } else { GrantAnswer::Unsent };
        assert!(reports.contains(&Report::Granted(grant.id, answer)), "{reports:?}");
    }
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn a_thread_outside_of_the_runtime_may_send() {
    let (host, mut fixture) = tcp_host(always(Status::Granted)).await;
    let (callbacks, told) = (fixture.callbacks.clone(), grant(host.ip, Transport::Tcp));
    std::thread::spawn(move || callbacks.send_grant(told)).join().unwrap();
    assert!(matches!(fixture.report().await, Report::Granted(_, GrantAnswer::Accepted)));
}

#[tokio::test]
async fn one_silent_host_does_not_delay_another() {
    let (silent, fixture) = tcp_host(script(|_| Answer::Nothing)).await;
    drop(fixture);
    let mut host = Host::bind(address(), silent.rpcbind_port, RpcbindKind::Full).await;
    host.tcp(nlm::PROGRAM, 4, always(Status::Granted)).await;
    let rpcbind_port = host.rpcbind_port;
    let peers = peer::Settings { rpcbind_port, callbacks_per_host_max: 4, ..quick_peers() };
    let settings = Settings { running_max: 8, ..quick() };
    let mut fixture = Fixture::with(peers, settings).await;
    (0..20).for_each(|_| fixture.callbacks.send_grant(grant(silent.ip, Transport::Tcp)));
    tokio::time::sleep(MOMENT).await;
    let start = Instant::now();
    assert_eq!(fixture.grant(grant(host.ip, Transport::Tcp)).await, GrantAnswer::Accepted);
    assert!(start.elapsed() < quick().attempt_max, "{:?}", start.elapsed());
}
