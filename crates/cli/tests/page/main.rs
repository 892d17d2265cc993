//! The web page in a real browser, against a real server: what it shows, that news reach it, that
//! it stays quick, that names are only text, and that a recovery can be read off it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod browser;
mod crowd;
mod filer;

use std::process::Command;
use std::time::{Duration, Instant};

use browser::{Browser, key};
use filer::Home;
use serde_json::{Value, json};
use wire::nfs3::Stability;
use wire::nlm::{Access, Mode, Range, Status};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

const WHOLE: Range = Range { offset: 0, length: 0 };

fn range(offset: u64, length: u64) -> Range {
    Range { offset, length }
}

/// Whether an element that a selector finds has just this text.
fn has(selector: &str, text: &str) -> String {
    let (selector, text) = (json!(selector), json!(text));
    format!("[...document.querySelectorAll({selector})].some((e) => e.textContent === {text})")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_its_waiter_and_what_comes_later_are_drawn() {
    let home = Home::new("");
    let _filer = home.serve();
    let (alice, bob) = (home.host("alice", 2).await, home.host("bob", 3).await);
    let file = alice.create("accounts.db").await;
    assert_eq!(alice.locker.lock(&file.0, range(0, 4096)).await.unwrap(), Status::Granted);
    assert_eq!(bob.locker.wait(&file.0, range(100, 100)).await.unwrap(), Status::Blocked);

    let browser = Browser::start(1400, 900);
    browser.open(&home.web());
    browser.until(&has(".span.lock .who", "alice"));
    browser.until(&has(".span.waiter .who", "bob"));
    browser.until(&has("#state-word", "SERVING"));
    // The arrow begins at the waiter, ends at the lock, and is over both.
    let places = browser.run(
        "const box = (s) => { const b = document.querySelector(s).getBoundingClientRect();
                              return [b.left, b.right, b.top, b.bottom]; };
         return [box('.arrow'), box('.span.waiter'), box('.span.lock')];",
    );
    let at = |what: usize, side: usize| number(&places[what][side]);
    let (arrow, waiter, lock) = (0, 1, 2);
    assert!(at(waiter, 3) <= at(lock, 2), "the waiter is not above the lock: {places}");
    assert!((at(arrow, 2) - at(waiter, 3)).abs() < 6.0, "it begins elsewhere: {places}");
    assert!((at(arrow, 3) - at(lock, 2)).abs() < 6.0, "it ends elsewhere: {places}");
    for span in [waiter, lock] {
        assert!(at(span, 0) <= at(arrow, 0) && at(arrow, 1) <= at(span, 1) + 1.0, "{places}");
    }
    browser.screenshot("lock-and-waiter");

    // News come by themselves: the page is not loaded again.
    browser.run("window.isTheSame = true;");
    let later = bob.create("later.db").await;
    assert_eq!(bob.locker.lock(&later.0, WHOLE).await.unwrap(), Status::Granted);
    browser.until(&has(".file-name .base", "later.db"));
    browser.until("document.querySelector('#counts').textContent.includes('locks held2')");
    assert_eq!(bob.locker.unlock(&later.0, WHOLE).await.unwrap(), Status::Granted);
    browser.until(&format!("!{}", has(".file-name .base", "later.db")));
    // The waiter gets the lock when it is given back.
    assert_eq!(alice.locker.unlock(&file.0, range(0, 4096)).await.unwrap(), Status::Granted);
    browser.until(&has(".span.lock .who", "bob"));
    browser.until("!document.querySelector('.arrow')");
    assert_eq!(browser.run("return window.isTheSame;"), json!(true));
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// B8.74: who opens the page without the token sees handles, is told why, and is asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn paths_are_shown_to_who_has_the_token() {
    let home = Home::new("[admin]\npaths = 'operators'\n");
    let _filer = home.serve();
    let (alice, bob) = (home.host("alice", 2).await, home.host("bob", 3).await);
    for name in ["salaries-2026.ods", "letter-to-carol.txt"] {
        let file = alice.create(name).await;
        assert_eq!(alice.locker.lock(&file.0, range(0, 100)).await.unwrap(), Status::Granted);
        assert_eq!(bob.locker.wait(&file.0, range(0, 10)).await.unwrap(), Status::Blocked);
    }
    let browser = Browser::start(1400, 900);
    browser.open(&home.web());
    browser.until("document.querySelectorAll('.file-name').length === 2");
    browser.until("!document.querySelector('#token-form').hidden");
    let text = browser.run("return document.body.textContent;").as_str().unwrap().to_owned();
    assert!(!text.contains("salaries") && !text.contains("carol"), "{text}");
    assert!(text.contains("shown to operators only"), "{text}");
    browser.screenshot("paths-withheld");

    let enter = |token: &str| {
        browser.run(&format!(
            "document.querySelector('#token').value = {};
             document.querySelector('#token-form button').click();",
            json!(token)
        ))
    };
    enter("0000000000000000000000000000000000000000");
    browser.until(&has("#token-say", "This is not the server's token."));
    browser.screenshot("paths-wrong-token");
    let token = std::fs::read_to_string(home.path("state/admin-token"));
    let token = token.or_else(|_| std::fs::read_to_string(home.path("admin-token"))).unwrap();
    enter(token.trim());
    browser.until("document.body.textContent.includes('salaries-2026.ods')");
    browser.until("document.querySelector('#token-form').hidden");
    browser.screenshot("paths-shown");
    // Kept for this tab.
    browser.open(&home.web());
    browser.until("document.body.textContent.includes('salaries-2026.ods')");
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// B8.75: nothing of Swagger UI needs more than the page's policy allows.
#[tokio::test(flavor = "multi_thread")]
async fn the_documentation_of_the_api_keeps_to_the_policy_of_the_page() {
    let home = Home::new("");
    let _filer = home.serve();
    let browser = Browser::start(1400, 900);
    browser.open(&format!("{}docs/", home.web()));
    browser.until("document.querySelectorAll('.opblock').length > 10");
    browser.run("document.querySelector('.opblock-summary-control').click();");
    browser.until("document.querySelector('.opblock-body') !== null");
    browser.screenshot("docs");
    let policy = browser.run(
        "const head = new XMLHttpRequest(); head.open('GET', '/docs/', false); head.send();
         return head.getResponseHeader('content-security-policy');",
    );
    let policy = policy.as_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_and_a_fenced_client_are_told_as_such() {
    let home = Home::new("");
    let _filer = home.serve();
    let (winnie, bob) = (home.host("winnie", 8).await, home.host("bob", 9).await);
    let file = winnie.create("letter.doc").await;
    let granted = winnie.locker.share(&file.0, Access::Read, Mode::DenyWrite).await.unwrap();
    assert_eq!(granted, Status::Granted);
    assert_eq!(bob.locker.lock(&file.0, range(0, 10)).await.unwrap(), Status::Granted);

    let browser = Browser::start(1400, 900);
    browser.open(&home.web());
    browser.until("document.querySelector('#counts').textContent.includes('locks held2')");
    let share =
        "[...document.querySelectorAll('.span')].find((e) => e.ariaLabel?.includes('share'))";
    let said = browser.until(&format!("{share}?.ariaLabel")).as_str().unwrap().to_owned();
    assert!(said.contains("winnie holds a READ share"), "{said}");
    // It is of the whole file, and beside what is locked of it, not behind.
    let places = browser.run(&format!(
        "const box = (e) => {{ const b = e.getBoundingClientRect(); return [b.top, b.bottom]; }};
         return [box({share}), box(document.querySelector('.span.lock'))];"
    ));
    let at = |what: usize, side: usize| number(&places[what][side]);
    assert!(at(0, 1) <= at(1, 0) || at(1, 1) <= at(0, 0), "one is behind the other: {places}");
    browser.run(&format!("{share}.click();"));
    browser.until(&has("#details-body dd", "write"));
    browser.screenshot("share");

    browser.run("document.querySelector('#tab-clients').click();");
    browser.until(&has(".client-row .badge", "active"));
    let fence = Command::new(PROGRAM)
        .arg("--server")
        .arg(home.path("admin.sock"))
        .args(["fence", "winnie", "--yes"])
        .output()
        .unwrap();
    assert!(fence.status.success(), "{fence:?}");
    // By itself: its badge, its number on top, what to do about it, and the share is gone.
    browser.until(&has(".client-row .badge.fenced", "fenced"));
    browser.until("document.querySelector('#counts').textContent.includes('fenced1')");
    browser.until("document.querySelector('#counts').textContent.includes('locks held1')");
    browser.until(
        "[...document.querySelectorAll('#health code')].some((e) => \
         e.textContent.startsWith('lockkeeper unfence '))",
    );
    // What is open beside tells of it in the past.
    browser.until(&has("#details-body .gone", "No longer held."));
    browser.until(&has("#details-body .lead", "winnie held a READ share"));
    browser.screenshot("fenced");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_files_and_clients_are_only_text() {
    const BAD_HOST: &str = "<img src=x onerror=alert(1)>";
    const BAD_FILE: &str = "<svg onload=alert(2)>\"'><script>alert(3)<";
    let home = Home::new("");
    let _filer = home.serve();
    let evil = home.host(BAD_HOST, 4).await;
    let other = home.host("\u{202e}mallory\u{1b}[31m", 5).await;
    let file = evil.create(BAD_FILE).await;
    assert_eq!(evil.locker.lock(&file.0, WHOLE).await.unwrap(), Status::Granted);
    assert_eq!(other.locker.wait(&file.0, WHOLE).await.unwrap(), Status::Blocked);
    let browser = Browser::start(1400, 900);
    browser.open(&home.web());
    browser.until(&has(".span .who", BAD_HOST));
    browser.until(&has(".file-name .base", BAD_FILE));
    browser.until(&has(".span .who", "\\xe2\\x80\\xaemallory\\x1b[31m"));
    browser.run("document.querySelector('.span.lock').click();");
    browser.until(&has("#details-body .chip", BAD_HOST));
    for tab in ["clients", "recovery"] {
        browser.run(&format!("document.querySelector('#tab-{tab}').click();"));
        browser.run("document.querySelector('#events-all').click();");
        browser.until(&has("[role=row] .chip", BAD_HOST));
        browser.screenshot(&format!("hostile-{tab}"));
    }
    assert!(!browser.has_dialog());
    // Nothing that a name spells became an element.
    let made = "return document.querySelectorAll('img, [onload], [onerror], body script').length;";
    assert_eq!(browser.run(made), json!(0));
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_reaches_a_lock_its_command_and_the_way_back() {
    let home = Home::new("");
    let _filer = home.serve();
    let (alice, bob) = (home.host("alice", 6).await, home.host("bob", 7).await);
    let file = alice.create("accounts.db").await;
    assert_eq!(alice.locker.lock(&file.0, range(0, 100)).await.unwrap(), Status::Granted);
    assert_eq!(bob.locker.lock(&file.0, range(200, 100)).await.unwrap(), Status::Granted);
    let browser = Browser::start(1400, 900);
    browser.open(&home.web());
    browser.until(&has(".span .who", "bob"));
    let focus = |what: &str| browser.run(&format!("return document.activeElement.{what};"));

    for _ in 0..12 {
        browser.press(&[key::TAB]);
        if focus("className") == json!("file-row") {
            break;
        }
    }
    assert_eq!(focus("className"), json!("file-row"), "the tab key does not reach the map");
    browser.press(&[key::RIGHT, key::RIGHT]);
    let said = focus("ariaLabel").as_str().unwrap().to_owned();
    assert!(said.contains("bob holds WRITE on bytes 200 – 299"), "{said}");
    let width = "return getComputedStyle(document.activeElement).outlineStyle;";
    assert_eq!(browser.run(width), json!("solid"), "the focus cannot be seen");
    let id = focus("dataset.part").as_str().unwrap().to_owned();
    browser.press(&[key::ENTER]);
    browser.until(&has("#details code", &format!("lockkeeper release {id}")));
    browser.until("document.querySelector('#details-body .alive b').textContent === 'Alive,'");
    let fence = "[...document.querySelectorAll('#details code')].at(-1).textContent";
    assert!(browser.until(fence).as_str().unwrap().starts_with("lockkeeper fence c"));
    browser.screenshot("details");
    // The copy button is one step away.
    browser.press(&[key::TAB, key::TAB, key::TAB]);
    let label = focus("ariaLabel");
    assert_eq!(label, json!(format!("Copy: lockkeeper release {id}")));
    browser.press(&[key::ESCAPE]);
    assert_eq!(browser.run("return document.querySelector('#details').hidden;"), json!(true));
    assert_eq!(focus("dataset.part"), json!(id), "the focus did not come back");

    // A row opens to a list of its locks, and the tabs follow the arrows.
    browser.press(&[key::LEFT, key::LEFT, key::ENTER, key::DOWN, key::ENTER]);
    browser.until("document.querySelectorAll('.lock-row').length === 2");
    browser.until("!document.querySelector('#details').hidden");
    browser.press(&[key::ESCAPE]);
    browser.run("document.querySelector('#tab-locks').focus();");
    browser.press(&[key::RIGHT]);
    assert_eq!(focus("id"), json!("tab-clients"));
    browser.until(&has(".client-row .chip", "alice"));
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// B8.92: clients that never lock are there too, and the figures follow what they do.
#[tokio::test(flavor = "multi_thread")]
async fn what_each_client_and_export_does_is_shown() {
    let home = Home::new("");
    let _filer = home.serve();
    let (alice, carol) = (home.host("alice", 31).await, home.host("carol", 32).await);
    let file = alice.create("accounts.db").await;
    assert_eq!(alice.locker.lock(&file.0, WHOLE).await.unwrap(), Status::Granted);
    // Carol never locks.
    let big = carol.create("big").await;
    carol.nfs.write(&big, 0, vec![b'x'; 300 << 10].into(), Stability::Unstable).await.unwrap();
    assert_eq!(carol.nfs.read(&big, 0, 200 << 10).await.unwrap().data.len(), 200 << 10);
    assert!(carol.nfs.lookup(&big, b"in-a-file").await.is_err());

    let browser = Browser::start(1400, 900);
    browser.open(&format!("{}#traffic", home.web()));
    let row = |address: &str| {
        format!(
            "[...document.querySelectorAll('#traffic-clients tr')]
               .find((r) => r.querySelector('code').textContent === '{address}')"
        )
    };
    let cell = |address: &str, number: u8| {
        let cell = format!("td:nth-of-type({number})");
        format!("{}?.querySelector('{cell}').textContent", row(address))
    };
    let (calls, read, written, errors) = (2, 3, 4, 5);
    browser.until(&format!("{} === '4'", cell("127.0.0.32", calls)));
    browser.until(&format!("{} === '200.0 KiB'", cell("127.0.0.32", read)));
    browser.until(&format!("{} === '300.0 KiB'", cell("127.0.0.32", written)));
    browser.until(&format!("{} === '1'", cell("127.0.0.32", errors)));
    browser.until(&format!("{}.textContent.includes('alice')", row("127.0.0.31")));
    browser.until(
        "document.querySelector('#traffic-exports code').textContent.endsWith('/share') &&
         document.querySelector('#traffic-exports td:nth-of-type(2)').textContent === '5'",
    );
    // It follows without being loaded again, and tells how fast.
    for _ in 0..500 {
        carol.nfs.attributes(&big).await.unwrap();
    }
    browser.until(&format!("{} === '504'", cell("127.0.0.32", calls)));
    let rate = "document.querySelector('#traffic-exports td').textContent";
    browser.until(&format!("Number({rate}) > 0"));
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let selectors =
            [".traffic caption", ".traffic thead th", ".traffic td", ".traffic .badge", ".note"];
        for (selector, contrast) in browser.contrasts(&selectors) {
            assert!(contrast >= 4.5, "{scheme}: {contrast} for {selector}");
        }
        browser.screenshot(&format!("traffic-{scheme}"));
    }
    browser.resize(375, 740);
    let wide = browser.run("return document.documentElement.scrollWidth;");
    assert_eq!(wide, json!(375), "it is wider than the screen");
    browser.screenshot("traffic-narrow");
    browser.resize(1400, 900);
    browser.run(
        "const box = document.querySelector('#filter');
         box.value = 'alice'; box.dispatchEvent(new Event('input'));",
    );
    browser.until("document.querySelectorAll('#traffic-clients tr').length === 1");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_read_in_light_and_in_dark() {
    let home = Home::new("");
    let _filer = home.serve();
    for (number, name) in ["alice", "bob", "carol", "dora"].iter().enumerate() {
        let host = home.host(name, 8 + number as u8).await;
        let file = host.create(&format!("{name}.db")).await;
        assert_eq!(host.locker.lock(&file.0, WHOLE).await.unwrap(), Status::Granted);
    }
    let browser = Browser::start(1400, 900);
    let selectors = [
        ".meta span",
        "#state-word",
        ".tile dt",
        ".tile dd",
        ".base",
        ".file-facts",
        ".span .who",
        ".span .mode",
        ".tick",
        ".note",
        "[aria-selected=true]",
        "[aria-selected=false]",
    ];
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.open(&home.web());
        browser.until(&has(".span .who", "dora"));
        browser.until(&has("#state-word", "SERVING"));
        for (selector, contrast) in browser.contrasts(&selectors) {
            assert!(contrast >= 4.5, "{scheme}: {contrast} for {selector}");
        }
        browser.screenshot(scheme);
        grounds.push(browser.run("return getComputedStyle(document.body).backgroundColor;"));
        // Nothing is cut off on a telephone.
        browser.resize(375, 740);
        let wide = browser.run("return document.documentElement.scrollWidth;");
        assert_eq!(wide, json!(375), "it is wider than the screen");
        browser.screenshot(&format!("{scheme}-narrow"));
        browser.resize(1400, 900);
    }
    assert_ne!(grounds[0], grounds[1]);
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_locks_scroll_smoothly() {
    let home = Home::new("[limits]\nlocks_per_client = 200_000\n");
    let _filer = home.serve();
    crowd::take(&home, 100_000).await;
    let browser = Browser::start(1400, 900);
    browser.open(&home.web());
    browser.until("document.querySelector('#counts').textContent.includes('locks held100,000')");
    let files = format!("{} files", crowd::FILES_SAID);
    browser.until_within(Duration::from_secs(240), &has("#map-note", &files));
    let check = |what: &str| {
        let seen = browser.scroll_through("#map");
        println!("{what}: {seen}");
        assert!(number(&seen["end"]).abs() < 2.0, "it did not reach the end: {seen}");
        assert!(number(&seen["rows"]) > 5.0, "nothing is there: {seen}");
        assert!(number(&seen["elements"]) < 5_000.0, "too many elements: {seen}");
        // Some 35 ms on a busy machine without a graphics card.
        assert!(number(&seen["median"]) < 500.0, "slow: {seen}");
        assert!(number(&seen["longest"]) < 5_000.0, "it stands still: {seen}");
    };
    check("files");
    browser.screenshot("many");
    // What is on the screen is kept up to date, long before everything is read again.
    browser.run("document.querySelector('#map').scrollTop = 0;");
    browser.until(&has(".file-name .base", "job-00000.lock"));
    let host = home.host("latecomer", 30).await;
    let file = host.nfs.lookup(&host.root, b"job-00000.lock").await.unwrap().object;
    assert_eq!(host.locker.lock(&file.0, range(9000, 1)).await.unwrap(), Status::Granted);
    let start = Instant::now();
    browser.until(&has(".span .who", "latecomer"));
    println!("a lock on a visible file is drawn after {:?}", start.elapsed());
    // The one with the most locks, opened: a row for each.
    browser.run(
        "const box = document.querySelector('#filter'); box.value = 'path:crowded';
         box.dispatchEvent(new Event('input'));",
    );
    browser.until(&has("#map-note", "1 file matches"));
    browser.run("document.querySelector('.name-cell').click();");
    browser.until("document.querySelector('.lock-row')");
    check("locks of one file");
    browser.screenshot("crowded");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_is_told_as_a_story() {
    let home = Home::new("");
    let filer = home.serve();
    let hosts = ["alice", "bob", "carol", "dora"];
    let mut files = Vec::new();
    let first = home.host("alice", 41).await;
    for (dir, name) in [("db", "accounts.db"), ("mail", "inbox.mbox"), ("app", "index.sqlite")] {
        let dir = first.make_dir(dir).await;
        files.push(first.create_in(&dir, name).await);
    }
    let held: [&[(usize, Range)]; 4] = [
        &[(0, range(0, 4096)), (0, range(8192, 4096)), (2, range(1 << 30, 2))],
        &[(0, range(4096, 4096)), (1, WHOLE)],
        &[(2, range((1 << 30) + 2, 510))],
        &[(0, range(1 << 40, 0))],
    ];
    let mut monitors = Vec::new();
    for (number, name) in hosts.iter().enumerate() {
        // bob has no status monitor, so it cannot be notified.
        if *name != "bob" {
            monitors.push(home.monitor(41 + number as u8).await);
        }
        let host = home.host(name, 41 + number as u8).await;
        for (file, range) in held[number] {
            let status = host.locker.lock(&files[*file].0, *range).await.unwrap();
            assert_eq!(status, Status::Granted);
        }
    }
    let browser = Browser::start(1400, 900);
    browser.open(&format!("{}#recovery", home.web()));
    browser.until(&has("#state-word", "SERVING"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(filer);
    browser.until("!document.querySelector('#lost').hidden");
    let lost = browser.run("return document.querySelector('#lost').textContent;");
    assert!(lost.as_str().unwrap().starts_with("Server not reachable since"), "{lost}");
    browser.until(&has("#state-word", "NO ANSWER"));
    browser.until("document.querySelectorAll('.lane .band.kept').length === 4");
    browser.screenshot("recovery-1-lost");
    tokio::time::sleep(Duration::from_secs(1)).await;

    let _filer = home.serve();
    browser.until(&has("#state-word", "GRACE"));
    browser.until("document.querySelector('#lost').hidden");
    browser.until("document.querySelector('.band.down')");
    browser.until("document.querySelectorAll('.lane .mark.answered').length >= 3");
    let back = async |number: usize| {
        let host = home.host(hosts[number], 41 + number as u8).await;
        for (file, range) in held[number] {
            let status = host.locker.reclaim(&files[*file].0, *range).await.unwrap();
            assert_eq!(status, Status::Granted);
        }
        host
    };
    let mut returned = vec![back(0).await];
    browser.until("document.querySelectorAll('.lane .mark.back').length === 1");
    tokio::time::sleep(Duration::from_secs(2)).await;
    returned.push(back(3).await);
    returned.push(back(2).await);
    browser.until("document.querySelectorAll('.lane .mark.back').length === 3");
    browser.until("document.querySelector('.lane .mark.failed')");
    browser.until(&has(".told-all", "3 of 4 clients have reclaimed everything"));
    browser.until(&has("#health code", "lockkeeper grace end"));
    let left = browser.run("return document.querySelector('#left').textContent;");
    assert!(left.as_str().unwrap().ends_with("s left"), "{left}");
    browser.until(&has("#grace .chip", "bob"));
    browser.until("document.querySelectorAll('#grace .chip').length === 1");
    browser.screenshot("recovery-2-grace");
    browser.run("document.querySelector('#tab-locks').click();");
    browser.until("document.querySelectorAll('.span.unconfirmed').length === 2");
    browser.screenshot("recovery-3-map");
    browser.run("document.querySelector('#tab-recovery').click();");

    returned.push(back(1).await);
    browser.until(&has("#state-word", "SERVING"));
    browser.until(&has(".told-all.back", "4 of 4 clients have reclaimed everything"));
    browser.until(&has(".server .band.serving", "serving"));
    browser.screenshot("recovery-4-over");
    // The recovery can be replayed: at the start no client had reclaimed anything.
    browser.run(
        "const scrub = document.querySelector('#scrub'); scrub.value = '200';
         scrub.dispatchEvent(new Event('input'));",
    );
    browser.until(&has(".told-all", "0 of 4 clients have reclaimed everything"));
    browser.screenshot("recovery-5-replay");
    browser.run("document.querySelector('#play').click();");
    browser.until(&has(".told-all.back", "4 of 4 clients have reclaimed everything"));
    // The server was away: those complaints are right.
    let wrong = browser.console().into_iter().filter(|line| !line.contains("net::ERR_"));
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
}
