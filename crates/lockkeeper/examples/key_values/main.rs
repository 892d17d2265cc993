//! A tree of values, served read-write, whose locks survive the program: what a program has in
//! production. It keeps its key and its store in a directory, opens the admin API there, and prints
//! every lock as it comes and goes.
//!
//! ```sh
//! cargo run -p lockkeeper --features admin --example key_values -- /tmp/values
//! sudo target/debug/examples/key_values /var/lib/values 0.0.0.0:2049     # for others, with locks
//! curl --unix-socket /tmp/values/api http://localhost/v1/locks
//! ```

mod tree;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper::admin::{Admin, Facts, Settings};
use lockkeeper::secrets::{Secrets as _, SecretsInDirectory};
use lockkeeper::store::{Durability, Embedded, EmbeddedSettings};
use lockkeeper::{Config, Export, Exports, HandleKey, LockConfig, LockEvent, Rules, Server};

use tree::KeyValues;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let home = PathBuf::from(arguments.next().ok_or("usage: key_values DIRECTORY [ADDRESS]")?);
    let listen: SocketAddr = arguments.next().as_deref().unwrap_or("127.0.0.1:20490").parse()?;
    std::fs::create_dir_all(&home)?;

    let values = Arc::new(KeyValues::open(&home.join("values"))?);
    let rules = Rules::default().with_require_reserved_ports(false);
    let exports = Exports::new(vec![Export::new("/values", values).with_rules(rules)])?;

    // Locks are written before they are granted. After a restart, clients reclaim them.
    let settings = EmbeddedSettings::new(home.join("store"), home.join("run"), Durability::Power)?;
    let locks = LockConfig::new(Box::new(Embedded::open(settings)?))
        .with_roster_copy(home.join("roster"))
        .with_lock_hook(|event| match event {
            LockEvent::Granted(lock) => println!("{} has lock {}", lock.client, lock.id),
            LockEvent::Released(id) => println!("lock {id} is gone"),
            _ => {}
        });

    // The same key at each start: clients keep their handles.
    let key = SecretsInDirectory::new(&home).secret("handle-key")?;

    let config = Config::default().with_listen(listen);
    let server = Server::start(config, exports, HandleKey::new(key), locks).await?;
    println!("serving /values on {listen}; rpcbind: {:?}", server.rpcbind());

    let (reloads, _no_reload) = tokio::sync::mpsc::channel(1);
    let facts = Facts::new(env!("CARGO_PKG_VERSION"), "embedded");
    let facts = facts.with_node("values").with_durability("power");
    let settings = Settings::default().with_socket(home.join("api")).with_facts(facts);
    let mut admin = Admin::start(settings, reloads).await?;
    admin.serve(server.control());

    let handle = server.handle();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            handle.stop();
        }
    });
    let _stopped = server.run().await?;
    admin.close().await;
    Ok(())
}
