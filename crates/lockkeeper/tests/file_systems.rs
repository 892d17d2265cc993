//! File systems of embedding programs: what the defaults answer, and back ends that are asynchronous.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use client::nfs::{Nfs, NfsError};
use client::{Connection, Locker, Options};
use lockkeeper::{
    Attributes, BlockingMode, Bytes, Config, Context, DirEntry, Error, Export, ExportAccess,
    Exports, FileSystem, FileSystemId, HandleKey, Listing, LockConfig, LookupReply, ObjectId,
    ReadDirReply, ReadReply, Result, RpcbindMode, Rules, Server, ServerHandle, block_on,
};
use tokio::runtime::Handle;
use wire::nfs3::{
    Access, AccessArgs, Handle as FileHandle, LinkArgs, NewAttributes, SetAttr, SetAttrArgs,
    Stability, Status, SymLinkArgs,
};
use wire::nlm;

const ROOT: u64 = 1;
const FILE: u64 = 2;
const CONTENT: &[u8] = b"from afar";

/// The six methods that have no default. Each asks a back end that is asynchronous.
struct Remote {
    runtime: Handle,
    nonblocking: bool,
    /// Calls on a network thread that could not be answered there.
    refused: AtomicU32,
}

impl Remote {
    fn new(nonblocking: bool) -> Arc<Self> {
        Arc::new(Self { runtime: Handle::current(), nonblocking, refused: AtomicU32::new(0) })
    }

    fn fetch<T>(&self, context: &Context<'_>, value: T) -> Result<T> {
        let fetched = block_on(&self.runtime, async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            value
        });
        assert_eq!(fetched.is_err(), context.blocking == BlockingMode::Nonblocking);
        if fetched.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        fetched
    }
}

fn attributes(object: &ObjectId) -> Result<Attributes> {
    match object {
        root if *root == ROOT.into() => Ok(Attributes::directory(ROOT)),
        file if *file == FILE.into() => Ok(Attributes::regular(FILE, CONTENT.len() as u64)),
        _ => Err(Error::Stale),
    }
}

impl FileSystem for Remote {
    fn id(&self) -> FileSystemId {
        FileSystemId(7)
    }

    fn root(&self) -> ObjectId {
        ROOT.into()
    }

    fn supports_nonblocking(&self) -> bool {
        self.nonblocking
    }

    fn attributes(&self, context: &Context<'_>, object: &ObjectId) -> Result<Attributes> {
        self.fetch(context, attributes(object))?
    }

    fn lookup(&self, context: &Context<'_>, _: &ObjectId, name: &[u8]) -> Result<LookupReply> {
        let object = if name == b"file" { FILE } else { return Err(Error::NotFound) };
        let object = ObjectId::from(object);
        Ok(LookupReply { object, attributes: self.fetch(context, attributes(&object))?? })
    }

    fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        _: u32,
    ) -> Result<ReadReply> {
        let attributes = self.fetch(context, attributes(file))??;
        let data = Bytes::from_static(CONTENT).slice(CONTENT.len().min(offset as usize)..);
        Ok(ReadReply { data, eof: true, attributes: Some(attributes) })
    }

    fn read_dir(
        &self,
        context: &Context<'_>,
        _: &ObjectId,
        cookie: u64,
        _: [u8; 8],
        _: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ReadDirReply> {
        let mut listing = self.fetch(context, Listing::new(ROOT, ROOT))?;
        listing.push(b"file", FILE);
        let eof = listing.send(cookie, |_, _| None, sink);
        Ok(ReadDirReply { verifier: [0; 8], eof, attributes: None })
    }
}

struct Served {
    at: SocketAddr,
    handle: ServerHandle,
    nfs: Nfs,
    root: FileHandle,
    file: FileHandle,
}

