//! In-process servers and file systems for the tests of the server; peers and networks come from
//! `testbed`.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

pub mod capture;
pub mod clients;
pub mod instrumented;
pub mod restartable;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use lockkeeper_server::{
    BootError, Config, Control, Limits, LockConfig, RpcbindMode, RpcbindState, Server, ServerError,
    ServerExit, ServerHandle,
};
use tokio::task::JoinHandle;
use vfs::memory::MemoryFs;
use vfs::{Export, Exports, FileSystem, FileSystemId, HandleKey, Rules, Squash};
use wire::nfs3::{GetAttr, GetAttrArgs, Handle, NewAttributes, Stability};
use wire::rpc::Credential;

pub use instrumented::InstrumentedFs;
pub use testbed::peer::{RecordStream, call, reply, results, user};
pub use testbed::wait::{LIMIT, bounded, until};

/// The path of the export that most tests use.
pub const PATH: &str = "/export";

pub fn key() -> HandleKey {
    HandleKey::new([7; 16])
}

/// Credentials are believed, and any source port is accepted.
pub fn open_rules() -> Rules {
    Rules { squash: Squash::None, require_reserved_ports: false, ..Rules::default() }
}

pub fn memory() -> Arc<MemoryFs> {
    Arc::new(MemoryFs::new(FileSystemId(1)))
}

pub fn export(path: &'static str, filesystem: Arc<dyn FileSystem>, rules: Rules) -> Export {
    let id = Export::id_of_path(path.as_bytes());
    Export { id, path: path.into(), filesystem, rules: rules.into() }
}

/// On a free port of loopback, without rpcbind.
pub fn config(limits: Limits) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        rpcbind: RpcbindMode::Off,
        limits,
        ..Config::default()
    }
}

/// A server that stops when this is dropped.
pub struct TestServer {
    pub at: SocketAddr,
    pub addresses: Vec<SocketAddr>,
    pub rpcbind: RpcbindState,
    pub handle: ServerHandle,
    pub control: Control,
    task: Option<JoinHandle<Result<ServerExit, ServerError>>>,
}

impl TestServer {
    pub async fn try_start(config: Config, exports: Vec<Export>) -> Result<Self, BootError> {
        Self::try_start_with(config, exports, LockConfig::in_memory()).await
    }

    pub async fn try_start_with(
        config: Config,
        exports: Vec<Export>,
        locks: LockConfig,
    ) -> Result<Self, BootError> {
        let server = Server::start(config, Exports::new(exports).unwrap(), key(), locks).await?;
        Ok(Self {
            at: server.addresses()[0],
            addresses: server.addresses().to_vec(),
            rpcbind: server.rpcbind().clone(),
            handle: server.handle(),
            control: server.control(),
            task: Some(tokio::spawn(server.run())),
        })
    }

    /// One export with open rules.
    pub async fn start(filesystem: Arc<dyn FileSystem>, limits: Limits) -> Self {
        let exports = vec![export(PATH, filesystem, open_rules())];
        Self::try_start(config(limits), exports).await.unwrap()
    }

    pub async fn in_memory() -> Self {
        Self::start(memory(), Limits::default()).await
    }

    pub async fn stream(&self) -> RecordStream {
        RecordStream::connect(self.at).await
    }

    /// A connection with root's credential.
    pub async fn connect(&self) -> Connection {
        self.connect_as(&Options::default().user(0, 0, &[])).await
    }

    pub async fn connect_as(&self, options: &Options) -> Connection {
        Connection::connect(self.at, options).await.unwrap()
    }

    pub async fn nfs(&self) -> Nfs {
        Nfs(self.connect().await)
    }

    pub async fn root(&self) -> Handle {
        mount::mount(&self.connect().await, PATH).await.unwrap()
    }

    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Waits until the server fails by itself; the reason.
    pub async fn failed(mut self) -> String {
        let end = bounded("the end of the server", self.task.take().unwrap()).await;
        end.unwrap().unwrap_err().to_string()
    }

    /// Waits for the end, after a stop.
    pub async fn ended(mut self) {
        let end = bounded("the end of the server", self.task.take().unwrap()).await;
        assert_eq!(end.unwrap().unwrap(), ServerExit::Stopped);
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

/// A server, and a connection on which a GETATTR blocks until the file system releases it.
pub async fn with_a_held_request() -> (Arc<InstrumentedFs>, TestServer, RecordStream) {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let object = server.root().await;
    let mut stream = server.stream().await;
    filesystem.hold("attributes");
    stream.send_record(&call::<GetAttr>(1, &Credential::None, &GetAttrArgs { object })).await;
    until("GETATTR started", || filesystem.running("attributes") == 1).await;
    (filesystem, server, stream)
}

/// A file of this size that is full of bytes.
pub async fn file(nfs: &Nfs, root: &Handle, name: &str, size: usize) -> Handle {
    let new = NewAttributes { mode: Some(0o644), ..NewAttributes::default() };
    let file = nfs.create(root, name.as_bytes(), new).await.unwrap();
    let block = Bytes::from(vec![b'x'; size.min(1 << 20)]);
    let mut at = 0;
    while at < size {
        let piece = block.slice(..block.len().min(size - at));
        let written = nfs.write(&file, at as u64, piece, Stability::Unstable).await.unwrap();
        at += written.count as usize;
    }
    file
}

pub fn range(offset: u64, length: u64) -> wire::nlm::Range {
    wire::nlm::Range { offset, length }
}

/// Process `svid` of root on the host of this name.
pub async fn locker(at: SocketAddr, host_name: &str, svid: i32) -> Locker {
    Locker::connect(at, host_name, svid, &Options::default().user(0, 0, &[])).await.unwrap()
}
