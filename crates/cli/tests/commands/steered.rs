//! What the commands change, and how they ask before they do.

use admin::api::{ActionResult, Client, ClientActionResult, ReleaseResult};

use crate::run::{on_terminal, run};
use crate::samples::{self, client, held, released};
use crate::scripted::{Answer, ReceivedRequest, Scripted, ok, problem, start_tcp};

const DESCRIBED: &str = "\
k7f2: alice 811 WRITE [0,4095] projects/a.db, held 3m12s
warning: alice was last seen 2 s ago and will not be notified; it may keep writing.
         To stop it as well: lockkeeper fence alice
";

/// Does everything that is asked of it.
fn obedient(asked: &ReceivedRequest) -> Answer {
    let dry_run = asked.line.contains("dry_run=true");
    match asked.line.split(['?', ' ']).nth(1).unwrap_or_default() {
        path if path.contains("/locks/") => ok(&released(dry_run)),
        path if path.contains("/clients/") => {
            ok(&ClientActionResult { dry_run, client: client(), released: 3, hits: None })
        }
        "/v1/grace" => ok(&samples::grace()),
        _ => ok(&ActionResult { done: "the grace period is over".into() }),
    }
}

#[test]
fn a_release_shows_whose_lock_it_is_and_asks() {
    let daemon = Scripted::start(obedient);
    let ended = on_terminal(&daemon.socket(), "release k7f", 120, "y\n");
    let expected = format!("{DESCRIBED}Release? [y/N] y\nreleased k7f2; granted k7f3 to bob\n");
    assert_eq!((ended.code, ended.out), (Some(0), expected));
    let asked = ["DELETE /v1/locks/k7f?dry_run=true", "DELETE /v1/locks/k7f2"];
    assert_eq!(daemon.lines(), asked);
}

#[test]
fn without_a_yes_nothing_is_released() {
    let daemon = Scripted::start(obedient);
    for answer in ["n\n", "\n", "what?\n", "\x04"] {
        let ended = on_terminal(&daemon.socket(), "release k7f2", 120, answer);
        assert_eq!(ended.code, Some(1), "{answer:?}: {}", ended.out);
        assert!(ended.out.ends_with("nothing was released\n"), "{answer:?}: {}", ended.out);
    }
    assert!(daemon.lines().iter().all(|line| line.ends_with("?dry_run=true")));
}

#[test]
fn with_nobody_to_ask_a_command_must_be_told_beforehand() {
    let daemon = Scripted::start(obedient);
    for arguments in [["release", "k7f2"], ["fence", "alice"], ["grace", "end"]] {
        let ended = run(daemon.socket(), &arguments);
        let [verb, object] = arguments;
        let told = format!(
            "error: no terminal to ask for confirmation; use `lockkeeper {verb} {object} --yes`\n"
        );
        assert_eq!((ended.code, ended.out.as_str(), ended.err), (Some(2), "", told));
    }
    assert!(daemon.lines().is_empty());
    let ended = run(daemon.socket(), &["release", "k7f2", "--yes"]);
    let told = (ended.code, ended.out.as_str(), ended.err.as_str());
    assert_eq!(told, (Some(0), "released k7f2; granted k7f3 to bob\n", DESCRIBED));
}

#[test]
fn a_dry_run_changes_nothing_and_asks_nothing() {
    let daemon = Scripted::start(obedient);
    let ended = run(daemon.socket(), &["release", "k7f2", "--dry-run"]);
    assert_eq!(ended.out, "would release k7f2; would grant k7f3 to bob\n");
    let ended = run(daemon.socket(), &["fence", "alice", "--dry-run"]);
    assert_eq!(ended.out, "would fence alice; would release 3 locks\n");
    let ended = run(daemon.socket(), &["confirm-reboot", "alice", "--dry-run"]);
    assert_eq!(ended.out, "would accept the reboot of alice; would release 3 locks\n");
    let ended = run(daemon.socket(), &["unfence", "alice", "--dry-run"]);
    assert_eq!(ended.out, "would allow alice to lock and write again\n");
    assert!(daemon.lines().iter().all(|line| line.ends_with("?dry_run=true")));
}

/// k1 and k2 are locks, k3 cannot be released any more when it is asked for.
fn several(asked: &ReceivedRequest) -> Answer {
    let id = asked.line.rsplit('/').next().unwrap().split('?').next().unwrap();
    let dry_run = asked.line.contains("dry_run=true");
    match id {
        "k1" | "k2" => {}
        "k3" if dry_run => {}
        "k3" => return problem(404, "no-such-lock", "the lock is gone", "lockkeeper locks"),
        "k4" if dry_run => {}
        "k4" => return problem(503, "unavailable", "the store is stalled", "lockkeeper status"),
        _ => return problem(404, "no-such-lock", "no lock has the id \"k9\"", "lockkeeper locks"),
    }
    let mut lock = held();
    lock.id = id.into();
    ok(&ReleaseResult { lock, granted: Vec::new(), warning: None, ..released(dry_run) })
}

