//! How notification ends after a restart, and who is expected in grace: the API, the command and the
//! log agree.

use std::fs;
use std::process::Command;
use std::time::Duration;

use testbed::peer::{Answer, Host, RpcbindKind, script};
use testbed::wait;
use tokio::time::sleep;
use wire::nlm::{Status, v4};
use wire::nsm;

use crate::support::PROGRAM;
use crate::support::live::{Live, whole};

const SM_NOTIFY: u32 = 6;

fn events(live: &Live, kind: &str) -> Vec<String> {
    let events = live.get("/v1/events/recent?last=1000");
    let of_kind = events.as_array().unwrap().iter().filter(|event| event["kind"] == kind);
    of_kind.map(|event| event["text"].as_str().unwrap().to_owned()).collect()
}

fn notifications(live: &Live, result: &str) -> String {
    let series = format!("nsm_notifications_total{{result=\"{result}\"}} ");
    let text = live.ask("GET", "/metrics").body;
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("no {series} in {text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_has_everything_back_is_neither_told_again_nor_reported() {
    let alice = "127.0.0.45".parse().unwrap();
    let mut host = Host::bind(alice, 111, RpcbindKind::Full).await;
    // It hears every notice and answers none.
    host.tcp(nsm::PROGRAM, 1, script(|_| Answer::Nothing)).await;
    let mut live = Live::start(&["--window", "60s"]);
    let (locker, file) = live.client_from("alice", "a.db", alice).await;
    assert_eq!(locker.lock(&file, whole()).await.unwrap(), Status::Granted);
    live.kill();
    live.start_again();
    let notices = || host.calls().iter().filter(|call| call.procedure == SM_NOTIFY).count();
    wait::until_blocking("a notice arrives", || notices() > 0);

    // The attempt is still under way.
    let (locker, _) = live.client_from("alice", "a.db", alice).await;
    assert_eq!(locker.reclaim(&file, whole()).await.unwrap(), Status::Granted);
    wait::until_blocking("notification ends", || !events(&live, "notification-ended").is_empty());
    let heard = notices();
    let started = notifications(&live, "started");
    // Beyond the time that an attempt has, and beyond the next two repeats.
    sleep(Duration::from_secs(8)).await;

    assert_eq!(notices(), heard, "it is told again");
    assert_eq!(notifications(&live, "started"), started);
    assert_eq!(notifications(&live, "failed"), "0");
    assert_eq!(events(&live, "notice-failed"), Vec::<String>::new());
    let status = live.get("/v1/status");
    assert!(!status["health"].to_string().contains("LK102"), "{status:#}");
    let ended = events(&live, "notification-ended");
    let [line] = &ended[..] else { panic!("{ended:?}") };
    assert!(line.starts_with("notification ended after "), "{line}");
    assert!(line.ends_with(" s: 1 client told, 0 answered, 0 failed"), "{line}");
    let log = fs::read_to_string(live.home.path().join("log")).unwrap();
    assert_eq!(log.matches(line.as_str()).count(), 1, "{log}");
}

#[tokio::test]
async fn a_host_with_unmonitored_locks_is_not_expected() {
    let mut live = Live::start(&["--window", "60s"]);
    let (alice, a) = live.client("alice", "a.db").await;
    let (bob, b) = live.client("bob", "b.db").await;
    assert_eq!(alice.lock(&a, whole()).await.unwrap(), Status::Granted);
    let unmonitored = bob.lock_args(&b, whole(), true);
    let taken = bob.connection.call::<v4::NmLock>(&unmonitored).await.unwrap();
    assert_eq!(taken.status, Status::Granted);
    live.kill();
    live.start_again();

    let grace = live.get("/v1/grace");
    assert_eq!((&grace["expected_total"], &grace["missing"]), (&1.into(), &1.into()), "{grace:#}");
    assert_eq!(grace["expected"][0]["client"]["name"], "alice");
    assert_eq!(grace["expected"][0]["unconfirmed"], 1);
    assert_eq!(live.get("/v1/status")["grace"]["expected_total"], 1);
    assert_ne!(live.get("/v1/clients/bob")["state"], "recovering");
    let command = Command::new(PROGRAM).arg("--server").arg(live.socket()).arg("grace").output();
    let shown = String::from_utf8(command.unwrap().stdout).unwrap();
    assert!(shown.contains("1 lock of 1 client not reclaimed"), "{shown}");
    assert!(shown.contains(" alice ") && !shown.contains(" bob "), "{shown}");
    let log = fs::read_to_string(live.home.path().join("log")).unwrap();
    assert!(log.contains("new locks wait for reclaims by 1 host"), "{log}");
}
