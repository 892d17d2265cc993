//! Debian's Prometheus, which scrapes a server and has our alert rules.

#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Killed when the test ends, also if it fails.
pub struct Prometheus {
    child: Child,
    _home: TempDir,
    port: u16,
}

impl Prometheus {
    pub fn scraping(target: SocketAddr) -> Self {
        testbed::packages::install(&["curl", "prometheus"]).unwrap();
        let home = tempfile::tempdir().unwrap();
        let port = testbed::ports::free_port().unwrap();
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus/alerts.yml");
        let rules = Path::new(rules).canonicalize().unwrap();
        let config = format!(
            "global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs:\n\
             - job_name: lockkeeper\n  static_configs: [{{targets: ['{target}']}}]\n"
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
        Self { child, _home: home, port }
    }

    /// What its API answers; nothing while it does not answer.
    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--max-time", "10", "--get"]);
        for (name, value) in query {
            curl.arg("--data-urlencode").arg(format!("{name}={value}"));
        }
        let output = curl.arg(format!("http://127.0.0.1:{}{path}", self.port)).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    pub fn query(&self, expression: &str) -> Vec<Value> {
        let answer = self.get("/api/v1/query", &[("query", expression)]);
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// The one value of an expression, if it has one.
    pub fn value(&self, expression: &str) -> Option<f64> {
        let answer = self.get("/api/v1/query", &[("query", expression)]);
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }

    pub fn wait_for(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is(self) {
            let targets = self.get("/api/v1/targets", &[]);
            assert!(start.elapsed() < Duration::from_secs(60), "never {what}: {targets:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until it has scraped the server several times.
    pub fn has_scraped(&self) {
        let several = "count_over_time(up{job=\"lockkeeper\"}[1m])";
        self.wait_for("scraped", |own| own.value(several).is_some_and(|count| count >= 4.0));
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
