//! A server in a network of its own that can be restarted: its store and its files outlive it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use keeper::bytes::Name;
use keeper::change::{Change, Snapshot};
use keeper::config::Verify;
use lockkeeper_server::{Config, LockConfig, RpcbindMode};
use store::{CommitOutcome, Durability, Embedded, EmbeddedSettings, Store, StoreError, Token};
use tempfile::TempDir;
use testbed::namespace::Namespace;
use tokio::sync::oneshot;
use vfs::memory::MemoryFs;
use vfs::{Export, FileKey, FileSystem};
use wire::nfs3::Handle;

use super::{LIMIT, PATH, TestServer, export, key, memory, open_rules};

/// One of the names by which clients know it.
pub const NAME: &str = "nfs.example.org";

/// Where it listens: the first address of [`Namespace::pair`].
pub fn server_address() -> SocketAddr {
    ([10, 99, 0, 1], 2049).into()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub struct RestartableServer {
    network: Namespace,
    dir: Arc<TempDir>,
    filesystem: Arc<MemoryFs>,
    require_reserved_ports: bool,
    simulated_crash: bool,
    /// How reboot notices are verified, from the next start on.
    pub verify: Verify,
    /// Which addresses were replaced, from the next start on.
    pub formerly: BTreeMap<IpAddr, IpAddr>,
    running: Option<ServerThread>,
}

struct ServerThread {
    end: oneshot::Sender<Ending>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A clean stop.
    Stop,
    /// Requests under way are cut short, and all connections are closed.
    Crash,
}

impl RestartableServer {
    pub fn start(network: Namespace) -> Self {
        Self::with(network, false)
    }

    /// One that SM_SIMU_CRASH ends; only [`Ending::Crash`] may follow it.
    pub fn that_simulates_crashes(network: Namespace) -> Self {
        Self::build(network, false, true)
    }

    pub fn with(network: Namespace, require_reserved_ports: bool) -> Self {
        Self::build(network, require_reserved_ports, false)
    }

    fn build(network: Namespace, require_reserved_ports: bool, simulated_crash: bool) -> Self {
        let (dir, filesystem) = (Arc::new(tempfile::tempdir().unwrap()), memory());
        let mut server = Self {
            network,
            dir,
            filesystem,
            require_reserved_ports,
            simulated_crash,
            verify: Verify::SignsOfLife,
            formerly: BTreeMap::new(),
            running: None,
        };
        server.launch();
        server
    }

    fn locks(dir: &TempDir) -> (LockConfig, RevocableStore) {
        let (store, run) = (dir.path().join("store"), dir.path().join("run"));
        let settings = EmbeddedSettings::new(store, run, Durability::Process).unwrap();
        let embedded = Embedded::open(settings).unwrap();
        let store = RevocableStore(Arc::new(Mutex::new(Some(embedded))));
        let mut locks = LockConfig::new(Box::new(store.clone()));
        locks.config.names.push(Name::from(NAME));
        (locks, store)
    }

    fn launch(&mut self) {
        let (ready, is_ready) = mpsc::channel();
        let (end, ends) = oneshot::channel();
        let (dir, filesystem) = (self.dir.clone(), self.filesystem.clone());
        let (require_reserved_ports, verify) = (self.require_reserved_ports, self.verify);
        let simulated_crash = self.simulated_crash;
        let formerly = self.formerly.clone();
        let thread = self.network.spawn(async move || {
            let config = Config::default()
                .with_listen("[::]:2049".parse().unwrap())
                .with_rpcbind(RpcbindMode::Embedded)
                .with_simulated_crash(simulated_crash);
            let rules = open_rules().with_require_reserved_ports(require_reserved_ports);
            let exports = vec![export(PATH, filesystem, rules)];
            let (locks, store) = Self::locks(&dir);
            let mut locks = locks.with_require_reserved_ports(require_reserved_ports);
            locks.config.verify = verify;
            locks.config.formerly = formerly;
            let server = TestServer::try_start_with(config, exports, locks).await.unwrap();
            ready.send(()).unwrap();
            match ends.await.unwrap_or(Ending::Crash) {
                Ending::Stop => {
                    server.stop();
                    server.ended().await;
                }
                // Nothing is written or sent from here on: the runtime ends with this closure.
                Ending::Crash => {
                    drop(store.0.lock().unwrap().take());
                    std::mem::forget(server);
                }
            }
        });
        is_ready.recv_timeout(LIMIT).expect("the server did not start");
        self.running = Some(ServerThread { end, thread });
    }

    pub fn network(&self) -> &Namespace {
        &self.network
    }

    /// As a restart, with an address of its network replaced by another meanwhile.
    pub fn renumber(&mut self, ending: Ending, old: &str, new: &str) {
        self.end(ending);
        self.network.ip(&format!("addr del {old}/24 dev eth0")).unwrap();
        self.network.ip(&format!("addr add {new}/24 dev eth0")).unwrap();
        self.launch();
    }

    /// Ends the server and starts it again.
    pub fn restart(&mut self, ending: Ending) {
        self.end(ending);
        self.launch();
    }

    fn end(&mut self, ending: Ending) {
        if let Some(ServerThread { end, thread }) = self.running.take() {
            let _ = end.send(ending);
            thread.join().unwrap();
        }
    }

    /// The handle of the export's root, computed without a call.
    pub fn root(&self) -> Handle {
        let file = FileKey { filesystem: self.filesystem.id(), object: self.filesystem.root() };
        let id = Export::id_of_path(PATH.as_bytes());
        Handle(key().sign(id, &file).as_bytes().to_vec().into())
    }
}

impl Drop for RestartableServer {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.end(Ending::Stop);
        }
    }
}

/// A store that can be closed while the server uses it: what a crash does.
#[derive(Clone)]
struct RevocableStore(Arc<Mutex<Option<Embedded>>>);

impl RevocableStore {
    fn with<T>(&self, work: impl FnOnce(&mut Embedded) -> T) -> Result<T, StoreError> {
        let mut store = self.0.lock().unwrap();
        let store = store.as_mut().ok_or_else(|| StoreError::SyncFailed("revoked".into()))?;
        Ok(work(store))
    }
}

impl Store for RevocableStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.with(|store| store.load())?
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        self.with(|store| store.commit(changes, token)).unwrap_or_else(CommitOutcome::NotWritten)
    }

    fn is_quick(&self, changes: &[Change]) -> bool {
        self.with(|store| store.is_quick(changes)).unwrap_or(false)
    }

    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.with(|store| store.last_token())?
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.with(|store| store.clear(force))?
    }
}

/// Time enough for a forbidden effect to show.
pub const MOMENT: Duration = Duration::from_millis(700);
