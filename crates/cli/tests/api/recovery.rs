//! What an operator sees while a server recovers, and what a fence does.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use client::nfs::{Nfs, NfsError};
use client::{Connection, Locker, Options};
use wire::nfs3::{Handle, Stability};
use wire::nlm::Status;
use wire::nsm;

use crate::support::live::{Live, bytes, whole};

#[tokio::test]
async fn a_recovery_is_told_from_its_start_to_its_end() {
    let mut live = Live::start(&["--window", "60s"]);
    let (alice, a) = live.client("alice", "a.db").await;
    let (bob, b) = live.client("bob", "b.db").await;
    assert_eq!(alice.lock(&a, whole()).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&b, bytes(0, 9)).await.unwrap(), Status::Granted);
    live.kill();
    live.start_again();

    let status = live.get("/v1/status");
    assert_eq!(status["state"], "grace");
    assert_eq!(status["grace"]["expected_total"], 2);
    assert!(status["grace"]["remaining_seconds"].as_f64().unwrap() > 10.0);
    assert!(status["health"][0]["action"].as_str().unwrap().contains("lockkeeper grace end"));
    let page = live.get("/v1/locks?state=unconfirmed");
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["items"][0]["file"]["path"], "a.db", "its name is known after a restart too");
    assert_eq!(live.get("/v1/clients/alice")["state"], "recovering");

    let (alice, _) = live.client("alice", "a.db").await;
    assert_eq!(alice.reclaim(&a, whole()).await.unwrap(), Status::Granted);
    let grace = live.get("/v1/grace");
    assert_eq!(grace["expected"].as_array().unwrap().len(), 1);
    assert_eq!(grace["expected"][0]["client"]["name"], "bob");
    let (bob, _) = live.client("bob", "b.db").await;
    assert_eq!(bob.reclaim(&b, bytes(0, 9)).await.unwrap(), Status::Granted);
    assert_eq!(live.get("/v1/status")["state"], "serving");

    let events = live.get("/v1/events/recent?last=1000");
    let events = events.as_array().unwrap();
    let at = |kind: &str, client: &str| {
        let found = events.iter().position(|event| {
            event["kind"] == kind && (client.is_empty() || event["client"]["name"] == client)
        });
        found.unwrap_or_else(|| panic!("no {kind} {client} in {events:#?}"))
    };
    let story = [
        at("started", ""),
        at("grace-started", ""),
        at("reclaimed", "alice"),
        at("reclaimed", "bob"),
        at("grace-ended", ""),
    ];
    assert!(story.is_sorted(), "{events:#?}");
    // Each is told once, however often it is said.
    let told = events.iter().filter(|event| event["kind"] == "reclaimed").count();
    assert_eq!(told, 2);
}

#[tokio::test]
async fn a_fence_takes_locks_and_refuses_new_ones_and_survives_a_crash() {
    let mut live = Live::start(&["--window", "60s"]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    assert!(writes(&alice, &file).await.is_ok());
    let dry = live.ask("PUT", "/v1/clients/alice/fence?dry_run=true").json();
    assert_eq!((&dry["released"], &dry["client"]["fenced"]), (&1.into(), &false.into()));
    assert_eq!(live.get("/v1/status")["counts"]["locks"], 1);

    let done = live.ask("PUT", "/v1/clients/alice/fence").json();
    assert_eq!((&done["released"], &done["client"]["state"]), (&1.into(), &"fenced".into()));
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::DeniedNoLocks);
    assert!(writes(&alice, &file).await.is_err(), "its writes are refused too");
    let status = live.get("/v1/status");
    assert_eq!(status["counts"]["fenced"], 1);
    assert!(status["health"].to_string().contains("lockkeeper unfence alice"), "{status:#}");
    // Forgetting it would lift the fence.
    assert_eq!(live.ask("DELETE", "/v1/clients/alice").json()["code"], "busy");

    live.kill();
    live.start_again();
    let (alice, _) = live.client("alice", "a.db").await;
    assert_eq!(live.get("/v1/clients/alice")["fenced"], true);
    assert_ne!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    assert!(writes(&alice, &file).await.is_err(), "after a crash as well");
    assert_eq!(live.ask("DELETE", "/v1/clients/alice/fence").status, 200);
    assert!(writes(&alice, &file).await.is_ok());
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
}

