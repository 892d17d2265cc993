//! Spoofed requests (B7.7): a request from another address or from an unprivileged port changes
//! nothing, and none makes the server call a third host. Runs in network namespaces; needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use client::{CallError, Connection, Datagram, Locker, Options};
use keeper::config::Verify;
use support::clients::{CLIENT, FOURTH, OTHER, THIRD, connect, locker, networks, options};
use support::range;
use support::restartable::{Ending, MOMENT, RestartableServer, ip, server_address};
use testbed::peer::{Answer, Host, ReceivedCall, RpcbindKind, UdpCaller, script};
use testbed::wait::{self, until};
use tokio::time::{sleep, timeout};
use wire::Decode;
use wire::nfs3::Handle;
use wire::nlm::{self, FreeAllArgs, LockArgs, Status, StatusReply, TestArgs, v4};
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs};

/// The holder of the locks, an impostor, a host without a part in it, and a competitor.
const VICTIM: &str = CLIENT;
const FORGER: &str = OTHER;
const STRANGER: &str = THIRD;
const RIVAL: &str = FOURTH;

/// A host with every service that a lock server could be made to call.
async fn host(at: &str) -> Host {
    let mut host = Host::bind(ip(at), 111, RpcbindKind::Full).await;
    let void = || script(|_| Answer::results(&()));
    let locks = || {
        script(|call: &ReceivedCall| match call.procedure {
            5 => {
                let args = TestArgs::from_bytes(call.args.clone()).unwrap();
                Answer::results(&StatusReply { cookie: args.cookie, status: Status::Granted })
            }
            _ => Answer::results(&()),
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

/// Claims that the victim has rebooted; no claim gets a reply.
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
    let mut server = RestartableServer::with(ours, true);
    theirs.block_on(async move || {
        let file = server.root();
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

        // A waiter is protected as well.
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(victim.wait(&file, range(100, 9)).await.unwrap(), Status::Blocked);
        assert_eq!(forger.cancel(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(forger.unlock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(rival.unlock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        let is_grant = |call: &ReceivedCall| call.procedure == 5;
        until("it was told", || at_victim.calls().iter().any(is_grant)).await;
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Denied);

        // The same when nothing of the victim is left to answer a probe.
        drop((victim, at_victim));
        sleep(MOMENT).await;
        pretend_a_reboot(&forger.connection, "victim").await;
        is_kept(&rival, &file).await;

        // A registration makes the server call its sender, whatever name it gives.
        let aimed = forger.connection.call::<nsm::Mon>(&registration(STRANGER, "victim")).await;
        assert_eq!(aimed.unwrap().outcome, nsm::Outcome::Success);
        // Refused: a program that no registrant has, and a registration by datagram.
        let mut odd = registration("forger", "victim");
        odd.mon_id.my_id.program = wire::nfs3::PROGRAM;
        let refused = forger.connection.call::<nsm::Mon>(&odd).await;
        assert_eq!(refused.unwrap().outcome, nsm::Outcome::Failure);
        let mut datagrams =
            Datagram::connect(server_address(), &options(FORGER, true)).await.unwrap();
        let refused = datagrams.call::<nsm::Mon>(&registration("forger", "victim")).await;
        assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
        let aimed = Locker::new(connect(FORGER).await, STRANGER, 1);
        assert_eq!(aimed.lock(&file, range(200, 1)).await.unwrap(), Status::Granted);
        assert_eq!(aimed.wait(&file, range(0, 1)).await.unwrap(), Status::Blocked);

        // After a restart only the victim can reclaim its lock.
        server.restart(Ending::Crash);
        let forger = Locker::new(connect(FORGER).await, "victim", 5);
        assert_ne!(forger.reclaim(&file, range(0, 9)).await.unwrap(), Status::Granted);
        let restart = |call: &ReceivedCall| {
            call.program == 200_048 && call.from.ip() == server_address().ip()
        };
        until("who registered was told", || at_forger.calls().iter().any(restart)).await;
        let victim = locker(VICTIM, "victim", 5).await;
        assert_eq!(victim.reclaim(&file, range(0, 9)).await.unwrap(), Status::Granted);
        assert!(stranger.calls().is_empty(), "{:?}", stranger.calls());
        assert!(stranger.lookups().is_empty() && stranger.connections() == 0);
    });
}

/// A grant that the victim received and did not answer.
async fn unanswered_grant(file: &Handle) -> (Host, UdpCaller, Locker, nlm::Cookie) {
    let victim = host(VICTIM).await;
    let caller = UdpCaller::bind(ip(VICTIM), 1011, server_address()).await;
    let rival = locker(RIVAL, "rival", 1).await;
    assert_eq!(rival.lock(file, range(0, 9)).await.unwrap(), Status::Granted);
    let args = locker(VICTIM, "victim", 5).await.lock_args(file, range(0, 9), true);
    caller.send::<v4::LockMsg>(1, &LockArgs { block: true, ..args }).await;
    let received = |procedure| victim.calls().into_iter().find(|one| one.procedure == procedure);
    until("LOCK_RES", || received(12).is_some()).await;
    assert_eq!(rival.unlock(file, range(0, 9)).await.unwrap(), Status::Granted);
    until("GRANTED_MSG", || received(10).is_some()).await;
    let granted = received(10).unwrap();
    let cookie = TestArgs::from_bytes(granted.args).unwrap().cookie;
    (victim, caller, rival, cookie)
}

async fn answer_grant_from(at: SocketAddr, cookie: &nlm::Cookie) {
    let forger = UdpCaller::bind(at.ip(), at.port(), server_address()).await;
    for (xid, status) in [(1, Status::Denied), (2, Status::Granted)] {
        let answer = StatusReply { cookie: cookie.clone(), status };
        forger.send::<v4::GrantedRes>(xid, &answer).await;
        forger.reply(xid).await;
    }
}

/// The lock is the victim's, and the victim is asked again whether it has it.
async fn is_still_open(victim: &Host, rival: &Locker, file: &Handle) {
    is_kept(rival, file).await;
    let grants = || victim.calls().iter().filter(|call| call.procedure == 10).count();
    let before = grants();
    until("it hears GRANTED again", || grants() > before).await;
    is_kept(rival, file).await;
}

#[test]
fn an_answer_to_a_grant_counts_only_from_who_was_told() {
    let (ours, theirs) = networks();
    let server = RestartableServer::with(ours, true);
    let file = server.root();
    theirs.block_on(async move || {
        let (victim, caller, rival, cookie) = unanswered_grant(&file).await;
        answer_grant_from(SocketAddr::new(ip(FORGER), 1012), &cookie).await;
        is_still_open(&victim, &rival, &file).await;
        let answer = StatusReply { cookie, status: Status::Granted };
        caller.send::<v4::GrantedRes>(9, &answer).await;
        is_kept(&rival, &file).await;
    });
}

#[test]
fn an_answer_to_a_grant_counts_only_from_a_reserved_port() {
    let (ours, theirs) = networks();
    let server = RestartableServer::with(ours, true);
    let file = server.root();
    theirs.block_on(async move || {
        let (victim, _caller, rival, cookie) = unanswered_grant(&file).await;
        answer_grant_from(SocketAddr::new(ip(VICTIM), 4000), &cookie).await;
        is_still_open(&victim, &rival, &file).await;
    });
}

#[test]
fn a_user_of_the_victim_speaks_no_more_for_it_than_anybody() {
    let (ours, theirs) = networks();
    let server = RestartableServer::with(ours, true);
    let file = server.root();
    theirs.block_on(async move || {
        let victim = locker(VICTIM, "victim", 5).await;
        let rival = locker(RIVAL, "rival", 1).await;
        assert_eq!(victim.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(victim.wait(&file, range(100, 9)).await.unwrap(), Status::Blocked);
        // The same machine and name, but a port that every user of it can have.
        let user = Connection::connect(server_address(), &options(VICTIM, false)).await.unwrap();
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
        // The waiter is still queued and is granted next.
        assert_eq!(rival.unlock(&file, range(100, 9)).await.unwrap(), Status::Granted);
        assert_eq!(rival.lock(&file, range(100, 9)).await.unwrap(), Status::Denied);
        // TEST does not reveal the holder either.
        let test = timeout(Duration::from_secs(5), user.test(&file, range(0, 1))).await;
        is_too_weak(test.unwrap().map(|outcome| outcome.status()));
    });
}

/// `verify = "ask"`: a datagram, which can be forged, must be confirmed by the host's own status
/// monitor.
#[test]
fn a_datagram_counts_only_if_the_status_monitor_answers_the_same_state() {
    let (ours, theirs) = networks();
    let mut server = RestartableServer::with(ours, true);
    server.verify = Verify::Ask;
    server.restart(Ending::Stop);
    theirs.block_on(async move || {
        let file = server.root();
        let state = Arc::new(AtomicI32::new(7));
        let answered = state.clone();
        let mut monitor = Host::bind(ip(VICTIM), 111, RpcbindKind::Full).await;
        let stat = move |_: &ReceivedCall| {
            let state = answered.load(Ordering::SeqCst);
            Answer::results(&nsm::StatReply { outcome: nsm::Outcome::Failure, state })
        };
        monitor.udp(nsm::PROGRAM, 1, script(stat)).await;
        let victim = locker(VICTIM, "victim", 5).await;
        let rival = locker(RIVAL, "rival", 1).await;
        assert_eq!(victim.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        drop(victim);
        sleep(MOMENT).await;
        // Nothing of the victim answers; but its status monitor knows of no reboot.
        let options = Options { timeout: MOMENT, ..options(VICTIM, true) };
        let mut datagrams = Datagram::connect(server_address(), &options).await.unwrap();
        let notice = NotifyArgs { mon_name: "victim".into(), state: 99 };
        assert!(datagrams.call::<nsm::Notify>(&notice).await.is_err());
        let is_stat = |call: &&ReceivedCall| (call.program, call.procedure) == (nsm::PROGRAM, 1);
        assert!(monitor.calls().iter().filter(is_stat).count() > 0, "it was not asked");
        is_kept(&rival, &file).await;
        state.store(99, Ordering::SeqCst);
        let options = Options { timeout: wait::LIMIT, ..options };
        let mut datagrams = Datagram::connect(server_address(), &options).await.unwrap();
        datagrams.call::<nsm::Notify>(&notice).await.unwrap();
        assert_eq!(rival.lock(&file, range(0, 1)).await.unwrap(), Status::Granted);
    });
}
