//! What the commands show of what a daemon says.

use admin::api::{
    Client, ClientState, Event, ExpectedClient, Finding, Lock, LockKind, LockMode, LockState,
    Notice, Page, PendingReboot, ServerState, Severity, Status,
};

use crate::run::{command, ended, on_terminal, run};
use crate::samples::{self, client, event, held, name, page, waiting};
use crate::scripted::{Answer, ReceivedRequest, Scripted, ok};

fn shows(answer: Answer, arguments: &[&str]) -> String {
    let bytes = answer.0;
    let daemon = Scripted::start(move |_| Answer(bytes.clone()));
    let ended = run(daemon.socket(), arguments);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    ended.out
}

#[test]
fn a_table_says_who_holds_and_who_waits_for_whom() {
    let unconfirmed = Lock {
        id: "k1".into(),
        state: LockState::Unconfirmed,
        mode: LockMode::Read,
        end: None,
        age_seconds: 90_000.0,
        ..held()
    };
    let share = Lock {
        id: "k2".into(),
        kind: LockKind::Share,
        mode: LockMode::ReadWrite,
        denies: Some("write".into()),
        ..held()
    };
    let silent = Lock { passed_over: true, ..waiting() };
    let out = shows(ok(&page(vec![held(), waiting()])), &["locks"]);
    let expected = "\
ID    CLIENT  OWNER    MODE    START  END   AGE    STATE         PATH
k7f2  alice   811      WRITE   0      4095  3m12s  held          projects/a.db
k7f3  bob     97       WRITE*  0      99    41s    waits k7f2    projects/a.db
";
    assert_eq!(out, expected);
    let out = shows(ok(&page(vec![unconfirmed, share, silent])), &["locks"]);
    let expected = "\
ID    CLIENT  OWNER    MODE                 START  END   AGE    STATE               PATH
k1    alice   811      READ                 0      EOF   1d1h   unconfirmed         projects/a.db
k2    alice   811      SHARE RW deny write  -      -     3m12s  held                projects/a.db
k7f3  bob     97       WRITE*               0      99    41s    waits k7f2, silent  projects/a.db
";
    assert_eq!(out, expected);
}

/// So many locks, in pages as they are asked for.
fn many(asked: &ReceivedRequest, count: usize) -> Answer {
    let value = |name: &str| {
        let (_, query) = asked.line.split_once('?')?;
        let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")))?;
        pair.parse::<usize>().ok()
    };
    let (from, limit) = (value("after").unwrap_or(0), value("limit").unwrap_or(100));
    let to = count.min(from + limit.min(1000));
    let items = (from..to).map(|n| Lock { id: format!("k{n}"), ..held() }).collect();
    ok(&Page {
        items,
        next: (to < count).then(|| to.to_string()),
        total: count as u64,
        unanswered: Vec::new(),
    })
}

/// B8.83
#[test]
fn a_list_that_may_lack_locks_says_so() {
    let incomplete = |items| Page { unanswered: vec!["/srv/b".into()], ..page(items) };
    for items in [vec![held()], Vec::new()] {
        let page = incomplete(items);
        let daemon = Scripted::start(move |_| ok(&page));
        let ended = run(daemon.socket(), &["locks", "--path", "dir"]);
        let said = "locks may be missing: the file system of /srv/b does not answer";
        assert!(ended.err.contains(said), "{ended:?}");
        let ended = run(daemon.socket(), &["locks", "--path", "dir", "--json"]);
        let whole: Page<Lock> = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(whole.unanswered, ["/srv/b"]);
    }
}