#[tokio::test]
async fn two_clients_of_one_name_are_told_apart_by_id() {
    let live = Live::start(&[]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 0)).await.unwrap(), Status::Granted);
    let from_elsewhere = live.client_from("alice", "a.db", [127, 0, 0, 2].into()).await;
    assert_eq!(from_elsewhere.0.lock(&file, bytes(1, 1)).await.unwrap(), Status::Granted);
    let refused = live.ask("POST", "/v1/clients/alice/confirm-reboot?force=true");
    assert_eq!(refused.status, 409);
    let problem = refused.json();
    assert_eq!(problem["code"], "ambiguous-client");
    let clients = live.get("/v1/clients");
    let id = clients["items"][0]["id"].as_str().unwrap();
    assert!(problem["detail"].as_str().unwrap().contains(id), "{problem:#}");
    let confirm = format!("/v1/clients/{id}/confirm-reboot?force=true");
    assert_eq!(live.ask("POST", &confirm).status, 200);
    assert_eq!(live.get("/v1/locks")["total"], 1);
    // A fence holds for a machine, by its name.
    assert_eq!(live.ask("PUT", "/v1/clients/alice/fence").status, 200);
    assert_eq!(live.get("/v1/locks")["total"], 0);
}

async fn writes(client: &Locker, file: &[u8]) -> Result<(), NfsError> {
    let (nfs, file) = (Nfs(client.connection.clone()), Handle::from(file.to_vec()));
    nfs.write(&file, 0, "late".into(), Stability::FileSync).await.map(drop)
}

#[tokio::test]
async fn a_reboot_without_a_report_is_confirmed_only_by_force() {
    let live = Live::start(&[]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    let path = "/v1/clients/alice/confirm-reboot";
    let refused = live.ask("POST", path);
    assert_eq!((refused.status, &refused.json()["code"]), (409, &"no-report".into()));
    assert_eq!(live.get("/v1/clients/alice")["locks"], 1);
    let planned = live.ask("POST", &format!("{path}?dry_run=true"));
    assert_eq!((planned.status, &planned.json()["released"]), (200, &1.into()));
    let done = live.ask("POST", &format!("{path}?force=true"));
    assert_eq!((done.status, &done.json()["released"]), (200, &1.into()));
    assert_eq!(live.get("/v1/clients/alice")["locks"], 0);
}

/// Sends notices of alice's reboot to state 9 from another address, until one is answered.
async fn notices_from_elsewhere(live: &Live, limit: Duration) -> bool {
    let source: IpAddr = "127.0.0.2".parse().unwrap();
    let options = Options { source: Some(source), reserved_port: true, ..Options::default() };
    let connection = Connection::connect(live.nfs, &options.user(0, 0, &[])).await.unwrap();
    let connection = connection.with_timeout(Duration::from_secs(1));
    let notice = nsm::NotifyArgs { mon_name: b"alice"[..].into(), state: 9 };
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if connection.call::<nsm::Notify>(&notice).await.is_ok() {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_client_that_reboots_under_another_address_is_believed_with_roaming() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("lockkeeper.toml");
    std::fs::write(&config, "[nsm]\nroaming = true\n").unwrap();
    let live = Live::start(&["--window", "3s", "--config", config.to_str().unwrap()]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    drop(alice);
    let begun = Instant::now();
    assert!(notices_from_elsewhere(&live, Duration::from_secs(120)).await);
    assert!(begun.elapsed() >= Duration::from_secs(3), "a whole window");
    assert_eq!(live.get("/v1/clients/127.0.0.1")["locks"], 0);
    let (bob, _) = live.client("bob", "a.db").await;
    assert_eq!(bob.lock(&file, whole()).await.unwrap(), Status::Granted);
}

#[tokio::test]
async fn a_reboot_reported_from_another_address_names_roaming() {
    let live = Live::start(&["--window", "1s"]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    drop(alice);
    assert!(!notices_from_elsewhere(&live, Duration::from_secs(5)).await, "off by default");
    assert_eq!(live.get("/v1/clients/127.0.0.1")["locks"], 1);
    let status = live.get("/v1/status");
    let finding = &status["health"].as_array().unwrap().iter().find(|it| it["code"] == "LK107");
    let action = finding.unwrap()["action"].as_str().unwrap();
    assert!(action.contains("roaming = true in [nsm]"), "{action}");
}