async fn serve(filesystem: Arc<dyn FileSystem>, access: ExportAccess) -> Served {
    let rules = Rules::default().with_require_reserved_ports(false).with_access(access);
    let export = Export::new("/remote", filesystem).with_rules(rules);
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let config = Config::default().with_listen(listen).with_rpcbind(RpcbindMode::Off);
    let (exports, key) = (Exports::new(vec![export]).unwrap(), HandleKey::new([7; 16]));
    let server = Server::start(config, exports, key, LockConfig::in_memory()).await.unwrap();
    let (at, handle) = (server.addresses()[0], server.handle());
    tokio::spawn(server.run());
    let connection = connect(at).await;
    let root = client::mount::mount(&connection, "/remote").await.unwrap();
    let nfs = Nfs(connection);
    let file = nfs.lookup(&root, b"file").await.unwrap().object;
    Served { at, handle, nfs, root, file }
}

async fn connect(at: SocketAddr) -> Connection {
    Connection::connect(at, &Options::default().user(1000, 1000, &[])).await.unwrap()
}

fn status<T>(result: std::result::Result<T, NfsError>) -> Status {
    match result {
        Err(NfsError::Status(status)) => status,
        Err(other) => panic!("{other}"),
        Ok(_) => Status::Ok,
    }
}

/// What every changing procedure answers: one that all writable file systems have, and a hard link and
/// a symbolic link, which some lack.
async fn refusals(served: &Served) -> ([Status; 6], [Status; 2]) {
    let Served { nfs, root, file, .. } = served;
    let new = NewAttributes::default;
    let at = || wire::nfs3::DirOpArgs { dir: root.clone(), name: b"new".to_vec().into() };
    let set = SetAttrArgs { object: file.clone(), new: new(), guard: None };
    let link = LinkArgs { file: file.clone(), to: at() };
    let symlink = SymLinkArgs { at: at(), new: new(), text: b"to".to_vec().into() };
    let data = Bytes::from_static(b"x");
    (
        [
            status(nfs.write(file, 0, data, Stability::FileSync).await),
            status(nfs.create(root, b"new", new()).await),
            status(nfs.make_dir(root, b"new", new()).await),
            status(nfs.remove(root, b"file").await),
            status(nfs.remove_dir(root, b"file").await),
            status(nfs.call::<SetAttr, _, _>(&set).await),
        ],
        [
            status(nfs.call::<wire::nfs3::Link, _, _>(&link).await),
            status(nfs.call::<wire::nfs3::SymLink, _, _>(&symlink).await),
        ],
    )
}

#[tokio::test]
async fn a_file_system_of_six_methods_reads_locks_and_refuses_what_it_does_not_have() {
    let served = serve(Remote::new(false), ExportAccess::ReadWrite).await;
    let read = served.nfs.read(&served.file, 0, 100).await.unwrap();
    assert_eq!(&read.data[..], CONTENT);
    let args = AccessArgs { object: served.file.clone(), access: 0x3f };
    let access = served.nfs.call::<Access, _, _>(&args).await.unwrap();
    assert_eq!(access.access, 0x01, "read, by the mode 0644");
    let alice = Locker::new(connect(served.at).await, "alice", 1);
    let all = nlm::Range { offset: 0, length: 0 };
    assert_eq!(alice.lock(&served.file, all).await.unwrap(), nlm::Status::Granted);
    let expected = ([Status::RoFs; 6], [Status::NotSupp; 2]);
    assert_eq!(refusals(&served).await, expected);
    // Nothing is unstable, so there is nothing to commit.
    assert!(served.nfs.commit(&served.file).await.is_ok());
    served.handle.stop();

    let served = serve(Remote::new(false), ExportAccess::ReadOnly).await;
    assert_eq!(refusals(&served).await, ([Status::RoFs; 6], [Status::RoFs; 2]));
    served.handle.stop();
}

#[tokio::test]
async fn an_asynchronous_back_end_is_awaited_on_a_worker_and_refused_on_a_network_thread() {
    for nonblocking in [false, true] {
        let remote = Remote::new(nonblocking);
        let served = serve(remote.clone(), ExportAccess::ReadWrite).await;
        let read = served.nfs.read(&served.file, 0, 100).await.unwrap();
        assert_eq!(&read.data[..], CONTENT);
        assert_eq!(remote.refused.load(Ordering::Relaxed) > 0, nonblocking);
        served.handle.stop();
    }
}