#[test]
fn a_long_list_is_read_page_by_page_up_to_a_limit() {
    let daemon = Scripted::start(|asked| many(asked, 2500));
    let listed = |arguments: &[&str]| {
        let ended = run(daemon.socket(), arguments);
        assert_eq!(ended.code, Some(0));
        (ended.out.lines().count() - 1, ended.err)
    };
    let remark = "showing the first 1000 of 2500; use --limit N or --all to see more\n";
    assert_eq!(listed(&["locks"]), (1000, remark.into()));
    assert_eq!(listed(&["locks", "--all"]), (2500, String::new()));
    let (count, remark) = listed(&["locks", "--limit", "1200", "--path", "a b/\u{e4}"]);
    assert_eq!(
        (count, remark.as_str()),
        (1200, "showing the first 1200; use --limit N or --all to see more\n")
    );
    let last = daemon.lines().pop().unwrap();
    assert_eq!(last, "GET /v1/locks?path=a%20b%2F%C3%A4&limit=200&after=1000");

    let ended = run(daemon.socket(), &["locks", "--json"]);
    let whole: Page<Lock> = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((whole.items.len(), whole.next, whole.total), (2500, None, 2500));
    let ended = run(daemon.socket(), &["locks", "--json", "--limit", "7"]);
    let whole: Page<Lock> = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((whole.items.len(), whole.next.as_deref(), whole.total), (7, Some("7"), 2500));
}

#[test]
fn json_is_what_the_api_says_byte_for_byte() {
    let locks = serde_json::to_string(&page(vec![held(), waiting()])).unwrap();
    assert_eq!(shows(ok(&page(vec![held(), waiting()])), &["locks", "--json"]), locks + "\n");
    let none = serde_json::to_string(&page(Vec::<Lock>::new())).unwrap();
    assert_eq!(shows(ok(&page(Vec::<Lock>::new())), &["locks", "--json"]), none + "\n");
    let status = serde_json::to_string(&samples::status()).unwrap();
    assert_eq!(shows(ok(&samples::status()), &["status", "--json"]), status + "\n");
    let grace = serde_json::to_string(&samples::grace()).unwrap();
    assert_eq!(shows(ok(&samples::grace()), &["grace", "--json"]), grace + "\n");
    let one = serde_json::to_string(&client()).unwrap();
    assert_eq!(shows(ok(&client()), &["clients", "alice", "--json"]), one + "\n");
}

#[test]
fn filters_are_asked_of_the_server() {
    let daemon = Scripted::start(|_| ok(&page(Vec::<Lock>::new())));
    let ended = run(daemon.socket(), &["locks", "--client", "10.0.0.7", "--waiting"]);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", "no locks\n"));
    run(daemon.socket(), &["locks", "--state", "releasable"]);
    run(
        daemon.socket(),
        &["clients", "--state", "reboot-pending", "--kind", "lock", "--name", "a b"],
    );
    let lines = daemon.lines();
    assert_eq!(lines[0], "GET /v1/locks?client=10.0.0.7&state=waiting&limit=1000");
    assert_eq!(lines[1], "GET /v1/locks?state=releasable&limit=1000");
    assert_eq!(lines[2], "GET /v1/clients?state=reboot-pending&kind=lock&name=a%20b&limit=1000");
}

#[test]
fn the_status_is_short_if_all_is_well() {
    let expected = "  state: SERVING
  locks: 35 held, 6 unconfirmed, 0 waiting      store: embedded, commit p99 0.2 ms
 server: filer, since 2026-01-01T08:00:00Z (2h0m), 3 clients
";
    assert_eq!(shows(ok(&samples::status()), &["status"]), expected);
}

#[test]
fn the_status_says_what_is_wrong_and_what_to_do() {
    let mut status = Status {
        state: ServerState::Grace,
        grace: Some(samples::grace()),
        health: vec![Finding {
            code: "LK103".into(),
            severity: Severity::Warning,
            status: "2 of 3 clients have reclaimed. bob has not answered 4 notices.".into(),
            action: "lockkeeper doctor --client bob     (or stop waiting: lockkeeper grace end)"
                .into(),
            see: "docs/messages.md#LK103".into(),
        }],
        ..samples::status()
    };
    let expected = "  state: GRACE, 62 s left
 status: 2 of 3 clients have reclaimed. bob has not answered 4 notices.
 action: lockkeeper doctor --client bob     (or stop waiting: lockkeeper grace end)
    see: docs/messages.md#LK103
  locks: 35 held, 6 unconfirmed, 0 waiting      store: embedded, commit p99 0.2 ms
 server: filer, since 2026-01-01T08:00:00Z (2h0m), 3 clients
";
    assert_eq!(shows(ok(&status), &["status"]), expected);

    status.health.clear();
    status.state = ServerState::Standby;
    status.summary = "fox serves since 10:00".into();
    let expected = "  state: STANDBY
 status: fox serves since 10:00
  store: embedded, commit p99 0.2 ms
 server: filer, since 2026-01-01T08:00:00Z (2h0m)
";
    assert_eq!(shows(ok(&status), &["status"]), expected);

    status.state = ServerState::Stalled;
    status.summary = "the store does not work".into();
    status.store.stalled_seconds = Some(12.3);
    status.store.exact = false;
    status.counts.fenced = 1;
    let out = shows(ok(&status), &["status"]);
    assert!(out.starts_with("  state: STALLED for 12 s\n status: the store does not work\n"));
    assert!(out.contains("p99 0.2 ms, not exact\n") && out.ends_with("3 clients, 1 fenced\n"));
}

