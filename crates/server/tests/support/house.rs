//! A server in a network of its own that can be restarted: what it stored and the files that it
//! serves outlive it.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use keeper::bytes::Name;
use keeper::change::{Change, Snapshot};
use keeper::config::Verify;
use lockkeeper_server::{Config, Locks, RpcbindMode};
use store::{Committed, Durability, Embedded, Settings, Store, StoreError, Token};
use tempfile::TempDir;
use tokio::sync::oneshot;
use vfs::memory::MemoryFs;
use vfs::{Export, FileKey, FileSystem, Rules};
use wire::nfs3::Handle;

use super::network::Network;
use super::{PATH, PATIENCE, Running, export, key, memory, open_rules};

/// Where [`Network::pair`] puts it.
pub const SERVER: &str = "10.99.0.1:2049";
/// By this name some clients know it.
pub const NAME: &str = "nfs.example.org";

pub fn server() -> SocketAddr {
    SERVER.parse().unwrap()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub struct House {
    pub network: Network,
    dir: Arc<TempDir>,
    filesystem: Arc<MemoryFs>,
    pub reserved_ports: bool,
    /// What a reboot notice needs, from the next start on.
    pub verify: Verify,
    running: Option<Up>,
}

struct Up {
    end: oneshot::Sender<Ending>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A clean stop.
    Stop,
    /// As by a crash: whatever was under way is cut short, all connections are closed.
    Crash,
}

impl House {
    /// Starts the server.
    pub fn open(network: Network) -> Self {
        Self::with(network, false)
    }

    pub fn with(network: Network, reserved_ports: bool) -> Self {
        let (dir, filesystem) = (Arc::new(tempfile::tempdir().unwrap()), memory());
        let verify = Verify::SignsOfLife;
        let mut house = Self { network, dir, filesystem, reserved_ports, verify, running: None };
        house.start();
        house
    }

    fn locks(dir: &TempDir) -> (Locks, Loan) {
        let (store, run) = (dir.path().join("store"), dir.path().join("run"));
        let settings = Settings::new(store, run, Durability::Process).unwrap();
        let loan = Loan(Arc::new(Mutex::new(Some(Embedded::open(settings).unwrap()))));
        let mut locks = Locks { store: Box::new(loan.clone()), ..Locks::in_memory() };
        locks.config.names.push(Name::from(NAME));
        (locks, loan)
    }

    fn start(&mut self) {
        let (ready, is_ready) = mpsc::channel();
        let (end, ends) = oneshot::channel();
        let (dir, filesystem) = (self.dir.clone(), self.filesystem.clone());
        let (reserved_ports, verify) = (self.reserved_ports, self.verify);
        let thread = self.network.spawn(async move || {
            let config = Config {
                listen: "[::]:2049".parse().unwrap(),
                rpcbind: RpcbindMode::Embedded,
                ..Config::default()
            };
            let rules = Rules { reserved_ports, ..open_rules() };
            let exports = vec![export(PATH, filesystem, rules)];
            let (locks, loan) = Self::locks(&dir);
            let mut locks = Locks { reserved_ports, ..locks };
            locks.config.verify = verify;
            let server = Running::try_start_with(config, exports, locks).await.unwrap();
            ready.send(()).unwrap();
            match ends.await.unwrap_or(Ending::Crash) {
                Ending::Stop => {
                    server.stop();
                    server.ended().await;
                }
                // Nothing is written any more, and nobody is told: the runtime ends with this.
                Ending::Crash => {
                    drop(loan.0.lock().unwrap().take());
                    std::mem::forget(server);
                }
            }
        });
        is_ready.recv_timeout(PATIENCE).expect("the server did not start");
        self.running = Some(Up { end, thread });
    }

    /// Ends the server and starts it again.
    pub fn restart(&mut self, ending: Ending) {
        self.end(ending);
        self.start();
    }

    pub fn end(&mut self, ending: Ending) {
        if let Some(Up { end, thread }) = self.running.take() {
            let _ = end.send(ending);
            thread.join().unwrap();
        }
    }

    /// The handle of the export's root, without asking for it.
    pub fn root(&self) -> Handle {
        let file = FileKey { filesystem: self.filesystem.id(), object: self.filesystem.root() };
        let id = Export::id_of_path(PATH.as_bytes());
        Handle(key().seal(id, &file).as_bytes().to_vec().into())
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.end(Ending::Stop);
        }
    }
}

/// A store that can be taken away in the middle of everything.
#[derive(Clone)]
struct Loan(Arc<Mutex<Option<Embedded>>>);

impl Loan {
    fn with<T>(&self, work: impl FnOnce(&mut Embedded) -> T) -> Result<T, StoreError> {
        let mut store = self.0.lock().unwrap();
        let store = store.as_mut().ok_or_else(|| StoreError::SyncFailed("taken away".into()))?;
        Ok(work(store))
    }
}

impl Store for Loan {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        self.with(|store| store.load())?
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> Committed {
        self.with(|store| store.commit(changes, token)).unwrap_or_else(Committed::NotWritten)
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

/// Long enough for what must not happen to happen.
pub const MOMENT: Duration = Duration::from_millis(700);
