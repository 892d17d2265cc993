//! What the documentation tells people to type: every `curl` of `docs/` is run as it is printed,
//! against a live server in which alice holds a lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/live.rs"]
mod live;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wire::nlm::Status;

use live::{Live, whole};

fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> =
        pages.filter(|page| page.extension().is_some_and(|e| e == "md")).collect();
    pages.sort();
    pages
}

/// The ```sh blocks that use curl.
fn blocks(text: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.strip_prefix("sh\n"));
    blocks.filter(|block| block.contains("curl ")).map(String::from).collect()
}

/// What each curl of a block is to be answered: 200, or what the comment before it says.
fn expected(block: &str) -> Vec<String> {
    let mut expected = Vec::new();
    let mut next = "200";
    for line in block.lines() {
        if let Some(code) = line.strip_prefix("# answers ") {
            next = &code[..3];
        } else if line.contains("curl ") {
            expected.push(std::mem::replace(&mut next, "200").to_string());
        }
    }
    expected
}

/// Everything as it is printed, but that curl also says what the answer was.
const SHIM: &str =
    "set -o pipefail\ncurl() { command curl -w '%{stderr}%{http_code}\\n' \"$@\"; }\n";

#[tokio::test]
async fn every_curl_of_the_docs_works_as_it_is_printed() {
    testbed::packages::install(&["curl", "jq"]).unwrap();
    let mut run = 0;
    for page in pages() {
        for block in blocks(&fs::read_to_string(&page).unwrap()) {
            // Each finds the world as the page describes it.
            let live = Live::start(&[]);
            let (alice, file) = live.client("alice", "a.db").await;
            assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
            let state = live.home.path().join("state");
            let here = block
                .replace("/run/lockkeeper/admin.sock", live.socket().to_str().unwrap())
                .replace("/var/lib/lockkeeper", state.to_str().unwrap())
                .replace("127.0.0.1:9049", &live.web.to_string());
            let output = Command::new("bash").args(["-c", &format!("{SHIM}{here}")]).output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let answers = String::from_utf8_lossy(&output.stdout).into_owned();
            let codes: Vec<&str> = said.lines().collect();
            let expected = expected(&block);
            assert_eq!(codes, expected, "{}: {block}\n{answers}", page.display());
            run += expected.len();
        }
    }
    assert!(run > 20, "the docs show how to use curl");
}
