//! What the tests share: a server on loopback, a line to it that sends any bytes, a file system
//! that can be watched and held, and networks of the test's own.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

pub mod capture;
pub mod daemons;
pub mod house;
pub mod line;
pub mod network;
pub mod scene;
pub mod scripted;
pub mod speaker;
pub mod watched;
pub mod world;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use lockkeeper_server::{
    BootError, Config, Ended, Failed, Limits, Locks, RpcbindMode, RpcbindState, Server, Stopper,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use vfs::memory::MemoryFs;
use vfs::{Export, Exports, FileSystem, FileSystemId, HandleKey, Rules, Squash};
use wire::nfs3::{GetAttr, GetAttrArgs, Handle, NewAttributes, Stability};
use wire::rpc::Credential;

pub use line::{Line, call, reply, results};
pub use watched::Watched;
pub use world::resident_kilobytes;

/// How long anything on this machine may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The path of the export that most tests use.
pub const PATH: &str = "/export";

pub fn key() -> HandleKey {
    HandleKey::new([7; 16])
}

/// Everybody as who they say they are, from any port.
pub fn open_rules() -> Rules {
    Rules { squash: Squash::None, reserved_ports: false, ..Rules::default() }
}

pub fn memory() -> Arc<MemoryFs> {
    Arc::new(MemoryFs::new(FileSystemId(1)))
}

pub fn export(path: &'static str, filesystem: Arc<dyn FileSystem>, rules: Rules) -> Export {
    Export { id: Export::id_of_path(path.as_bytes()), path: path.into(), filesystem, rules }
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
pub struct Running {
    pub at: SocketAddr,
    pub addresses: Vec<SocketAddr>,
    pub rpcbind: RpcbindState,
    pub stopper: Stopper,
    task: Option<JoinHandle<Result<Ended, Failed>>>,
}

impl Running {
    pub async fn try_start(config: Config, exports: Vec<Export>) -> Result<Self, BootError> {
        Self::try_start_with(config, exports, Locks::in_memory()).await
    }

    pub async fn try_start_with(
        config: Config,
        exports: Vec<Export>,
        locks: Locks,
    ) -> Result<Self, BootError> {
        let server = Server::start(config, Exports::new(exports).unwrap(), key(), locks).await?;
        Ok(Self {
            at: server.addresses()[0],
            addresses: server.addresses().to_vec(),
            rpcbind: server.rpcbind().clone(),
            stopper: server.stopper(),
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

    pub async fn line(&self) -> Line {
        Line::connect(self.at).await
    }

    /// A connection in the name of root.
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
        self.stopper.stop();
    }

    /// Waits until the server has ended by itself, and says why.
    pub async fn failed(mut self) -> String {
        let ended = timeout(PATIENCE, self.task.take().unwrap()).await;
        ended.expect("the server did not end").unwrap().unwrap_err().to_string()
    }

    /// Waits until the server has ended, after a stop.
    pub async fn ended(mut self) {
        let ended = timeout(PATIENCE, self.task.take().unwrap()).await;
        let ended = ended.expect("the server did not end").unwrap().unwrap();
        assert_eq!(ended, Ended::Stopped);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

/// A server, and a connection to it on which a GETATTR is being done until it is released.
pub async fn with_a_held_request() -> (Arc<Watched>, Running, Line) {
    let watched = Watched::new();
    let server = Running::start(watched.clone(), Limits::default()).await;
    let object = server.root().await;
    let mut line = server.line().await;
    watched.hold("attributes");
    line.send_record(&call::<GetAttr>(1, &Credential::None, &GetAttrArgs { object })).await;
    until("GETATTR was begun", || watched.running("attributes") == 1).await;
    (watched, server, line)
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

/// Looks again and again until it is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < give_up, "in vain waited until {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// What must come soon.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("in vain waited for {what}"),
    }
}

pub fn range(offset: u64, length: u64) -> wire::nlm::Range {
    wire::nlm::Range { offset, length }
}

/// A process of root on a machine of this name.
pub async fn locker(at: SocketAddr, machine: &str, svid: i32) -> Locker {
    Locker::connect(at, machine, svid, &Options::default().user(0, 0, &[])).await.unwrap()
}
