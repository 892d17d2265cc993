//! A program with a protocol of its own, here called `lease`, whose clients are kept in the server's
//! client tracker: they survive a restart, and those that do not come back within the protocol's
//! recovery window are marked.
//!
//! ```sh
//! cargo run --example lease_clients -- /tmp/lease worker-1 worker-2
//! cargo run --example lease_clients -- /tmp/lease worker-2
//! ```
//!
//! The second run still has worker-1, and tells after five seconds that it did not come back.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::memory::MemoryFs;
use lockkeeper::store::{Durability, Embedded, EmbeddedSettings};
use lockkeeper::{
    Config, Export, Exports, FileSystemId, HandleKey, LockConfig, Protocol, RpcbindMode, Rules,
    Server,
};

/// How long a client of this protocol has to reconnect.
const WINDOW: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let home = PathBuf::from(arguments.next().ok_or("usage: lease_clients DIRECTORY [CLIENT...]")?);
    let lease = Protocol::new("lease").ok_or("not a name of a protocol")?;
    let settings = EmbeddedSettings::new(home.join("store"), home.join("run"), Durability::Power)?;
    let store = Box::new(Embedded::open(settings)?);
    let mut locks = LockConfig { store, ..LockConfig::in_memory() };
    locks.config.windows.insert(lease.clone(), WINDOW);

    let export = Export {
        id: 1,
        path: "/memory".into(),
        filesystem: Arc::new(MemoryFs::new(FileSystemId(1))),
        rules: Rules::default().into(),
    };
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let config = Config { listen, rpcbind: RpcbindMode::Off, ..Config::default() };
    let key = HandleKey::new(*b"sixteen bytes ok");
    let server = Server::start(config, Exports::new(vec![export])?, key, locks).await?;
    let (control, handle) = (server.control(), server.handle());
    let serving = tokio::spawn(server.run());

    // A real program registers a client when it connects; its address is that of the connection.
    for name in arguments {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        control.register_client(&lease, address, name.as_bytes(), 1).await?;
    }
    while control.awaits_clients(&lease).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for client in control.clients_of(&lease).await? {
        let name = String::from_utf8_lossy(&client.name);
        let state = if client.crashed { "did not come back" } else { "is here" };
        println!("{name} at {} {state}", client.address);
    }
    handle.stop();
    let _stopped = serving.await??;
    Ok(())
}
