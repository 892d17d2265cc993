//! Refused SM_MON and FREE_ALL calls: an event, a log line and a counter by reason (B7.60).

use std::time::Duration;

use testbed::peer::UdpCaller;
use wire::nlm::Status;
use wire::nsm::{self, Outcome};

use super::*;

fn refused(request: &str, reason: &str) -> String {
    format!("lockkeeper_refusals_total{{request=\"{request}\",reason=\"{reason}\"}}")
}

/// The texts of all events of kind `refused`.
fn told(filer: &Filer) -> Vec<String> {
    let events = filer.get("/v1/events/recent?last=10000");
    let kinds = ["refused", "free-all-pending"];
    let refused = events
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| kinds.contains(&event["kind"].as_str().unwrap()));
    refused.map(|event| event["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_refused_registration_is_told_and_counted_by_reason() {
    let (filer, theirs) = start("60s");
    theirs.block_on(async move || {
        let mon = registration("carol", PROGRAM);
        let client = connect(CLIENT).await;
        // Twice the same: counted twice and told once.
        for _ in 0..2 {
            let reply = client.call::<nsm::Mon>(&registration("carol", 100_003)).await.unwrap();
            assert_eq!(reply.outcome, Outcome::Failure);
        }
        let user = Connection::connect(ADDRESS, &options(CLIENT, false)).await.unwrap();
        user.call::<nsm::Mon>(&mon).await.unwrap_err();
        // No export admits it: its connection is reset unread (B7.95), which `connect` may see.
        if let Ok(outside) = Connection::connect(ADDRESS, &options(OUTSIDE, true)).await {
            outside.call::<nsm::Mon>(&mon).await.unwrap_err();
        }
        let datagram = UdpCaller::bind(ip(CLIENT), 900, ADDRESS).await;
        datagram.send::<nsm::Mon>(1, &mon).await;
        datagram.reply(1).await;
        // The limit of one address is 1,000.
        let many = connect(BOB).await;
        for number in 0..1000 {
            let one = registration(&format!("host-{number}"), PROGRAM);
            assert_eq!(many.call::<nsm::Mon>(&one).await.unwrap().outcome, Outcome::Success);
        }
        assert_eq!(many.call::<nsm::Mon>(&mon).await.unwrap().outcome, Outcome::Failure);

        let reasons = [
            ("program", 2.0, "SM_MON of 10.99.0.2 for carol refused: only a lock manager"),
            ("port", 1.0, "SM_MON of 10.99.0.2 for carol refused: its source port"),
            ("transport", 1.0, "SM_MON of 10.99.0.2 for carol refused: it came as a datagram"),
            ("too_many_registrations", 1.0, "SM_MON of 10.99.0.4 for carol refused: its address"),
        ];
        let (scrape, events, log) = (filer.scrape(), told(&filer), filer.log());
        for (reason, count, text) in reasons {
            scrape.has(&[(&refused("sm_mon", reason), count)]);
            let event = events.iter().filter(|event| event.starts_with(text)).count();
            let line = log.lines().filter(|line| line.contains(text)).count();
            assert_eq!((event, line), (1, 1), "{text}: {events:?} {log}");
        }
        scrape.has(&[
            (&refused("sm_mon", "address"), 0.0),
            ("lockkeeper_connections_refused_total{reason=\"not_admitted\"}", 1.0),
        ]);
        scrape.has(&[(&refused("sm_mon", "too_many_clients"), 0.0)]);
        scrape.has(&[(&refused("sm_mon", "store"), 0.0)]);
    });
}

#[test]
fn a_refused_free_all_is_told_and_counted_by_reason() {
    let (filer, theirs) = start("60s");
    theirs.block_on(async move || {
        let file = filer.file("a.db").await;
        let alice = locker(ALICE, "alice").await;
        assert_eq!(alice.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
        let brief = async |from: &str| connect(from).await.with_timeout(Duration::from_millis(700));
        free_all(&brief(CLIENT).await, "zed").await.unwrap_err();
        let user = Connection::connect(ADDRESS, &options(ALICE, false)).await.unwrap();
        free_all(&user, "alice").await.unwrap_err();
        // Its connection answers.
        free_all(&brief(ALICE).await, "alice").await.unwrap_err();
        filer.wait_for(&refused("free_all", "alive"), 1.0).await;
        let reasons = [
            ("unknown_host", "FREE_ALL of 10.99.0.2 for zed refused: no such host"),
            ("port", "FREE_ALL of 10.99.0.3 for alice refused: its source port"),
            ("alive", "10.99.0.3 sent FREE_ALL for alice"),
        ];
        let (scrape, events, log) = (filer.scrape(), told(&filer), filer.log());
        for (reason, text) in reasons {
            scrape.has(&[(&refused("free_all", reason), 1.0)]);
            assert!(events.iter().any(|event| event.starts_with(text)), "{text}: {events:?}");
            assert!(log.contains(text), "{text}: {log}");
        }
        scrape.has(&[("lockkeeper_locks{state=\"held\"}", 1.0)]);
        drop(alice);
    });
}
