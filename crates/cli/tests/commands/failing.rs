//! What goes wrong between a command and its daemon, and the way it is said.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::run::{Ended, PROGRAM, as_nobody, command, ended, ended_on, run};
use crate::samples::{held, page};
use crate::scripted::{Answer, Scripted, http, ok, problem};

fn unreachable(ended: &Ended, why: &str) {
    let systemd = Path::new("/run/systemd/system").is_dir();
    let hint = if systemd { "systemctl status lockkeeper" } else { "lockkeeper serve DIR" };
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    assert!(ended.err.starts_with("error: ") && ended.err.contains(why), "{}", ended.err);
    assert!(ended.err.ends_with(&format!("\nhint: {hint}\n")), "{}", ended.err);
    assert_eq!(ended.out, "");
}

#[test]
fn a_daemon_that_is_not_there_is_exit_code_3_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("admin.sock");
    for arguments in [
        "status",
        "clients",
        "clients c1",
        "locks",
        "locks --json",
        "events",
        "notify",
        "notify c1",
        "confirm-reboot c1",
        "release k1 --yes",
        "fence c1 --yes",
        "unfence c1",
        "grace",
        "grace end --yes",
        "status --watch",
    ] {
        let ended = run(&nowhere, &arguments.split(' ').collect::<Vec<_>>());
        unreachable(&ended, "no such socket");
    }
    drop(UnixListener::bind(&nowhere).unwrap());
    unreachable(&run(&nowhere, &["status"]), "connection refused");
    unreachable(&run("http://127.0.0.1:1", &["status"]), "no server at http://127.0.0.1:1:");
}

#[test]
fn a_daemon_that_does_not_answer_is_not_waited_for_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let _silent = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    unreachable(&run(&path, &["status"]), "does not answer");
    assert!(start.elapsed() < Duration::from_secs(75));
}

#[test]
fn an_answer_that_breaks_off_or_makes_no_sense_is_said_so() {
    let broken = Scripted::start(|_| {
        Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"items\":[".to_vec())
    });
    unreachable(&run(broken.socket(), &["locks"]), "lost: ");
    let nothing = Scripted::start(|_| Answer(Vec::new()));
    unreachable(&run(nothing.socket(), &["locks"]), "lost: ");
    let other = Scripted::start(|_| Answer(http("404 Not Found", "text/html", "<p>no</p>")));
    let ended = run(other.socket(), &["locks"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("HTTP 404") && ended.err.lines().count() == 1, "{}", ended.err);
    let newer = Scripted::start(|_| ok(&["something else"]));
    let ended = run(newer.socket(), &["status"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("lockkeeper --version"), "{}", ended.err);
}

#[test]
fn a_refusal_is_told_with_its_hint() {
    let daemon = Scripted::start(|asked| match &asked.line {
        line if line.contains("locks") => {
            problem(404, "no-such-lock", "no lock has the id \"k9\"", "lockkeeper locks")
        }
        line if line.contains("grace") => {
            problem(409, "not-in-grace", "there is no grace period now", "lockkeeper status")
        }
        line if line.contains("status") => {
            problem(503, "standby", "fox serves", "lockkeeper --server http://fox:9049 status")
        }
        _ => problem(409, "ambiguous-client", "bob is c1 or c2\u{1b}[2J", "name one by its id"),
    });
    for (arguments, told) in [
        ("release k9 --yes", "error: no lock has the id \"k9\"\nhint: lockkeeper locks\n"),
        ("fence bob --yes", "error: bob is c1 or c2\\x1b[2J\nhint: name one by its id\n"),
        ("clients bob", "error: bob is c1 or c2\\x1b[2J\nhint: name one by its id\n"),
        ("grace end --yes", "error: there is no grace period now\nhint: lockkeeper status\n"),
        ("status", "error: fox serves\nhint: lockkeeper --server http://fox:9049 status\n"),
    ] {
        let ended = run(daemon.socket(), &arguments.split(' ').collect::<Vec<_>>());
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(1), "", told));
    }
}

#[test]
fn misuse_is_exit_code_2() {
    let daemon = Scripted::start(|_| ok(&page(vec![held()])));
    for arguments in [
        "release",
        "fence",
        "locks --limit 0",
        "locks --all --limit 5",
        "locks --state x",
        "locks --waiting --state held",
        "events --last 10001",
        "clients --probe",
        "sattus",
        "config",
        "completions tcsh",
        "locks --client= ",
    ] {
        let ended = run(daemon.socket(), &arguments.trim().split(' ').collect::<Vec<_>>());
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{arguments}: {}", ended.err);
    }
    for place in ["https://localhost:1", "ftp://x", ""] {
        let ended = run(place, &["status"]);
        assert_eq!(ended.code, Some(2), "{place}: {}", ended.err);
        assert!(ended.err.contains("is neither a socket nor http://ADDR:PORT"));
    }
    assert!(daemon.lines().is_empty());
}

#[test]
fn the_environment_can_name_the_daemon() {
    let daemon = Scripted::start(|_| ok(&page(vec![held()])));
    let mut command = std::process::Command::new(PROGRAM);
    command.arg("locks").env("LOCKKEEPER_ADMIN", daemon.socket());
    assert_eq!(ended(&mut command).code, Some(0));
    command.env("LOCKKEEPER_ADMIN", daemon.dir().join("other"));
    assert_eq!(ended(&mut command).code, Some(3));
}

#[test]
fn another_user_who_may_not_even_connect_is_told_who_may() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let daemon = Scripted::start(|_| ok(&page(vec![held()])));
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    open(daemon.dir(), 0o755);
    open(&daemon.socket(), 0o600);
    let told = as_nobody(daemon.dir(), &daemon.socket(), "locks");
    let expected = format!(
        "error: permission denied: {}\nhint: use sudo, or join the group lockkeeper\n",
        daemon.socket().display()
    );
    assert_eq!((told.code, told.err), (Some(1), expected));
    open(&daemon.socket(), 0o666);
    assert_eq!(as_nobody(daemon.dir(), &daemon.socket(), "locks").code, Some(0));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let locks = page(vec![held(); 1000]);
    let daemon = Scripted::start(move |_| ok(&locks));
    for arguments in [&["locks"][..], &["locks", "--json"], &["locks", "--json", "--watch"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = ended_on(&mut command(daemon.socket(), arguments), writer.into());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}");
    }
}
