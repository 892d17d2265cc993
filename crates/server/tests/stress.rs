//! A directory of the host under load: long listings, and changes that clients can follow.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::nfs::Nfs;
use lockkeeper_server::Limits;
use support::TestServer;
use tempfile::TempDir;
use tokio::task::JoinSet;
use vfs::local::{LocalFs, MetadataMode, Options};
use wire::nfs3::*;

/// A server of a directory, and the directory.
async fn serve(fill: impl FnOnce(&std::path::Path)) -> (TestServer, TempDir) {
    serve_with(fill, |_| ()).await
}

async fn serve_with(
    fill: impl FnOnce(&std::path::Path),
    set: impl FnOnce(&mut Options),
) -> (TestServer, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (root, state) = (dir.path().join("root"), dir.path().join("state"));
    std::fs::create_dir(&root).unwrap();
    std::fs::create_dir(&state).unwrap();
    fill(&root);
    let mut options = Options::new(root, state);
    // What disks do is not the matter here.
    options.metadata = MetadataMode::Async;
    set(&mut options);
    let filesystem = Arc::new(LocalFs::open(options).unwrap());
    (TestServer::start(filesystem, Limits::default()).await, dir)
}

fn at(dir: &Handle, name: &str) -> DirOpArgs {
    DirOpArgs { dir: dir.clone(), name: name.as_bytes().to_vec().into() }
}

