//! Authorisation of reads and writes: by user and group over the socket, by token over TCP.

use std::process::Command;
use std::time::{Duration, Instant};

use wire::nlm::Status;

use crate::support::live::{Answer, Live, whole};

const NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Every request that changes something. The locks and clients named do not exist.
const WRITES: &[(&str, &str)] = &[
    ("DELETE", "/v1/locks/kzzz"),
    ("PUT", "/v1/clients/nobody-there/fence"),
    ("DELETE", "/v1/clients/nobody-there/fence"),
    ("POST", "/v1/clients/nobody-there/notify"),
    ("POST", "/v1/clients/nobody-there/confirm-reboot"),
    ("DELETE", "/v1/clients/nobody-there"),
    ("POST", "/v1/grace/end"),
    ("POST", "/v1/reload"),
];

const READS: &[&str] = &[
    "/v1/status",
    "/v1/exports",
    "/v1/clients",
    "/v1/locks",
    "/v1/grace",
    "/v1/notices",
    "/v1/events/recent",
    "/metrics",
    "/openapi.json",
    "/",
];

/// For all, from everywhere.
const PROBES: &[&str] = &["/health", "/ready"];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn over_socket(live: &Live, before: &[&str], method: &str, path: &str) -> Answer {
    live.curl(before, &["-X", method], &format!("http://localhost{path}"), true)
}

/// Lets other users reach the socket: the temporary directory is private at first.
fn open_the_way(live: &Live) {
    use std::os::unix::fs::PermissionsExt as _;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(live.home.path(), open).unwrap();
}

#[test]
fn over_the_socket_everybody_reads_and_root_writes() {
    let live = Live::start(&[]);
    open_the_way(&live);
    for path in READS {
        assert_eq!(live.ask("GET", path).status, 200, "{path}");
    }
    for (method, path) in WRITES {
        let answer = live.ask(method, path);
        assert_ne!(answer.status, 403, "{method} {path}: {answer:?}");
    }
    assert!(is_root(), "the rest of this test takes on other users: run it as root");
    for path in READS {
        assert_eq!(over_socket(&live, NOBODY, "GET", path).status, 200, "{path}");
    }
    for (method, path) in WRITES {
        let answer = over_socket(&live, NOBODY, method, path);
        assert_eq!(answer.status, 403, "{method} {path}");
        let problem = answer.json();
        assert_eq!(problem["code"], "forbidden");
        assert!(problem["hint"].as_str().unwrap().contains("usermod"), "{problem:#}");
    }
}

#[test]
fn over_the_socket_members_of_the_group_write() {
    assert!(is_root(), "this test makes a group: run it as root");
    change_users("groupadd", &["--force", "--system", "lockkeeper"]);
    let live = Live::start(&[]);
    open_the_way(&live);
    let gid = Command::new("getent").args(["group", "lockkeeper"]).output().unwrap().stdout;
    let gid = String::from_utf8(gid).unwrap().split(':').nth(2).unwrap().to_string();
    let member = ["setpriv", "--reuid=65534", &format!("--regid={gid}"), "--clear-groups"];
    for (method, path) in WRITES {
        let answer = over_socket(&live, &member, method, path);
        assert_ne!(answer.status, 403, "{method} {path}: {answer:?}");
    }
    let events = live.get("/v1/events/recent");
    let reload = events.as_array().unwrap().iter().rfind(|event| event["kind"] == "reloaded");
    assert_eq!(reload.unwrap()["by"], "nobody (uid 65534)");
}

