//! Nobody speaks for another (R6.3): what comes from another address, or from a port that any user
//! can have, changes nothing; and nobody makes us call a third. In networks of the test, which need
//! root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use client::{CallError, Connection, Datagram, Locker, Options};
use keeper::config::Verify;
use support::house::{Ending, House, MOMENT, ip, server};
use support::scene::{CLIENT, FOURTH, OTHER, THIRD, connect, locker, networks, options};
use support::scripted::{Answer, Heard, Host, Rpcbind, script};
use support::speaker::Speaker;
use support::{PATIENCE, range};
use tokio::time::{sleep, timeout};
use wire::nfs3::Handle;
use wire::nlm::{self, FreeAllArgs, LockArgs, Status, StatusReply, TestArgs, v4};
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs};
use wire::{Decode, Encode};

/// Who holds locks; who pretends to be it; who has no part in it; who wants the same locks.
const VICTIM: &str = CLIENT;
const FORGER: &str = OTHER;
const STRANGER: &str = THIRD;
const RIVAL: &str = FOURTH;

/// A host that has all services, with which a lock service could be made to speak.
async fn host(at: &str) -> Host {
    let mut host = Host::at(ip(at), 111, Rpcbind::Usual).await;
    let void = || script(|_| Answer::Results(().to_bytes()));
    let locks = || {
        script(|heard: &Heard| match heard.procedure {
            5 => {
                let args = TestArgs::from_bytes(heard.args.clone()).unwrap();
                Answer::with(&StatusReply { cookie: args.cookie, status: Status::Granted })
            }
            _ => Answer::Results(().to_bytes()),
        })
    };
    host.tcp(nlm::PROGRAM, 4, locks()).await;
    host.udp(nlm::PROGRAM, 4, script(|_| Answer::Nothing)).await;
    host.tcp(nsm::PROGRAM, 1, void()).await;
    host.udp(nsm::PROGRAM, 1, void()).await;
    host.udp(200_048, 1, void()).await;
    host
}

async fn is_kept(rival: &Locker, file: &Handle) {
    assert_eq!(rival.lock(file, range(0, 1)).await.unwrap(), Status::Denied);
}

/// What somebody says who wants the victim to have rebooted; nothing of it is answered.
async fn pretend_a_reboot(connection: &Connection, name: &'static str) {
    let connection = connection.with_timeout(MOMENT);
    let notice = NotifyArgs { mon_name: name.into(), state: 99 };
    let answer = connection.call::<nsm::Notify>(&notice).await;
    assert!(matches!(answer, Err(CallError::Timeout(_))), "{answer:?}");
    let free = FreeAllArgs { name: name.into(), state: 99 };
    let answer = connection.call::<v4::FreeAll>(&free).await;
    assert!(matches!(answer, Err(CallError::Timeout(_))), "{answer:?}");
}

fn registration(of: &'static str, watched: &'static str) -> MonArgs {
    let my_id = MyId { my_name: of.into(), program: 200_048, version: 1, procedure: 1 };
    MonArgs { mon_id: MonId { mon_name: watched.into(), my_id }, private: [7; 16] }
}

