//! GRANTED_MSG and its GRANTED_RES; results of requests in message form.

use super::*;
use bytes::Bytes;
use testbed::peer::{Answer, ReceivedCall, script};
use wire::Encode;
use wire::nlm::{self, Status, TestArgs, Version, Versioned};

use crate::transport::{self, Peer};

/// A host whose lock manager accepts messages and sends no results.
async fn host_with(transport: Transport) -> (Host, Fixture) {
    let mut host = a_host().await;
    match transport {
        Transport::Tcp => host.tcp(nlm::PROGRAM, 4, script(|_| Answer::results(&()))).await,
        Transport::Udp => host.udp(nlm::PROGRAM, 4, script(|_| Answer::Nothing)).await,
    };
    let fixture = Fixture::new(host.rpcbind_port).await;
    (host, fixture)
}

fn message(to: IpAddr, transport: Transport) -> Grant {
    Grant { form: Form::Message, ..grant(to, transport) }
}

async fn calls_of(host: &Host, count: usize) -> Vec<ReceivedCall> {
    let waited = async {
        while host.calls().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    bounded("a call", waited).await;
    host.calls()
}

#[tokio::test]
async fn a_message_is_answered_by_a_message() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let (host, mut fixture) = host_with(transport).await;
        for (status, answer) in [
            (Status::Granted, GrantAnswer::Accepted),
            (Status::Denied, GrantAnswer::Denied),
            (Status::DeniedGracePeriod, GrantAnswer::Unclear),
        ] {
            let before = host.calls().len();
            let told = message(host.ip, transport);
            fixture.callbacks.send_grant(told.clone());
            let call = calls_of(&host, before + 1).await.pop().unwrap();
            assert_eq!((call.version, call.procedure), (4, 10));
            if transport == Transport::Udp {
                assert_eq!(call.from, fixture.listening, "from the listening socket");
            }
            let args = TestArgs::from_bytes_as(Version::V4, call.args).unwrap();
            fixture.callbacks.granted_res(host.ip, &args.cookie, status);
            assert_eq!(fixture.report().await, Report::Granted(told.id, answer));
            // A result of an attempt that is over is ignored.
            fixture.callbacks.granted_res(host.ip, &args.cookie, Status::Granted);
        }
        fixture.no_more_reports().await;
        assert!(host.connections() <= 1);
    }
}

#[tokio::test]
async fn an_answer_from_elsewhere_or_to_something_else_changes_nothing() {
    let (host, mut fixture) = host_with(Transport::Tcp).await;
    let told = message(host.ip, Transport::Tcp);
    let cookie = told.id.0.to_be_bytes();
    fixture.callbacks.send_grant(told.clone());
    calls_of(&host, 1).await;
    fixture.callbacks.granted_res(address(), &cookie, Status::Granted);
    fixture.callbacks.granted_res(host.ip, &(told.id.0 + 1).to_be_bytes(), Status::Granted);
    fixture.callbacks.granted_res(host.ip, &cookie[..7], Status::Granted);
    fixture.callbacks.granted_res(host.ip, b"", Status::Granted);
    fixture.no_more_reports().await;
    let mapped = match host.ip {
        IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
        ip => ip,
    };
    fixture.callbacks.granted_res(mapped, &cookie, Status::Denied);
    assert_eq!(fixture.report().await, Report::Granted(told.id, GrantAnswer::Denied));
}

#[tokio::test]
async fn a_message_that_is_not_answered_is_unclear_and_a_late_denial_too() {
    let (host, mut fixture) = host_with(Transport::Udp).await;
    let told = message(host.ip, Transport::Udp);
    assert_eq!(fixture.grant(told.clone()).await, GrantAnswer::Unclear);
    assert_eq!(host.calls().len(), 2, "said twice");
    fixture.callbacks.granted_res(host.ip, &told.id.0.to_be_bytes(), Status::Granted);
    fixture.no_more_reports().await;

    let told = message(host.ip, Transport::Udp);
    fixture.callbacks.send_grant(told.clone());
    calls_of(&host, 4).await;
    fixture.callbacks.granted_res(host.ip, &told.id.0.to_be_bytes(), Status::Denied);
    assert_eq!(fixture.report().await, Report::Granted(told.id, GrantAnswer::Unclear));
}

