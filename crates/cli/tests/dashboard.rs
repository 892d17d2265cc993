//! Debian's Prometheus scrapes a live server, takes our alert rules, and can draw every panel of the
//! dashboard.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::live::{Live, bytes};
use support::prometheus::Prometheus;
use wire::nlm::Status;

fn packaging(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging")).join(path)
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("expr").and_then(Value::as_str).map(str::to_string));
            map.values().for_each(|inner| expressions(inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| expressions(inner, found)),
        _ => {}
    }
}

#[tokio::test]
async fn prometheus_takes_the_alerts_and_answers_every_panel() {
    let server = Live::start(&[]);
    let (alice, file) = server.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 4095)).await.unwrap(), Status::Granted);
    let prometheus = Prometheus::scraping(server.web);
    prometheus.has_scraped();
    let (bob, file) = server.client("bob", "a.db").await;
    assert_eq!(bob.lock(&file, bytes(0, 99)).await.unwrap(), Status::Denied);
    // Until it is scraped, and often enough for a rate; then every rule has been looked at too.
    let denied = "lockkeeper_lock_requests_total{op=\"lock\", result=\"denied\"}";
    let often = format!("count_over_time({denied}[1m])");
    prometheus.wait_for("scraped the refusal", |own| {
        own.value(denied) == Some(1.0) && own.value(&often).is_some_and(|count| count >= 8.0)
    });
    let rules = |of: &Prometheus| {
        let rules = of.get("/api/v1/rules", &[]);
        rules["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default()
    };
    prometheus.wait_for("looked at the rules", |own| {
        let rules = rules(own);
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")
    });

    let targets = prometheus.get("/api/v1/targets", &[]);
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()), "{target}");
    let value = |expression: &str| {
        let found = prometheus.query(expression);
        assert_eq!(found.len(), 1, "{expression}: {found:?}");
        found[0]["value"][1].as_str().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("lockkeeper_locks{state=\"held\"}"), 1.0);
    assert_eq!(value("lockkeeper_clients{state=\"active\"}"), 1.0);
    assert_eq!(value(denied), 1.0);
    assert!(value("lockkeeper_store_commit_seconds_count") >= 1.0);
    // Not a number if the buckets do not end with +Inf.
    let slowest = value("histogram_quantile(0.99, lockkeeper_store_commit_seconds_bucket)");
    assert!(slowest < 60.0, "{slowest}");

    let dashboard = fs::read_to_string(packaging("grafana/dashboard.json")).unwrap();
    let mut panels = Vec::new();
    expressions(&serde_json::from_str(&dashboard).unwrap(), &mut panels);
    assert!(panels.len() > 25);
    for panel in panels {
        let expression = panel
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1h")
            .replace("$job", ".*")
            .replace("$instance", ".*");
        let series = prometheus.query(&expression);
        // These are empty as long as nothing of the kind has happened.
        let rare = panel.contains("!=\"success\"") || panel.starts_with("changes(");
        assert!(rare || !series.is_empty(), "{expression} finds nothing");
    }

    let rules = rules(&prometheus);
    assert_eq!(rules.len(), 9);
    for rule in rules {
        assert_eq!((&rule["health"], &rule["state"]), (&"ok".into(), &"inactive".into()), "{rule}");
    }
}
