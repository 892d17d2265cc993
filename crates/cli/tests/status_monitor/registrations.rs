//! Registrations in the API and in the command `clients` (B8.60).

use serde_json::{Value, json};
use wire::nlm::Status;
use wire::nsm;

use super::*;

fn names(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn a_registration_is_shown_whole() {
    let (filer, theirs) = start("60s");
    theirs.block_on(async move || {
        let file = filer.file("a.db").await;
        let alice = locker(ALICE, "alice.example.org").await;
        assert_eq!(alice.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
        connect(CLIENT).await.call::<nsm::Mon>(&registration("carol", PROGRAM)).await.unwrap();
        let epoch = filer.get("/v1/status")["epoch"].clone();

        let page = filer.get("/v1/clients?kind=monitor");
        assert_eq!(names(&page), ["watcher-1"]);
        let shown = &page["items"][0];
        let at = |key: &str| shown[key].clone();
        assert_eq!((at("kind"), at("address")), (json!("monitor"), json!(CLIENT)));
        assert_eq!((at("monitored_name"), at("nsm_state")), (json!("carol"), json!(0)));
        let callback =
            json!({ "address": CLIENT, "program": 200_048, "version": 1, "procedure": 1 });
        assert_eq!((at("callback"), at("private")), (callback, json!("ab".repeat(16))));
        assert_eq!((at("epoch"), at("our_addresses")), (epoch.clone(), json!(["10.99.0.1"])));
        let since = at("registered_at");
        assert!(since.as_str().unwrap().starts_with("20"), "{since}");

        let page = filer.get("/v1/clients?kind=lock");
        assert_eq!(names(&page), ["alice.example.org"]);
        let shown = &page["items"][0];
        assert_eq!((&shown["kind"], &shown["private"]), (&json!("lock"), &Value::Null));
        let callback =
            json!({ "address": ALICE, "program": 100_024, "version": 1, "procedure": 6 });
        assert_eq!((&shown["callback"], &shown["epoch"]), (&callback, &epoch));
        assert_eq!((&shown["monitored_name"], &shown["nsm_state"]), (&shown["name"], &json!(3)));

        // The state of the watched host, once it is known.
        notify(CAROL, "carol", 77).await;
        let id = filer.get("/v1/clients?kind=monitor")["items"][0]["id"].clone();
        let id = id.as_str().unwrap();
        let shown = filer.command(&["clients", id]);
        for line in [
            "NSM: state 77, monitored",
            &format!(", epoch {epoch}\n"),
            "kind: monitor, of carol\n",
            "callback: program 200048 version 1 procedure 1 at 10.99.0.2\n",
            &format!("private: {}\n", "ab".repeat(16)),
        ] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
    });
}

#[test]
fn clients_are_filtered_by_kind_and_name() {
    let (filer, theirs) = start("60s");
    theirs.block_on(async move || {
        let file = filer.file("a.db").await;
        let alice = locker(ALICE, "alice.example.org").await;
        assert_eq!(alice.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
        let client = connect(CLIENT).await;
        for watched in ["carol", "alice"] {
            client.call::<nsm::Mon>(&registration(watched, PROGRAM)).await.unwrap();
        }
        for (query, expected) in [
            ("", &["alice.example.org", "watcher-1", "watcher-1"][..]),
            ("?kind=lock", &["alice.example.org"]),
            ("?kind=monitor", &["watcher-1", "watcher-1"]),
            // The client itself, and who monitors it.
            ("?name=Alice", &["alice.example.org", "watcher-1"]),
            ("?name=alice&kind=lock", &["alice.example.org"]),
            ("?name=watcher-1", &["watcher-1", "watcher-1"]),
            ("?name=carol.example.org", &["watcher-1"]),
            ("?name=ali", &[]),
        ] {
            let page = filer.get(&format!("/v1/clients{query}"));
            assert_eq!(names(&page), expected, "{query}");
        }
        assert_eq!(filer.ask("/v1/clients?kind=host").0, 400);
        let table = filer.command(&["clients", "--kind", "monitor", "--name", "carol"]);
        let rows: Vec<&str> = table.lines().skip(1).collect();
        assert_eq!(rows.len(), 1, "{table}");
        assert!(rows[0].contains(" monitor ") && rows[0].ends_with(" monitors carol"), "{table}");
        let table = filer.command(&["clients", "--kind", "lock"]);
        assert!(table.contains("alice.example.org") && !table.contains("watcher-1"), "{table}");
    });
}
