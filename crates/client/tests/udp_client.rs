//! Calls over one UDP socket to many scripted peers.
#![allow(clippy::unwrap_used)]

mod timeouts;

use std::time::Duration;

use lockkeeper_client::{CallError, Options, Refusal, UdpClient};
use testbed::peer::{receive_call, success, udp_socket};
use timeouts::long;
use tokio::task::JoinSet;
use wire::Writer;
use wire::rpc::{Accepted, ProcedureId, write_accepted};

const NOTIFY: ProcedureId = ProcedureId::new(100_024, 1, 6);
const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

async fn open(options: &Options) -> std::sync::Arc<UdpClient> {
    UdpClient::open("127.0.0.1".parse().unwrap(), options).await.unwrap().into()
}

#[tokio::test]
async fn each_of_many_callers_gets_its_own_answer_in_whatever_order() {
    let client = open(&long()).await;
    let mut calls = JoinSet::new();
    let mut peers = Vec::new();
    for number in 0..50_u32 {
        let (socket, at) = udp_socket().await;
        peers.push(socket);
        let client = client.clone();
        calls.spawn(async move {
            let args = number.to_be_bytes();
            let answered = client.call_raw(at, NOTIFY, &args, LONG).await.unwrap();
            assert_eq!((&answered.results[..], answered.sent), (&args[..], 1));
        });
    }
    for socket in peers.iter().rev() {
        let (call, from) = receive_call(socket).await;
        assert_eq!(from, client.local_addr().unwrap());
        assert_eq!(call.to(), NOTIFY);
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
    let options = Options { retransmit_after: Duration::from_millis(50), ..long() };
    let client = open(&options).await;
    let (socket, at) = udp_socket().await;
    let (stranger, _) = udp_socket().await;
    let server = tokio::spawn(async move {
        let (call, from) = receive_call(&socket).await;
        stranger.send_to(&success(call.xid, &1_u32), from).await.unwrap();
        socket.send_to(&success(call.xid ^ 1, &2_u32), from).await.unwrap();
        let (again, from) = receive_call(&socket).await;
        assert_eq!(again.xid, call.xid);
        socket.send_to(&success(call.xid, &3_u32), from).await.unwrap();
    });
    let answered = client.call_raw(at, NOTIFY, &[], LONG).await.unwrap();
    assert_eq!((&answered.results[..], answered.sent), (&[0, 0, 0, 3][..], 2));
    server.await.unwrap();
}

#[tokio::test]
async fn silence_and_refusal_and_what_never_left_are_told_apart() {
    let client = open(&long()).await;
    let (socket, at) = udp_socket().await;
    let silent = client.call_raw(at, NOTIFY, &[], SHORT).await;
    assert!(matches!(silent, Err(CallError::Timeout(_))), "{silent:?}");
    assert_eq!(client.in_flight(), 0);
    receive_call(&socket).await;

    let refusing = tokio::spawn(async move {
        let (call, from) = receive_call(&socket).await;
        let mut out = Writer::new();
        write_accepted(&mut out, call.xid, Accepted::ProgramUnavailable);
        socket.send_to(&out.finish().to_bytes(), from).await.unwrap();
    });
    let refused = client.call_raw(at, NOTIFY, &[], LONG).await;
    let expected = Refusal::NotRun(Accepted::ProgramUnavailable);
    assert!(matches!(refused, Err(CallError::Refused(why)) if why == expected), "{refused:?}");
    refusing.await.unwrap();

    // Loopback is no place to speak to others from.
    let unsent = client.call_raw("198.51.100.1:9".parse().unwrap(), NOTIFY, &[], LONG).await;
    assert!(matches!(unsent, Err(CallError::Io(_))), "{unsent:?}");
}
