//! The metrics, judged by a Prometheus that scrapes a live server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;

use serde_json::Value;
use wire::nlm::Status;

use support::prometheus::Prometheus;

use support::live::{Live, bytes, whole};

/// The eight that are agreed upon (B8.8), and ours.
const NAMES: &[&str] = &[
    "nsm_requests_total",
    "nsm_request_duration_seconds_bucket",
    "nsm_clients_registered",
    "nsm_notifications_total",
    "nsm_notification_duration_seconds_count",
    "nsm_crashes_detected_total",
    "nsm_crash_cleanups_total",
    "nsm_locks_cleaned_on_crash_total",
    "lockkeeper_refusals_total",
    "lockkeeper_locks",
    "lockkeeper_shares",
    "lockkeeper_waiters",
    "lockkeeper_longest_wait_seconds",
    "lockkeeper_clients",
    "lockkeeper_lock_requests_total",
    "lockkeeper_lock_wait_seconds_bucket",
    "lockkeeper_store_commit_seconds_bucket",
    "lockkeeper_store_errors_total",
    "lockkeeper_store_stalled_seconds",
    "lockkeeper_grace_active",
    "lockkeeper_grace_remaining_seconds",
    "lockkeeper_reclaims_total",
    "lockkeeper_granted_callbacks_total",
    "lockkeeper_export_operations_total",
    "lockkeeper_export_bytes_total",
    "lockkeeper_export_errors_total",
    "lockkeeper_rpc_requests_total",
    "lockkeeper_rpc_duration_seconds_sum",
    "lockkeeper_build_info",
];

#[tokio::test]
async fn prometheus_understands_every_metric_and_they_say_what_happened() {
    let mut live = Live::start(&["--window", "60s"]);
    let (alice, file) = live.client("alice", "a.db").await;
    let (bob, _) = live.client("bob", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 9)).await.unwrap(), Status::Granted);
    live.kill();
    live.start_again();
    let prometheus = Prometheus::scraping(live.web);
    prometheus.wait_for("grace is seen", |p| p.value("lockkeeper_grace_active") == Some(1.0));
    assert_eq!(prometheus.value("lockkeeper_locks{state=\"unconfirmed\"}"), Some(1.0));
    let (alice, _) = live.client("alice", "a.db").await;
    assert_eq!(alice.reclaim(&file, bytes(0, 9)).await.unwrap(), Status::Granted);
    let (bob, _) = (live.client("bob", "a.db").await.0, bob);
    assert_eq!(bob.lock(&file, whole()).await.unwrap(), Status::Denied);
    assert_eq!(bob.wait(&file, whole()).await.unwrap(), Status::Blocked);
    prometheus.wait_for("the waiter is seen", |p| p.value("lockkeeper_waiters") == Some(1.0));
    prometheus.wait_for("how long it waits is seen", |p| {
        p.value("lockkeeper_longest_wait_seconds").is_some_and(|wait| wait > 1.0)
    });
    assert_eq!(live.ask("POST", "/v1/clients/alice/confirm-reboot?force=true").status, 200);
    prometheus.wait_for("the reboot is seen", |p| {
        p.value("nsm_locks_cleaned_on_crash_total") == Some(1.0)
    });

    let targets = prometheus.get("/api/v1/targets", &[]);
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()));
    let names = prometheus.get("/api/v1/label/__name__/values", &[])["data"].clone();
    let names: Vec<&str> = names.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for name in NAMES {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    let seen = [
        ("nsm_crashes_detected_total", 1.0),
        ("nsm_crash_cleanups_total", 1.0),
        ("nsm_clients_registered", 2.0),
        ("lockkeeper_reclaims_total{result=\"granted\"}", 1.0),
        ("lockkeeper_lock_requests_total{op=\"lock\",result=\"denied\"}", 1.0),
        ("lockkeeper_lock_requests_total{op=\"lock\",result=\"blocked\"}", 1.0),
        (
            "lockkeeper_rpc_requests_total{program=\"nlm\",procedure=\"lock\",status=\"success\"}",
            3.0,
        ),
        ("lockkeeper_lock_wait_seconds_count", 1.0),
        ("lockkeeper_grace_active", 0.0),
    ];
    for (query, expected) in seen {
        assert_eq!(prometheus.value(query), Some(expected), "{query}");
    }
    let started = prometheus.value("nsm_notifications_total{result=\"started\"}").unwrap();
    assert!(started >= 1.0, "the notice of the restart is counted");
    let commits = prometheus.value("lockkeeper_store_commit_seconds_count{store=\"embedded\"}");
    assert!(commits.unwrap() >= 1.0);
}

#[tokio::test]
async fn calls_of_no_procedure_are_one_series() {
    let live = Live::start(&[]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 9)).await.unwrap(), Status::Granted);
    let options = client::Options::default();
    let connection = client::Connection::connect(live.nfs, &options).await.unwrap();
    for (program, version) in [(100_003, 3), (100_021, 4)] {
        for procedure in [22, 23, 99, 1000] {
            // The reply does not matter.
            let _ = connection
                .call_raw(wire::rpc::ProcedureId::new(program, version, procedure), &[])
                .await;
        }
    }
    let text = live.ask("GET", "/metrics").body;
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let mut series: Vec<_> = samples.filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all, "a series is there twice: {text}");
    for (program, count) in [("nfs", 4), ("nlm", 2)] {
        let wanted = format!(
            "lockkeeper_rpc_requests_total{{program=\"{program}\",procedure=\"other\",\
             status=\"not_run\"}} {count}"
        );
        assert!(text.lines().any(|line| line == wanted), "no {wanted} in {text}");
    }
}

#[test]
fn without_metrics_there_are_none_and_the_rest_works() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("lockkeeper.toml");
    fs::write(&config, "[admin]\nmetrics = false\n").unwrap();
    let live = Live::start(&["-c", config.to_str().unwrap()]);
    let refused = live.ask("GET", "/metrics");
    assert_eq!(refused.status, 404);
    assert!(refused.json()["hint"].as_str().unwrap().contains("metrics = true"));
    assert_eq!(live.get("/v1/status")["store"]["commit_p99_seconds"], Value::Null);
}
