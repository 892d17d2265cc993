//! Calls over UDP against a scripted peer.
#![allow(clippy::unwrap_used)]

mod timeouts;

use std::time::Duration;

use lockkeeper_client::rpcbind::{LookupError, RpcTransport, find};
use lockkeeper_client::{CallError, Datagram, Options};
use testbed::peer::{receive_call, success, udp_socket};
use timeouts::{long, short};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use wire::Decode;
use wire::Writer;
use wire::rpc::{Accepted, write_accepted};
use wire::rpcbind::{Binding, Mapping, Netid, Text, v2};

#[tokio::test]
async fn a_lost_call_is_sent_again_under_the_same_xid() {
    let (socket, at) = udp_socket().await;
    let server = tokio::spawn(async move {
        let (first, _) = receive_call(&socket).await;
        let (second, _) = receive_call(&socket).await;
        let (third, from) = receive_call(&socket).await;
        assert_eq!((second.xid, third.xid), (first.xid, first.xid));
        socket.send_to(&success(third.xid, &2049u32), from).await.unwrap();
    });
    let options = Options { retransmit_after: Duration::from_millis(20), ..long() };
    let mut datagram = Datagram::connect(at, &options).await.unwrap();
    let mapping = Mapping { program: 100_003, version: 3, protocol: 17, port: 0 };
    assert_eq!(datagram.call::<v2::GetPort>(&mapping).await.unwrap(), 2049);
    server.await.unwrap();
}

#[tokio::test]
async fn replies_from_foreign_addresses_and_under_other_xids_are_dropped() {
    let (socket, at) = udp_socket().await;
    let server = tokio::spawn(async move {
        let (call, from) = receive_call(&socket).await;
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        stranger.send_to(&success(call.xid, &666u32), from).await.unwrap();
        let other_host = UdpSocket::bind("127.0.0.2:0").await.unwrap();
        other_host.send_to(&success(call.xid, &666u32), from).await.unwrap();
        socket.send_to(&success(call.xid.wrapping_add(1), &666u32), from).await.unwrap();
        socket.send_to(b"?", from).await.unwrap();
        socket.send_to(&success(call.xid, &2049u32), from).await.unwrap();
    });
    let mut datagram = Datagram::connect(at, &long()).await.unwrap();
    let mapping = Mapping { program: 100_003, version: 3, protocol: 17, port: 0 };
    assert_eq!(datagram.call::<v2::GetPort>(&mapping).await.unwrap(), 2049);
    server.await.unwrap();
}

#[tokio::test]
async fn a_silent_peer_is_given_up_on_time_and_heard_no_more_than_the_schedule_allows() {
    let (socket, at) = udp_socket().await;
    let options = Options { retransmit_after: Duration::from_millis(20), ..short() };
    let mut datagram = Datagram::connect(at, &options).await.unwrap();
    let error = datagram.call::<v2::Null>(&()).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout(_)), "{error}");
    let mut sent = 0;
    while timeout(Duration::from_millis(50), receive_call(&socket)).await.is_ok() {
        sent += 1;
    }
    // At 0, 20 and 60 ms; 140 ms would be too late.
    assert!((2..=4).contains(&sent), "{sent}");
}

#[tokio::test]
async fn rpcbind_is_asked_in_version_2_for_ipv4() {
    let (socket, at) = udp_socket().await;
    let server = tokio::spawn(async move {
        for port in [2049u32, 0] {
            let (call, from) = receive_call(&socket).await;
            assert_eq!((call.program, call.version, call.procedure), (100_000, 2, 3));
            let asked = Mapping::from_bytes(call.args).unwrap();
            assert_eq!((asked.program, asked.version, asked.protocol), (100_003, 3, 6));
            socket.send_to(&success(call.xid, &port), from).await.unwrap();
        }
    });
    let nfs = (100_003, 3);
    let found = find(at, RpcTransport::Udp, nfs, Netid::Tcp, &long()).await.unwrap();
    assert_eq!(found, "127.0.0.1:2049".parse().unwrap());
    let missing = find(at, RpcTransport::Udp, nfs, Netid::Tcp, &long()).await.unwrap_err();
    assert!(matches!(missing, LookupError::NotRegistered { program: 100_003, .. }), "{missing}");
    server.await.unwrap();
}

#[tokio::test]
async fn rpcbind_is_asked_in_version_4_and_then_3_for_ipv6() {
    let socket = UdpSocket::bind("[::1]:0").await.unwrap();
    let at = socket.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (call, from) = receive_call(&socket).await;
        assert_eq!((call.version, call.procedure), (4, 3));
        let mut out = Writer::new();
        write_accepted(&mut out, call.xid, Accepted::ProgramMismatch { low: 2, high: 3 });
        socket.send_to(&out.finish().to_bytes(), from).await.unwrap();
        let (call, from) = receive_call(&socket).await;
        assert_eq!((call.version, call.procedure), (3, 3));
        let asked = Binding::from_bytes(call.args).unwrap();
        assert_eq!(&asked.netid[..], b"udp6");
        socket.send_to(&success(call.xid, &Text::from("::.8.1")), from).await.unwrap();
    });
    let found = find(at, RpcTransport::Udp, (100_003, 3), Netid::Udp6, &long()).await.unwrap();
    assert_eq!(found, "[::1]:2049".parse().unwrap());
    server.await.unwrap();
}