#[tokio::test]
async fn a_new_attempt_ends_the_one_before() {
    let (host, mut fixture) = host_with(Transport::Tcp).await;
    let told = message(host.ip, Transport::Tcp);
    fixture.callbacks.send_grant(told.clone());
    calls_of(&host, 1).await;
    fixture.callbacks.send_grant(Grant { attempt: 2, ..told.clone() });
    assert_eq!(fixture.report().await, Report::Granted(told.id, GrantAnswer::Unclear));
    calls_of(&host, 2).await;
    fixture.callbacks.granted_res(host.ip, &told.id.0.to_be_bytes(), Status::Granted);
    assert_eq!(fixture.report().await, Report::Granted(told.id, GrantAnswer::Accepted));
    fixture.no_more_reports().await;
}

#[tokio::test]
async fn without_a_port_a_message_is_unsent() {
    let host = a_host().await;
    let mut fixture = Fixture::new(host.rpcbind_port).await;
    for transport in [Transport::Tcp, Transport::Udp] {
        assert_eq!(fixture.grant(message(host.ip, transport)).await, GrantAnswer::Unsent);
    }
    // No listening socket has such an address.
    let namespace = OwnerNamespace::new("127.0.0.2".parse().unwrap(), Transport::Udp, 4);
    let told = Grant { form: Form::Message, ..grant_in(host.ip, namespace) };
    host.register(nlm::PROGRAM, 4, false, 9);
    assert_eq!(fixture.grant(told).await, GrantAnswer::Unsent);
}

fn asked_from(remote: SocketAddr, local: SocketAddr, transport: Transport) -> Peer {
    let transport = match transport {
        Transport::Tcp => transport::Transport::Tcp,
        Transport::Udp => transport::Transport::Udp,
    };
    Peer::new(remote, local, transport)
}

#[tokio::test]
async fn a_result_goes_to_the_lock_manager_by_the_transport_of_the_request() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let (host, fixture) = host_with(transport).await;
        let peer = asked_from(SocketAddr::new(host.ip, 700), fixture.listening, transport);
        let body = Bytes::from_static(b"\0\0\0\x04cook\0\0\0\0");
        for count in 1..=2 {
            fixture.callbacks.send_result(&peer, Version::V4, 12, body.clone());
            let call = calls_of(&host, count).await.pop().unwrap();
            assert_eq!((call.program, call.version, call.procedure), (nlm::PROGRAM, 4, 12));
            assert_eq!((&call.args, call.from.ip()), (&body, OURS));
            if transport == Transport::Udp {
                assert_eq!(call.from, fixture.listening);
            }
        }
        assert_eq!(host.lookups().len(), 1);
    }
}

#[tokio::test]
async fn a_result_to_a_host_without_rpcbind_goes_to_the_port_that_asked() {
    let mut host = Host::bind(address(), 0, RpcbindKind::Silent).await;
    let asked = host.udp(1, 1, script(|_| Answer::Nothing)).await;
    let fixture = Fixture::new(host.rpcbind_port).await;
    let peer = asked_from(asked, fixture.listening, Transport::Udp);
    fixture.callbacks.send_result(&peer, Version::V3, 14, ().to_bytes());
    let call = calls_of(&host, 1).await.pop().unwrap();
    assert_eq!((call.version, call.procedure, call.from), (3, 14, fixture.listening));
}

#[tokio::test]
async fn a_result_for_a_remote_requester_is_not_sent_to_a_local_address() {
    let mut host = a_host().await;
    let asked = host.udp(nlm::PROGRAM, 4, script(|_| Answer::Nothing)).await;
    let fixture = Fixture::new(host.rpcbind_port).await;
    let outside = SocketAddr::new("198.51.100.1".parse().unwrap(), 2049);
    let peer = asked_from(asked, outside, Transport::Udp);
    fixture.callbacks.send_result(&peer, Version::V4, 12, Bytes::new());
    tokio::time::sleep(MOMENT).await;
    assert!(host.calls().is_empty() && host.lookups().is_empty());
}