/// Retries: another test may hold the lock on the user database.
fn change_users(program: &str, arguments: &[&str]) {
    let start = Instant::now();
    loop {
        let done = Command::new(program).args(arguments).output().unwrap();
        if done.status.success() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{program}: {done:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A user that exists only during one test.
struct Somebody {
    name: String,
    uid: String,
}

impl Somebody {
    fn new() -> Self {
        let name = format!("lk-test-{}", std::process::id());
        let made = Self { name, uid: String::new() };
        change_users("useradd", &["--system", "--no-create-home", &made.name]);
        let uid = Command::new("id").args(["-u", &made.name]).output().unwrap().stdout;
        Self { name: made.name.clone(), uid: String::from_utf8(uid).unwrap().trim().into() }
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        if !self.uid.is_empty() {
            let _ = Command::new("userdel").arg(&self.name).output();
        }
    }
}

#[test]
fn who_joins_or_leaves_the_group_soon_may_or_may_not_write() {
    assert!(is_root(), "this test makes a user: run it as root");
    let somebody = Somebody::new();
    change_users("groupadd", &["--force", "--system", "lockkeeper"]);
    let live = Live::start(&[]);
    open_the_way(&live);
    let uid = format!("--reuid={}", somebody.uid);
    let them = ["setpriv", &uid, "--regid=65534", "--clear-groups"];
    let becomes = |refused: bool| {
        let start = Instant::now();
        while (over_socket(&live, &them, "DELETE", "/v1/locks/kzzz").status == 403) != refused {
            assert!(start.elapsed() < Duration::from_secs(25), "never refused: {refused}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    becomes(true);
    change_users("usermod", &["-a", "-G", "lockkeeper", &somebody.name]);
    becomes(false);
    change_users("usermod", &["-G", "", &somebody.name]);
    becomes(true);
}

#[test]
fn over_tcp_everybody_on_this_host_reads_and_the_token_writes() {
    let live = Live::start(&[]);
    for path in READS {
        assert_eq!(live.ask_web("GET", path, &[]).status, 200, "{path}");
    }
    let right = format!("Authorization: Bearer {}", live.token());
    let wrong =
        "Authorization: Bearer 0000000000000000000000000000000000000000000000000000000000000000";
    for (method, path) in WRITES {
        for header in ["X-Nothing: 1", wrong, "Authorization: Basic cm9vdDpyb290"] {
            let answer = live.ask_web(method, path, &["-H", header]);
            assert_eq!(answer.status, 403, "{method} {path} {header}");
            assert!(answer.json()["hint"].as_str().unwrap().contains("Bearer"), "{answer:?}");
        }
        let answer = live.ask_web(method, path, &["-H", &right]);
        assert_ne!(answer.status, 403, "{method} {path}: {answer:?}");
    }
}

#[test]
fn a_page_of_another_site_cannot_read_through_a_browser_here() {
    let live = Live::start(&[]);
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1"]
    {
        let header = format!("Host: {host}");
        for path in READS {
            let answer = live.ask_web("GET", path, &["-H", &header]);
            assert_eq!(answer.status, 403, "{host} {path}");
        }
        for path in PROBES {
            assert_eq!(live.ask_web("GET", path, &["-H", &header]).status, 200, "{host} {path}");
        }
    }
    let answer = live.ask_web("GET", "/v1/status", &["-H", "Host: localhost:1234"]);
    assert_eq!(answer.status, 200);
    let page = live.curl(&[], &["-i"], &format!("http://{}/", live.web), false);
    let page = page.body.to_ascii_lowercase();
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(!page.contains("access-control-allow-origin"), "{page}");
}

#[test]
fn an_address_that_others_reach_says_nothing_without_the_token() {
    let live = Live::start(&["--admin", "0.0.0.0:0"]);
    let right = format!("Authorization: Bearer {}", live.token());
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", live.web.port());
    for path in READS {
        assert_eq!(live.curl(&[], &[], &url(path), false).status, 403, "{path}");
        assert_eq!(live.curl(&[], &["-H", &right], &url(path), false).status, 200, "{path}");
    }
    for path in PROBES {
        assert_eq!(live.curl(&[], &[], &url(path), false).status, 200, "{path}");
    }
}

#[tokio::test]
async fn every_action_is_an_event_with_its_author() {
    let mut live = Live::start(&["--window", "60s"]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    live.kill();
    live.start_again();
    let right = format!("Authorization: Bearer {}", live.token());
    let id = live.get("/v1/locks")["items"][0]["id"].as_str().unwrap().to_string();
    let actions = [
        ("POST", "/v1/clients/alice/notify".to_string(), "notify-asked"),
        ("POST", "/v1/grace/end".into(), "grace-ended"),
        ("DELETE", format!("/v1/locks/{id}"), "released"),
        ("POST", "/v1/clients/alice/confirm-reboot?force=true".into(), "rebooted"),
        ("PUT", "/v1/clients/alice/fence".into(), "fenced"),
        ("DELETE", "/v1/clients/alice/fence".into(), "unfenced"),
        ("POST", "/v1/reload".into(), "reloaded"),
    ];
    for (method, path, kind) in actions {
        let done = match method {
            "PUT" => live.ask_web(method, &path, &["-H", &right]),
            _ => live.ask(method, &path),
        };
        assert_eq!(done.status, 200, "{method} {path}: {}", done.body);
        let events = live.get("/v1/events/recent?last=3");
        let event = events.as_array().unwrap().iter().rfind(|event| event["kind"] == kind);
        let by = event.unwrap_or_else(|| panic!("{kind} is not in {events:#}"))["by"].as_str();
        let expected = if method == "PUT" { "token from 127.0.0.1" } else { "root (uid 0)" };
        assert_eq!(by, Some(expected), "{kind}");
    }
    // A client with a pending restart notice cannot be forgotten.
    let refused = live.ask("DELETE", "/v1/clients/alice");
    assert_eq!(refused.json()["code"], "busy");
    let (bob, file) = live.client("bob", "b.db").await;
    assert_eq!(bob.lock(&file, whole()).await.unwrap(), Status::Granted);
    assert_eq!(bob.unlock(&file, whole()).await.unwrap(), Status::Granted);
    assert_eq!(live.ask("DELETE", "/v1/clients/bob").status, 200);
    let last = &live.get("/v1/events/recent?last=1")[0];
    assert_eq!((&last["kind"], &last["by"]), (&"forgotten".into(), &"root (uid 0)".into()));
    assert_eq!(live.ask("GET", "/v1/clients/bob").json()["code"], "no-such-client");
}
