//! Every metric of the status monitor, by value (B8.61).

use std::time::Duration;

use testbed::peer::{Answer, Host, RpcbindKind, UdpCaller, script};
use testbed::wait::until;
use wire::Encode;
use wire::nlm::{Access, Mode, Status, v4};
use wire::nsm::{self, NotifyArgs, Outcome};

use super::*;

const CRASHES: &str = "nsm_crashes_detected_total";
const CLEANUPS: &str = "nsm_crash_cleanups_total";
const CLEANED: &str = "nsm_locks_cleaned_on_crash_total";
const STARTED: &str = "nsm_notifications_total{result=\"started\"}";
const SUCCESS: &str = "nsm_notifications_total{result=\"success\"}";
const FAILED: &str = "nsm_notifications_total{result=\"failed\"}";
const TOLD_COUNT: &str = "nsm_notification_duration_seconds_count";
const TOLD_SUM: &str = "nsm_notification_duration_seconds_sum";
const HELD: &str = "lockkeeper_locks{state=\"held\"}";
const UNCONFIRMED: &str = "lockkeeper_locks{state=\"unconfirmed\"}";
const RELEASABLE: &str = "lockkeeper_locks{state=\"releasable\"}";

fn requests(procedure: &str, result: &str) -> String {
    format!("nsm_requests_total{{procedure=\"{procedure}\",result=\"{result}\"}}")
}

fn durations(procedure: &str, suffix: &str) -> String {
    format!("nsm_request_duration_seconds_{suffix}{{procedure=\"{procedure}\"}}")
}

#[test]
fn requests_are_counted_by_what_their_reply_says() {
    let (filer, theirs) = start("60s");
    theirs.block_on(async move || {
        let client = connect(CLIENT).await;
        let short = client.with_timeout(Duration::from_millis(700));
        for _ in 0..2 {
            client.call::<nsm::Stat>(&b"x"[..].into()).await.unwrap();
        }
        let good = client.call::<nsm::Mon>(&registration("carol", PROGRAM)).await.unwrap();
        assert_eq!(good.outcome, Outcome::Success);
        // STAT_FAIL: no registrant may have an NFS server called.
        let bad = client.call::<nsm::Mon>(&registration("carol", 100_003)).await.unwrap();
        assert_eq!(bad.outcome, Outcome::Failure);
        // Refused by admission.
        let user = Connection::connect(ADDRESS, &options(CLIENT, false)).await.unwrap();
        user.call::<nsm::Mon>(&registration("carol", PROGRAM)).await.unwrap_err();
        client.call::<nsm::SimuCrash>(&()).await.unwrap_err();
        // About an unknown host: no reply.
        let unknown = NotifyArgs { mon_name: b"zed"[..].into(), state: 5 };
        short.call::<nsm::Notify>(&unknown).await.unwrap_err();
        let known = NotifyArgs { mon_name: b"carol"[..].into(), state: 5 };
        client.call::<nsm::Notify>(&known).await.unwrap();
        client.call::<nsm::Unmon>(&registration("carol", PROGRAM).mon_id).await.unwrap();
        let my_id = registration("carol", PROGRAM).mon_id.my_id;
        client.call::<nsm::UnmonAll>(&my_id).await.unwrap();

        let scrape = filer.scrape();
        for (procedure, success, error) in [
            ("null", 0.0, 0.0),
            ("stat", 2.0, 0.0),
            ("mon", 1.0, 2.0),
            ("unmon", 1.0, 0.0),
            ("unmon_all", 1.0, 0.0),
            ("simu_crash", 0.0, 1.0),
            ("notify", 1.0, 1.0),
        ] {
            let count = durations(procedure, "count");
            scrape.has(&[
                (&requests(procedure, "success"), success),
                (&requests(procedure, "error"), error),
                (&count, success + error),
            ]);
            let sum = scrape.value(&durations(procedure, "sum"));
            assert_eq!(sum > 0.0, success + error > 0.0, "{procedure}: {sum}");
            assert!(sum < 10.0, "{procedure}: {sum}");
        }
    });
}

