//! Calls over TCP against a scripted peer.

mod timeouts;

use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_client::{
    CallError, ConnectError, Connection, Options, Pipeline, PreparedCall, Refusal,
};
use testbed::peer::{Listener, success};
use timeouts::{long, short};
use tokio::io::AsyncWriteExt;
use wire::Decode;
use wire::nfs3::{GetAttr, GetAttrArgs, Stability, Write, WriteArgs};
use wire::record::mark;
use wire::rpc::{Accepted, AuthStatus, Denial, ProcedureId, write_accepted, write_denied};
use wire::rpcbind::{Mapping, v2};
use wire::{Writer, xdr};

fn mapping(program: u32) -> Mapping {
    Mapping { program, version: 3, protocol: 6, port: 0 }
}

#[tokio::test]
async fn replies_out_of_order_reach_their_own_callers() {
    let (peer, at) = Listener::bind().await;
    let server = tokio::spawn(async move {
        let mut caller = peer.accept().await;
        let mut calls = Vec::new();
        for _ in 0..10 {
            calls.push(caller.receive_call().await);
        }
        for call in calls.iter().rev() {
            let asked = Mapping::from_bytes(call.args.clone()).unwrap();
            caller.send_record(&success(call.xid, &(asked.program + 1))).await;
        }
    });
    let connection = Connection::connect(at, &long()).await.unwrap();
    let calls: Vec<_> = (0..10)
        .map(|n| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call::<v2::GetPort>(&mapping(n)).await })
        })
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), n as u32 + 1);
    }
    server.await.unwrap();
}

#[tokio::test]
async fn when_the_peer_closes_all_calls_under_way_and_later_ones_fail_as_closed() {
    let (peer, at) = Listener::bind().await;
    let connection = Connection::connect(at, &long()).await.unwrap();
    let calls: Vec<_> = (0..5)
        .map(|n| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call::<v2::GetPort>(&mapping(n)).await })
        })
        .collect();
    let mut caller = peer.accept().await;
    for _ in 0..5 {
        caller.receive_call().await;
    }
    drop(caller);
    for call in calls {
        assert!(matches!(call.await.unwrap(), Err(CallError::Closed)));
    }
    assert!(matches!(connection.call::<v2::Null>(&()).await, Err(CallError::Closed)));
}

#[tokio::test]
async fn a_call_without_a_reply_times_out_and_its_late_reply_is_dropped() {
    let (peer, at) = Listener::bind().await;
    let connection = Connection::connect(at, &short()).await.unwrap();
    let mut caller = peer.accept().await;
    let started = Instant::now();
    let error = connection.call::<v2::GetPort>(&mapping(1)).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout(_)), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2));

    let late = caller.receive_call().await;
    let server = tokio::spawn(async move {
        caller.send_record(&success(late.xid, &1u32)).await;
        let call = caller.receive_call().await;
        caller.send_record(&success(call.xid, &2u32)).await;
    });
    let patient = connection.with_timeout(Duration::from_secs(5));
    assert_eq!(patient.call::<v2::GetPort>(&mapping(2)).await.unwrap(), 2);
    server.await.unwrap();
}

#[tokio::test]
async fn a_record_over_the_limit_ends_the_connection_by_its_header_alone() {
    let (peer, at) = Listener::bind().await;
    let options = Options { record_bytes_max: 1024, ..long() };
    let connection = Connection::connect(at, &options).await.unwrap();
    let server = tokio::spawn(async move {
        let mut caller = peer.accept().await;
        caller.receive_call().await;
        caller.stream.write_all(&mark(1025).to_be_bytes()).await.unwrap();
        caller.receive().await
    });
    let error = connection.call::<v2::Null>(&()).await.unwrap_err();
    assert!(matches!(error, CallError::Stream(wire::record::Error::TooLong { max: 1024 })));
    let error = connection.call::<v2::Null>(&()).await.unwrap_err();
    assert!(matches!(error, CallError::Stream(_)), "later calls hear the same reason: {error}");
    assert!(server.await.unwrap().is_none(), "the client closes");
}

