//! Who may do what: networks, ports, identities, handles and names.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use client::mount::{MountError, mount};
use client::nfs::{Nfs, NfsError};
use client::{Connection, Options};
use lockkeeper_server::Limits;
use support::{InstrumentedFs, PATH, TestServer, config, export, file, key, memory, open_rules};
use vfs::local::{self, LocalFs};
use vfs::{Export, ExportAccess, Exports, FileSystem, HandleKey, Rules, Squash};
use wire::mount::{Dump, Exports as ListExports, Mnt, MountStatus, UmntAll, v1};
use wire::nfs3::*;

async fn serve(rules: Rules) -> TestServer {
    let exports = vec![export(PATH, memory(), rules)];
    TestServer::try_start(config(Limits::default()), exports).await.unwrap()
}

fn root_user() -> Options {
    Options::default().user(0, 0, &[])
}

fn at(dir: &Handle, name: &[u8]) -> DirOpArgs {
    DirOpArgs { dir: dir.clone(), name: name.to_vec().into() }
}

fn status<T: std::fmt::Debug>(outcome: Result<T, NfsError>) -> Status {
    match outcome {
        Err(NfsError::Status(status)) => status,
        Ok(_) => Status::Ok,
        Err(other) => panic!("{other:?}"),
    }
}

fn failed<T, F>(reply: Reply<T, F>) -> Status {
    reply.err().map_or(Status::Ok, |failed| failed.0)
}

#[tokio::test]
async fn only_clients_of_the_export_s_networks_are_served() {
    let rules = open_rules().with_clients(vec!["127.0.0.2/32".parse().unwrap()]);
    let server = serve(rules).await;
    let from = |last| Options {
        source: Some(Ipv4Addr::new(127, 0, 0, last).into()),
        ..Options::default().user(0, 0, &[])
    };
    let friend = server.connect_as(&from(2)).await;
    let stranger = server.connect_as(&from(3)).await;
    let root = mount(&friend, PATH).await.unwrap();
    let refused = mount(&stranger, PATH).await;
    assert!(matches!(refused, Err(MountError::Status(MountStatus::Acces))), "{refused:?}");
    // A handle alone does not give access.
    assert_eq!(status(Nfs(stranger).attributes(&root).await), Status::Acces);
    assert_eq!(status(Nfs(friend).attributes(&root).await), Status::Ok);
}

#[tokio::test]
async fn a_read_only_export_is_not_changed_by_any_procedure() {
    let filesystem = memory();
    let writable = export("/w", filesystem.clone(), open_rules());
    let rules = open_rules().with_access(ExportAccess::ReadOnly);
    let exports = vec![writable, export("/r", filesystem, rules)];
    let server = TestServer::try_start(config(Limits::default()), exports).await.unwrap();
    let connection = server.connect().await;
    let nfs = Nfs(connection.clone());
    file(&nfs, &mount(&connection, "/w").await.unwrap(), "f", 10).await;
    let dir = mount(&connection, "/r").await.unwrap();
    let object = nfs.lookup(&dir, b"f").await.unwrap().object;
    for (name, found) in changes(&connection, &dir, &object).await {
        assert_eq!(found, Status::RoFs, "{name}");
    }
    // It changes nothing.
    assert_eq!(commit(&connection, &object).await, Status::Ok);
    assert_eq!(&nfs.read(&object, 0, 10).await.unwrap().data[..], b"xxxxxxxxxx");
    let asked = AccessArgs { object, access: access::ALL };
    let granted = nfs.call::<Access, _, _>(&asked).await.unwrap().access;
    assert_eq!(granted & (access::MODIFY | access::EXTEND | access::DELETE), 0);
}

/// B1.80
#[tokio::test]
async fn what_was_written_before_an_export_became_read_only_can_be_committed() {
    let filesystem = memory();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    let written = file(&nfs, &root, "f", 10).await;
    let rules = open_rules().with_access(ExportAccess::ReadOnly);
    let reloaded = vec![export(PATH, filesystem, rules)];
    server.handle.replace_exports(vfs::Exports::new(reloaded).unwrap());
    assert_eq!(commit(&nfs.0, &written).await, Status::Ok);
}

async fn commit(by: &Connection, file: &Handle) -> Status {
    let args = CommitArgs { file: file.clone(), offset: 0, count: 0 };
    failed(by.call::<Commit>(&args).await.unwrap())
}

