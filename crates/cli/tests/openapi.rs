//! The document of the API: it is in `docs/`, it is what a server serves, and schemathesis, which
//! reads it and asks everything that it permits and much that it does not, finds nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wire::nlm::Status;

use support::live::{Live, bytes};

const VERSION: &str = "schemathesis==4.32.5";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_document_in_docs_is_what_is_served() {
    let live = Live::start(&[]);
    let served = live.get("/openapi.json");
    let path = root().join("docs/openapi.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&served).unwrap());
    if std::env::var_os("LOCKKEEPER_UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let hint = "LOCKKEEPER_UPDATE=1 cargo test -p lockkeeper-cli --test openapi";
    assert!(kept == text, "docs/openapi.json is not what is served; to write it anew: {hint}");
}

/// Installs it beside the build, once.
fn schemathesis() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis");
    let program = home.join("bin/schemathesis");
    let marked = home.join(VERSION);
    if !marked.exists() {
        let run = |command: &mut Command| {
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{command:?}: {said}");
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&home));
        run(Command::new(home.join("bin/pip")).args(["install", "-q", VERSION]));
        fs::write(marked, "").unwrap();
    }
    program
}

#[tokio::test]
async fn schemathesis_finds_nothing() {
    let program = schemathesis();
    let live = Live::start(&["--window", "5s"]);
    let (alice, file) = live.client("alice", "a.db").await;
    for start in 0..200 {
        let status = alice.lock(&file, bytes(start * 2, start * 2)).await.unwrap();
        assert_eq!(status, Status::Granted);
    }
    let (bob, _) = live.client("bob", "a.db").await;
    assert_eq!(bob.wait(&file, bytes(0, 99)).await.unwrap(), Status::Blocked);
    let lock = live.get("/v1/locks?state=held")["items"][5]["id"].as_str().unwrap().to_string();

    // What exists, so that more than "there is no such thing" is answered.
    let settings = live.home.path().join("schemathesis.toml");
    let known = format!(
        "[[operations]]\ninclude-path-regex = \"^/v1/clients/\"\nparameters = {{ \"path.id\" = \"alice\" }}\n\
         [[operations]]\ninclude-path-regex = \"^/v1/locks/\"\nparameters = {{ \"path.id\" = \"{lock}\" }}\n"
    );
    fs::write(&settings, known).unwrap();
    let examples = if std::env::var_os("LOCKKEEPER_LONG").is_some() { "300" } else { "10" };
    let run = |more: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--config-file").arg(&settings).arg("run");
        command.arg(format!("http://{}/openapi.json", live.web));
        // The stream of events never ends, which is not what it is made for.
        command.args(["--exclude-path", "/v1/events", "--no-color", "--max-examples", examples]);
        command.args(["--header", &format!("Authorization: Bearer {}", live.token())]).args(more);
        let output = command.current_dir(live.home.path()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (clean, said) = run(&[]);
    println!("{said}");
    assert!(clean, "{said}");
    assert!(said.contains("Tested: 22"), "every operation is tested: {said}");
}
