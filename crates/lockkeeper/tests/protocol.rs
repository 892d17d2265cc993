//! A program that embeds the server adds a protocol of its own to the client tracker, through the public
//! interface alone (B9.80).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::memory::MemoryFs;
use lockkeeper::store::{Durability, Embedded, EmbeddedSettings};
use lockkeeper::{
    Config, Control, Export, Exports, FileSystemId, HandleKey, LockConfig, Protocol, RpcbindMode,
    Rules, Server, ServerError, ServerExit, ServerHandle, TrackError, TrackedClient,
};
use tokio::task::JoinHandle;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
const WINDOW: Duration = Duration::from_secs(2);

struct Program {
    control: Control,
    handle: ServerHandle,
    serving: JoinHandle<Result<ServerExit, ServerError>>,
}

impl Program {
    async fn start(home: &Path) -> Self {
        let (store, run) = (home.join("store"), home.join("run"));
        let settings = EmbeddedSettings::new(store, run, Durability::Process).unwrap();
        let store = Box::new(Embedded::open(settings).unwrap());
        let mut locks = LockConfig { store, ..LockConfig::in_memory() };
        locks.config.window = Duration::from_secs(600);
        locks.config.windows.insert(lease(), WINDOW);
        let export = Export {
            id: 1,
            path: "/memory".into(),
            filesystem: Arc::new(MemoryFs::new(FileSystemId(1))),
            rules: Rules::default().into(),
        };
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let config = Config { listen, rpcbind: RpcbindMode::Off, ..Config::default() };
        let key = HandleKey::new(*b"sixteen bytes ok");
        let exports = Exports::new(vec![export]).unwrap();
        let server = Server::start(config, exports, key, locks).await.unwrap();
        let (control, handle) = (server.control(), server.handle());
        Self { control, handle, serving: tokio::spawn(server.run()) }
    }

    async fn stop(self) {
        let Self { control, handle, serving } = self;
        handle.stop();
        let _stopped = serving.await.unwrap().unwrap();
        drop(control);
    }

    async fn register(&self, protocol: &Protocol, name: &str, state: u32) {
        let registered = self.control.register_client(protocol, ADDRESS, name.as_bytes(), state);
        registered.await.unwrap();
    }

    async fn clients(&self, protocol: &Protocol) -> Vec<TrackedClient> {
        self.control.clients_of(protocol).await.unwrap()
    }

    /// Name, state, whether it is present, whether it is marked as crashed.
    async fn seen(&self, protocol: &Protocol) -> Vec<(String, u32, bool, bool)> {
        let row = |client: TrackedClient| {
            let name = String::from_utf8(client.name).unwrap();
            (name, client.incarnation, client.present, client.crashed)
        };
        self.clients(protocol).await.into_iter().map(row).collect()
    }
}

fn lease() -> Protocol {
    Protocol::new("lease").unwrap()
}

fn row(name: &str, state: u32, present: bool, crashed: bool) -> (String, u32, bool, bool) {
    (name.to_owned(), state, present, crashed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_adds_a_protocol_whose_clients_survive_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let (lease, other) = (lease(), Protocol::new("other").unwrap());
    let program = Program::start(home.path()).await;
    assert_eq!(program.control.awaits_clients(&lease).await, Ok(None), "a first start");
    program.register(&lease, "alice", 1).await;
    program.register(&lease, "bob", 1).await;
    program.register(&lease, "carol", 1).await;
    program.register(&lease, "alice", 2).await;
    // The same name in another protocol is another client.
    program.register(&other, "alice", 9).await;
    let gone = program.control.unregister_client(&lease, ADDRESS, b"carol");
    assert_eq!(gone.await, Ok(true));
    let here = [row("alice", 2, true, false), row("bob", 1, true, false)];
    assert_eq!(program.seen(&lease).await, here);
    let before = program.clients(&lease).await;
    program.stop().await;

    let program = Program::start(home.path()).await;
    let after = program.clients(&lease).await;
    let kept = |client: &TrackedClient| (client.address, client.registered_at_ms);
    assert!(after.iter().map(kept).eq(before.iter().map(kept)));
    let absent = [row("alice", 2, false, false), row("bob", 1, false, false)];
    assert_eq!(program.seen(&lease).await, absent);
    // Each protocol has its own window, which has not begun.
    let awaits = |protocol| program.control.awaits_clients(protocol);
    assert_eq!(awaits(&lease).await, Ok(Some(WINDOW)));
    assert_eq!(awaits(&other).await, Ok(Some(Duration::from_secs(600))));

    program.register(&lease, "alice", 2).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while awaits(&lease).await != Ok(None) {
        assert!(tokio::time::Instant::now() < deadline, "the window does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let marked = [row("alice", 2, true, false), row("bob", 1, false, true)];
    assert_eq!(program.seen(&lease).await, marked);
    assert_eq!(program.seen(&other).await, [row("alice", 9, false, false)]);
    assert!(awaits(&other).await.unwrap().unwrap() > Duration::from_secs(500));
    // It comes back late.
    program.register(&lease, "bob", 3).await;
    assert_eq!(program.seen(&lease).await[1], row("bob", 3, true, false));
    program.stop().await;
}

#[tokio::test]
async fn a_program_cannot_register_clients_of_the_server() {
    let home = tempfile::tempdir().unwrap();
    let program = Program::start(home.path()).await;
    for protocol in [Protocol::NLM, Protocol::NSM] {
        let refused = program.control.register_client(&protocol, ADDRESS, b"alice", 1).await;
        assert_eq!(refused, Err(TrackError::OwnProtocol));
        assert_eq!(program.clients(&protocol).await, []);
    }
    program.stop().await;
}
