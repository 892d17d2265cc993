//! Calls over one UDP socket to many scripted peers.
#![allow(clippy::unwrap_used)]

mod peer;

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_client::{CallError, Options, Refusal, UdpClient};
use peer::{patient, success};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use wire::Writer;
use wire::rpc::{Accepted, Call, write_accepted};

const NUMBERS: (u32, u32, u32) = (100_024, 1, 6);
const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

async fn hear(socket: &UdpSocket) -> (Call, SocketAddr) {
    let mut buffer = vec![0; 2048];
    let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
    buffer.truncate(length);
    (Call::parse(buffer.into()).unwrap(), from)
}

async fn peer() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = socket.local_addr().unwrap();
    (socket, at)
}

async fn open(options: &Options) -> std::sync::Arc<UdpClient> {
    UdpClient::open("127.0.0.1".parse().unwrap(), options).await.unwrap().into()
}

#[tokio::test]
async fn each_of_many_callers_gets_its_own_answer_in_whatever_order() {
    let client = open(&patient()).await;
    let mut calls = JoinSet::new();
    let mut peers = Vec::new();
    for number in 0..50_u32 {
        let (socket, at) = peer().await;
        peers.push(socket);
        let client = client.clone();
        calls.spawn(async move {
            let args = number.to_be_bytes();
            let answered = client.call_raw(at, NUMBERS, &args, LONG).await.unwrap();
            assert_eq!((&answered.results[..], answered.sent), (&args[..], 1));
        });
    }
    for socket in peers.iter().rev() {
        let (call, from) = hear(socket).await;
        assert_eq!(from, client.local_addr().unwrap());
        assert_eq!((call.program, call.version, call.procedure), NUMBERS);
        let number = u32::from_be_bytes(call.args[..].try_into().unwrap());
        socket.send_to(&success(call.xid, &number), from).await.unwrap();
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    assert_eq!(client.in_flight(), 0);
}

#[tokio::test]
async fn an_answer_from_elsewhere_is_dropped_and_a_lost_call_is_sent_again() {
    let options = Options { retransmit_after: Duration::from_millis(50), ..patient() };
    let client = open(&options).await;
    let (socket, at) = peer().await;
    let (stranger, _) = peer().await;
    let server = tokio::spawn(async move {
        let (call, from) = hear(&socket).await;
        stranger.send_to(&success(call.xid, &1_u32), from).await.unwrap();
        socket.send_to(&success(call.xid ^ 1, &2_u32), from).await.unwrap();
        let (again, from) = hear(&socket).await;
        assert_eq!(again.xid, call.xid);
        socket.send_to(&success(call.xid, &3_u32), from).await.unwrap();
    });
    let answered = client.call_raw(at, NUMBERS, &[], LONG).await.unwrap();
    assert_eq!((&answered.results[..], answered.sent), (&[0, 0, 0, 3][..], 2));
    server.await.unwrap();
}

#[tokio::test]
async fn silence_and_refusal_and_what_never_left_are_told_apart() {
    let client = open(&patient()).await;
    let (socket, at) = peer().await;
    let silent = client.call_raw(at, NUMBERS, &[], SHORT).await;
    assert!(matches!(silent, Err(CallError::Timeout(_))), "{silent:?}");
    assert_eq!(client.in_flight(), 0);
    hear(&socket).await;

    let refusing = tokio::spawn(async move {
        let (call, from) = hear(&socket).await;
        let mut out = Writer::new();
        write_accepted(&mut out, call.xid, Accepted::ProgramUnavailable);
        socket.send_to(&out.finish().to_bytes(), from).await.unwrap();
    });
    let refused = client.call_raw(at, NUMBERS, &[], LONG).await;
    let expected = Refusal::NotRun(Accepted::ProgramUnavailable);
    assert!(matches!(refused, Err(CallError::Refused(why)) if why == expected), "{refused:?}");
    refusing.await.unwrap();

    // Loopback is no place to speak to others from.
    let unsent = client.call_raw("198.51.100.1:9".parse().unwrap(), NUMBERS, &[], LONG).await;
    assert!(matches!(unsent, Err(CallError::Io(_))), "{unsent:?}");
}