fn bob() -> Client {
    Client {
        id: "c2".into(),
        name: "bob".into(),
        state: ClientState::RebootPending,
        last_seen_seconds: None,
        suspect: true,
        unconfirmed: 2,
        notice: Some(Notice {
            client: name("c2", "bob"),
            attempts: 4,
            answered: false,
            next_in_seconds: Some(8.0),
        }),
        pending_reboot: Some(PendingReboot {
            source: "10.0.0.9".into(),
            name: "bob".into(),
            nsm_state: Some(9),
            why: "the old kernel answers".into(),
            repeats: 2,
            since: "2026-01-01T09:30:00Z".into(),
        }),
        ..client()
    }
}

#[test]
fn clients_are_listed_with_what_should_worry_somebody() {
    let out = shows(ok(&page(vec![client(), bob()])), &["clients"]);
    let expected = "\
ID   CLIENT  ADDRESS    KIND  STATE           SEEN   LOCKS  SHARES  WAITING  UNCONFIRMED  NSM  \
REMARKS
c1   alice   10.0.0.7   lock  active          2s     3      0       0        0            7
c2   bob     10.0.0.7   lock  reboot-pending  -      3      0       0        2            7    \
suspect; has not answered 4 notices; lockkeeper confirm-reboot bob
";
    assert_eq!(out, expected);
}

#[test]
fn one_client_is_described_with_what_to_do_about_it() {
    let daemon = Scripted::start(|_| ok(&Client { answers: Some(false), ..bob() }));
    let ended = run(daemon.socket(), &["clients", "bo b", "--probe"]);
    let expected = "   client: bob (c2), 10.0.0.7
    state: reboot-pending, not seen since the server started, its lock manager does not answer
     also: suspect
    holds: 3 locks, 0 shares; 2 unconfirmed, 0 waiting
      NSM: state 7, monitored
    known: since 2026-01-01T09:00:00Z, epoch 12
     kind: lock
 callback: program 100024 version 1 procedure 6 at 10.0.0.7
     uses: server address 10.0.0.1
   notice: 4 notices not answered, next in 8s
   reboot: reported by 10.0.0.9 since 2026-01-01T09:30:00Z with NSM state 9 (received 3 times); \
   not accepted: the old kernel answers
   action: lockkeeper confirm-reboot bob
";
    assert_eq!(ended.out, expected);
    assert_eq!(daemon.lines(), ["GET /v1/clients/bo%20b?probe=true"]);
}

#[test]
fn the_queue_of_notices_and_the_grace_period_are_tables() {
    let out = shows(ok(&[bob().notice]), &["notify"]);
    let expected = "\
ID   CLIENT  ADDRESS    NOTICES  ANSWERED  NEXT
c2   bob     10.0.0.7   4        no        in 8s
";
    assert_eq!(out, expected);
    let mut grace = samples::grace();
    grace.expected_total = 1;
    grace.expected = vec![ExpectedClient {
        client: name("c2", "bob"),
        unconfirmed: 6,
        notices: 4,
        answered: false,
    }];
    let expected = "\
grace ends in 62 s, or when all have reclaimed; 6 locks of 1 client not reclaimed, 2 requests waiting
ID   CLIENT  ADDRESS    UNCONFIRMED  NOTICES  ANSWERED
c2   bob     10.0.0.7   6            4        no
";
    assert_eq!(shows(ok(&grace), &["grace", "status"]), expected);
    grace.active = false;
    grace.expected.clear();
    assert_eq!(shows(ok(&grace), &["grace"]), "no grace period\n");
}

