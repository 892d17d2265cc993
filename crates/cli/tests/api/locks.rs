//! Who holds this, since when, is it alive, and how do I free it.

use serde_json::Value;
use wire::nlm::{Access, Mode, Status};

use crate::support::live::{Live, bytes, whole};

fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["id"].as_str().unwrap().to_string()).collect()
}

#[tokio::test]
async fn a_lock_and_its_waiter_are_shown_with_names_and_the_lock_can_be_released() {
    let live = Live::start(&[]);
    let (alice, file) = live.client("alice", "a.db").await;
    let (bob, _) = live.client("bob", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 4095)).await.unwrap(), Status::Granted);
    assert_eq!(bob.wait(&file, bytes(0, 99)).await.unwrap(), Status::Blocked);

    let page = live.get("/v1/locks?path=a.db");
    let [held, waits] = &page["items"].as_array().unwrap()[..] else { panic!("{page:#}") };
    assert_eq!(held["client"]["name"], "alice");
    assert_eq!((&held["mode"], &held["state"]), (&"write".into(), &"held".into()));
    assert_eq!((held["start"].as_u64(), held["end"].as_u64()), (Some(0), Some(4095)));
    assert_eq!(held["file"]["path"], "a.db");
    assert!(held["age_seconds"].as_f64().unwrap() < 60.0);
    assert_eq!((&waits["state"], &waits["kind"]), (&"waiting".into(), &"waiter".into()));
    assert_eq!(waits["blocked_by"], held["id"]);

    // By its absolute path, by the client, and by a beginning of its id it is the same.
    let export = live.home.path().join("export/a.db");
    assert_eq!(ids(&live.get(&format!("/v1/locks?path={}", export.display()))), ids(&page));
    assert_eq!(ids(&live.get("/v1/locks?client=alice")), [held["id"].as_str().unwrap()]);
    assert_eq!(ids(&live.get("/v1/locks?state=waiting")), [waits["id"].as_str().unwrap()]);
    let id = held["id"].as_str().unwrap();
    assert_eq!(live.get(&format!("/v1/locks/{id}"))["client"]["name"], "alice");

    // A directory stands for what is below it, and for nothing beside it.
    let export = live.home.path().join("export");
    std::fs::create_dir(export.join("a")).unwrap();
    let (carol, deep) = live.client("carol", "a/deep.db").await;
    assert_eq!(carol.lock(&deep, whole()).await.unwrap(), Status::Granted);
    let below = live.get("/v1/locks?path=a");
    assert_eq!(below["items"].as_array().unwrap().len(), 1);
    assert_eq!(below["items"][0]["file"]["path"], "a/deep.db");
    assert_eq!(ids(&live.get(&format!("/v1/locks?path={}", export.display()))).len(), 3);
    assert_eq!(ids(&live.get("/v1/locks?path=a&client=alice")).len(), 0);

    // A waiter holds nothing that could be released.
    let refused = live.ask("DELETE", &format!("/v1/locks/{}", waits["id"].as_str().unwrap()));
    assert_eq!((refused.status, refused.json()["code"].as_str()), (409, Some("waiting")));

    let dry = live.ask("DELETE", &format!("/v1/locks/{id}?dry_run=true")).json();
    assert_eq!(dry["granted"][0]["client"]["name"], "bob");
    assert!(dry["warning"].as_str().unwrap().starts_with("alice "), "{dry:#}");
    assert_eq!(live.get("/v1/status")["counts"]["waiting"], 1, "a dry run changes nothing");

    let done = live.ask("DELETE", &format!("/v1/locks/{id}")).json();
    assert_eq!(done["lock"]["client"]["name"], "alice");
    assert_eq!(done["granted"][0]["client"]["name"], "bob");
    assert_eq!(done["granted"][0]["state"], "held");
    let gone = live.ask("DELETE", &format!("/v1/locks/{id}"));
    assert_eq!((gone.status, gone.json()["hint"].as_str()), (404, Some("lockkeeper locks")));
}

