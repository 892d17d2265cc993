//! What a caller without rights learns and can cause: any user of this machine reaches the TCP address.

use std::net::IpAddr;

use client::nfs::Nfs;
use client::{Connection, Options};
use wire::nfs3::{Handle, Stability};
use wire::nlm::Status;
use wire::rpc::Credential;

use crate::support::live::{Live, bytes, whole};

const NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
const SECRET: &str = "salaries-2026.ods";

/// B8.74
#[tokio::test]
async fn paths_of_locked_files_are_for_operators() {
    let live = Live::start(&[]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(live.home.path(), open).unwrap();
    let (alice, file) = live.client("alice", SECRET).await;
    assert_eq!(alice.lock(&file, bytes(0, 9)).await.unwrap(), Status::Granted);
    let (bob, _) = live.client("bob", SECRET).await;
    assert_eq!(bob.wait(&file, whole()).await.unwrap(), Status::Blocked);
    let lock = live.get("/v1/locks?client=alice")["items"][0].clone();
    assert_eq!(lock["file"]["path"], SECRET);
    assert_ne!(lock["owner_tag"], "");
    let id = lock["id"].as_str().unwrap();

    let one = format!("/v1/locks/{id}");
    let pages = [
        "/v1/locks",
        "/v1/locks?client=alice",
        "/v1/locks?state=waiting",
        &one,
        "/v1/clients",
        "/v1/clients/alice",
        "/v1/status",
        "/v1/grace",
        "/v1/notices",
        "/v1/events/recent?last=1000",
        "/metrics",
    ];
    let stranger = |path: &str| live.ask_web("GET", path, &[]);
    let user =
        |path: &str| live.curl(NOBODY, &["-X", "GET"], &format!("http://localhost{path}"), true);
    for path in pages {
        for (who, answer) in [("tcp", stranger(path)), ("user", user(path))] {
            assert_eq!(answer.status, 200, "{who} {path}");
            assert!(!answer.body.contains("salaries"), "{who} {path}: {}", answer.body);
        }
    }
    let seen = stranger("/v1/locks").json();
    assert_eq!(seen["total"], 2);
    for item in seen["items"].as_array().unwrap() {
        assert_eq!((&item["file"]["key"], &item["owner_tag"]), (&lock["file"]["key"], &"".into()));
        assert!(item["file"]["shown"].as_str().unwrap().starts_with("file "), "{item}");
    }
    // Nor is it an oracle: right and wrong guesses are answered alike.
    let refused = |path: &str| {
        let answers = [stranger(path), user(path)];
        answers.map(|answer| (answer.status, answer.body))
    };
    let (right, wrong) = (format!("/v1/locks?path={SECRET}"), "/v1/locks?path=none.ods");
    assert_eq!(refused(&right), refused(wrong));
    let answer = stranger(&right);
    assert_eq!((answer.status, &answer.json()["code"]), (403, &"forbidden".into()));
    assert!(answer.json()["hint"].as_str().unwrap().contains("Bearer"), "{answer:?}");

    let token = format!("Authorization: Bearer {}", live.token());
    for path in ["/v1/locks", &right, &one] {
        let answer = live.ask_web("GET", path, &["-H", &token]);
        assert!(answer.body.contains(SECRET), "{path}: {answer:?}");
        assert!(live.ask("GET", path).body.contains(SECRET), "{path}");
    }
    assert_eq!(stranger("/v1/status").json()["paths_withheld"], true);
    assert_eq!(live.get("/v1/status")["paths_withheld"], false);
}

async fn writes(live: &Live, from: [u8; 4], machine: &str, file: &[u8]) -> bool {
    let mut options = Options { source: Some(IpAddr::from(from)), ..Options::default() };
    options = options.user(1, 1, &[]);
    if let Credential::Sys(sys) = &mut options.credential {
        sys.machine = machine.as_bytes().to_vec().into();
    }
    let nfs = Nfs(Connection::connect(live.nfs, &options).await.unwrap());
    let file = Handle(file.to_vec().into());
    nfs.write(&file, 0, b"x".to_vec().into(), Stability::FileSync).await.is_ok()
}

/// B8.71
#[tokio::test]
async fn a_fenced_machine_evades_neither_by_a_name_nor_by_an_address() {
    let mut live = Live::start(&[]);
    let (here, there) = ([127, 0, 0, 2], [127, 0, 0, 3]);
    let (alice, file) = live.client_from("alice", "a.db", here.into()).await;
    assert_eq!(alice.lock(&file, bytes(0, 9)).await.unwrap(), Status::Granted);
    let (other, _) = live.client_from("alice.example.com", "a.db", there.into()).await;
    assert_eq!(other.lock(&file, bytes(20, 29)).await.unwrap(), Status::Granted);
    let (bob, _) = live.client_from("bob", "a.db", here.into()).await;
    assert_eq!(bob.lock(&file, bytes(40, 49)).await.unwrap(), Status::Granted);
    let (carol, _) = live.client_from("carol", "a.db", [127, 0, 0, 4].into()).await;

    let plan = live.ask("PUT", "/v1/clients/alice/fence?dry_run=true").json();
    let names = |list: &serde_json::Value| -> Vec<String> {
        let items = list.as_array().unwrap().iter();
        items.map(|item| format!("{}@{}", item["name"], item["address"])).collect()
    };
    let machine = [r#""alice"@"127.0.0.2""#, r#""alice.example.com"@"127.0.0.3""#];
    assert_eq!(names(&plan["hits"]["machine"]), machine, "{plan:#}");
    assert_eq!(names(&plan["hits"]["neighbours"]), [r#""bob"@"127.0.0.2""#], "{plan:#}");
    assert_eq!(plan["hits"]["addresses"].to_string(), r#"["127.0.0.2","127.0.0.3"]"#);
    assert_eq!(plan["released"], 2);
    let done = live.ask("PUT", "/v1/clients/alice/fence").json();
    assert_eq!(done["released"], 2, "{done:#}");

    for round in ["at once", "after a crash"] {
        assert!(!writes(&live, here, "mallory", &file).await, "another name, {round}");
        assert!(!writes(&live, there, "mallory", &file).await, "the other address, {round}");
        assert!(!writes(&live, [127, 0, 0, 9], "ALICE", &file).await, "a new address, {round}");
        assert!(writes(&live, [127, 0, 0, 4], "carol", &file).await, "{round}");
        let (alias, _) = live.client_from("mallory", "a.db", here.into()).await;
        assert_ne!(alias.lock(&file, bytes(60, 69)).await.unwrap(), Status::Granted, "{round}");
        let (moved, _) = live.client_from("alice", "a.db", [127, 0, 0, 9].into()).await;
        assert_ne!(moved.lock(&file, bytes(60, 69)).await.unwrap(), Status::Granted, "{round}");
        if round == "at once" {
            assert_eq!(carol.lock(&file, bytes(0, 29)).await.unwrap(), Status::Granted);
            live.kill();
            live.start_again();
        }
    }
    assert_eq!(live.ask("DELETE", "/v1/clients/alice/fence").status, 200);
    assert!(writes(&live, there, "alice", &file).await);
}
