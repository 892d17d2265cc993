//! `kill -9` in the middle of large WRITEs: what COMMIT acknowledged is in the file, and the new server
//! makes clients write the rest again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use client::nfs::Nfs;
use client::{Connection, Options, mount};
use support::PROGRAM;
use testbed::ports::free_port;
use testbed::random::Random;
use testbed::server::{Server, serve};
use testbed::wait::until;
use wire::nfs3::{Handle, NewAttributes, Stability};

const KILLS: usize = 8;
const MEGABYTE: usize = 1 << 20;
/// As many WRITEs are under way at once on each connection.
const DEPTH: usize = 4;
const WRITERS: usize = 2;

fn start(home: &Path, export: &Path, at: SocketAddr) -> Server {
    let mut command = serve(PROGRAM, home, at);
    Server::start(command.arg(export).env("LOCKKEEPER_LOG", "warn"), &home.join("log")).unwrap()
}

async fn connect(at: SocketAddr) -> Connection {
    Connection::connect(at, &Options::default().user(0, 0, &[])).await.unwrap()
}

/// Different in each megabyte of each writer, and within it.
fn content(writer: usize, megabyte: usize) -> Bytes {
    let word = |at: usize| ((writer << 56) | (megabyte << 24) | at) as u64;
    (0..MEGABYTE / 8).flat_map(|at| word(at).to_be_bytes()).collect()
}

/// Appends megabytes from `done` on, and commits each few, until the server is gone.
async fn append(nfs: Nfs, file: Handle, writer: usize, done: Arc<AtomicUsize>) {
    loop {
        let first = done.load(Relaxed);
        let writes = (first..first + DEPTH).map(|megabyte| {
            let (offset, data) = ((megabyte * MEGABYTE) as u64, content(writer, megabyte));
            let (nfs, file) = (Nfs(nfs.0.clone()), file.clone());
            tokio::spawn(async move { nfs.write(&file, offset, data, Stability::Unstable).await })
        });
        let mut verifiers = Vec::new();
        for write in writes.collect::<Vec<_>>() {
            let Ok(written) = write.await.unwrap() else { return };
            assert_eq!(written.count as usize, MEGABYTE);
            verifiers.push(written.verifier);
        }
        let Ok(committed) = nfs.commit(&file).await else { return };
        if verifiers.iter().all(|verifier| *verifier == committed.verifier) {
            done.store(first + DEPTH, Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commit_acknowledged_is_in_the_file_after_kills_in_large_writes() {
    let at: SocketAddr = ([127, 0, 0, 1], free_port().unwrap()).into();
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("export");
    support::recorder::export(&export);
    let mut server = start(dir.path(), &export, at);
    let connection = connect(at).await;
    let root = mount::mount(&connection, &export.to_string_lossy()).await.unwrap();
    let nfs = Nfs(connection);
    let mut files = Vec::new();
    for writer in 0..WRITERS {
        let new = NewAttributes { mode: Some(0o644), ..NewAttributes::default() };
        let name = format!("f{writer}");
        let file = nfs.create(&root, name.as_bytes(), new).await.unwrap();
        files.push((export.join(name), file, Arc::new(AtomicUsize::new(0))));
    }
    drop(nfs);
    let mut random = Random::new(11);
    let mut verifiers = Vec::new();
    for kill in 0..KILLS {
        let probe = Nfs(connect(at).await);
        verifiers.push(probe.commit(&files[0].1).await.unwrap().verifier);
        let mut writers = Vec::new();
        for (writer, (_, file, done)) in files.iter().enumerate() {
            let nfs = Nfs(connect(at).await);
            writers.push(tokio::spawn(append(nfs, file.clone(), writer, done.clone())));
        }
        let before: Vec<usize> = files.iter().map(|(_, _, done)| done.load(Relaxed)).collect();
        let is_more = || files.iter().zip(&before).all(|(file, then)| file.2.load(Relaxed) > *then);
        until("a COMMIT of each is acknowledged", is_more).await;
        tokio::time::sleep(Duration::from_millis(random.below(200))).await;
        server.kill();
        for writer in writers {
            writer.await.unwrap();
        }
        for (writer, (path, _, done)) in files.iter().enumerate() {
            let found = std::fs::read(path).unwrap();
            for megabyte in 0..done.load(Relaxed) {
                let there = found.get(megabyte * MEGABYTE..(megabyte + 1) * MEGABYTE);
                let expected = content(writer, megabyte);
                assert!(there == Some(&expected[..]), "kill {kill}, writer {writer}, {megabyte}");
            }
        }
        server = start(dir.path(), &export, at);
    }
    verifiers.sort_unstable();
    verifiers.dedup();
    assert_eq!(verifiers.len(), KILLS, "each server has a verifier of its own");
    let done: usize = files.iter().map(|(_, _, done)| done.load(Relaxed)).sum();
    println!("{KILLS} kills, {done} MiB acknowledged by COMMIT");
}