#[test]
fn of_several_locks_none_goes_if_one_is_not_there() {
    let daemon = Scripted::start(several);
    let ended = run(daemon.socket(), &["release", "--yes", "k1", "k9"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert_eq!(ended.err, "error: no lock has the id \"k9\"\nhint: lockkeeper locks\n");
    assert!(daemon.lines().iter().all(|line| line.ends_with("?dry_run=true")));
}

#[test]
fn several_locks_are_released_once_each_even_if_one_fails() {
    let daemon = Scripted::start(several);
    let ended = on_terminal(&daemon.socket(), "release k1 k1 k2", 120, "yes\n");
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.out.ends_with("Release all 2? [y/N] yes\nreleased k1\nreleased k2\n"),
        "{}",
        ended.out
    );
    // One that its holder gave up meanwhile is where it should be.
    let ended = run(daemon.socket(), &["release", "--yes", "k3", "k2"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "released k2\n"));
    assert!(ended.err.ends_with("k3 is gone already\n"), "{}", ended.err);
    let ended = run(daemon.socket(), &["release", "--yes", "k4", "k2"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), "released k2\n"));
    assert!(ended.err.ends_with("error: the store is stalled\nhint: lockkeeper status\n"));
}

#[test]
fn a_fence_says_what_it_does_and_asks() {
    let daemon = Scripted::start(obedient);
    let ended = on_terminal(&daemon.socket(), "fence alice", 120, "y\n");
    let expected = "c1: alice at 10.0.0.7, last seen 2s ago, holds 3 locks
It loses them and can neither lock nor write until: lockkeeper unfence alice
Fence? [y/N] y
fenced alice; released 3 locks\n";
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), expected));
    let asked = ["PUT /v1/clients/alice/fence?dry_run=true", "PUT /v1/clients/c1/fence"];
    assert_eq!(daemon.lines(), asked);
    let ended = on_terminal(&daemon.socket(), "fence alice", 120, "n\n");
    assert_eq!(ended.code, Some(1));
    assert!(ended.out.ends_with("alice was not fenced\n"));
    assert_eq!(daemon.lines().len(), 3);

    let ended = run(daemon.socket(), &["unfence", "c1"]);
    assert_eq!(ended.out, "alice may lock and write again\n");
    assert_eq!(daemon.lines().last().unwrap(), "DELETE /v1/clients/c1/fence");
}

#[test]
fn a_grace_period_is_ended_after_a_question() {
    let daemon = Scripted::start(obedient);
    let ended = on_terminal(&daemon.socket(), "grace end", 120, "y\n");
    assert_eq!(ended.code, Some(0));
    assert!(ended.out.starts_with("grace ends in 62 s, or when all"), "{}", ended.out);
    assert!(
        ended.out.ends_with("End the grace period? [y/N] y\nthe grace period is over\n"),
        "{}",
        ended.out
    );
    assert_eq!(daemon.lines(), ["GET /v1/grace", "POST /v1/grace/end"]);
    let ended = on_terminal(&daemon.socket(), "grace end", 120, "n\n");
    assert!(ended.code == Some(1) && ended.out.ends_with("the grace period continues\n"));
    assert_eq!(daemon.lines().len(), 3);
}

#[test]
fn notices_are_repeated() {
    let daemon = Scripted::start(obedient);
    assert_eq!(run(daemon.socket(), &["notify", "a/b"]).out, "notifying alice\n");
    assert_eq!(daemon.lines(), ["POST /v1/clients/a%2Fb/notify"]);
}

#[test]
fn a_reboot_that_nothing_hints_at_is_asked_about() {
    let daemon = Scripted::start(obedient);
    let asked = ["POST /v1/clients/a%2Fb/confirm-reboot?dry_run=true"];
    let ended = run(daemon.socket(), &["confirm-reboot", "a/b"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert_eq!(daemon.lines(), asked);
    let ended = on_terminal(&daemon.socket(), "confirm-reboot alice", 120, "n\n");
    let expected = "\
warning: nothing indicates that alice rebooted; it holds 3 locks. It was last seen 2s ago.
Did it reboot? [y/N] n
alice keeps its locks
";
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), expected));
    let ended = run(daemon.socket(), &["confirm-reboot", "alice", "--yes"]);
    assert_eq!(ended.out, "accepted the reboot of alice; released 3 locks\n");
    assert_eq!(daemon.lines().last().unwrap(), "POST /v1/clients/c1/confirm-reboot?force=true");

    let suspect = Scripted::start(|asked| {
        let dry_run = asked.line.contains("dry_run=true");
        ok(&ClientActionResult {
            dry_run,
            client: Client { suspect: true, ..client() },
            released: 3,
            hits: None,
        })
    });
    let ended = run(suspect.socket(), &["confirm-reboot", "alice"]);
    assert_eq!(ended.out, "accepted the reboot of alice; released 3 locks\n");
}

#[test]
fn over_tcp_the_token_of_a_file_says_who_asks() {
    let address = start_tcp(|asked| match asked.header("authorization") {
        Some(token) if token == "Bearer s3cret" => obedient(asked),
        _ => problem(403, "forbidden", "reading is all that is permitted", "send the token"),
    });
    let url = format!("http://{address}");
    let ended = run(&url, &["unfence", "alice"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert_eq!(ended.err, "error: reading is all that is permitted\nhint: send the token\n");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let ended = run(&url, &["unfence", "alice", "--token-file", file.to_str().unwrap()]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let ended = run(&url, &["unfence", "alice", "--token-file", "/nowhere/token"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("token file /nowhere/token: No such file"), "{}", ended.err);
}
