//! `lockkeeper demo` as a newcomer meets it: true to the last line, or not a success; and nothing
//! is left of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::leftovers::{no_process_is_left, nothing_is_left};
use tempfile::TempDir;

/// Five times what it may take.
const LONGEST: Duration = Duration::from_secs(75);
const NOBODY: u32 = 65_534;

/// What is told, in this order.
const STORY: [&str; 27] = [
    "server  serves a temporary directory on 127.0.0.1:",
    "alice   mounts it and writes ledger.db: written",
    "alice   looks up the lock manager at the server's rpcbind: on port ",
    "bob     looks up the lock manager at the server's rpcbind: on port ",
    "alice   LOCK bytes 0 to 99: GRANTED",
    "bob     LOCK the same bytes, non-blocking: DENIED",
    "bob     TEST the same bytes: held by alice, process 811",
    "bob     LOCK the same bytes, blocking: BLOCKED",
    "we      kill -9 ",
    "alice   calls the lock manager: no answer",
    "bob     calls the lock manager: no answer",
    "server  restarts with the same store: process ",
    "is notified of the restart: SM_NOTIFY, NSM state ",
    "is notified of the restart: SM_NOTIFY, NSM state ",
    "server  answers again: ",
    "alice   looks up the lock manager at the server's rpcbind: on port ",
    "bob     looks up the lock manager at the server's rpcbind: on port ",
    "bob     RECLAIM the bytes, which he never held: DENIED",
    "bob     LOCK the same bytes, blocking: no reply yet: reclaims come first",
    "alice   RECLAIM her bytes 0 to 99: GRANTED",
    "bob     gets the reply to his LOCK: BLOCKED",
    "bob     TEST the same bytes: still held by alice",
    "alice   UNLOCK bytes 0 to 99: GRANTED",
    "bob     is called back: GRANTED",
    "alice   LOCK bytes 0 to 99, non-blocking: DENIED",
    "bob     UNLOCK bytes 0 to 99: GRANTED",
    "server  stops on SIGTERM: cleanly",
];

fn demo(program: &Path, temporary: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("demo").env("TMPDIR", temporary).env_remove("LOCKKEEPER_LOG");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn own_demo(temporary: &Path) -> Command {
    demo(Path::new(support::PROGRAM), temporary)
}

/// Its times and lines, of those that have a time.
fn timeline(told: &str) -> Vec<(u64, &str)> {
    let line = |line: &'_ str| line.trim_start().split_once(" ms  ").is_some();
    let timed = told.lines().filter(|text| line(text));
    let split = timed.map(|text| text.trim_start().split_once(" ms  ").unwrap());
    split.filter_map(|(ms, rest)| Some((ms.parse().ok()?, rest))).collect()
}

fn assert_told(output: &Output, begun: Instant) {
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}\n{said}");
    assert!(begun.elapsed() < LONGEST, "it took {:?}", begun.elapsed());
    let lines = timeline(&told);
    assert_eq!(lines.len(), STORY.len(), "{told}");
    for ((_, line), expected) in lines.iter().zip(STORY) {
        assert!(line.contains(expected), "{line:?} is not {expected:?} in\n{told}");
    }
    assert!(lines.is_sorted_by_key(|(ms, _)| *ms), "{told}");
    assert!(told.contains("All 27 steps verified"), "{told}");
    assert!(told.trim_end().ends_with("sudo lockkeeper serve /srv/share"), "{told}");
    assert!(!told.contains('\x1b'), "colours where nobody sees them: {told:?}");
    assert!(said.is_empty(), "{said}");
}

#[test]
fn every_line_is_true_and_nothing_is_left() {
    let temporary = TempDir::new().unwrap();
    let begun = Instant::now();
    let output = own_demo(temporary.path()).output().unwrap();
    assert_told(&output, begun);
    nothing_is_left(temporary.path());
}

#[test]
fn it_needs_no_root() {
    if !rustix::process::geteuid().is_root() {
        return; // The other tests show it.
    }
    // The user nobody may not have access to the build directory.
    let place = TempDir::new().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("lockkeeper");
    testbed::process::install_program(support::PROGRAM.as_ref(), &program).unwrap();
    let temporary = place.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    std::os::unix::fs::chown(&temporary, Some(NOBODY), Some(NOBODY)).unwrap();
    let begun = Instant::now();
    let mut command = demo(&program, &temporary);
    command.uid(NOBODY).gid(NOBODY).env_remove("HOME").env_remove("XDG_RUNTIME_DIR");
    assert_told(&command.current_dir("/").output().unwrap(), begun);
    nothing_is_left(&temporary);
}

#[test]
fn several_at_once_do_not_meet() {
    let temporary = TempDir::new().unwrap();
    let begun = Instant::now();
    let all: Vec<Child> = (0..3).map(|_| own_demo(temporary.path()).spawn().unwrap()).collect();
    for child in all {
        assert_told(&child.wait_with_output().unwrap(), begun);
    }
    nothing_is_left(temporary.path());
}

/// A server that forgets its locks: the truth of the story is looked at, not assumed.
#[test]
fn a_step_that_is_not_true_is_named_and_no_success() {
    let temporary = TempDir::new().unwrap();
    let output = own_demo(temporary.path()).args(["--store", "memory:"]).output().unwrap();
    let (told, said) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let (told, said) = (told.unwrap(), said.unwrap());
    assert_eq!(output.status.code(), Some(1), "{told}\n{said}");
    assert!(told.contains("FAILED, no SM_NOTIFY arrived"), "{told}");
    assert!(!told.contains("steps verified"), "{told}");
    let last = said.lines().last().unwrap();
    let name = "is notified of the restart: no SM_NOTIFY arrived";
    assert!(last.starts_with("error: step 13 failed: ") && last.contains(name), "{said}");
    nothing_is_left(temporary.path());
}

/// Starts it, and waits until its server is there. With a server that forgets it then waits for some
/// seconds for what does not come, so that there is something to interrupt.
fn begun(temporary: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = own_demo(temporary).args(["--store", "memory:"]).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(STORY[0]) {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    (child, told)
}

#[test]
fn interrupted_it_cleans_up() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let temporary = TempDir::new().unwrap();
        let (mut child, told) = begun(temporary.path());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
        assert!(said.contains("error: stopped by SIG") && said.contains("are gone"), "{said}");
        nothing_is_left(temporary.path());
        drop(told);
    }
}

#[test]
fn killed_it_takes_its_server_along() {
    let temporary = TempDir::new().unwrap();
    let (mut child, told) = begun(temporary.path());
    child.kill().unwrap();
    child.wait().unwrap();
    no_process_is_left(temporary.path());
    drop(told);
}

#[test]
fn a_reader_who_leaves_does_not_keep_it_from_cleaning_up() {
    let temporary = TempDir::new().unwrap();
    let mut child = own_demo(temporary.path()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    nothing_is_left(temporary.path());
}
