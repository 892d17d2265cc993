//! A client that others wrote (the crate nfs3_client) works with the server, found by rpcbind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::sync::Arc;

use lockkeeper_server::{Limits, RpcbindMode};
use nfs3_client::Nfs3ConnectionBuilder;
use nfs3_client::nfs3_types::nfs3::*;
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::tokio::TokioConnector;
use support::{PATH, TestServer, config, export, open_rules};
use vfs::FileSystem;
use vfs::local::{LocalFs, Options};

async fn round(filesystem: Arc<dyn FileSystem>) {
    let port = testbed::ports::free_port().unwrap();
    let config =
        config(Limits::default()).with_rpcbind(RpcbindMode::Embedded).with_rpcbind_port(port);
    let exports = vec![export(PATH, filesystem, open_rules())];
    let _server = TestServer::try_start(config, exports).await.unwrap();
    let root_user = auth_unix {
        stamp: 1,
        machinename: Opaque::borrowed(b"here"),
        uid: 0,
        gid: 0,
        gids: vec![],
    };
    let mut nfs = Nfs3ConnectionBuilder::new(TokioConnector, "127.0.0.1", PATH)
        .portmapper_port(port)
        .connect_from_privileged_port(false)
        .credential(opaque_auth::auth_unix(&root_user))
        .mount()
        .await
        .unwrap();
    let root = nfs.root_nfs_fh3();
    nfs.null().await.unwrap();

    let at = |name: &'static str| diropargs3 { dir: root.clone(), name: name.as_bytes().into() };
    let how = createhow3::GUARDED(sattr3::default());
    nfs.create(&CREATE3args { where_: at("file"), how }).await.unwrap().unwrap();
    let file = nfs.lookup(&LOOKUP3args { what: at("file") }).await.unwrap().unwrap().object;
    let text: Vec<u8> = (0..=255).cycle().take(100_001).collect();
    let written = nfs
        .write(&WRITE3args {
            file: file.clone(),
            offset: 0,
            count: text.len() as u32,
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(&text),
        })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(written.count as usize, text.len());
    let read = READ3args { file: file.clone(), offset: 0, count: 1 << 20 };
    let read = nfs.read(&read).await.unwrap().unwrap();
    assert!(read.eof && read.data.as_ref() == text);
    let attributes = nfs.getattr(&GETATTR3args { object: file }).await.unwrap().unwrap();
    assert_eq!(attributes.obj_attributes.size, text.len() as u64);

    let attributes = sattr3::default();
    nfs.mkdir(&MKDIR3args { where_: at("dir"), attributes }).await.unwrap().unwrap();
    let list = READDIRPLUS3args {
        dir: root.clone(),
        cookie: 0,
        cookieverf: cookieverf3::default(),
        dircount: 10_000,
        maxcount: 100_000,
    };
    let list = nfs.readdirplus(&list).await.unwrap().unwrap().reply;
    let mut names: Vec<Vec<u8>> =
        list.entries.0.iter().map(|entry| entry.name.0.as_ref().to_vec()).collect();
    names.sort();
    assert!(list.eof);
    assert_eq!(names, [&b"."[..], b"..", b"dir", b"file"]);

    nfs.rmdir(&RMDIR3args { object: at("dir") }).await.unwrap().unwrap();
    nfs.remove(&REMOVE3args { object: at("file") }).await.unwrap().unwrap();
    let gone = nfs.lookup(&LOOKUP3args { what: at("file") }).await.unwrap();
    assert!(matches!(gone, Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _))));
    nfs.unmount().await.unwrap();
}

#[tokio::test]
async fn an_independent_client_works_with_a_file_system_in_memory() {
    round(support::memory()).await;
}

#[tokio::test]
async fn an_independent_client_works_with_a_directory_of_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (root, state) = (dir.path().join("root"), dir.path().join("state"));
    std::fs::create_dir(&root).unwrap();
    std::fs::create_dir(&state).unwrap();
    round(Arc::new(LocalFs::open(Options::new(root, state)).unwrap())).await;
}