/// B8.51
#[tokio::test]
async fn a_path_may_begin_with_names_of_its_export_or_be_the_end_of_one() {
    let live = Live::start(&[]);
    for dir in ["a", "b"] {
        std::fs::create_dir(live.home.path().join("export").join(dir)).unwrap();
    }
    let (alice, file) = live.client("alice", "a/x.db").await;
    let (bob, other) = live.client("bob", "a/deep.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    assert_eq!(bob.lock(&other, whole()).await.unwrap(), Status::Granted);
    let held = ids(&live.get("/v1/locks?path=a/x.db"));
    assert_eq!(held.len(), 1);
    // As in /srv/projects, of which `projects/a.db` is a file.
    assert_eq!(ids(&live.get("/v1/locks?path=export/a/x.db")), held);
    assert_eq!(ids(&live.get("/v1/locks?path=export")).len(), 2);
    // The end of a path, at a separator, of one locked file.
    assert_eq!(ids(&live.get("/v1/locks?path=x.db")), held);
    for wrong in [".db", "/x.db", "export/x.db", "eep.db"] {
        let refused = live.ask("GET", &format!("/v1/locks?path={wrong}"));
        assert_eq!((refused.status, refused.json()["code"].as_str()), (404, Some("no-such-path")));
    }
    let (carol, second) = live.client("carol", "b/x.db").await;
    assert_eq!(carol.lock(&second, whole()).await.unwrap(), Status::Granted);
    let refused = live.ask("GET", "/v1/locks?path=x.db").json();
    assert_eq!(refused["code"], "ambiguous-path");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("export/a/x.db") && detail.contains("export/b/x.db"), "{detail}");
}

#[tokio::test]
async fn pages_of_locks_are_whole_and_in_order() {
    let live = Live::start(&[]);
    let (alice, file) = live.client("alice", "many").await;
    for start in 0..250 {
        let status = alice.lock(&file, bytes(start * 10, start * 10)).await.unwrap();
        assert_eq!(status, Status::Granted);
    }
    for filter in ["", "client=alice&", "path=many&", "state=held&"] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = live.get(&format!("/v1/locks?{filter}limit=60{after}"));
            assert_eq!(page["total"], 250);
            seen.extend(ids(&page));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 250, "{filter}");
    }
    let several = live.ask("GET", "/v1/locks/k1");
    assert!([404, 409].contains(&several.status), "{several:?}");
    for wrong in ["limit=0", "limit=1001", "after=x", "state=odd", "client=carol", "path=none"] {
        let answer = live.ask("GET", &format!("/v1/locks?{wrong}"));
        assert!((400..500).contains(&answer.status), "{wrong}: {answer:?}");
        let problem = answer.json();
        assert!(problem["code"].is_string() && problem["detail"].is_string(), "{problem:#}");
    }
    let wrong = live.ask("GET", "/v1/locks?client=alice&after=k1");
    assert_eq!(wrong.json()["code"], "wrong-cursor");
}