/// All names of a directory, in the order in which they were told.
async fn names(nfs: &Nfs, dir: &Handle, plus: bool) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let (mut cookie, mut verifier) = (0, [0; 8]);
    loop {
        let dir = dir.clone();
        let (entries, eof): (Vec<(Vec<u8>, u64)>, bool) = if plus {
            let (dir_count, max_count) = (64 << 10, 256 << 10);
            let args = ReadDirPlusArgs { dir, cookie, verifier, dir_count, max_count };
            let part = nfs.call::<ReadDirPlus, _, _>(&args).await.unwrap();
            verifier = part.verifier;
            for entry in &part.entries {
                let told = entry.attributes.is_some() && entry.handle.is_some();
                let lasting =
                    entry.name.starts_with(b"stays-") || entry.name.starts_with(b"entry-");
                assert!(told || !lasting, "{:?} came without a handle", entry.name);
            }
            (part.entries.iter().map(|e| (e.name.to_vec(), e.cookie)).collect(), part.eof)
        } else {
            let args = ReadDirArgs { dir, cookie, verifier, count: 64 << 10 };
            let part = nfs.call::<ReadDir, _, _>(&args).await.unwrap();
            verifier = part.verifier;
            (part.entries.iter().map(|e| (e.name.to_vec(), e.cookie)).collect(), part.eof)
        };
        assert!(eof || !entries.is_empty(), "a part of a listing is empty");
        for (name, next) in entries {
            names.push(name);
            cookie = next;
        }
        if eof {
            return names;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_entries_are_listed_once_each_by_many_at_a_time() {
    const ENTRIES: usize = 100_000;
    let (server, _dir) = serve(|root| {
        for number in 0..ENTRIES {
            std::fs::File::create(root.join(format!("entry-{number:06}"))).unwrap();
        }
    })
    .await;
    let root = server.root().await;
    for plus in [false, true] {
        let begun = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..3 {
            let (nfs, root) = (server.nfs().await, root.clone());
            clients.spawn(async move { names(&nfs, &root, plus).await });
        }
        for names in clients.join_all().await {
            let different: HashSet<_> = names.iter().collect();
            assert_eq!((names.len(), different.len()), (ENTRIES + 2, ENTRIES + 2), "plus {plus}");
        }
        println!("3 listings of {ENTRIES}, plus {plus}: {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_stay_are_listed_once_while_others_come_and_go() {
    let (server, _dir) = serve(|root| {
        for number in 0..3_000 {
            std::fs::File::create(root.join(format!("stays-{number}"))).unwrap();
        }
    })
    .await;
    let root = server.root().await;
    let busy = {
        let (nfs, root) = (server.nfs().await, root.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let name = format!("goes-{number}");
                nfs.create(&root, name.as_bytes(), NewAttributes::default()).await.unwrap();
                nfs.remove(&root, name.as_bytes()).await.unwrap();
            }
        })
    };
    let nfs = server.nfs().await;
    for round in 0..10 {
        let names = names(&nfs, &root, round % 2 == 0).await;
        let stays: Vec<_> = names.iter().filter(|name| name.starts_with(b"stays-")).collect();
        let different: HashSet<_> = stays.iter().collect();
        assert_eq!((stays.len(), different.len()), (3_000, 3_000), "round {round}");
    }
    assert!(!busy.is_finished(), "the other client failed");
    busy.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_begins_where_the_one_before_ended() {
    let (server, _dir) = serve_with(|_| (), |options| options.exclusive = true).await;
    let (connection, nfs, root) = (server.connect().await, server.nfs().await, server.root().await);
    let mut last: Option<WccAttributes> = None;
    let mut follow = |what: &str, wcc: &Wcc| {
        let before = wcc.before.unwrap_or_else(|| panic!("{what} says nothing of before"));
        if let Some(last) = last {
            assert_eq!(before, last, "{what}");
        }
        last = Some(WccAttributes::from(&wcc.after.unwrap()));
    };
    let new = NewAttributes::default();
    for number in 0..50 {
        let name = format!("f{number}");
        let how = CreateHow::Guarded(new);
        let created =
            connection.call::<Create>(&CreateArgs { at: at(&root, &name), how }).await.unwrap();
        follow("CREATE", &created.unwrap().dir);
        let made = connection.call::<MkDir>(&MkDirArgs { at: at(&root, "d"), new }).await.unwrap();
        follow("MKDIR", &made.unwrap().dir);
        let link = SymLinkArgs { at: at(&root, "l"), new, text: b"t"[..].into() };
        follow("SYMLINK", &connection.call::<SymLink>(&link).await.unwrap().unwrap().dir);
        let rename = RenameArgs { from: at(&root, "l"), to: at(&root, "m") };
        follow("RENAME", &connection.call::<Rename>(&rename).await.unwrap().unwrap().to);
        let removed = connection.call::<Remove>(&at(&root, "m")).await.unwrap();
        follow("REMOVE", &removed.unwrap());
        let removed = connection.call::<RmDir>(&at(&root, "d")).await.unwrap();
        follow("RMDIR", &removed.unwrap());
    }
    // WRITEs run at the same time.
    let file = nfs.lookup(&root, b"f0").await.unwrap().object;
    let data = Bytes::from_static(b"some data");
    let written = nfs.write(&file, 5, data, Stability::Unstable).await.unwrap();
    assert_eq!(written.wcc.before, None);
}

/// A program of the host, or a client of another export, may change something in between; a client
/// that takes the whole difference for its own change keeps what is outdated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_before_are_given_only_by_an_exclusive_file_system() {
    let (server, _dir) = serve(|_| ()).await;
    let (connection, nfs, root) = (server.connect().await, server.nfs().await, server.root().await);
    let how = CreateHow::Guarded(NewAttributes::default());
    let made = connection.call::<Create>(&CreateArgs { at: at(&root, "f"), how }).await.unwrap();
    let made = made.unwrap();
    assert_eq!((made.dir.before, made.dir.after.is_some()), (None, true));
    let file = made.object.unwrap();
    let written = nfs.write(&file, 0, Bytes::from_static(b"x"), Stability::Unstable).await.unwrap();
    assert_eq!((written.wcc.before, written.wcc.after.is_some()), (None, true));
    let removed = connection.call::<Remove>(&at(&root, "f")).await.unwrap().unwrap();
    assert_eq!((removed.before, removed.after.is_some()), (None, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_change_one_directory_and_nothing_is_lost() {
    let (server, dir) = serve(|_| ()).await;
    let root = server.root().await;
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let (nfs, root) = (server.nfs().await, root.clone());
        clients.spawn(async move {
            for number in 0..100 {
                let name = format!("{client}-{number}");
                let file = support::file(&nfs, &root, &name, 3_000).await;
                let read = nfs.read(&file, 0, 3_000).await.unwrap();
                assert!(read.eof && read.data.len() == 3_000);
                if number % 3 == 0 {
                    nfs.remove(&root, name.as_bytes()).await.unwrap();
                }
            }
        });
    }
    clients.join_all().await;
    assert_eq!(std::fs::read_dir(dir.path().join("root")).unwrap().count(), 8 * 66);
}