/// Every procedure that changes something, and what came of it.
async fn changes(by: &Connection, dir: &Handle, object: &Handle) -> Vec<(&'static str, Status)> {
    let new = NewAttributes { mode: Some(0o600), ..NewAttributes::default() };
    let (dir, object) = (dir.clone(), object.clone());
    let what = Node::Fifo(new);
    let how = CreateHow::Guarded(new);
    let text = b"t"[..].into();
    let write = WriteArgs {
        file: object.clone(),
        offset: 0,
        count: 1,
        stability: Stability::Unstable,
        data: Bytes::from_static(b"y"),
    };
    let set = SetAttrArgs { object: object.clone(), new, guard: None };
    let rename = RenameArgs { from: at(&dir, b"f"), to: at(&dir, b"g") };
    let link = LinkArgs { file: object, to: at(&dir, b"h") };
    vec![
        ("SETATTR", failed(by.call::<SetAttr>(&set).await.unwrap())),
        ("WRITE", failed(by.call::<Write>(&write).await.unwrap())),
        (
            "CREATE",
            failed(by.call::<Create>(&CreateArgs { at: at(&dir, b"c"), how }).await.unwrap()),
        ),
        ("MKDIR", failed(by.call::<MkDir>(&MkDirArgs { at: at(&dir, b"d"), new }).await.unwrap())),
        ("SYMLINK", {
            let args = SymLinkArgs { at: at(&dir, b"l"), new, text };
            failed(by.call::<SymLink>(&args).await.unwrap())
        }),
        ("MKNOD", failed(by.call::<MkNod>(&MkNodArgs { at: at(&dir, b"n"), what }).await.unwrap())),
        ("LINK", failed(by.call::<Link>(&link).await.unwrap())),
        ("RENAME", failed(by.call::<Rename>(&rename).await.unwrap())),
        ("REMOVE", failed(by.call::<Remove>(&at(&dir, b"g")).await.unwrap())),
        ("RMDIR", failed(by.call::<RmDir>(&at(&dir, b"d")).await.unwrap())),
    ]
}

#[tokio::test]
async fn a_reserved_port_is_needed_where_the_export_says_so_except_to_look() {
    testbed::namespace::need_root();
    let server = serve(open_rules().with_require_reserved_ports(true)).await;
    let high = server.connect().await;
    let low = server.connect_as(&Options { reserved_port: true, ..root_user() }).await;
    assert!(low.local().unwrap().port() < 1024);
    let refused = mount(&high, PATH).await;
    assert!(matches!(refused, Err(MountError::Status(MountStatus::Perm))), "{refused:?}");
    let dir = mount(&low, PATH).await.unwrap();
    let object = file(&Nfs(low.clone()), &dir, "f", 10).await;
    for (name, found) in changes(&high, &dir, &object).await {
        assert_eq!(found, Status::Perm, "{name}");
    }
    assert_eq!(commit(&high, &object).await, Status::Perm);
    let nfs = Nfs(high);
    assert_eq!(status(nfs.read(&object, 0, 10).await), Status::Perm);
    assert_eq!(status(nfs.lookup(&dir, b"f").await), Status::Perm);
    assert_eq!(status(nfs.attributes(&object).await), Status::Ok);
    let nfs = Nfs(low.clone());
    assert_eq!(nfs.read(&object, 0, 10).await.unwrap().data.len(), 10);
    for (name, found) in changes(&low, &dir, &object).await {
        assert_eq!(found, Status::Ok, "{name}");
    }
}

#[tokio::test]
async fn identities_are_squashed_as_the_export_says() {
    // Who asks, under which rule, and whose file comes of it.
    let nobody = (vfs::export::NOBODY, vfs::export::NOBODY);
    for (squash, who, owner) in [
        (Squash::None, (0, 0), (0, 0)),
        (Squash::None, (1000, 100), (1000, 100)),
        (Squash::Root, (0, 0), nobody),
        (Squash::Root, (0, 100), nobody),
        (Squash::Root, (1000, 0), (1000, vfs::export::NOBODY)),
        (Squash::Root, (1000, 100), (1000, 100)),
        (Squash::All, (0, 0), nobody),
        (Squash::All, (1000, 100), nobody),
    ] {
        let server = serve(open_rules().with_squash(squash)).await;
        let nfs = Nfs(server.connect_as(&Options::default().user(who.0, who.1, &[])).await);
        let made = nfs.create(&server.root().await, b"f", NewAttributes::default()).await.unwrap();
        let found = nfs.attributes(&made).await.unwrap();
        assert_eq!((found.uid, found.gid), owner, "{squash:?} {who:?}");
    }
}