#[tokio::test]
async fn a_garbage_reply_fails_its_own_call_only() {
    let (peer, at) = Listener::bind().await;
    let connection = Connection::connect(at, &long()).await.unwrap();
    let server = tokio::spawn(async move {
        let mut caller = peer.accept().await;
        let call = caller.receive_call().await;
        caller.send_record(b"?").await; // not even an xid
        caller.send_record(&[call.xid.to_be_bytes(), [9; 4]].concat()).await;
        let call = caller.receive_call().await;
        caller.send_record(&success(call.xid, &())).await; // results too short
        let call = caller.receive_call().await;
        caller.send_record(&success(call.xid, &7u64)).await; // results too long
        let call = caller.receive_call().await;
        caller.send_record(&success(call.xid, &3u32)).await;
    });
    for expected in [xdr::Error::BadValue(0x0909_0909), xdr::Error::Short, xdr::Error::Trailing(4)]
    {
        match connection.call::<v2::GetPort>(&mapping(1)).await {
            Err(CallError::BadReply(error)) => assert_eq!(error, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(connection.call::<v2::GetPort>(&mapping(1)).await.unwrap(), 3);
    server.await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_run_the_call_says_why() {
    let (peer, at) = Listener::bind().await;
    let connection = Connection::connect(at, &long()).await.unwrap();
    let denial = Denial::Auth(AuthStatus::TooWeak);
    let mismatch = Accepted::ProgramMismatch { low: 1, high: 3 };
    let server = tokio::spawn(async move {
        let mut caller = peer.accept().await;
        let mut out = Writer::new();
        write_denied(&mut out, caller.receive_call().await.xid, denial);
        caller.send_record(&out.finish().to_bytes()).await;
        let mut out = Writer::new();
        write_accepted(&mut out, caller.receive_call().await.xid, mismatch);
        caller.send_record(&out.finish().to_bytes()).await;
    });
    for expected in [Refusal::Denied(denial), Refusal::NotRun(mismatch)] {
        match connection.call_raw(ProcedureId::new(100_003, 9, 77), &[]).await {
            Err(CallError::Refused(refusal)) => assert_eq!(refusal, expected),
            other => panic!("{other:?}"),
        }
    }
    server.await.unwrap();
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_connection() {
    let (peer, at) = Listener::bind().await;
    let connection = Connection::connect(at, &long()).await.unwrap();
    let second = connection.clone();
    let mut caller = peer.accept().await;
    drop(connection);
    let wait = Duration::from_millis(50);
    assert!(tokio::time::timeout(wait, caller.receive()).await.is_err(), "one handle is left");
    drop(second);
    assert!(caller.receive().await.is_none());
}

#[tokio::test]
async fn a_caller_who_goes_away_does_not_keep_its_place() {
    let (peer, at) = Listener::bind().await;
    let options = Options { calls_max: 1, ..short() };
    let connection = Connection::connect(at, &options).await.unwrap();
    let mut caller = peer.accept().await;
    assert!(connection.call::<v2::Null>(&()).await.is_err());
    caller.receive_call().await;
    let server = tokio::spawn(async move {
        let call = caller.receive_call().await;
        caller.send_record(&success(call.xid, &())).await;
    });
    let patient = connection.with_timeout(Duration::from_secs(5));
    patient.call::<v2::Null>(&()).await.unwrap();
    server.await.unwrap();
}

#[tokio::test]
async fn a_pipeline_sends_large_writes_while_the_peer_waits_for_its_replies_to_be_read() {
    let (peer, at) = Listener::bind().await;
    let server = tokio::spawn(async move {
        let mut caller = peer.accept().await;
        for _ in 0..8 {
            let call = caller.receive_call().await;
            let args = WriteArgs::from_bytes(call.args).unwrap();
            assert!(args.data.iter().all(|byte| *byte == 0xa5));
            // A reply as large as the call: neither side can buffer all of them.
            caller.send_record(&success(call.xid, &args)).await;
        }
    });
    let mut pipeline = Pipeline::connect(at, &long()).await.unwrap();
    let data = Bytes::from(vec![0xa5; (1 << 20) - 1]);
    let args = WriteArgs {
        file: b"file"[..].into(),
        offset: 0,
        count: data.len() as u32,
        stability: Stability::Unstable,
        data,
    };
    let xids: Vec<u32> = (0..8).map(|_| pipeline.send::<Write>(&args)).collect();
    pipeline.flush().await.unwrap();
    for xid in xids {
        let reply = pipeline.recv().await.unwrap();
        assert_eq!(reply.xid, xid);
        assert_eq!(WriteArgs::from_bytes(reply.results).unwrap(), args);
    }
    server.await.unwrap();
}

#[tokio::test]
async fn prepared_calls_go_out_under_new_xids_and_many_replies_come_in_one_read() {
    let (peer, at) = Listener::bind().await;
    let server = tokio::spawn(async move {
        let mut caller = peer.accept().await;
        let mut replies = Vec::new();
        for _ in 0..16 {
            let call = caller.receive_call().await;
            let reply = success(call.xid, &());
            replies.extend_from_slice(&mark(reply.len()).to_be_bytes());
            replies.extend_from_slice(&reply);
        }
        caller.stream.write_all(&replies).await.unwrap();
    });
    let options = long();
    let mut pipeline = Pipeline::connect(at, &options).await.unwrap();
    let args = GetAttrArgs { object: b"root"[..].into() };
    let call = PreparedCall::new::<GetAttr>(&options.credential, &args);
    let sent: Vec<u32> = (0..16).map(|_| pipeline.send_prepared(&call)).collect();
    pipeline.flush().await.unwrap();
    let mut answered = vec![pipeline.recv().await.unwrap().xid];
    while let Some(reply) = pipeline.try_recv().unwrap() {
        answered.push(reply.xid);
    }
    assert_eq!(answered, sent);
    server.await.unwrap();
}

#[tokio::test]
async fn a_closed_port_is_named_as_such() {
    let (peer, at) = Listener::bind().await;
    drop(peer);
    match Connection::connect(at, &long()).await {
        Err(ConnectError::Connect(error)) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_reserved_port_is_used_or_its_lack_is_named() {
    let (peer, at) = Listener::bind().await;
    let options = Options { reserved_port: true, ..long() };
    match Connection::connect(at, &options).await {
        Ok(connection) => {
            let caller = peer.accept().await;
            let port = caller.stream.peer_addr().unwrap().port();
            assert!((512..1024).contains(&port), "{port}");
            assert_eq!(connection.local().unwrap().port(), port);
        }
        Err(ConnectError::Bind(error)) => {
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_nobody_waits_for_is_sent_and_its_reply_dropped() {
    let (peer, at) = Listener::bind().await;
    let connection = Connection::connect(at, &long()).await.unwrap();
    let mut caller = peer.accept().await;
    connection.tell_raw(ProcedureId::new(100_021, 4, 12), b"body").await.unwrap();
    let call = caller.receive_call().await;
    assert_eq!((call.program, call.version, call.procedure), (100_021, 4, 12));
    assert_eq!(&call.args[..], b"body");
    caller.send_record(&success(call.xid, &())).await;
    assert!(!connection.has_ended());
    drop(caller);
    while !connection.has_ended() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(
        connection.tell_raw(ProcedureId::new(100_021, 4, 12), b"").await,
        Err(CallError::Closed)
    ));
}
