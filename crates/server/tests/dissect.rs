//! Everything that the server sends, read by an independent dissector: a session through every
//! procedure, captured live in a network of its own, must leave tshark without a complaint.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use client::{CallError, Connection, Datagram, Options};
use lockkeeper_server::{Config, RpcbindMode};
use support::capture::Capture;
use support::{PATH, TestServer, export, open_rules};
use testbed::namespace::Namespace;
use vfs::local::{self, LocalFs};
use wire::nfs3::*;
use wire::rpc::{Procedure, ProcedureId};
use wire::rpcbind::{Binding, Mapping, v2, v3, v4};
use wire::{Decode, Encode, mount};

/// Either transport.
enum Way {
    Tcp(Connection),
    Udp(Datagram),
}

impl Way {
    async fn connect(tcp: bool, at: SocketAddr) -> Self {
        let options = Options::default().user(0, 0, &[4, 27]);
        match tcp {
            true => Self::Tcp(Connection::connect(at, &options).await.unwrap()),
            false => Self::Udp(Datagram::connect(at, &options).await.unwrap()),
        }
    }

    async fn raw(&mut self, to: ProcedureId, args: &[u8]) -> Result<Bytes, CallError> {
        match self {
            Self::Tcp(connection) => connection.call_raw(to, args).await,
            Self::Udp(datagram) => datagram.call_raw(to, args).await,
        }
    }

    async fn call<P: Procedure>(&mut self, args: &P::Args) -> P::Reply {
        let results = self.raw(ProcedureId::of::<P>(), &args.to_bytes()).await;
        P::Reply::from_bytes(results.unwrap()).unwrap()
    }
}

fn at(dir: &Handle, name: &str) -> DirOpArgs {
    DirOpArgs { dir: dir.clone(), name: name.as_bytes().to_vec().into() }
}