#[tokio::test]
async fn a_handle_with_any_bit_flipped_is_bad() {
    let server = TestServer::in_memory().await;
    let (nfs, root) = (server.nfs().await, server.root().await);
    for bit in 0..root.len() * 8 {
        let mut bytes = root.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let found = status(nfs.attributes(&Handle(bytes.into())).await);
        assert_eq!(found, Status::BadHandle, "bit {bit}");
    }
    for bytes in [&b""[..], b"x", &[0; 64]] {
        let found = status(nfs.attributes(&Handle(Bytes::copy_from_slice(bytes))).await);
        assert_eq!(found, Status::BadHandle, "{bytes:?}");
    }
}

#[tokio::test]
async fn handles_of_other_keys_exports_and_file_systems_do_not_work() {
    let filesystem = memory();
    let other = Arc::new(vfs::memory::MemoryFs::new(vfs::FileSystemId(2)));
    let file = vfs::FileKey { filesystem: filesystem.id(), object: filesystem.root() };
    let elsewhere = vfs::FileKey { filesystem: other.id(), object: other.root() };
    let server = TestServer::start(filesystem, Limits::default()).await;
    let nfs = server.nfs().await;
    let id = Export::id_of_path(PATH.as_bytes());
    let try_one = async |key: HandleKey, export, file| {
        let handle = Handle(Bytes::copy_from_slice(key.sign(export, file).as_bytes()));
        status(nfs.attributes(&handle).await)
    };
    assert_eq!(try_one(key(), id, &file).await, Status::Ok);
    assert_eq!(try_one(HandleKey::new([8; 16]), id, &file).await, Status::BadHandle);
    assert_eq!(try_one(key(), id + 1, &file).await, Status::Stale);
    assert_eq!(try_one(key(), id, &elsewhere).await, Status::Stale);
}

#[tokio::test]
async fn handles_of_an_export_that_was_taken_away_are_stale() {
    let (a, b) = (memory(), Arc::new(vfs::memory::MemoryFs::new(vfs::FileSystemId(2))));
    let exports = vec![export("/a", a.clone(), open_rules()), export("/b", b, open_rules())];
    let server = TestServer::try_start(config(Limits::default()), exports).await.unwrap();
    let connection = server.connect().await;
    let (of_a, of_b) =
        (mount(&connection, "/a").await.unwrap(), mount(&connection, "/b").await.unwrap());
    let nfs = Nfs(connection.clone());
    let left = Exports::new(vec![export("/a", a, open_rules())]).unwrap();
    server.handle.replace_exports(left);
    assert_eq!(status(nfs.attributes(&of_a).await), Status::Ok);
    assert_eq!(status(nfs.attributes(&of_b).await), Status::Stale);
    let gone = mount(&connection, "/b").await;
    assert!(matches!(gone, Err(MountError::Status(MountStatus::NoEnt))), "{gone:?}");
}

/// The status of every procedure that takes a name, with this name in each place.
async fn with_name(by: &Connection, dir: &Handle, name: &[u8]) -> Vec<(&'static str, Status)> {
    let nfs = Nfs(by.clone());
    let new = NewAttributes::default();
    let good = b"good".to_vec();
    let _ = nfs.remove(dir, &good).await;
    let object = file(&nfs, dir, "good", 1).await;
    let bad = || at(dir, name);
    let text = LinkText::from(b"t".to_vec());
    let link = LinkArgs { file: object, to: bad() };
    let from = RenameArgs { from: bad(), to: at(dir, b"other") };
    let to = RenameArgs { from: at(dir, &good), to: bad() };
    let how = CreateHow::Unchecked(new);
    let what = Node::Fifo(new);
    vec![
        ("LOOKUP", failed(by.call::<Lookup>(&bad()).await.unwrap())),
        ("CREATE", failed(by.call::<Create>(&CreateArgs { at: bad(), how }).await.unwrap())),
        ("MKDIR", failed(by.call::<MkDir>(&MkDirArgs { at: bad(), new }).await.unwrap())),
        (
            "SYMLINK",
            failed(by.call::<SymLink>(&SymLinkArgs { at: bad(), new, text }).await.unwrap()),
        ),
        ("MKNOD", failed(by.call::<MkNod>(&MkNodArgs { at: bad(), what }).await.unwrap())),
        ("LINK", failed(by.call::<Link>(&link).await.unwrap())),
        ("REMOVE", failed(by.call::<Remove>(&bad()).await.unwrap())),
        ("RMDIR", failed(by.call::<RmDir>(&bad()).await.unwrap())),
        ("RENAME from", failed(by.call::<Rename>(&from).await.unwrap())),
        ("RENAME to", failed(by.call::<Rename>(&to).await.unwrap())),
    ]
}

