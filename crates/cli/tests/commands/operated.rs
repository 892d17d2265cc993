//! What an operator sees and does at a live server.

use admin::api::{Client, ClientState, Event, GraceStatus, Lock, LockState, Notice, Page, Status};
use client::CallError;
use rustix::process::Signal;
use wire::nlm::{self, Range};
use wire::nsm;

use crate::live::{Live, PAGE, START};
use crate::run::{Running, command, on_terminal, run};
use crate::support::node::Node;

#[tokio::test(flavor = "multi_thread")]
async fn one_command_says_who_holds_a_file_and_one_frees_it() {
    let live = Live::start();
    let file = live.file("a.db").await;
    let (alice, bob) = (live.host("alice", 811).await, live.host("bob", 97).await);
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    assert_eq!(bob.wait(&file, START).await.unwrap(), nlm::Status::Blocked);
    let locks: Page<Lock> = live.json("locks");
    let [held, waits] = &locks.items[..] else { panic!("{locks:?}") };
    let (k1, k2) = (held.id.as_str(), waits.id.as_str());

    let heading = "ID    CLIENT  OWNER    MODE    START  END   AGE    STATE         PATH\n";
    let first = format!(
        "{k1:<4}  alice   811      WRITE   0      4095  N      held          /share/a.db\n"
    );
    let waits = format!("waits {k1}");
    let second =
        format!("{k2:<4}  bob     97       WRITE*  0      99    N      {waits:<12}  /share/a.db\n");
    let both = [heading, &first, &second].concat();
    for all in ["locks", "locks --path a.db", "locks --client 127.0.0.1"] {
        assert_eq!(live.plain(&live.told(all)), both, "{all}");
    }
    for one in ["locks --client alice", "locks --state held"] {
        assert_eq!(live.plain(&live.told(one)), [heading, &first].concat(), "{one}");
    }
    assert_eq!(live.plain(&live.told("locks --waiting")), [heading, &second].concat());

    let ended = on_terminal(&live.socket(), &format!("release {k1}"), 200, "y\n");
    let expected = format!(
        "{k1}: alice 811 WRITE [0,4095] /share/a.db, held N\n\
         warning: alice answers now and will not be notified; it may keep writing.\n         \
         To stop it as well: lockkeeper fence alice\n\
         Release? [y/N] y\nreleased {k1}; granted "
    );
    let shown = live.plain(&ended.out);
    assert!(shown.starts_with(&expected), "{shown}\n{expected}");
    assert!(shown.ends_with(" to bob\n") && ended.code == Some(0), "{shown}");
    let after: Page<Lock> = live.json("locks");
    assert_eq!((after.items.len(), after.items[0].client.name.as_str()), (1, "bob"));
    let events: Vec<Event> = live.json("events");
    let release = events.iter().find(|event| event.kind == "released").unwrap();
    assert!(release.by.as_deref().unwrap().contains(&format!("uid {}", uid())), "{release:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_told_apart_from_locks_and_released_like_one() {
    let live = Live::start();
    let file = live.file("a.doc").await;
    let winnie = live.host("winnie", 8).await;
    let granted = winnie.share(&file, nlm::Access::Both, nlm::Mode::DenyRead).await.unwrap();
    assert_eq!(granted, nlm::Status::Granted);
    let told = live.plain(&live.told("locks"));
    let shown =
        "winnie  0        SHARE RW deny read  -      -     N      held          /share/a.doc\n";
    assert!(told.ends_with(shown), "{told}");
    let locks: Page<Lock> = live.json("locks");
    let id = locks.items[0].id.as_str();
    let ended = live.run(&format!("release {id} --yes"));
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), &*format!("released {id}\n")));
    assert!(ended.err.contains("SHARE RW deny read"), "{}", ended.err);
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_status_of_a_server_at_work() {
    let live = Live::start();
    assert_eq!(live.run("locks").err, "no locks\n");
    assert_eq!(live.run("clients").err, "no clients\n");
    assert_eq!(live.run("notify").err, "no pending notices\n");
    assert_eq!(live.told("grace"), "no grace period\n");
    let file = live.file("a.db").await;
    let alice = live.host("alice", 811).await;
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    let Client { id, epoch, .. } = live.json::<Page<Client>>("clients").items[0].clone();
    let expected = format!(
        "ID   CLIENT  ADDRESS    KIND  STATE       SEEN   LOCKS  SHARES  WAITING  UNCONFIRMED  NSM  \
         REMARKS\n{id:<3}  alice   127.0.0.1  lock  active      N      1      0       0        \
         0            3\n"
    );
    assert_eq!(live.plain(&live.told("clients")), expected);
    let expected = format!(
        "   client: alice ({id}), 127.0.0.1
    state: active, last seen N ago
    holds: 1 lock, 0 shares; 0 unconfirmed, 0 waiting
      NSM: state 3, monitored
    known: since TIME, epoch {epoch}
     kind: lock
 callback: program 100024 version 1 procedure 6 at 127.0.0.1
     uses: server address 127.0.0.1\n"
    );
    assert_eq!(live.plain(&live.told("clients alice")), expected);
    assert_eq!(live.json::<Client>(&format!("clients {id}")).state, ClientState::Active);

    let status = live.plain(&live.told("status"));
    assert!(status.starts_with("  state: SERVING\n"), "{status}");
    let locks = "\n  locks: 1 held, 0 unconfirmed, 0 waiting      store: embedded, commit p99 ";
    assert!(status.contains(locks), "{status}");
    assert!(status.ends_with("\n server: filer, since TIME (N), 1 client\n"), "{status}");
    assert_eq!(live.json::<Status>("status").counts.locks, 1);
    let events = live.plain(&live.told("events --last 1"));
    assert_eq!(events, "TIME  debug  registered        alice (127.0.0.1) is monitored\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_told_with_the_next_command() {
    let live = Live::start();
    let file = live.file("a.db").await;
    let (alice, bob) = (live.host("alice", 1).await, live.host("bob", 2).await);
    for n in 0..80 {
        let range = Range { offset: n * 10, length: 5 };
        assert_eq!(alice.lock(&file, range).await.unwrap(), nlm::Status::Granted);
    }
    assert_eq!(bob.wait(&file, START).await.unwrap(), nlm::Status::Blocked);
    let locks: Page<Lock> = live.json("locks");
    let ids: Vec<_> = locks.items.iter().map(|lock| lock.id.as_str()).collect();
    let begin = |text: &str| ids.iter().filter(|id| id.starts_with(text)).count();
    let two = ids.iter().find(|id| id.len() == 3 && !ids.contains(&&id[..2])).unwrap();
    assert!(begin(&two[..2]) > 1);
    let (error, hint) = live.refused(&format!("release {} --yes", &two[..2]));
    assert!(error.starts_with(&format!("ambiguous id {}: ", &two[..2])), "{error}");
    assert_eq!(hint, "use a longer prefix: lockkeeper locks");

    let told = |error: &str, hint: &str| (error.to_owned(), hint.to_owned());
    assert_eq!(
        live.refused("release kzzz --yes"),
        told("no lock has the id \"kzzz\"", "lockkeeper locks")
    );
    let waiter = locks.items.iter().find(|lock| lock.state == LockState::Waiting).unwrap();
    let (error, hint) = live.refused(&format!("release {} --yes", waiter.id));
    assert_eq!(error, format!("{} is a waiter and holds nothing", waiter.id));
    assert!(hint.ends_with("lockkeeper locks --waiting"), "{hint}");
    let (error, hint) = live.refused("fence 127.0.0.1 --yes");
    assert!(error.starts_with("2 clients match: ") && error.contains("(bob "), "{error}");
    assert_eq!(hint, "use the id, such as c3");
    for command in [
        "fence carol --yes",
        "unfence carol",
        "clients carol",
        "notify carol",
        "confirm-reboot carol",
        "locks --client carol",
    ] {
        let nobody = told("no client has the id, name or address \"carol\"", "lockkeeper clients");
        assert_eq!(live.refused(command), nobody, "{command}");
    }
    assert_eq!(live.refused("locks --path b.db").0, "no file \"b.db\" in any export");
    let no_grace = told("no grace period is active", "lockkeeper status");
    assert_eq!(live.refused("grace end --yes"), no_grace);
    assert_eq!(live.json::<Page<Lock>>("locks").items.len(), 81, "nothing was released");

    let ended = live.run(&format!("release {} {} --yes", ids[0], ids[1]));
    assert_eq!(ended.out, format!("released {}\nreleased {}\n", ids[0], ids[1]));
    assert_eq!(live.json::<Page<Lock>>("locks --limit 7").items.len(), 7);
    let listed = live.run("locks --limit 7");
    assert_eq!(listed.out.lines().count(), 8);
    assert_eq!(listed.err, "showing the first 7 of 79; use --limit N or --all to see more\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_shuts_a_client_out_until_it_is_lifted() {
    let mut live = Live::start();
    let file = live.file("a.db").await;
    let alice = live.host("alice", 811).await;
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    let ended = live.run("fence alice --dry-run");
    assert_eq!(ended.out, "would fence alice; would release 1 lock\n");
    assert_eq!(live.json::<Page<Lock>>("locks").items.len(), 1);
    let ended = on_terminal(&live.socket(), "fence alice", 200, "y\n");
    assert!(
        ended.out.ends_with("Fence? [y/N] y\nfenced alice; released 1 lock\n"),
        "{}",
        ended.out
    );
    assert_eq!(live.run("locks").err, "no locks\n");
    assert_ne!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);

    live.start_again();
    assert!(live.told("clients").contains("  fenced  "));
    let one = live.told("clients alice");
    assert!(one.ends_with("   action: lockkeeper unfence alice\n"), "{one}");
    let status = live.told("status");
    assert!(status.contains(" action: lockkeeper unfence alice\n"), "{status}");
    assert!(status.ends_with(", 1 client, 1 fenced\n"), "{status}");
    let alice = live.host("alice", 811).await;
    assert_ne!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    assert_eq!(live.told("unfence alice"), "alice may lock and write again\n");
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
}

/// B8.52: all clients of this test are at one address, as machines behind NAT are.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_names_the_clients_that_share_the_address() {
    let live = Live::start();
    let file = live.file("a.db").await;
    let mut hosts = Vec::new();
    for (number, name) in ["alice", "bob", "carol"].iter().enumerate() {
        let host = live.host(name, 1).await;
        let range = nlm::Range { offset: number as u64, length: 1 };
        assert_eq!(host.lock(&file, range).await.unwrap(), nlm::Status::Granted);
        hosts.push(host);
    }
    let clients = live.json::<Page<Client>>("clients").items;
    let id = |name: &str| clients.iter().find(|client| client.name == name).unwrap().id.clone();
    let others = format!("bob ({}) and carol ({})", id("bob"), id("carol"));
    let one = live.told("clients alice");
    assert!(one.contains(&format!("  also at: 127.0.0.1: {others}\n")), "{one}");
    assert_eq!(
        live.told("fence alice --dry-run"),
        format!(
            "would fence alice; would release 1 lock; would also refuse locks and writes of \
             {others}, at the same address\n"
        )
    );
    let ended = on_terminal(&live.socket(), "fence alice", 200, "y\n");
    let warning =
        format!("A fence holds by address, too: until then {others} can neither lock nor write");
    assert!(ended.out.contains(&warning), "{}", ended.out);

    // They keep their locks and cannot write, and that is shown.
    assert_eq!(live.json::<Page<Lock>>("locks").items.len(), 2);
    assert!(!live.writes(&file).await);
    let bob = live.told("clients bob");
    let why = "as another client at its address is fenced";
    assert!(bob.contains(&format!("  refused: locks and writes, {why}\n")), "{bob}");
    let all = live.told("clients");
    assert_eq!(all.matches(&format!("locks and writes refused, {why}")).count(), 2, "{all}");
    assert_ne!(hosts[1].lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    assert_eq!(live.run("fence bob --yes").code, Some(0));
    assert_eq!(
        live.told("unfence alice"),
        "alice is not fenced any more; locks and writes from 127.0.0.1 are still refused: another \
         client there is fenced\n"
    );
    assert_eq!(live.told("unfence bob"), "bob may lock and write again\n");
    assert!(live.writes(&file).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_it_is_seen_who_is_waited_for() {
    let mut live = Live::start();
    let file = live.file("a.db").await;
    let (alice, bob) = (live.host("alice", 811).await, live.host("bob", 97).await);
    let above = Range { offset: 5000, length: 10 };
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    assert_eq!(bob.lock(&file, above).await.unwrap(), nlm::Status::Granted);
    live.start_again();
    let status = live.told("status");
    assert!(status.starts_with("  state: GRACE, "), "{status}");
    assert!(status.contains("lockkeeper grace end\n    see: docs/messages.md#LK1"), "{status}");
    assert!(status.contains("  locks: 0 held, 2 unconfirmed, 0 waiting"), "{status}");
    assert_eq!(live.json::<Page<Lock>>("locks --state unconfirmed").items.len(), 2);
    let grace = live.told("grace");
    let (summary, table) = grace.split_once('\n').unwrap();
    assert!(summary.starts_with("grace ends in "), "{summary}");
    let missing = "; 2 locks of 2 clients not reclaimed, 0 requests waiting";
    assert!(summary.ends_with(missing), "{summary}");
    assert!(table.starts_with("ID   CLIENT  ADDRESS    UNCONFIRMED  NOTICES  ANSWERED\n"));
    assert_eq!(live.json::<GraceStatus>("grace").expected_total, 2);
    let queue: Vec<Notice> = live.json("notify");
    assert_eq!(queue.len(), 2, "{queue:?}");
    assert!(live.told("notify").starts_with("ID   CLIENT  ADDRESS    NOTICES  ANSWERED  NEXT\n"));
    assert_eq!(live.told("notify bob"), "notifying bob\n");

    let alice = live.host("alice", 811).await;
    assert_eq!(alice.reclaim(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    let grace = live.told("grace");
    assert!(grace.contains("1 lock of 1 client not reclaimed"), "{grace}");
    assert!(grace.contains("  bob ") && !grace.contains("  alice "), "{grace}");
    let ended = on_terminal(&live.socket(), "grace end", 200, "n\n");
    assert!(ended.out.ends_with("[y/N] n\nthe grace period continues\n"), "{}", ended.out);
    assert!(live.json::<GraceStatus>("grace").active);
    let ended = on_terminal(&live.socket(), "grace end", 200, "y\n");
    assert_eq!(ended.code, Some(0), "{}", ended.out);
    assert!(live.told("status").starts_with("  state: SERVING\n"));
    let events: Vec<Event> = live.json("events");
    let end = events.iter().find(|event| event.kind == "grace-ended").unwrap();
    assert!(end.by.is_some(), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_that_was_not_believed_is_shown_and_confirmed() {
    let live = Live::start();
    let file = live.file("a.db").await;
    let alice = live.host("alice", 811).await;
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    // Its old connection is alive, so the notice is not believed.
    let moment = std::time::Duration::from_secs(3);
    let other = live.host("alice", 1).await.connection.with_timeout(moment);
    let notice = nsm::NotifyArgs { mon_name: b"alice"[..].into(), state: 9 };
    let answer = other.call::<nsm::Notify>(&notice).await;
    assert!(matches!(answer, Err(CallError::Timeout(_))), "{answer:?}");
    let table = live.told("clients");
    assert!(table.contains("  reboot-pending  "), "{table}");
    assert!(table.ends_with("  lockkeeper confirm-reboot alice\n"), "{table}");
    let one = live.told("clients alice");
    assert!(one.contains("NSM state 9") && one.contains("not accepted: "), "{one}");
    let status = live.told("status");
    assert!(status.contains("lockkeeper confirm-reboot alice\n"), "{status}");
    // What it locks after its notice is not what the notice is about.
    let later = live.file("later.db").await;
    assert_eq!(alice.lock(&later, PAGE).await.unwrap(), nlm::Status::Granted);
    assert_eq!(
        live.told("confirm-reboot alice --dry-run"),
        "would accept the reboot of alice; would release 1 lock\n"
    );
    assert_eq!(
        live.told("confirm-reboot alice"),
        "accepted the reboot of alice; released 1 lock\n"
    );
    let left: Page<Lock> = live.json("locks");
    let [left] = &left.items[..] else { panic!("{left:?}") };
    assert_eq!(left.file.path.as_deref(), Some("later.db"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_all_that_was_not_believed_is_shown_and_confirmed() {
    let live = Live::start();
    let file = live.file("a.db").await;
    let alice = live.host("alice", 811).await;
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    let moment = std::time::Duration::from_secs(3);
    let other = live.host("alice", 1).await.connection.with_timeout(moment);
    let free = nlm::FreeAllArgs { name: b"alice"[..].into(), state: 0 };
    let answer = other.call::<nlm::v4::FreeAll>(&free).await;
    assert!(matches!(answer, Err(CallError::Timeout(_))), "{answer:?}");
    let one = live.told("clients alice");
    assert!(one.contains("with FREE_ALL") && one.contains("not accepted: "), "{one}");
    let events: Vec<Event> = live.json("events");
    let refused = events.iter().filter(|event| event.kind == "free-all-pending").count();
    assert_eq!(refused, 1, "{events:?}");
    assert_eq!(
        live.told("confirm-reboot alice"),
        "accepted the reboot of alice; released 1 lock\n"
    );
    assert_eq!(live.run("locks").err, "no locks\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_says_whom_it_waits_for() {
    let options = testbed::postgres::Options { tcp: true, ..Default::default() };
    let database = testbed::postgres::Server::start_with(&options).unwrap();
    let url = database.tcp_url().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let node = |name: &str| {
        let home = dir.path().join(name);
        let socket = home.join("admin.sock");
        let config = dir.path().join("lockkeeper.toml");
        let text = format!("[[export]]\npath = {:?}\nfilesystem_id = 7\n", dir.path());
        std::fs::write(&config, text).unwrap();
        let config = config.to_str().unwrap();
        let options = ["--store", &url, "--node", name, "--standby", "-c", config];
        let port = testbed::ports::free_port().unwrap();
        (Node::start(&home, port, &options), socket)
    };
    let (mut fox, at_fox) = node("fox");
    fox.wait_until_serving().await;
    let (mut owl, at_owl) = node("owl");
    owl.wait_for_log("standing by: fox serves").await;
    let told = run(&at_owl, &["status"]).out;
    assert!(told.starts_with("  state: STANDBY\n status: "), "{told}");
    assert!(told.lines().nth(1).unwrap().contains("fox serves"), "{told}");
    assert!(told.contains("\n  store: postgres\n server: owl, since "), "{told}");
    for arguments in [&["locks"][..], &["clients"], &["events"], &["grace", "end", "--yes"]] {
        let ended = run(&at_owl, arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(ended.err.starts_with("error: not serving: "), "{}", ended.err);
        assert!(ended.err.ends_with("\nhint: lockkeeper status\n"), "{}", ended.err);
    }
    let told = run(&at_fox, &["status"]).out;
    assert!(told.starts_with("  state: SERVING\n") && told.contains("\n server: fox, "), "{told}");
    fox.signal(Signal::TERM);
    fox.exit_status().await;
    owl.wait_until_serving().await;
    let told = run(&at_owl, &["status"]).out;
    assert!(told.starts_with("  state: SERVING\n") && told.contains("\n server: owl, "), "{told}");
    assert_eq!(run(&at_fox, &["status"]).code, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_log_nobody_reads_goes_on() {
    let live = Live::with(|_| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer.into()
    });
    let file = live.file("a.db").await;
    let alice = live.host("alice", 811).await;
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    // This is logged.
    assert_eq!(live.told("notify alice"), "notifying alice\n");
    assert_eq!(alice.unlock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    assert!(live.told("status").starts_with("  state: SERVING\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_watched_goes_on_through_a_crash() {
    let mut live = Live::start();
    let file = live.file("a.db").await;
    let (alice, bob) = (live.host("alice", 811).await, live.host("bob", 97).await);
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    let mut locks = Running::start(&mut command(live.socket(), &["locks", "--watch"]));
    let mut events = Running::start(&mut command(live.socket(), &["events", "--watch"]));
    locks.writes("alice", 1);
    events.writes("  registered  ", 1);
    assert_eq!(bob.wait(&file, START).await.unwrap(), nlm::Status::Blocked);
    locks.writes("bob", 1);
    events.writes("  registered  ", 2);
    let locks = locks.interrupt();
    assert_eq!((locks.code, locks.err.as_str()), (Some(0), ""));
    live.start_again();
    events.writes("  grace-started  ", 1);
    let events = events.interrupt();
    assert_eq!(events.code, Some(0));
    assert_eq!(events.out.matches("  registered  ").count(), 2, "{}", events.out);
    assert_eq!(events.out.matches("  started  ").count(), 2, "{}", events.out);
    assert!(events.err.contains("; reconnecting\n"), "{}", events.err);
    assert!(events.err.ends_with("events may be missing here: the server restarted\n"));
}
