//! What is seen of servers that share a database.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use client::mount;
use client::nfs::{Nfs, NfsError};
use testbed::postgres::{Options, Server as Database, Stop};
use testbed::server::Server;
use testbed::wait;
use wire::nfs3::Status;

use crate::setup::Setup;

/// Lets the trial use a database of its own.
async fn database(setup: &mut Setup) -> Database {
    let options = Options { tcp: true, ..Options::default() };
    let started = tokio::task::spawn_blocking(move || Database::start_with(&options).unwrap());
    let database = started.await.unwrap();
    setup.set("store.url", &format!("'{}'", database.tcp_url().unwrap()));
    // The servers of a pair must agree on it.
    setup.set("export.filesystem_id", "7");
    database
}

fn script(setup: &Setup, text: &str) {
    let hook = setup.home.path().join("hook");
    fs::write(&hook, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A server of a database that demands a password.
pub async fn password(mut setup: Setup) -> String {
    let database = database(&mut setup).await;
    database.psql("ALTER ROLE postgres PASSWORD 'secret'").unwrap();
    database.admit(&["host all all 127.0.0.1/32 scram-sha-256"]).unwrap();
    fs::write(setup.home.path().join("password"), "secret\n").unwrap();
    let mut command = setup.command();
    command.env("HOME", setup.home.path()).env_remove("PGPASSFILE");
    let mut server = Server::spawn(&mut command, &setup.home.path().join("log")).unwrap();
    if server.wait_until_serving().is_ok() { "serves" } else { "ended" }.into()
}

pub async fn lease(mut setup: Setup) -> String {
    let database = database(&mut setup).await;
    let _server = setup.start();
    database.psql("SELECT lease_ms FROM lockkeeper.seat").unwrap()
}

/// The promise is doubted, because this database has no replica.
pub async fn failover(mut setup: Setup) -> String {
    let _database = database(&mut setup).await;
    let mut server = Server::spawn(&mut setup.command(), &setup.home.path().join("log")).unwrap();
    server.wait_until_serving().unwrap();
    let doubt = "although failover = \"synchronous\" is configured";
    if server.output().contains(doubt) { "warned" } else { "not warned" }.into()
}

pub async fn hook(mut setup: Setup) -> String {
    let _database = database(&mut setup).await;
    let mark = setup.home.path().join("mark");
    script(&setup, &format!("touch {}", mark.display()));
    let _server = setup.start();
    if mark.exists() { "run" } else { "not run" }.into()
}

/// A hook that takes a second.
pub async fn slow_hook(mut setup: Setup) -> String {
    let _database = database(&mut setup).await;
    script(&setup, "sleep 1");
    setup.set("standby.on_takeover", "'HOME/hook'");
    let mut server = Server::spawn(&mut setup.command(), &setup.home.path().join("log")).unwrap();
    match server.wait_until_serving() {
        Ok(()) => "serves".into(),
        Err(_) => {
            assert!(server.output().contains("timed out after 200ms"), "{}", server.output());
            "ended".into()
        }
    }
}

/// A change of a file while the database is down.
pub async fn writes(mut setup: Setup) -> String {
    let database = database(&mut setup).await;
    setup.set("standby.lease", "'600ms'");
    let server = setup.start();
    let nfs = Nfs(server.connect(0, 0).await);
    let root = mount::mount(&nfs.0, setup.text("export.path")).await.unwrap();
    // A standby is assumed until the first heartbeat.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    tokio::task::block_in_place(|| database.stop(Stop::Immediate).unwrap());
    wait::until("the lease is stale", || server.server.output().contains("locks wait")).await;
    match nfs.create(&root, b"new", Default::default()).await {
        Ok(_) => "changed".into(),
        Err(NfsError::Status(Status::Jukebox)) => "later".into(),
        Err(error) => error.to_string(),
    }
}