/// More than are looked at while the driver waits.
#[tokio::test]
async fn all_of_very_many_clients_are_counted_and_found() {
    const CLIENTS: u64 = 2_100;
    let live = Live::start(&[]);
    let (mut one, file) = live.client("one", "many").await;
    for client in 0..CLIENTS {
        one.machine = format!("machine-{client}").into();
        let status = one.lock(&file, bytes(client * 10, client * 10)).await.unwrap();
        assert_eq!(status, Status::Granted);
    }
    for last in [CLIENTS - 1, CLIENTS - 2] {
        let fence = format!("/v1/clients/machine-{last}/fence");
        assert_eq!(live.ask("PUT", &fence).status, 200);
    }
    let counts = &live.get("/v1/status")["counts"];
    assert_eq!((&counts["clients"], &counts["fenced"]), (&CLIENTS.into(), &2.into()));
    let metrics = live.ask("GET", "/metrics").body;
    let states = [("active", CLIENTS - 2), ("fenced", 2)];
    for (state, count) in states {
        let line = format!("\nlockkeeper_clients{{state=\"{state}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    assert!(metrics.contains(&format!("\nnsm_clients_registered {CLIENTS}\n")), "{metrics}");
}

#[tokio::test]
async fn a_share_is_shown_with_what_it_denies_and_can_be_released() {
    let live = Live::start(&[]);
    let (alice, file) = live.client("alice", "a.doc").await;
    let (bob, _) = live.client("bob", "a.doc").await;
    let granted = alice.share(&file, Access::Read, Mode::DenyWrite).await.unwrap();
    assert_eq!(granted, Status::Granted);
    assert_eq!(bob.share(&file, Access::Both, Mode::DenyNone).await.unwrap(), Status::Denied);
    for filter in ["", "?client=alice", "?path=a.doc", "?state=held"] {
        let page = live.get(&format!("/v1/locks{filter}"));
        let [share] = &page["items"].as_array().unwrap()[..] else { panic!("{page:#}") };
        assert_eq!((&share["kind"], &share["mode"]), (&"share".into(), &"read".into()));
        assert_eq!((&share["denies"], &share["end"]), (&"write".into(), &Value::Null));
        assert_eq!(share["file"]["path"], "a.doc");
    }
    let counts = &live.get("/v1/status")["counts"];
    assert_eq!((&counts["locks"], &counts["shares"]), (&0.into(), &1.into()));
    let id = ids(&live.get("/v1/locks")).remove(0);
    assert_eq!(live.ask("DELETE", &format!("/v1/locks/{id}")).status, 200);
    assert_eq!(bob.share(&file, Access::Both, Mode::DenyNone).await.unwrap(), Status::Granted);
}

#[tokio::test]
async fn hostile_names_are_escaped() {
    let live = Live::start(&[]);
    let (evil, file) = live.client("<b>\u{1b}[31m\u{202e}", "a.db").await;
    assert_eq!(evil.lock(&file, whole()).await.unwrap(), Status::Granted);
    let page = live.get("/v1/locks");
    let lock = &page["items"][0];
    assert_eq!(lock["client"]["name"], "<b>\\x1b[31m\\xe2\\x80\\xae");
    assert!(lock["end"].is_null(), "to the end of the file, however that grows");
    // It is found by the name as it is shown.
    let name = "%3Cb%3E%5Cx1b%5B31m%5Cxe2%5Cx80%5Cxae";
    assert_eq!(ids(&live.get(&format!("/v1/locks?client={name}"))).len(), 1);
}

#[tokio::test]
async fn one_address_that_invents_names_leaves_room_for_others() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("lockkeeper.toml");
    std::fs::write(&config, "[limits]\nclients_per_address = 3\nlocks_per_address = 4\n").unwrap();
    let live = Live::start(&["--config", config.to_str().unwrap()]);
    let mut lockers = Vec::new();
    for n in 0..5 {
        let (locker, file) = live.client(&format!("host{n}"), &format!("{n}.db")).await;
        let expected = if n < 3 { Status::Granted } else { Status::DeniedNoLocks };
        assert_eq!(locker.lock(&file, whole()).await.unwrap(), expected, "host{n}");
        lockers.push((locker, file));
    }
    // Three hosts hold one lock each; a fourth lock fits, whichever of them takes it.
    let (locker, file) = &lockers[0];
    let (_, other) = &lockers[4];
    assert_eq!(locker.lock(other, bytes(0, 9)).await.unwrap(), Status::Granted);
    assert_eq!(locker.lock(other, bytes(20, 29)).await.unwrap(), Status::DeniedNoLocks);
    assert_eq!(locker.lock(file, bytes(0, 9)).await.unwrap(), Status::Granted, "it adds none");
    let elsewhere = "127.0.0.2".parse().unwrap();
    let (bob, file) = live.client_from("bob", "bob.db", elsewhere).await;
    assert_eq!(bob.lock(&file, whole()).await.unwrap(), Status::Granted);
    let events = live.get("/v1/events/recent?last=1000").to_string();
    assert!(events.contains("`clients_per_address` in [limits]"), "{events}");
}

#[tokio::test]
async fn machines_with_one_name_behind_one_address_are_a_health_error() {
    let live = Live::start(&[]);
    let (mut one, a) = live.client("clone", "a.db").await;
    let (mut other, b) = live.client("clone", "b.db").await;
    (one.state, other.state) = (3, 21);
    assert_eq!(one.lock(&a, bytes(0, 9)).await.unwrap(), Status::Granted);
    assert_eq!(other.lock(&b, bytes(0, 9)).await.unwrap(), Status::Granted);
    let codes = |status: Value| -> Vec<String> {
        let findings = status["health"].as_array().unwrap().iter();
        findings.map(|found| format!("{} {}", found["code"], found["severity"])).collect()
    };
    let alternates = r#""LK170" "error""#.to_owned();
    assert!(!codes(live.get("/v1/status")).contains(&alternates), "one change may be a reboot");
    assert_eq!(one.lock(&a, bytes(20, 29)).await.unwrap(), Status::Granted, "nothing is refused");
    assert!(codes(live.get("/v1/status")).contains(&alternates));
    assert_eq!(live.get("/v1/clients/clone")["suspect"], true);
    let events = live.get("/v1/events/recent?last=1000").to_string();
    assert_eq!(events.matches("states-alternate").count(), 1, "{events}");
}
