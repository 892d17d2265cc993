//! Debian's Prometheus scrapes a live server, takes our alert rules, and can draw every panel of the
//! dashboard.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "support/live.rs"]
mod live;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use live::{Live, bytes};
use serde_json::Value;
use tempfile::TempDir;
use wire::nlm::Status;

fn packaging(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging")).join(path)
}

/// Killed when the test ends, whatever way.
struct Prometheus {
    child: Child,
    home: TempDir,
    port: u16,
}

impl Prometheus {
    fn start(target: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let rules = packaging("prometheus/alerts.yml").canonicalize().unwrap();
        let config = format!(
            "global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs:\n\
             - job_name: lockkeeper\n  static_configs: [{{targets: [{target:?}]}}]\n"
        );
        fs::write(home.path().join("prometheus.yml"), config).unwrap();
        let log = fs::File::create(home.path().join("log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", home.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", home.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, home, port }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    /// What its API answers; nothing while it does not answer.
    fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--max-time", "10", "--get"]);
        for (name, value) in query {
            curl.arg("--data-urlencode").arg(format!("{name}={value}"));
        }
        let output = curl.arg(format!("http://127.0.0.1:{}{path}", self.port)).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn query(&self, expression: &str) -> Vec<Value> {
        let answer = self.get("/api/v1/query", &[("query", expression)]);
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// Waits until it has scraped the server several times.
    fn has_scraped(&self) {
        let start = Instant::now();
        let count = || {
            let query = [("query", "count_over_time(up{job=\"lockkeeper\"}[1m])")];
            let answer = self.get("/api/v1/query", &query);
            answer["data"]["result"][0]["value"][1].as_str().and_then(|text| text.parse().ok())
        };
        while count().unwrap_or(0) < 4 {
            assert!(start.elapsed() < Duration::from_secs(60), "no scrape: {}", self.said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
    testbed::packages::install(&["curl", "prometheus"]).unwrap();
    let server = Live::start(&[]);
    let (alice, file) = server.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 4095)).await.unwrap(), Status::Granted);
    let prometheus = Prometheus::start(&server.web.to_string());
    prometheus.has_scraped();
    let (bob, file) = server.client("bob", "a.db").await;
    assert_eq!(bob.lock(&file, bytes(0, 99)).await.unwrap(), Status::Denied);
    std::thread::sleep(Duration::from_secs(1));

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
    assert_eq!(value("lockkeeper_lock_requests_total{op=\"lock\", result=\"denied\"}"), 1.0);
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

    let rules = prometheus.get("/api/v1/rules", &[]);
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap().clone();
    assert_eq!(rules.len(), 5);
    for rule in rules {
        assert_eq!((&rule["health"], &rule["state"]), (&"ok".into(), &"inactive".into()), "{rule}");
    }
}
