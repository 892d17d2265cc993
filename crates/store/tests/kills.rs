//! Kills a process under load again and again. After each kill the store must have every batch that was
//! `Done`, and at most the one in flight besides. `LOCKKEEPER_STORE_KILLS` sets how often; the long
//! form is thousands.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use keeper::change::{Change, Exactness, Snapshot};
use keeper::identity::Epoch;
use lockkeeper_store::conformance::batch;
use lockkeeper_store::{CommitOutcome, Durability, Embedded, EmbeddedSettings, Store, Token};

const DIRECTORY: &str = "LOCKKEEPER_STORE_CHILD_DIRECTORY";
const POWER: &str = "LOCKKEEPER_STORE_CHILD_POWER";

fn settings(directory: &Path, durability: Durability) -> EmbeddedSettings {
    let run = directory.join("run");
    let mut settings = EmbeddedSettings::new(directory.join("store"), run, durability).unwrap();
    settings.journal_bytes = 50_000;
    settings.sync_delay = Duration::from_millis(5);
    settings
}

#[test]
#[ignore = "the process that is killed; the other test starts it"]
fn child() {
    let directory = std::env::var_os(DIRECTORY).unwrap();
    let durability =
        if std::env::var_os(POWER).is_some() { Durability::Power } else { Durability::Process };
    let mut store = Embedded::open(settings(Path::new(&directory), durability)).unwrap();
    let mut token = store.last_token().unwrap();
    let mut out = std::io::stdout().lock();
    loop {
        token.0 += 1;
        match store.commit(&batch(token.0), token) {
            CommitOutcome::Done => writeln!(out, "done {}", token.0).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs the child for a while, kills it, and returns the last batch that was `Done`.
fn killed_after(directory: &Path, durability: Durability, while_us: u64) -> Option<u64> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(DIRECTORY, directory);
    if durability == Durability::Power {
        command.env(POWER, "1");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let numbers = BufReader::new(out).lines().map_while(Result::ok);
        numbers.filter_map(|line| line.rsplit_once("done ")?.1.parse().ok()).last()
    });
    std::thread::sleep(Duration::from_micros(while_us));
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

fn kills() -> u64 {
    std::env::var("LOCKKEEPER_STORE_KILLS").map_or(50, |text| text.parse().unwrap())
}

fn kill_again_and_again(durability: Durability) {
    let directory = tempfile::tempdir().unwrap();
    let (mut expected, mut applied, mut acknowledged, mut rosters) = (Snapshot::default(), 0, 0, 0);
    for round in 1..=kills() {
        let while_us = 3_000 + (round * 7_919) % 30_000;
        acknowledged =
            killed_after(directory.path(), durability, while_us).unwrap_or(0).max(acknowledged);
        // Every tenth time the mark is removed, as by a restart of the machine.
        let restarted = round % 10 == 0;
        if restarted {
            std::fs::remove_dir_all(directory.path().join("run")).unwrap();
        }
        let mut store = Embedded::open(settings(directory.path(), durability)).unwrap();
        let last = store.last_token().unwrap().0;
        assert!(
            last == acknowledged || last == acknowledged + 1,
            "batch {acknowledged} was acknowledged, {last} is the last"
        );
        for token in applied + 1..=last {
            batch(token).into_iter().for_each(|change| expected.apply(change));
        }
        (applied, acknowledged) = (last, last);
        let found = store.load().unwrap();
        let roster = found.exactness == Exactness::Roster;
        let right = restarted && durability == Durability::Process && last > 0;
        assert_eq!(roster, right, "round {round}");
        expected.exactness = found.exactness;
        assert_eq!(found, expected, "round {round}");
        if roster {
            // Grace ends: exact from here on.
            rosters += 1;
            let over = [
                Change::Started { epoch: Epoch(round), grace: Some(Exactness::Exact) },
                Change::GraceEnded,
            ];
            let committed = store.commit(&over, Token(last));
            assert!(matches!(committed, CommitOutcome::Done), "{committed:?}");
            over.into_iter().for_each(|change| expected.apply(change));
        }
    }
    println!("{durability:?}: {} kills, {applied} batches, {rosters} rosters", kills());
    assert!(applied > kills(), "the child committed only {applied} batches");
}

#[test]
fn a_killed_process_loses_nothing_in_process_mode() {
    kill_again_and_again(Durability::Process);
}

#[test]
fn a_killed_process_loses_nothing_in_power_mode() {
    kill_again_and_again(Durability::Power);
}
