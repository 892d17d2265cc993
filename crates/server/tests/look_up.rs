//! What a client may keep after a look-up, and what an operator is told of a file system that hangs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::time::{Duration, Instant};

use client::nfs::Nfs;
use keeper::identity::LockId;
use lockkeeper_server::Limits;
use support::{InstrumentedFs, TestServer, call, export, file, locker, open_rules, range, user};
use support::{config, results, until};
use wire::nfs3::{DirOpArgs, Lookup, NewAttributes};
use wire::nlm::Status;

/// B1.82
#[tokio::test(flavor = "multi_thread")]
async fn the_attributes_of_a_directory_are_not_newer_than_the_answer_of_a_look_up() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let (nfs, dir) = (server.nfs().await, server.root().await);
    file(&nfs, &dir, "there", 1).await;
    for (xid, name) in [(1, "there"), (2, "missing")] {
        let before = nfs.attributes(&dir).await.unwrap().modified;
        let mut stream = server.stream().await;
        filesystem.hold("lookup");
        let args = DirOpArgs { dir: dir.clone(), name: name.as_bytes().to_vec().into() };
        stream.send_record(&call::<Lookup>(xid, &user(0, 0, &[]), &args)).await;
        until("LOOKUP started", || filesystem.running("lookup") == 1).await;
        // The client may keep the answer for as long as the directory has these attributes: they must
        // not be those of a directory that was changed since.
        nfs.create(&dir, format!("new-{xid}").as_bytes(), NewAttributes::default()).await.unwrap();
        let attributes = filesystem.started("attributes");
        filesystem.release("lookup");
        let reply = results::<Lookup>(stream.receive().await.unwrap());
        let shown = match reply {
            Ok(found) => found.dir,
            Err(failed) => failed.1,
        };
        assert_eq!(shown.unwrap().modified, before, "{name}");
        assert_eq!(
            filesystem.started("attributes"),
            attributes,
            "{name}: asked afterwards as well"
        );
        assert_ne!(nfs.attributes(&dir).await.unwrap().modified, before);
    }
}

/// B8.83
#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_that_hangs_does_not_hold_up_an_operator() {
    let filesystem = InstrumentedFs::new();
    let exports = vec![
        export("/hangs", filesystem.clone(), open_rules()),
        export(
            "/works",
            std::sync::Arc::new(vfs::memory::MemoryFs::new(vfs::FileSystemId(2))),
            open_rules(),
        ),
    ];
    // Names are forgotten at once.
    let limits = Limits { names_max: 1, ..Limits::default() };
    let server = TestServer::try_start(config(limits), exports).await.unwrap();
    let connection = server.connect().await;
    let locker = locker(server.at, "client", 1).await;
    for path in ["/hangs", "/works"] {
        let root = client::mount::mount(&connection, path).await.unwrap();
        let locked = file(&Nfs(connection.clone()), &root, "f", 1).await;
        assert_eq!(locker.lock(&locked, range(0, 1)).await.unwrap(), Status::Granted);
        file(&Nfs(connection.clone()), &root, "g", 1).await;
        file(&Nfs(connection.clone()), &root, "h", 1).await;
    }
    let locked = server
        .control
        .read(|keeper| keeper.locks(LockId(0)).map(|lock| lock.file.clone()).collect::<Vec<_>>())
        .await
        .unwrap();
    let directory = server.control.resolve_path(b"/hangs").await.matches.remove(0);
    for operation in ["path", "attributes", "lookup"] {
        filesystem.hold(operation);
    }
    let begun = Instant::now();
    let found = server.control.locate(locked).await;
    let of = |export: &[u8]| {
        let found = found.iter().map(|(_, place)| place);
        found.filter(|place| place.export.as_deref() == Some(export)).collect::<Vec<_>>()
    };
    assert!(of(b"/hangs").iter().any(|place| place.unanswered), "{found:?}");
    assert!(
        !of(b"/works").is_empty() && of(b"/works").iter().all(|place| !place.unanswered),
        "{found:?}"
    );
    // Nothing is known to be below the directory, and only what has no answer may be.
    for (key, place) in &found {
        assert!(!directory.contains(place) || place.path.is_some());
        assert_eq!(directory.may_contain(key, place), place.unanswered, "{place:?}");
    }
    let resolved = server.control.resolve_path(b"/hangs/f").await;
    assert!(resolved.matches.is_empty(), "{resolved:?}");
    assert_eq!(resolved.unanswered, [b"/hangs"]);
    let resolved = server.control.resolve_path(b"/works/f").await;
    assert_eq!((resolved.matches.len(), resolved.unanswered.len()), (1, 0));
    // A name alone may be one of a file there, too.
    let resolved = server.control.resolve_path(b"f").await;
    assert_eq!((resolved.matches.len(), resolved.unanswered), (1, vec![b"/hangs".to_vec()]));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for operation in ["path", "attributes", "lookup"] {
        filesystem.release(operation);
    }
}
