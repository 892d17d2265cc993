//! Many requests of one connection under way at once: every one is answered, once, whole, and
//! none stays behind until something else happens to wake the server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lockkeeper_server::Limits;
use support::{InstrumentedFs, TestServer, bounded, call, file, reply};
use testbed::peer::{marked, user};
use testbed::random::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use wire::nfs3::*;
use wire::record::{Next, Records};
use wire::rpc::Credential;
use wire::{Decode, record};

#[derive(Clone)]
struct Files {
    root: Handle,
    large: Handle,
}

/// The requests of one connection, and how many bytes each READ shall bring.
fn requests(files: &Files, seed: u64, count: u32) -> (Vec<u8>, HashMap<u32, Option<usize>>) {
    let mut random = Random::new(seed);
    let by = user(0, 0, &[]);
    let (mut bytes, mut expected) = (Vec::new(), HashMap::new());
    for number in 0..count {
        let xid = (seed as u32) << 16 | number;
        let mut read = |count| {
            expected.insert(xid, Some(count as usize));
            call::<Read>(xid, &by, &ReadArgs { file: files.large.clone(), offset: 0, count })
        };
        let request = match random.below(10) {
            0 => read(1 << 20),
            1 => read(random.below(100_000) as u32 + 1),
            2 | 3 => read(random.below(5_000) as u32 + 1),
            4 => call::<Null>(xid, &Credential::None, &()),
            5 => {
                let name = format!("d{seed}-{number}").into_bytes().into();
                let at = DirOpArgs { dir: files.root.clone(), name };
                call::<MkDir>(xid, &by, &MkDirArgs { at, new: NewAttributes::default() })
            }
            _ => call::<GetAttr>(xid, &by, &GetAttrArgs { object: files.root.clone() }),
        };
        expected.entry(xid).or_insert(None);
        bytes.extend(marked(&request));
    }
    (bytes, expected)
}

/// Sends all, reads with pauses, and tells the longest time without an answer.
async fn converse(server: std::net::SocketAddr, files: Files, seed: u64, count: u32) -> Duration {
    let (requests, mut expected) = requests(&files, seed, count);
    let (mut receiver, mut sender) = TcpStream::connect(server).await.unwrap().into_split();
    let sending = tokio::spawn(async move {
        sender.write_all(&requests).await.unwrap();
        sender
    });
    let limits = record::Limits { record_bytes_max: 2 << 20, fragments_max: 1 };
    let mut records = Records::new(limits);
    let mut received = bytes::BytesMut::new();
    let mut random = Random::new(seed + 1_000);
    let (mut longest, mut since) = (Duration::ZERO, Instant::now());
    while !expected.is_empty() {
        let Next::Record(record) = records.next(&mut received).unwrap() else {
            let read = bounded("more answers", receiver.read_buf(&mut received)).await.unwrap();
            assert_ne!(read, 0, "closed with {} unanswered", expected.len());
            longest = longest.max(since.elapsed());
            if random.below(200) == 0 {
                // Long enough for the server to fill every buffer on the way.
                sleep(Duration::from_millis(20)).await;
            }
            since = Instant::now();
            continue;
        };
        let answer = reply(record);
        let bytes = expected.remove(&answer.xid).expect("an answer to nothing, or twice");
        if let Some(bytes) = bytes {
            let read = ReadReply::from_bytes(answer.results).unwrap().unwrap();
            assert!(read.data.len() == bytes && read.data.iter().all(|byte| *byte == b'x'));
        }
    }
    drop(sending.await.unwrap());
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_answered_once_and_none_stays_behind() {
    // One file system answers on the network's threads, the other on workers; one server is
    // generous, the other always at its limits.
    let narrow = Limits {
        requests_in_flight_max: 3,
        connection_bytes_max: 1 << 20,
        total_bytes_max: 3 << 20,
        ..Limits::default()
    };
    for (prompt, limits) in [
        (true, Limits::default()),
        (false, Limits::default()),
        (true, narrow.clone()),
        (false, narrow),
    ] {
        let server = TestServer::start(InstrumentedFs::with(prompt), limits).await;
        let (nfs, root) = (server.nfs().await, server.root().await);
        let large = file(&nfs, &root, "large", 1 << 20).await;
        let files = Files { root, large };
        let begun = Instant::now();
        let mut clients = JoinSet::new();
        for seed in 1..=6 {
            clients.spawn(converse(server.at, files.clone(), seed, 400));
        }
        let longest = clients.join_all().await.into_iter().max().unwrap();
        println!("prompt {prompt}: {:?}, {longest:?} without an answer", begun.elapsed());
        // A server that was not woken looks again by itself after five seconds.
        assert!(longest < Duration::from_secs(3), "{longest:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_ends_its_side_still_gets_its_answers() {
    let server = TestServer::start(InstrumentedFs::new(), Limits::default()).await;
    let object = server.root().await;
    let mut stream = server.stream().await;
    for xid in 0..20 {
        let args = GetAttrArgs { object: object.clone() };
        stream.send_record(&call::<GetAttr>(xid, &Credential::None, &args)).await;
    }
    stream.stream.shutdown().await.unwrap();
    for _ in 0..20 {
        assert!(stream.receive().await.is_some());
    }
    stream.assert_closed().await;
}