/// A server of a directory of the host, and that directory.
async fn local() -> (TestServer, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["root", "state"] {
        std::fs::create_dir(dir.path().join(sub)).unwrap();
    }
    let options = local::Options::new(dir.path().join("root"), dir.path().join("state"));
    let filesystem = Arc::new(LocalFs::open(options).unwrap());
    (TestServer::start(filesystem, Limits::default()).await, dir)
}

#[tokio::test]
async fn names_that_no_file_can_have_are_refused_by_every_procedure() {
    let (of_host, _dir) = local().await;
    for server in [TestServer::in_memory().await, of_host] {
        let (by, dir) = (server.connect().await, server.root().await);
        for (name, expected) in [
            (&b""[..], Status::Inval),
            (b"a/b", Status::Inval),
            (b"/", Status::Inval),
            (b"../x", Status::Inval),
            (b"a\0b", Status::Inval),
            (b"\0", Status::Inval),
            (&[b'n'; 256], Status::NameTooLong),
            (&[b'n'; 4096], Status::NameTooLong),
        ] {
            for (procedure, found) in with_name(&by, &dir, name).await {
                assert_eq!(found, expected, "{procedure} {:?}", name.escape_ascii().to_string());
            }
        }
        let longest = nfs_name(255);
        let found = with_name(&by, &dir, &longest).await;
        assert_eq!(found[1], ("CREATE", Status::Ok));
    }
}

fn nfs_name(length: usize) -> Vec<u8> {
    vec![b'n'; length]
}

#[tokio::test]
async fn a_name_that_no_file_can_have_never_reaches_the_file_system() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let (by, dir) = (server.connect().await, server.root().await);
    let new = NewAttributes::default();
    for name in [&b""[..], b"a/b", b"a\0b", &[b'n'; 256]] {
        let bad = || at(&dir, name);
        by.call::<Lookup>(&bad()).await.unwrap().unwrap_err();
        by.call::<MkDir>(&MkDirArgs { at: bad(), new }).await.unwrap().unwrap_err();
        by.call::<Remove>(&bad()).await.unwrap().unwrap_err();
        by.call::<RmDir>(&bad()).await.unwrap().unwrap_err();
        by.call::<Rename>(&RenameArgs { from: bad(), to: bad() }).await.unwrap().unwrap_err();
    }
    for operation in ["lookup", "make_dir", "remove", "remove_dir", "rename"] {
        assert_eq!(filesystem.started(operation), 0, "{operation}");
    }
}

#[tokio::test]
async fn dot_and_dot_dot_are_looked_up_and_nothing_else() {
    let (of_host, _dir) = local().await;
    for server in [TestServer::in_memory().await, of_host] {
        let (by, root) = (server.connect().await, server.root().await);
        let nfs = Nfs(by.clone());
        let sub = nfs.make_dir(&root, b"sub", NewAttributes::default()).await.unwrap();
        for name in [&b"."[..], b".."] {
            for (procedure, found) in with_name(&by, &sub, name).await {
                let as_it_should = match procedure {
                    "LOOKUP" => found == Status::Ok,
                    _ => matches!(
                        found,
                        Status::Exist | Status::Inval | Status::NotEmpty | Status::IsDir
                    ),
                };
                assert!(as_it_should, "{procedure} {}: {found:?}", name.escape_ascii());
            }
        }
        let id = async |handle: &Handle| nfs.attributes(handle).await.unwrap().fileid;
        let up = nfs.lookup(&sub, b"..").await.unwrap().object;
        assert_eq!(id(&up).await, id(&root).await);
        let above = nfs.lookup(&root, b"..").await.unwrap().object;
        assert_eq!(id(&above).await, id(&root).await, "LOOKUP of .. left the export");
    }
}

