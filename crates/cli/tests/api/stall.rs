//! A failing store: every request is answered in bounded time, and no answer is invented.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::small_disk::run_test_inside;
use wire::nlm::Status;

use crate::support::PROGRAM;
use crate::support::live::{Live, bytes};

const DISK: &str = "LOCKKEEPER_SMALL_STATE";

#[test]
fn while_the_store_stalls_every_question_is_answered() {
    let disk = tempfile::tempdir().unwrap();
    run_test_inside("stall::with_a_full_disk", disk.path(), "8m", DISK).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, on a small disk"]
async fn with_a_full_disk() {
    let state = std::path::PathBuf::from(std::env::var(DISK).unwrap()).join("state");
    let live = Live::start(&["--store", &format!("embedded:{}", state.display())]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 0)).await.unwrap(), Status::Granted);
    assert_eq!(live.get("/v1/status")["counts"]["locks"], 1);
    let mut fill = fs::File::create(state.parent().unwrap().join("fill")).unwrap();
    while fill.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    let asking = tokio::spawn(async move {
        for byte in 1..2000 {
            if alice.lock(&file, bytes(2 * byte, 2 * byte)).await.ok() != Some(Status::Granted) {
                return;
            }
        }
    });
    let start = Instant::now();
    while live.get("/v1/status")["state"] != "stalled" {
        assert!(start.elapsed() < Duration::from_secs(60), "the store does not stall");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = live.get("/v1/status");
    assert!(status["store"]["stalled_seconds"].is_number(), "{status:#}");
    assert_ne!(status["counts"]["locks"], 0, "what was seen last is told, not zeros");
    assert_eq!(status["health"][0]["code"], "LK104");
    // Of another time, and said so (B8.70).
    assert!(status["counts_age_seconds"].as_f64().is_some_and(|age| age > 0.0), "{status:#}");
    let (finding, place) = (&status["health"][0], format!("df -h {}", state.display()));
    assert!(finding["action"].as_str().unwrap().starts_with(&place), "{finding:#}");
    let cause = status["store"]["stall_reason"].as_str().unwrap();
    assert!(cause.contains("cannot be written"), "{cause}");
    assert!(finding["status"].as_str().unwrap().ends_with(cause), "{finding:#}");
    let shown = Command::new(PROGRAM).args(["status", "--server"]).arg(live.socket()).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    let locks = shown.lines().find(|line| line.starts_with("  locks: "));
    assert!(locks.is_some_and(|line| line.contains("s ago)")), "{shown}");
    let mut probe = Command::new(PROGRAM);
    probe.args(["status", "--exit-code", "--server"]).arg(live.socket());
    assert_eq!(probe.output().unwrap().status.code(), Some(1));
    let questions = [
        ("GET", "/v1/locks"),
        ("GET", "/v1/locks/k1"),
        ("GET", "/v1/clients"),
        ("GET", "/v1/clients/alice"),
        ("GET", "/v1/grace"),
        ("GET", "/v1/notices"),
        ("DELETE", "/v1/locks/k1"),
        ("PUT", "/v1/clients/alice/fence"),
        ("POST", "/v1/grace/end"),
        ("GET", "/ready"),
    ];
    for (method, path) in questions {
        let start = Instant::now();
        let answer = live.ask(method, path);
        assert_eq!(answer.status, 503, "{method} {path}: {}", answer.body);
        assert_eq!(answer.json()["code"], "unavailable", "{method} {path}");
        assert!(start.elapsed() < Duration::from_secs(15), "{method} {path}");
    }
    assert_eq!(live.ask("GET", "/health").status, 200);
    let metrics = live.ask("GET", "/metrics").body;
    let stalled =
        metrics.lines().find(|line| line.starts_with("lockkeeper_store_stalled_seconds "));
    assert!(stalled.is_some_and(|line| !line.ends_with(" 0.0")), "{stalled:?}");

    // With room again, all goes on.
    drop(fill);
    fs::remove_file(state.parent().unwrap().join("fill")).unwrap();
    let status =
        live.wait_for("/v1/status", "serving again", |status| status["state"] == "serving");
    assert!(status["counts_age_seconds"].is_null() && status["store"]["stall_reason"].is_null());
    assert_eq!(live.ask("GET", "/v1/locks").status, 200);
    asking.abort();
}