#[test]
fn events_are_lines_with_who_did_it() {
    let events = [event("1-1", "k7f2 of alice was released"), event("1-2", "something")];
    let daemon = Scripted::start(move |_| ok(&events));
    let ended = run(daemon.socket(), &["events", "--last", "5"]);
    let expected = "\
2026-01-01T10:00:00Z  warn   released          k7f2 of alice was released, by root (uid 0)
2026-01-01T10:00:00Z  warn   released          something (alice), by root (uid 0)
";
    assert_eq!(ended.out, expected);
    assert_eq!(daemon.lines(), ["GET /v1/events/recent?last=5"]);
    let ended = run(daemon.socket(), &["events", "--json"]);
    let events: Vec<Event> = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(events.len(), 2);
}

#[test]
fn what_peers_chose_cannot_act_on_a_terminal() {
    let evil = "a\u{1b}[2J\u{9b}31m\r\nb\u{202e}";
    let mut lock = Lock { client: name("c1", evil), ..held() };
    lock.file.shown = evil.into();
    let notice = Notice { client: name("c2", evil), ..bob().notice.unwrap() };
    let client =
        Client { name: evil.into(), address: evil.into(), notice: Some(notice), ..client() };
    let status = Status { node: evil.into(), ..samples::status() };
    let answers = move |asked: &ReceivedRequest| match &asked.line {
        line if line.contains("locks") => ok(&page(vec![lock.clone()])),
        line if line.contains("clients/") => ok(&client),
        line if line.contains("clients") => ok(&page(vec![client.clone()])),
        line if line.contains("recent") => ok(&[event("1-1", evil)]),
        line if line.contains("notices") => ok(&std::slice::from_ref(&client.notice)),
        _ => ok(&status),
    };
    let daemon = Scripted::start(answers);
    for arguments in ["locks", "clients", "clients x", "events", "status", "notify", "locks --json"]
    {
        let arguments: Vec<_> = arguments.split(' ').collect();
        let out = run(daemon.socket(), &arguments).out;
        let control = |c: char| c != '\n' && c.is_control();
        assert!(!out.is_empty() && !out.contains(control), "{arguments:?}: {out:?}");
        let json = arguments.contains(&"--json");
        assert!(json || !out.contains('\u{202e}'), "{arguments:?}: {out:?}");
    }
    let out = run(daemon.socket(), &["locks"]).out;
    assert_eq!(out.lines().count(), 2, "a line end in a name makes no line: {out:?}");
}

#[test]
fn colours_are_for_terminals_unless_somebody_says_otherwise() {
    let daemon = Scripted::start(|_| ok(&page(vec![held(), waiting()])));
    let painted = "\x1b[33mwaits k7f2\x1b[0m";
    let coloured = |arguments: &[&str]| run(daemon.socket(), arguments).out.contains(painted);
    assert!(!coloured(&["locks"]) && coloured(&["locks", "--color", "always"]));
    let mut told = command(daemon.socket(), &["--color=always", "locks"]);
    assert!(ended(told.env("NO_COLOR", "1")).out.contains(painted));
    assert!(on_terminal(&daemon.socket(), "locks", 80, "").out.contains(painted));
    assert!(!on_terminal(&daemon.socket(), "locks --color never", 80, "").out.contains('\x1b'));
}

#[test]
fn a_terminal_gets_lines_that_fit_and_a_pipe_gets_all() {
    let mut lock = held();
    lock.file.shown = format!("{}/a.db", "long/".repeat(30));
    let shown = lock.file.shown.clone();
    let daemon = Scripted::start(move |_| ok(&page(vec![lock.clone()])));
    let ended = on_terminal(&daemon.socket(), "locks --color never", 90, "");
    let widest = ended.out.lines().map(|line| line.chars().count()).max();
    assert_eq!(widest, Some(90), "{}", ended.out);
    assert!(ended.out.contains("\u{2026}") && ended.out.contains("/a.db"), "{}", ended.out);
    assert!(run(daemon.socket(), &["locks"]).out.contains(&shown));
}