/// Every procedure of NFS once as it should be and at least once refused.
async fn nfs(way: &mut Way, root: &Handle) {
    let bad = Handle(Bytes::from_static(b"no handle of ours"));
    let new = NewAttributes {
        mode: Some(0o640),
        uid: Some(7),
        gid: Some(8),
        size: None,
        accessed: SetTime::ServerTime,
        modified: SetTime::To(Time { seconds: 1, nanoseconds: 2 }),
    };
    way.call::<Null>(&()).await;
    let dir = way.call::<MkDir>(&MkDirArgs { at: at(root, "dir"), new }).await.unwrap();
    let dir = dir.object.unwrap();
    for how in [CreateHow::Unchecked(new), CreateHow::Guarded(new), CreateHow::Exclusive([9; 8])] {
        let name = format!("file-{}", matches!(how, CreateHow::Exclusive(_)));
        let _ = way.call::<Create>(&CreateArgs { at: at(&dir, &name), how }).await;
    }
    let found = way.call::<Lookup>(&at(&dir, "file-false")).await.unwrap();
    let file = found.object;
    for length in [1, 2, 3, 4, 5000, 32 << 10] {
        let write = WriteArgs {
            file: file.clone(),
            offset: 7,
            count: length,
            stability: Stability::DataSync,
            data: vec![b'x'; length as usize].into(),
        };
        way.call::<Write>(&write).await.unwrap();
        let read = ReadArgs { file: file.clone(), offset: 0, count: length };
        way.call::<Read>(&read).await.unwrap();
    }
    way.call::<Commit>(&CommitArgs { file: file.clone(), offset: 0, count: 0 }).await.unwrap();
    way.call::<GetAttr>(&GetAttrArgs { object: file.clone() }).await.unwrap();
    let guard = Some(Time { seconds: 5, nanoseconds: 5 });
    let guarded = SetAttrArgs { object: file.clone(), new, guard };
    assert_eq!(way.call::<SetAttr>(&guarded).await.unwrap_err().0, Status::NotSync);
    let set = SetAttrArgs { object: file.clone(), new, guard: None };
    way.call::<SetAttr>(&set).await.unwrap();
    way.call::<Access>(&AccessArgs { object: file.clone(), access: access::ALL }).await.unwrap();
    let text = LinkText::from(b"../somewhere".to_vec());
    let link = SymLinkArgs { at: at(&dir, "symlink"), new, text: text.clone() };
    let link = way.call::<SymLink>(&link).await.unwrap().object.unwrap();
    way.call::<ReadLink>(&ReadLinkArgs { object: link.clone() }).await.unwrap();
    let device = Device { major: 1, minor: 3 };
    for (name, what) in [
        ("fifo", Node::Fifo(new)),
        ("socket", Node::Socket(new)),
        ("character", Node::Character(new, device)),
        ("block", Node::Block(new, device)),
        ("file", Node::Other(FileType::Regular)),
    ] {
        let _ = way.call::<MkNod>(&MkNodArgs { at: at(&dir, name), what }).await;
    }
    way.call::<Link>(&LinkArgs { file: file.clone(), to: at(&dir, "linked") }).await.unwrap();
    let rename = RenameArgs { from: at(&dir, "linked"), to: at(root, "renamed") };
    way.call::<Rename>(&rename).await.unwrap();
    let list = ReadDirArgs { dir: dir.clone(), cookie: 0, verifier: [0; 8], count: 4096 };
    way.call::<ReadDir>(&list).await.unwrap();
    let plus = ReadDirPlusArgs {
        dir: dir.clone(),
        cookie: 0,
        verifier: [0; 8],
        dir_count: 4096,
        max_count: 32 << 10,
    };
    way.call::<ReadDirPlus>(&plus).await.unwrap();
    let volume = FsArgs { root: root.clone() };
    way.call::<FsStat>(&volume).await.unwrap();
    way.call::<FsInfo>(&volume).await.unwrap();
    way.call::<PathConf>(&volume).await.unwrap();

    // Now what fails, with and without attributes to tell.
    for dir in [&bad, &file, &dir] {
        let no = || at(dir, "none");
        let _ = way.call::<GetAttr>(&GetAttrArgs { object: dir.clone() }).await;
        let _ = way.call::<SetAttr>(&SetAttrArgs { object: dir.clone(), ..guarded.clone() }).await;
        assert!(way.call::<Lookup>(&no()).await.is_err());
        let _ = way.call::<Access>(&AccessArgs { object: dir.clone(), access: 0 }).await;
        assert!(way.call::<ReadLink>(&ReadLinkArgs { object: dir.clone() }).await.is_err());
        let _ = way.call::<Read>(&ReadArgs { file: dir.clone(), offset: 0, count: 10 }).await;
        let write = WriteArgs {
            file: dir.clone(),
            offset: 0,
            count: 9,
            stability: Stability::Unstable,
            data: b"short"[..].into(),
        };
        assert!(way.call::<Write>(&write).await.is_err());
        let commit = CommitArgs { file: dir.clone(), offset: 0, count: 0 };
        let _ = way.call::<Commit>(&commit).await;
        let unnamed = || at(dir, "");
        let how = CreateHow::Guarded(new);
        assert!(way.call::<Create>(&CreateArgs { at: unnamed(), how }).await.is_err());
        assert!(way.call::<MkDir>(&MkDirArgs { at: unnamed(), new }).await.is_err());
        let link = SymLinkArgs { at: unnamed(), new, text: text.clone() };
        assert!(way.call::<SymLink>(&link).await.is_err());
        let node = MkNodArgs { at: unnamed(), what: Node::Fifo(new) };
        assert!(way.call::<MkNod>(&node).await.is_err());
        assert!(way.call::<Remove>(&no()).await.is_err());
        assert!(way.call::<RmDir>(&no()).await.is_err());
        assert!(way.call::<Rename>(&RenameArgs { from: no(), to: no() }).await.is_err());
        assert!(way.call::<Link>(&LinkArgs { file: dir.clone(), to: unnamed() }).await.is_err());
        let _ =
            way.call::<ReadDir>(&ReadDirArgs { dir: dir.clone(), count: 10, ..list.clone() }).await;
        let small = ReadDirPlusArgs { dir: dir.clone(), max_count: 10, ..plus.clone() };
        assert!(way.call::<ReadDirPlus>(&small).await.is_err());
    }
    let volume = FsArgs { root: bad };
    assert!(way.call::<FsStat>(&volume).await.is_err());
    assert!(way.call::<FsInfo>(&volume).await.is_err());
    assert!(way.call::<PathConf>(&volume).await.is_err());

    // What is left goes, so that the next transport finds nothing.
    assert!(way.call::<RmDir>(&at(root, "dir")).await.is_err(), "it is not empty");
    way.call::<Remove>(&at(root, "renamed")).await.unwrap();
    for name in ["file-false", "file-true", "symlink", "fifo", "socket", "character", "block"] {
        let _ = way.call::<Remove>(&at(&dir, name)).await;
    }
    way.call::<RmDir>(&at(root, "dir")).await.unwrap();
    assert_eq!(
        way.call::<GetAttr>(&GetAttrArgs { object: dir }).await.unwrap_err().0,
        Status::Stale
    );
}

