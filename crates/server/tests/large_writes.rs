//! Large WRITEs, which are received into buffers of their own (`transport/large_record.rs`): whole whatever
//! the pieces in which they arrive.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_server::Limits;
use support::*;
use testbed::peer::marked;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use wire::nfs3::*;
use wire::rpc::Credential;

/// The same numbers in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

fn write(xid: u32, file: &Handle, offset: u64, data: Bytes) -> Bytes {
    let (file, count, stability) = (file.clone(), data.len() as u32, Stability::Unstable);
    call::<Write>(xid, &user(0, 0, &[]), &WriteArgs { file, offset, count, stability, data })
}

fn get_attributes(xid: u32, object: &Handle) -> Bytes {
    call::<GetAttr>(xid, &Credential::None, &GetAttrArgs { object: object.clone() })
}

#[tokio::test]
async fn writes_of_all_sizes_arrive_whole_in_whatever_pieces() {
    let server = TestServer::in_memory().await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let mut numbers = Numbers(1);
    for round in 0..6 {
        let file = file(&nfs, &root, &format!("f{round}"), 0).await;
        let (mut sent, mut expected, mut calls) = (Vec::new(), Vec::new(), 0);
        for size in [40_000, 1 << 20, 100, 130_000, 65_536, 1 << 20, 1 << 20, 300_001, 32_768] {
            let data: Vec<u8> = (0..size).map(|_| numbers.below(256) as u8).collect();
            let offset = expected.len() as u64;
            sent.extend(marked(&write(calls, &file, offset, data.clone().into())));
            sent.extend(marked(&get_attributes(calls + 1, &file)));
            expected.extend(data);
            calls += 2;
        }
        let mut stream = server.stream().await;
        // Whole, in large pieces, in small ones, and with pauses, during which timers run.
        let piece_max = [usize::MAX, 700_000, 100_000, 3_000, 64 << 10, 1 << 20][round];
        let mut rest = &sent[..];
        let mut replies = 0;
        while !rest.is_empty() {
            let piece = 1 + numbers.below(piece_max.min(rest.len()));
            let (now, later) = rest.split_at(piece);
            stream.stream.write_all(now).await.unwrap();
            rest = later;
            if numbers.below(4) == 0 {
                sleep(Duration::from_millis(numbers.below(30) as u64)).await;
            }
        }
        while replies < calls {
            let reply = bounded("a reply", stream.receive()).await.unwrap();
            replies += 1;
            if support::reply(reply.clone()).xid.is_multiple_of(2) {
                assert!(results::<Write>(reply).is_ok());
            }
        }
        let mut found = Vec::new();
        while found.len() < expected.len() {
            found.extend(nfs.read(&file, found.len() as u64, 1 << 20).await.unwrap().data);
        }
        assert!(found == expected, "round {round}");
    }
}

#[tokio::test]
async fn a_large_write_behind_a_hung_disk_does_not_keep_its_connection() {
    let (hangs, healthy) = (InstrumentedFs::with_id(1), InstrumentedFs::with_id(2));
    let exports =
        vec![export(PATH, hangs.clone(), open_rules()), export("/healthy", healthy, open_rules())];
    let server = TestServer::try_start(config(Limits::default()), exports).await.unwrap();
    let victim = file(&server.nfs().await, &server.root().await, "victim", 0).await;
    let root = client::mount::mount(&server.connect().await, "/healthy").await.unwrap();
    hangs.hold("write");
    let mut stream = server.stream().await;
    let data = Bytes::from(vec![1; 1 << 20]);
    // Takes all threads that the file system may have, before it is known to be stalled.
    for xid in 0..40 {
        stream.stream.write_all(&marked(&write(xid, &victim, 0, data.slice(..100)))).await.unwrap();
    }
    until("its share runs", || hangs.running("write") == 32).await;
    stream.stream.write_all(&marked(&write(100, &victim, 0, data))).await.unwrap();
    let getattr = get_attributes(101, &root);
    let answered = timeout(Duration::from_secs(1), stream.exchange(&getattr)).await;
    assert_eq!(reply(answered.expect("it waits behind the WRITE")).xid, 101);
    hangs.release("write");
    for _ in 0..41 {
        let written = bounded("a reply", stream.receive()).await.unwrap();
        assert!(results::<Write>(written).is_ok());
    }
}

#[tokio::test]
async fn a_large_write_that_ends_early_ends_its_connection_alone() {
    let server = TestServer::in_memory().await;
    let file = file(&server.nfs().await, &server.root().await, "f", 0).await;
    let whole = marked(&write(1, &file, 0, Bytes::from(vec![1; 1 << 20])));
    for sent in [200, 20_000, 500_000, whole.len() - 1] {
        let mut stream = server.stream().await;
        stream.stream.write_all(&whole[..sent]).await.unwrap();
        stream.stream.shutdown().await.unwrap();
        assert!(bounded("the end", stream.receive()).await.is_none(), "{sent}");
    }
    let mut other = server.stream().await;
    let written = other.exchange(&write(2, &file, 0, Bytes::from(vec![2; 1 << 20]))).await;
    assert!(results::<Write>(written).is_ok());
}