#[tokio::test]
async fn paths_are_mounted_only_if_they_are_inside_an_export() {
    let (of_host, _dir) = local().await;
    for server in [TestServer::in_memory().await, of_host] {
        let connection = server.connect().await;
        let (nfs, root) = (server.nfs().await, server.root().await);
        let sub = nfs.make_dir(&root, b"sub", NewAttributes::default()).await.unwrap();
        let inside = file(&nfs, &sub, "file", 1).await;
        let link = SymLinkArgs {
            at: at(&root, b"link"),
            new: NewAttributes::default(),
            text: b"/etc"[..].into(),
        };
        nfs.call::<SymLink, _, _>(&link).await.unwrap();

        assert_eq!(mount(&connection, "/export/sub").await.unwrap(), sub);
        assert_eq!(mount(&connection, "/export//sub/").await.unwrap(), sub);
        assert_eq!(mount(&connection, "/export/sub/file").await.unwrap(), inside);
        for (path, expected) in [
            ("", MountStatus::NoEnt),
            ("/", MountStatus::NoEnt),
            ("/etc", MountStatus::NoEnt),
            ("/exportx", MountStatus::NoEnt),
            ("/export/none", MountStatus::NoEnt),
            ("/export/..", MountStatus::Inval),
            ("/export/../etc", MountStatus::Inval),
            ("/export/sub/../..", MountStatus::Inval),
            ("/export/link", MountStatus::NotDir),
            ("/export/link/passwd", MountStatus::NotDir),
            ("/export/sub/file/x", MountStatus::NotDir),
            ("/export/a\0b", MountStatus::Inval),
        ] {
            let found = mount(&connection, path).await;
            assert!(
                matches!(&found, Err(MountError::Status(status)) if *status == expected),
                "{path:?}: {found:?}"
            );
        }
        let long = format!("/export/{}", "n".repeat(256));
        let found = mount(&connection, &long).await;
        assert!(matches!(found, Err(MountError::Status(MountStatus::NameTooLong))), "{found:?}");
    }
}

#[tokio::test]
async fn version_1_of_mount_says_when_a_handle_does_not_fit_it() {
    let server = TestServer::in_memory().await;
    let connection = server.connect().await;
    let reply = connection.call::<v1::Mnt>(&PATH.to_owned().into()).await.unwrap();
    // Version 1 has 32 bytes for a handle, and those of this file system are longer.
    assert_eq!(reply.0, Err(MountStatus::NotSupp));
    let missing = connection.call::<v1::Mnt>(&"/none".to_owned().into()).await.unwrap();
    assert_eq!(missing.0, Err(MountStatus::NoEnt));
    connection.call::<v1::Umnt>(&PATH.to_owned().into()).await.unwrap();
    assert_eq!(connection.call::<v1::Exports>(&()).await.unwrap().0.len(), 1);
}

#[tokio::test]
async fn mounts_are_listed_until_they_are_unmounted() {
    let exports = vec![export("/a", memory(), open_rules()), export("/b", memory(), open_rules())];
    let server = TestServer::try_start(config(Limits::default()), exports).await.unwrap();
    let connection = server.connect().await;
    let other = Options { source: Some(Ipv4Addr::new(127, 0, 0, 9).into()), ..root_user() };
    let other = server.connect_as(&other).await;
    for path in ["/a", "/b", "/b"] {
        mount(&connection, path).await.unwrap();
    }
    mount(&other, "/a").await.unwrap();
    let list = async || {
        let mounts = connection.call::<Dump>(&()).await.unwrap().0;
        let mut lines: Vec<String> = mounts
            .iter()
            .map(|m| format!("{} {}", m.host.escape_ascii(), m.path.escape_ascii()))
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(list().await, ["127.0.0.1 /a", "127.0.0.1 /b", "127.0.0.9 /a"]);
    client::mount::unmount(&connection, "/a").await.unwrap();
    assert_eq!(list().await, ["127.0.0.1 /b", "127.0.0.9 /a"]);
    connection.call::<UmntAll>(&()).await.unwrap();
    assert_eq!(list().await, ["127.0.0.9 /a"]);
}

#[tokio::test]
async fn exports_are_listed_with_their_networks() {
    let rules = open_rules().with_clients(vec!["10.0.0.0/8".parse().unwrap()]);
    let server = serve(rules).await;
    let list = server.connect().await.call::<ListExports>(&()).await.unwrap().0;
    assert_eq!(list.len(), 1);
    assert_eq!(&list[0].path[..], PATH.as_bytes());
    assert_eq!(list[0].clients, ["10.0.0.0/8".to_owned().into()]);
    // To be listed is not to be admitted.
    let refused = server.connect().await.call::<Mnt>(&PATH.to_owned().into()).await.unwrap();
    assert_eq!(refused.0, Err(MountStatus::Acces));
}
