//! `--watch`: again and again, until Ctrl-C.

use std::sync::atomic::{AtomicU64, Ordering};

use admin::api::{Lock, Page, Status};

use crate::run::{Running, command, on_terminal};
use crate::samples::{self, event, held, page};
use crate::scripted::{Answer, Scripted, ok, problem, stream};

#[test]
fn on_a_pipe_one_view_follows_the_other_until_ctrl_c() {
    let count = AtomicU64::new(0);
    let daemon = Scripted::start(move |_| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        ok(&page(vec![Lock { id: format!("k{n}"), ..held() }]))
    });
    let mut running = Running::start(&mut command(daemon.socket(), &["locks", "--watch"]));
    running.writes("projects/a.db", 3);
    let ended = running.interrupt();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let tables: Vec<_> = ended.out.split("\n\n").collect();
    assert!(tables[0].starts_with("ID    CLIENT") && tables[0].contains("\nk0 "), "{}", tables[0]);
    assert!(tables[1].starts_with("ID    CLIENT") && tables[1].contains("\nk1 "), "{}", tables[1]);
    assert!(!ended.out.contains('\x1b'));
}

#[test]
fn json_that_is_watched_is_one_document_on_each_line() {
    let daemon = Scripted::start(|asked| match asked.line.contains("locks") {
        true => ok(&page(vec![held()])),
        false => ok(&samples::status()),
    });
    let mut locks = Running::start(&mut command(daemon.socket(), &["locks", "--watch", "--json"]));
    let mut status =
        Running::start(&mut command(daemon.socket(), &["status", "--watch", "--json"]));
    locks.writes("\n", 2);
    status.writes("\n", 2);
    let (locks, status) = (locks.interrupt(), status.interrupt());
    assert_eq!((locks.code, status.code), (Some(0), Some(0)));
    for line in locks.out.lines() {
        assert_eq!(serde_json::from_str::<Page<Lock>>(line).unwrap().items.len(), 1);
    }
    assert!(status.out.lines().all(|line| serde_json::from_str::<Status>(line).is_ok()));
}

#[test]
fn on_a_terminal_the_view_is_drawn_over_without_clearing_it() {
    let locks: Vec<_> = (0..50).map(|n| Lock { id: format!("k{n}"), ..held() }).collect();
    let daemon = Scripted::start(move |_| ok(&page(locks.clone())));
    // The terminal itself turns it into the signal.
    let line = "locks --watch --color never & sleep 2.5; kill -INT $!; wait $!";
    let line = format!("{line}; echo ended $?");
    let script = daemon.dir().join("watch.sh");
    let program = crate::run::PROGRAM;
    let socket = daemon.socket();
    let text = format!("{program} --server {} {line}\n", socket.display());
    std::fs::write(&script, text).unwrap();
    let mut child = std::process::Command::new("script");
    let inner = format!("stty cols 90 rows 20; TERM=xterm bash {}", script.display());
    child.args(["--quiet", "--return", "--command", &inner, "/dev/null"]);
    let output = child.stdin(std::process::Stdio::null()).output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let (drawn, after) = out.split_once("\x1b[?25h\x1b[?1049l").unwrap();
    assert!(after.contains("ended 0"), "{after:?}");
    assert!(drawn.starts_with("\x1b[?1049h\x1b[?25l"), "{drawn:?}");
    let frames: Vec<_> = drawn.split("\x1b[HID ").skip(1).collect();
    assert!(frames.len() >= 2, "{drawn:?}");
    for frame in frames {
        // 20 rows: one for the cursor, so that nothing scrolls.
        assert_eq!(frame.matches("\r\n").count(), 19, "{frame:?}");
        assert!(frame.contains("k0 ") && !frame.contains("k30 ") && !frame.contains("\x1b[2J"));
    }
}

#[test]
fn events_are_followed_across_a_restart_of_the_daemon() {
    let tries = AtomicU64::new(0);
    let daemon = Scripted::start(move |asked| {
        // Each stream ends at once, as when the daemon ends.
        match (asked.header("last-event-id").as_deref(), tries.fetch_add(1, Ordering::Relaxed)) {
            (None, _) => stream(&[event("1-1", "first"), event("1-2", "second")]),
            (Some(_), 1) => problem(503, "standby", "not serving: starting", "lockkeeper status"),
            (Some("1-2"), _) => stream(&[event("2-1", "third")]),
            (Some(_), _) => Answer(Vec::new()),
        }
    });
    let mut running = Running::start(&mut command(daemon.socket(), &["events", "--watch"]));
    running.writes("third", 1);
    let ended = running.interrupt();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.out.lines().count(), 3, "{}", ended.out);
    assert!(
        ended.err.contains("the server closed the event stream; reconnecting"),
        "{}",
        ended.err
    );
    let asked = daemon.asked();
    assert_eq!(asked[1].header("last-event-id").as_deref(), Some("1-2"));
    assert!(asked[0].is("GET /v1/events?last=20") && asked[2].is("GET /v1/events?last=10000"));
}

#[test]
fn a_view_that_cannot_be_had_at_first_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let ended = on_terminal(&dir.path().join("none.sock"), "locks --watch", 80, "");
    assert_eq!(ended.code, Some(3));
    assert!(!ended.out.contains("\x1b[?1049h"), "{:?}", ended.out);
}