#[test]
fn another_address_changes_nothing_and_nobody_makes_us_call_a_third() {
    let (ours, theirs) = networks();
    let mut house = House::with(ours, true);
    theirs.block_on(async move || {
        let file = house.root();
        let stranger = host(STRANGER).await;
        let (at_victim, at_forger) = (host(VICTIM).await, host(FORGER).await);
        let victim = locker(VICTIM, "victim", 5).await;
        let rival = locker(RIVAL, "rival", 1).await;
        // The same name, number and owner, from another address.
        let forger = Locker::new(connect(FORGER).await, "victim", 5);
        assert_eq!(victim.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);

        assert_eq!(forger.unlock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        is_kept(&rival, &file).await;
        pretend_a_reboot(&forger.connection, "victim").await;
        is_kept(&rival, &file).await;
        assert_eq!(forger.lock(&file, range(0, 9)).await.unwrap(), Status::Denied);

        // A place in line is its own, too.
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(victim.wait(&file, range(100, 9)).await.unwrap(), Status::Blocked);
        assert_eq!(forger.cancel(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(forger.unlock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(rival.unlock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        let is_grant = |heard: &Heard| heard.procedure == 5;
        support::until("it was told", || at_victim.calls().iter().any(is_grant)).await;
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Denied);

        // Nothing is left of the victim that could answer: still nobody speaks for it.
        drop((victim, at_victim));
        sleep(MOMENT).await;
        pretend_a_reboot(&forger.connection, "victim").await;
        is_kept(&rival, &file).await;

        // Whom we are to call is who asks, whatever it calls itself.
        let aimed = forger.connection.call::<nsm::Mon>(&registration(STRANGER, "victim")).await;
        assert_eq!(aimed.unwrap().outcome, nsm::Outcome::Success);
        // Not at a program that no registrant has, and not at the word of a datagram.
        let mut odd = registration("forger", "victim");
        odd.mon_id.my_id.program = wire::nfs3::PROGRAM;
        let refused = forger.connection.call::<nsm::Mon>(&odd).await;
        assert_eq!(refused.unwrap().outcome, nsm::Outcome::Failure);
        let mut datagrams = Datagram::connect(server(), &options(FORGER, true)).await.unwrap();
        let refused = datagrams.call::<nsm::Mon>(&registration("forger", "victim")).await;
        assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
        let aimed = Locker::new(connect(FORGER).await, STRANGER, 1);
        assert_eq!(aimed.lock(&file, range(200, 1)).await.unwrap(), Status::Granted);
        assert_eq!(aimed.wait(&file, range(0, 1)).await.unwrap(), Status::Blocked);

        // We restart: only the victim gets its lock back.
        house.restart(Ending::Crash);
        let forger = Locker::new(connect(FORGER).await, "victim", 5);
        assert_ne!(forger.reclaim(&file, range(0, 9)).await.unwrap(), Status::Granted);
        let restart = |heard: &Heard| heard.program == 200_048 && heard.from.ip() == server().ip();
        support::until("who registered was told", || at_forger.calls().iter().any(restart)).await;
        let victim = locker(VICTIM, "victim", 5).await;
        assert_eq!(victim.reclaim(&file, range(0, 9)).await.unwrap(), Status::Granted);
        assert!(stranger.calls().is_empty(), "{:?}", stranger.calls());
        assert!(stranger.lookups().is_empty() && stranger.connections() == 0);
    });
}

/// A grant that the victim has heard of and not answered.
async fn unanswered_grant(file: &Handle) -> (Host, Speaker, Locker, nlm::Cookie) {
    let victim = host(VICTIM).await;
    let speaker = Speaker::new(ip(VICTIM), 1011, server()).await;
    let rival = locker(RIVAL, "rival", 1).await;
    assert_eq!(rival.lock(file, range(0, 9)).await.unwrap(), Status::Granted);
    let args = locker(VICTIM, "victim", 5).await.lock_args(file, range(0, 9), true);
    speaker.say::<v4::LockMsg>(1, &LockArgs { block: true, ..args }).await;
    let heard = |procedure| victim.calls().into_iter().find(|one| one.procedure == procedure);
    support::until("it heard BLOCKED", || heard(12).is_some()).await;
    assert_eq!(rival.unlock(file, range(0, 9)).await.unwrap(), Status::Granted);
    support::until("it heard GRANTED", || heard(10).is_some()).await;
    let granted = heard(10).unwrap();
    let cookie = TestArgs::from_bytes(granted.args).unwrap().cookie;
    (victim, speaker, rival, cookie)
}

async fn answer_grant_from(at: SocketAddr, cookie: &nlm::Cookie) {
    let forger = Speaker::new(at.ip(), at.port(), server()).await;
    for (xid, status) in [(1, Status::Denied), (2, Status::Granted)] {
        let answer = StatusReply { cookie: cookie.clone(), status };
        forger.say::<v4::GrantedRes>(xid, &answer).await;
        forger.reply(xid).await;
    }
}

/// The lock is the victim's, and the victim is asked again whether it has it.
async fn is_still_open(victim: &Host, rival: &Locker, file: &Handle) {
    is_kept(rival, file).await;
    let grants = || victim.calls().iter().filter(|heard| heard.procedure == 10).count();
    let before = grants();
    support::until("it hears GRANTED again", || grants() > before).await;
    is_kept(rival, file).await;
}

#[test]
fn an_answer_to_a_grant_counts_only_from_who_was_told() {
    let (ours, theirs) = networks();
    let house = House::with(ours, true);
    let file = house.root();
    theirs.block_on(async move || {
        let (victim, speaker, rival, cookie) = unanswered_grant(&file).await;
        answer_grant_from(SocketAddr::new(ip(FORGER), 1012), &cookie).await;
        is_still_open(&victim, &rival, &file).await;
        let answer = StatusReply { cookie, status: Status::Granted };
        speaker.say::<v4::GrantedRes>(9, &answer).await;
        is_kept(&rival, &file).await;
    });
}

#[test]
fn an_answer_to_a_grant_counts_only_from_a_reserved_port() {
    let (ours, theirs) = networks();
    let house = House::with(ours, true);
    let file = house.root();
    theirs.block_on(async move || {
        let (victim, _speaker, rival, cookie) = unanswered_grant(&file).await;
        answer_grant_from(SocketAddr::new(ip(VICTIM), 4000), &cookie).await;
        is_still_open(&victim, &rival, &file).await;
    });
}

#[test]
fn a_user_of_the_victim_speaks_no_more_for_it_than_anybody() {
    let (ours, theirs) = networks();
    let house = House::with(ours, true);
    let file = house.root();
    theirs.block_on(async move || {
        let victim = locker(VICTIM, "victim", 5).await;
        let rival = locker(RIVAL, "rival", 1).await;
        assert_eq!(victim.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(victim.wait(&file, range(100, 9)).await.unwrap(), Status::Blocked);
        // The same machine and name, but a port that every user of it can have.
        let user = Connection::connect(server(), &options(VICTIM, false)).await.unwrap();
        let user = Locker::new(user.with_timeout(MOMENT), "victim", 5);
        let is_too_weak = |answer: Result<Status, CallError>| {
            let answer = answer.unwrap_err().to_string();
            assert!(answer.contains("TooWeak"), "{answer}");
        };
        is_too_weak(user.unlock(&file, range(0, 0)).await);
        is_too_weak(user.lock(&file, range(50, 1)).await);
        is_too_weak(user.reclaim(&file, range(0, 9)).await);
        is_too_weak(user.cancel(&file, range(100, 9)).await);
        let notice = NotifyArgs { mon_name: b"victim"[..].into(), state: 99 };
        let free = FreeAllArgs { name: b"victim"[..].into(), state: 99 };
        let mon = registration("me", "victim");
        let void = |answer: Result<(), CallError>| answer.map(|()| Status::Granted);
        is_too_weak(void(user.connection.call::<nsm::Notify>(&notice).await));
        is_too_weak(void(user.connection.call::<v4::FreeAll>(&free).await));
        is_too_weak(void(user.connection.call::<nsm::Mon>(&mon).await.map(|_| ())));
        is_too_weak(void(user.connection.call::<nsm::Unmon>(&mon.mon_id).await.map(|_| ())));
        is_too_weak(void(
            user.connection.call::<nsm::UnmonAll>(&mon.mon_id.my_id).await.map(|_| ()),
        ));
        is_kept(&rival, &file).await;
        // The one who waits is still in line: it is the next.
        assert_eq!(rival.unlock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Denied);
        // It is not even told who holds what.
        let test = timeout(Duration::from_secs(5), user.test(&file, range(0, 1))).await;
        is_too_weak(test.unwrap().map(|outcome| outcome.status()));
    });
}

/// `verify = "ask"`: the word of the machine's own status monitor is needed for what anybody could
/// have sent.
#[test]
fn a_datagram_counts_only_if_the_status_monitor_answers_the_same_state() {
    let (ours, theirs) = networks();
    let mut house = House::with(ours, true);
    house.verify = Verify::Ask;
    house.restart(Ending::Stop);
    theirs.block_on(async move || {
        let file = house.root();
        let state = Arc::new(AtomicI32::new(7));
        let answered = state.clone();
        let mut monitor = Host::at(ip(VICTIM), 111, Rpcbind::Usual).await;
        let stat = move |_: &Heard| {
            let state = answered.load(Ordering::SeqCst);
            Answer::with(&nsm::StatReply { outcome: nsm::Outcome::Failure, state })
        };
        monitor.udp(nsm::PROGRAM, 1, script(stat)).await;
        let victim = locker(VICTIM, "victim", 5).await;
        let rival = locker(RIVAL, "rival", 1).await;
        assert_eq!(victim.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        drop(victim);
        sleep(MOMENT).await;
        // Nothing of the victim answers; but its status monitor knows of no reboot.
        let options = Options { timeout: MOMENT, ..options(VICTIM, true) };
        let mut datagrams = Datagram::connect(server(), &options).await.unwrap();
        let notice = NotifyArgs { mon_name: "victim".into(), state: 99 };
        assert!(datagrams.call::<nsm::Notify>(&notice).await.is_err());
        let is_stat = |heard: &&Heard| (heard.program, heard.procedure) == (nsm::PROGRAM, 1);
        assert!(monitor.calls().iter().filter(is_stat).count() > 0, "it was not asked");
        is_kept(&rival, &file).await;
        state.store(99, Ordering::SeqCst);
        let options = Options { timeout: PATIENCE, ..options };
        let mut datagrams = Datagram::connect(server(), &options).await.unwrap();
        datagrams.call::<nsm::Notify>(&notice).await.unwrap();
        assert_eq!(rival.lock(&file, range(0, 1)).await.unwrap(), Status::Granted);
    });
}
