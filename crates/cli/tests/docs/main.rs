//! The pages of the documentation against a live server: commands are run as printed, and what is
//! listed is what there is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod console;
mod developers;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use support::live::{Live, bytes};
use wire::nlm::Status;

fn page(name: &str) -> String {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    fs::read_to_string(docs.join(name)).unwrap()
}

/// The blocks of a page that a shell can run.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The HTTP status that each `curl` of a block must get: 200, unless the line before says otherwise.
fn expected(block: &str) -> Vec<u16> {
    let mut all = Vec::new();
    let mut next = 200;
    for line in block.lines() {
        if let Some(rest) = line.strip_prefix("# answers ") {
            next = rest.split(':').next().unwrap().parse().unwrap();
        } else if line.contains("curl ") {
            all.push(std::mem::replace(&mut next, 200));
        }
    }
    all
}

/// Runs a block; gives the statuses that it got, and what it printed.
fn run(server: &Live, block: &str) -> (Vec<u16>, String) {
    let head = server.home.path().join("head");
    let log = server.home.path().join("statuses");
    fs::write(&log, "").unwrap();
    let script = block
        .replace("/run/lockkeeper/admin.sock", server.socket().to_str().unwrap())
        .replace("/var/lib/lockkeeper", server.home.path().join("state").to_str().unwrap())
        .replace("127.0.0.1:9049", &server.web.to_string());
    // Every curl notes the status that it got.
    let noting = r#"curl() { command curl -D "$HEAD" "$@"; ended=$?; head -n 1 "$HEAD" >> "$LOG"; rm "$HEAD"; return $ended; }"#;
    let output = Command::new("sh")
        .args(["-eu", "-c", &format!("{noting}\n{script}")])
        .env("HEAD", &head)
        .env("LOG", &log)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{block}: {said} {complaint}");
    let statuses = fs::read_to_string(&log).unwrap();
    let statuses =
        statuses.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap());
    (statuses.collect(), said)
}

#[tokio::test]
async fn the_curl_commands_of_the_operators_page_work_as_printed() {
    testbed::packages::install(&["curl", "jq"]).unwrap();
    let server = Live::start(&[]);
    let (alice, file) = server.client("alice", "a.db").await;
    let page = page("operate.md");
    let blocks: Vec<&str> =
        blocks(&page).into_iter().filter(|block| block.contains("curl ")).collect();
    assert!(blocks.len() >= 10, "{}", blocks.len());
    for block in blocks {
        // What it holds already it is granted again.
        let granted = alice.lock(&file, bytes(0, 4095)).await.unwrap();
        assert_eq!(granted, Status::Granted);
        let (got, said) = run(&server, block);
        assert_eq!(got, expected(block), "{block}\n{said}");
    }
}

/// The paths of the API that nothing on the page shows would be a surprise to find.
#[tokio::test]
async fn every_path_of_the_api_is_on_the_operators_page() {
    testbed::packages::install(&["curl"]).unwrap();
    let server = Live::start(&[]);
    let (_, document) = run(&server, "curl -s http://127.0.0.1:9049/openapi.json");
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let page = page("operate.md").replace("/alice", "/{id}").replace("/$ID", "/{id}");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let shown = page.lines().filter(|line| line.contains("curl ")).any(|line| {
                let url = line.split("http://").nth(1).unwrap_or_default();
                let url = url.split(['?', ' ', '\'', '"']).next().unwrap_or_default();
                let asked = match line.split_once("-X ") {
                    Some((_, rest)) => rest.split(' ').next().unwrap().to_lowercase(),
                    None => "get".into(),
                };
                asked == *method && url.split_once('/').is_some_and(|(_, rest)| path[1..] == *rest)
            });
            assert!(shown, "{method} {path} is not on docs/operate.md");
        }
    }
}

/// A row of the tables of docs/metrics.md: type and labels.
fn documented_metrics() -> BTreeMap<String, (String, String)> {
    let page = page("metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.contains('_'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[1].trim_matches('`').to_string(), (cells[2].to_string(), cells[3].to_string()))
    })
    .collect()
}

#[tokio::test]
async fn the_metrics_page_lists_what_a_scrape_has_with_type_and_labels() {
    testbed::packages::install(&["curl"]).unwrap();
    let server = Live::start(&[]);
    let (alice, file) = server.client("alice", "a.db").await;
    alice.lock(&file, bytes(0, 4095)).await.unwrap();
    let (_, scraped) = run(&server, "curl -s http://127.0.0.1:9049/metrics");
    let documented = documented_metrics();
    let mut found = BTreeMap::new();
    for line in scraped.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let total = if kind == "counter" { "_total" } else { "" };
            found.insert(format!("{name}{total}"), kind.to_string());
        }
    }
    let listed: BTreeMap<String, String> =
        documented.iter().map(|(name, (kind, _))| (name.clone(), kind.clone())).collect();
    assert_eq!(found, listed);
    for line in scraped.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once('{').unwrap_or((line, ""));
        let part = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
        let labels = labels.split('}').next().unwrap();
        for (label, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
            if label == "le" {
                continue;
            }
            let known = documented.get(part.unwrap_or(name)).map(|(_, labels)| labels.as_str());
            let known = known.unwrap_or_else(|| panic!("{line}"));
            assert!(known.contains(&format!("`{label}`")), "{label} of {name} is not documented");
            let value = value.trim_matches('"');
            let free = ["procedure", "version", "export"].contains(&label);
            let words = known.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            assert!(free || words.clone().any(|word| word == value), "{label}={value} of {name}");
        }
    }
}

/// Every `$ lockkeeper ...` of the pages: the command exists, with these options.
#[test]
fn the_commands_on_the_pages_exist() {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let mut seen = 0;
    for entry in fs::read_dir(docs).unwrap().flatten() {
        let Ok(content) = fs::read_to_string(entry.path()) else { continue };
        for line in content.lines().filter_map(|line| line.strip_prefix("$ lockkeeper ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let help = help(&words).unwrap_or_else(|| panic!("no such command: {line}"));
            for option in words.iter().filter(|word| word.starts_with("--")) {
                assert!(help.contains(option), "{line}: no {option} in {help}");
            }
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
}

/// What the command says about itself; the second word is a command or an argument.
fn help(words: &[&str]) -> Option<String> {
    let ask = |words: &[&str]| {
        let mut command = Command::new(support::PROGRAM);
        let output = command.args(words).arg("--help").output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    let plain = words.len() > 1 && words[1].bytes().all(|byte| byte.is_ascii_lowercase());
    plain.then(|| ask(&words[..2])).flatten().or_else(|| ask(&words[..1]))
}