#[test]
fn crashes_and_cleanups_are_counted_once_each() {
    let (filer, theirs) = start("60s");
    theirs.block_on(async move || {
        let (file, shared) = (filer.file("a.db").await, filer.file("b.db").await);
        // Answers its callback after 600 ms.
        let mut registrant = Host::bind(ip(CLIENT), 111, RpcbindKind::Full).await;
        let slow = script(|_| Answer::Delayed(Duration::from_millis(600), ().to_bytes()));
        registrant.tcp(PROGRAM, 1, slow).await;
        connect(CLIENT).await.call::<nsm::Mon>(&registration("carol", PROGRAM)).await.unwrap();

        let alice = locker(ALICE, "alice").await;
        for first in [0, 20, 40] {
            assert_eq!(alice.lock(&file, range(first, 10)).await.unwrap(), Status::Granted);
        }
        let share = alice.share(&shared, Access::Both, Mode::DenyWrite).await.unwrap();
        assert_eq!(share, Status::Granted);
        let bob = locker(BOB, "bob").await;
        assert_eq!(bob.lock(&file, range(100, 1)).await.unwrap(), Status::Granted);
        assert_eq!(bob.unlock(&file, range(100, 1)).await.unwrap(), Status::Granted);
        // NM_LOCK: recorded, and not monitored.
        let dave = locker(DAVE, "dave").await;
        let args = dave.lock_args(&file, range(200, 1), true);
        let reply = dave.connection.call::<v4::NmLock>(&args).await.unwrap();
        assert_eq!(reply.status, Status::Granted);
        filer.scrape().has(&[
            // The registration, alice and bob.
            ("nsm_clients_registered", 3.0),
            ("lockkeeper_clients{state=\"active\"}", 2.0),
            ("lockkeeper_clients{state=\"idle\"}", 2.0),
            (HELD, 4.0),
            (UNCONFIRMED, 0.0),
            (RELEASABLE, 0.0),
            ("lockkeeper_shares", 1.0),
            (CRASHES, 0.0),
            (STARTED, 0.0),
        ]);

        // A reboot of a host that held nothing is a crash, and nothing is cleaned up.
        drop(bob);
        notify(BOB, "bob", 5).await;
        notify(BOB, "bob", 5).await;
        filer.scrape().has(&[(CRASHES, 1.0), (CLEANUPS, 0.0), (CLEANED, 0.0)]);
        // So is one of a host that is only watched.
        notify(CAROL, "carol", 5).await;
        notify(CAROL, "carol", 5).await;
        filer.wait_for(SUCCESS, 1.0).await;
        let scrape = filer.scrape();
        scrape.has(&[(CRASHES, 2.0), (CLEANUPS, 0.0), (STARTED, 1.0), (FAILED, 0.0)]);
        scrape.has(&[(TOLD_COUNT, 1.0)]);
        let took = scrape.value(TOLD_SUM);
        assert!((0.6..5.0).contains(&took), "{took}");
        // Three locks and a share.
        drop(alice);
        notify(ALICE, "alice", 5).await;
        filer.scrape().has(&[(CRASHES, 3.0), (CLEANUPS, 1.0), (CLEANED, 4.0), (HELD, 1.0)]);
        // FREE_ALL cleans up and says nothing about a crash.
        drop(dave);
        let datagram = UdpCaller::bind(ip(DAVE), 900, ADDRESS).await;
        datagram.send::<v4::FreeAll>(1, &free_all_args("dave")).await;
        datagram.reply(1).await;
        filer.scrape().has(&[(CRASHES, 3.0), (CLEANUPS, 2.0), (CLEANED, 5.0), (HELD, 0.0)]);
        filer.scrape().has(&[("lockkeeper_shares", 0.0), ("nsm_clients_registered", 3.0)]);
    });
}

#[test]
fn what_a_restart_leaves_is_counted_by_state_and_notices_by_result() {
    let (mut filer, theirs) = start("3s");
    theirs.block_on(async move || {
        let file = filer.file("a.db").await;
        // dave's rpcbind is silent: an attempt to notify it fails after 5 s. alice answers.
        let _silent = Host::bind(ip(DAVE), 111, RpcbindKind::Silent).await;
        let mut host = Host::bind(ip(ALICE), 111, RpcbindKind::Full).await;
        host.tcp(nsm::PROGRAM, 1, script(|_| Answer::results(&()))).await;
        let (alice, dave) = (locker(ALICE, "alice").await, locker(DAVE, "dave").await);
        assert_eq!(alice.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
        for first in [20, 40] {
            assert_eq!(dave.lock(&file, range(first, 10)).await.unwrap(), Status::Granted);
        }
        filer.crash(false);
        filer.scrape().has(&[(HELD, 0.0), (UNCONFIRMED, 3.0), (RELEASABLE, 0.0)]);
        until("a notice failed", || filer.scrape().value(FAILED) >= 1.0).await;
        let scrape = filer.scrape();
        let ended = scrape.value(SUCCESS) + scrape.value(FAILED);
        scrape.has(&[(FAILED, 1.0), (TOLD_COUNT, ended)]);
        assert!(scrape.value(SUCCESS) >= 1.0 && scrape.value(STARTED) >= ended);
        let took = scrape.value(TOLD_SUM);
        assert!((4.5..12.0).contains(&took), "one of 5 s, the others quick: {took}");

        // The window begins with this call. dave is silent in it.
        let alice = locker(ALICE, "alice").await;
        assert_eq!(alice.reclaim(&file, range(0, 10)).await.unwrap(), Status::Granted);
        filer.wait_for(RELEASABLE, 2.0).await;
        filer.scrape().has(&[(HELD, 1.0), (UNCONFIRMED, 0.0), (CRASHES, 1.0), (CLEANUPS, 0.0)]);
        let dave = locker(DAVE, "dave").await;
        assert_eq!(dave.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);

        // The end of a roster grace cleans up what was not reclaimed.
        drop(alice);
        filer.crash(true);
        filer.scrape().has(&[(HELD, 0.0), (UNCONFIRMED, 0.0), (RELEASABLE, 0.0)]);
        let alice = locker(ALICE, "alice").await;
        alice.unlock(&file, range(500, 1)).await.unwrap();
        filer.wait_for("lockkeeper_grace_active", 0.0).await;
        // dave is still registered, and was silent.
        filer.scrape().has(&[(CLEANUPS, 1.0), (CLEANED, 1.0), (CRASHES, 1.0)]);
    });
}
