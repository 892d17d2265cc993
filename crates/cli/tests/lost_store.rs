//! The store is removed, or an older one put in its place: the copy of the roster in the state
//! directory tells, and the server does not believe the store.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use server::roster_copy::RosterFile;
use support::PROGRAM;
use support::live::{Live, whole};
use testbed::process;
use testbed::wait::until_blocking;
use wire::nlm::Status;

const OPTIONS: &[&str] = &["--durability", "power", "--window", "60s"];

/// The copy of the roster, once it has this host.
fn wait_for_copy_of(live: &Live, name: &str) {
    let copy = live.home.path().join("state/roster");
    let name: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    until_blocking("the copy has the host", || {
        fs::read_to_string(&copy).is_ok_and(|text| text.contains(&name))
    });
}

fn copy_directory(from: &Path, to: &Path) {
    process::run(Command::new("cp").arg("-a").arg(from).arg(to)).unwrap();
}

/// B4.100, B4.101, B4.102
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_gone_stops_the_start_until_it_is_declared_lost() {
    let mut live = Live::start(OPTIONS);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    wait_for_copy_of(&live, "alice");
    let before = live.get("/v1/status");
    assert_eq!(before["store"]["exactness"], "exact");
    live.kill();
    let store = live.home.path().join("state/store");
    fs::remove_dir_all(&store).unwrap();

    let (code, said) = live.fail_to_start();
    assert_eq!(code, Some(1), "{said}");
    for word in ["1 client", "not mounted", "lockkeeper store copy", "--store-lost"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // The attempt has created an empty store, which does not count.
    assert_eq!(live.fail_to_start().0, Some(1));

    live.start_again_with(&["--store-lost"]);
    let status = live.get("/v1/status");
    let (store, epoch) = (&status["store"], status["epoch"].as_u64().unwrap());
    assert_eq!((&store["exactness"], &store["exact"]), (&"open".into(), &false.into()));
    assert!(epoch > before["epoch"].as_u64().unwrap() + 1, "{status:#}");
    let codes: Vec<_> = status["health"].as_array().unwrap().iter().map(|f| &f["code"]).collect();
    assert!(codes.iter().any(|code| *code == "LK180"), "{status:#}");
    assert!(live.log().contains("--store-lost"), "{}", live.log());
    let shown = Command::new(PROGRAM).args(["status", "--server"]).arg(live.socket()).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    assert!(shown.contains("open"), "{shown}");
    // The server may crash again before the grace period is over.
    live.kill();
    live.start_again();
}

/// B4.101: with durability "power" the store itself is taken to be complete.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_store_that_was_put_back_is_not_believed() {
    let mut live = Live::start(OPTIONS);
    let home = live.home.path().to_owned();
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    copy_directory(&home.join("state/store"), &home.join("backup"));
    let (bob, other) = live.client("bob", "b.db").await;
    assert_eq!(bob.lock(&other, whole()).await.unwrap(), Status::Granted);
    wait_for_copy_of(&live, "bob");
    live.kill();
    fs::remove_dir_all(home.join("state/store")).unwrap();
    copy_directory(&home.join("backup"), &home.join("state/store"));
    // The machine was restored too: the mark is gone.
    fs::remove_dir_all(home.join("run")).unwrap();

    live.start_again();
    let status = live.get("/v1/status");
    assert_eq!(status["store"]["exactness"], "open", "{status:#}");
    let codes: Vec<_> = status["health"].as_array().unwrap().iter().map(|f| &f["code"]).collect();
    assert!(codes.iter().any(|code| *code == "LK180"), "{status:#}");
    assert!(live.log().contains("older than"), "{}", live.log());
}

/// B4.103
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_stops_the_start_and_a_memory_store_has_none() {
    let mut live = Live::start(OPTIONS);
    live.stop();
    let copy = live.home.path().join("state/roster");
    let text = fs::read_to_string(&copy).unwrap();
    fs::write(&copy, text.replacen("epoch ", "epoch 1", 1)).unwrap();
    let (code, said) = live.fail_to_start();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("roster") && said.contains("damaged"), "{said}");
    fs::write(&copy, text).unwrap();
    live.start_again();
    live.stop();

    let mut live = Live::start(&["--store", "memory:"]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    live.kill();
    live.start_again();
    assert!(!live.home.path().join("state/roster").exists());
    assert_eq!(live.get("/v1/status")["store"]["exactness"], "exact");
}

/// B4.92: the copy names alice, so that she is notified; she and a client that no copy has get
/// their locks back, and neither gets the other's.
#[tokio::test(flavor = "multi_thread")]
async fn clients_reclaim_what_the_lost_store_had() {
    let mut live = Live::start(OPTIONS);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    wait_for_copy_of(&live, "alice");
    let (bob, other) = live.client("bob", "b.db").await;
    assert_eq!(bob.lock(&other, whole()).await.unwrap(), Status::Granted);
    live.kill();
    // As if bob had registered after the last copy.
    remove_from_copy(&live, "bob");
    fs::remove_dir_all(live.home.path().join("state/store")).unwrap();

    live.start_again_with(&["--store-lost"]);
    let grace = live.get("/v1/grace");
    assert_eq!((&grace["active"], &grace["exactness"]), (&true.into(), &"open".into()));
    let clients = live.get("/v1/clients");
    assert_eq!(clients["items"][0]["name"], "alice", "{clients:#}");
    let notices = live.get("/v1/notices");
    assert!(notices.to_string().contains("alice"), "{notices:#}");
    let (alice, _) = live.client("alice", "a.db").await;
    let (bob, _) = live.client("bob", "b.db").await;
    assert_eq!(bob.lock(&file, whole()).await.unwrap(), Status::DeniedGracePeriod);
    assert_eq!(alice.reclaim(&file, whole()).await.unwrap(), Status::Granted);
    assert_eq!(bob.reclaim(&other, whole()).await.unwrap(), Status::Granted);
    assert_eq!(bob.reclaim(&file, whole()).await.unwrap(), Status::Denied);
    // Not exact before the grace has ended, whatever happens.
    live.kill();
    live.start_again();
    assert_eq!(live.get("/v1/status")["store"]["exactness"], "open");
}

fn remove_from_copy(live: &Live, name: &str) {
    let file = RosterFile::new(live.home.path().join("state/roster"));
    let mut copy = file.read().unwrap().unwrap();
    copy.hosts.retain(|host| host.name.to_string() != name);
    file.write(&copy).unwrap();
}