async fn mounts(way: &mut Way) -> Handle {
    let path = || mount::Path::from(PATH.to_owned());
    let none = || mount::Path::from("/none".to_owned());
    way.call::<mount::Null>(&()).await;
    let root = way.call::<mount::Mnt>(&path()).await.0.unwrap().root;
    assert!(way.call::<mount::Mnt>(&none()).await.0.is_err());
    way.call::<mount::Dump>(&()).await;
    way.call::<mount::Exports>(&()).await;
    way.call::<mount::Umnt>(&path()).await;
    way.call::<mount::UmntAll>(&()).await;
    way.call::<mount::v1::Null>(&()).await;
    let _ = way.call::<mount::v1::Mnt>(&path()).await;
    let _ = way.call::<mount::v1::Mnt>(&none()).await;
    way.call::<mount::v1::Dump>(&()).await;
    way.call::<mount::v1::Exports>(&()).await;
    way.call::<mount::v1::Umnt>(&path()).await;
    way.call::<mount::v1::UmntAll>(&()).await;
    root
}

async fn rpcbind(way: &mut Way) {
    let mapping = Mapping { program: 0x2000_0001, version: 1, protocol: 6, port: 700 };
    let binding = Binding {
        program: 0x2000_0001,
        version: 1,
        netid: b"tcp"[..].into(),
        address: b"0.0.0.0.2.188"[..].into(),
        owner: b"somebody"[..].into(),
    };
    way.call::<v2::Null>(&()).await;
    way.call::<v2::Set>(&mapping).await;
    way.call::<v2::GetPort>(&mapping).await;
    way.call::<v2::Dump>(&()).await;
    way.call::<v2::Unset>(&mapping).await;
    way.call::<v3::Null>(&()).await;
    way.call::<v3::Set>(&binding).await;
    way.call::<v3::GetAddr>(&binding).await;
    way.call::<v3::Dump>(&()).await;
    way.call::<v3::GetTime>(&()).await;
    way.call::<v3::Unset>(&binding).await;
    way.call::<v4::Null>(&()).await;
    way.call::<v4::Set>(&binding).await;
    way.call::<v4::GetAddr>(&binding).await;
    way.call::<v4::GetVersAddr>(&binding).await;
    way.call::<v4::GetAddrList>(&binding).await;
    way.call::<v4::Dump>(&()).await;
    way.call::<v4::GetTime>(&()).await;
    way.call::<v4::Unset>(&binding).await;
}

/// Calls that are answered by the envelope alone.
async fn refusals(way: &mut Way) {
    for (program, version, procedure) in [(PROGRAM, 4, 0), (PROGRAM, 2, 0), (mount::PROGRAM, 3, 6)]
    {
        let to = ProcedureId::new(program, version, procedure);
        assert!(way.raw(to, &[]).await.is_err());
    }
}

#[test]
fn every_reply_is_understood_by_another_dissector() {
    let network = Namespace::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for sub in ["root", "state"] {
        std::fs::create_dir(dir.path().join(sub)).unwrap();
    }
    let capture = Capture::on(&network, "lo", "port 2049 or port 111");
    let options = local::Options::new(dir.path().join("root"), dir.path().join("state"));
    network.block_on(async || {
        let filesystem = Arc::new(LocalFs::open(options).unwrap());
        let config = Config::default()
            .with_listen("[::]:2049".parse().unwrap())
            .with_rpcbind(RpcbindMode::Embedded);
        let exports = vec![export(PATH, filesystem, open_rules())];
        let _server = TestServer::try_start(config, exports).await.unwrap();
        for ip in ["127.0.0.1", "::1"] {
            for tcp in [true, false] {
                let ip = ip.parse().unwrap();
                let mut way = Way::connect(tcp, SocketAddr::new(ip, 2049)).await;
                let root = mounts(&mut way).await;
                nfs(&mut way, &root).await;
                refusals(&mut way).await;
                rpcbind(&mut Way::connect(tcp, SocketAddr::new(ip, 111)).await).await;
            }
        }
    });
    let report = capture.dissected();
    let complaints: Vec<String> = report.complaints.iter().map(|c| c.to_string()).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));

    let answered: BTreeSet<(u32, u32, u32)> = report
        .messages
        .iter()
        .filter(|m| m.is_reply)
        .map(|m| (m.program, m.version, m.procedure))
        .collect();
    for procedure in 0..=21 {
        assert!(answered.contains(&(PROGRAM, 3, procedure)), "NFS {procedure}: {answered:?}");
    }
    for version in [1, 3] {
        for procedure in 0..=5 {
            assert!(answered.contains(&(mount::PROGRAM, version, procedure)), "MOUNT {procedure}");
        }
    }
    for (version, procedure) in [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (3, 3), (4, 9), (4, 11)] {
        let called = (wire::rpcbind::PROGRAM, version, procedure);
        assert!(answered.contains(&called), "rpcbind {version} {procedure}");
    }
}
