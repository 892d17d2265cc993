//! Connections over loopback, whose kernel is always up, and how they end.

use keeper::identity::{OwnerNamespace, Transport};
use rustix::net::sockopt::{tcp_keepidle, tcp_keepintvl};

use super::super::registry::Registry;
use super::super::socket::{KeepAlive, NORMAL, Socket, TcpState};
use super::super::witness::Witness;
use super::*;
use crate::liveness::registry::TakenBy;

fn namespace() -> OwnerNamespace {
    OwnerNamespace::new("127.0.0.1".parse().unwrap(), Transport::Tcp, 4)
}

async fn fixture() -> Fixture {
    Fixture::at("127.0.0.1:0", Settings::default()).await
}

fn alice() -> HostKey {
    host("127.0.0.1", "a")
}

#[tokio::test]
async fn a_peer_that_acknowledges_is_alive_and_is_asked_in_peace_again() {
    let fixture = fixture().await;
    let connection = call(fixture.at, "a").await;
    fixture.until_open(1).await;
    let begun = Instant::now();
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
    assert!(begun.elapsed() < Duration::from_secs(5), "it took as long as silence does");
    let socket = fixture.first_stream();
    let rhythm = (tcp_keepidle(&*socket), tcp_keepintvl(&*socket));
    assert_eq!(rhythm, (Ok(Duration::from_secs(60)), Ok(Duration::from_secs(30))));
    drop(connection);
}

#[tokio::test]
async fn without_a_line_the_answer_is_silence_at_once() {
    let fixture = fixture().await;
    let begun = Instant::now();
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_line_that_opened_after_the_question_says_nothing() {
    let fixture = fixture().await;
    let inquiry = same_kernel(&alice());
    let _line = call(fixture.at, "a").await;
    fixture.until_open(1).await;
    assert_eq!(fixture.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
}

#[tokio::test]
async fn an_orderly_end_is_no_reset_and_proves_nothing() {
    let fixture = fixture().await;
    let connection = call(fixture.at, "a").await;
    fixture.until_open(1).await;
    drop(connection);
    fixture.until_open(0).await;
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!(fixture.resets(), 0);
    assert_eq!(fixture.liveness.0.lock().sizes(), (0, 0));
    let _again = call(fixture.at, "a").await;
    fixture.until_open(1).await;
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
}

#[tokio::test]
async fn a_peer_that_said_goodbye_is_not_asked() {
    let fixture = fixture().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    let connection =
        fixture.liveness.track("127.0.0.1".parse().unwrap(), Opener::Kernel, ours.clone());
    connection.add_name(b"a");
    drop(peer);
    until("CLOSE_WAIT", || ours.status().unwrap().state == TcpState::Closing).await;
    let begun = Instant::now();
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_reset_by_itself_is_reported_but_is_no_proof() {
    let fixture = fixture().await;
    let connection = call(fixture.at, "a").await;
    fixture.until_open(1).await;
    abort(connection);
    until("a reset", || fixture.resets() == 1).await;
    assert_eq!(*fixture.resets.lock().unwrap(), [Name::from("a")]);
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!(fixture.liveness.0.lock().sizes(), (0, 1));
}

/// A user of the victim opens a connection, forges a notice, and resets the connection (B3.10).
#[tokio::test]
async fn a_users_connection_testifies_life_and_never_death() {
    let fixture = fixture().await;
    let open = async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let ours = Arc::new(listener.accept().await.unwrap().0);
        let at = "127.0.0.1".parse().unwrap();
        let connection = fixture.liveness.track(at, Opener::User, ours.clone());
        connection.add_name(b"a");
        (peer, ours, connection)
    };
    let (peer, _ours, _line) = open().await;
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
    let asked = tokio::spawn({
        let liveness = fixture.liveness.clone();
        async move { liveness.probe(&same_kernel(&alice())).await }
    });
    abort(peer);
    assert_ne!(asked.await.unwrap(), ProbeAnswer::Gone);
    let (peer, ours, connection) = open().await;
    abort(peer);
    until("a socket error", || ours.take_error().unwrap().is_some()).await;
    connection.ended(true);
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!((fixture.resets(), fixture.liveness.0.lock().sizes().1), (0, 0));
}

#[tokio::test]
async fn a_kernel_that_answers_on_an_older_line_is_not_suspected_for_a_reset() {
    let fixture = fixture().await;
    let kept = call(fixture.at, "a").await;
    let aborted = call(fixture.at, "a").await;
    let other = call(fixture.at, "b").await;
    fixture.until_open(3).await;
    abort(aborted);
    fixture.until_open(2).await;
    abort(other);
    until("a reset", || fixture.resets() > 0).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(*fixture.resets.lock().unwrap(), [Name::from("b")]);
    drop(kept);
}

#[tokio::test]
async fn what_an_ended_line_knew_passes_on_to_those_that_opened_while_it_lived() {
    let fixture = fixture().await;
    let (first, lost) = (call(fixture.at, "a").await, call(fixture.at, "a").await);
    fixture.until_open(2).await;
    fixture.liveness.watch(&alice(), namespace());
    fixture.liveness.record_lock(&alice(), TakenBy::Lock(STATE), Instant::now());
    abort(lost);
    fixture.until_open(1).await;
    sleep(Duration::from_secs(2)).await;
    let second = call(fixture.at, "a").await;
    fixture.until_open(2).await;
    drop(first);
    fixture.until_open(1).await;
    // Without the first connection, the second would look like another kernel's after the reset.
    assert_eq!(fixture.liveness.0.lock().sizes(), (1, 1));
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
    drop(second);
}

#[tokio::test]
async fn a_line_after_a_reset_that_it_did_not_overlap_is_no_sign_of_life() {
    let fixture = fixture().await;
    let first = call(fixture.at, "a").await;
    fixture.until_open(1).await;
    fixture.liveness.watch(&alice(), namespace());
    fixture.liveness.record_lock(&alice(), TakenBy::Lock(STATE), Instant::now());
    abort(first);
    until("a reset", || fixture.resets() == 1).await;
    sleep(Duration::from_secs(2)).await;
    let second = call(fixture.at, "a").await;
    until("the expected state", || fixture.liveness.0.lock().sizes() == (1, 1)).await;
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    // A lock taken since then is the new kernel's.
    fixture.liveness.record_lock(&alice(), TakenBy::Lock(STATE), Instant::now());
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
    drop(second);
}

#[tokio::test]
async fn a_machine_does_not_answer_for_another_behind_the_same_address() {
    let fixture = fixture().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    let nameless =
        fixture.liveness.track("127.0.0.1".parse().unwrap(), Opener::Kernel, ours.clone());
    // A connection without an NFS or NLM request is no evidence.
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    nameless.add_name(b"");
    // No other host is known at this address, so the connection counts without a name.
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
    let _bob = call(fixture.at, "b").await;
    fixture.until_open(1).await;
    assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!(fixture.same_kernel(&host("127.0.0.1", "b")).await, ProbeAnswer::Alive);
    assert_eq!(fixture.same_kernel(&host("127.0.0.2", "b")).await, ProbeAnswer::Silent);
}

#[tokio::test]
async fn names_are_bounded_and_compared_as_machines_are() {
    let fixture = fixture().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    let connection =
        fixture.liveness.track("::ffff:127.0.0.1".parse().unwrap(), Opener::Kernel, ours.clone());
    connection.add_name(&[b'x'; 1025]);
    connection.add_name(b"");
    assert_eq!(connection.connection.names(), []);
    for name in ["alice.example.com", "Alice", "ALICE", "bob", "carol", "alice.example.com"] {
        connection.add_name(name.as_bytes());
    }
    let known = ["alice.example.com", "Alice", "ALICE"].map(Name::from);
    assert_eq!(connection.connection.names(), known);
    let found = |name| {
        fixture.liveness.0.lock().connections_of(&host("127.0.0.1", name), Instant::now(), 9)
    };
    assert_eq!(found("alice").len(), 1);
    assert_eq!(found("bob").len(), 0);
}

#[tokio::test]
async fn anybody_who_acknowledges_is_reachable_and_nobody_inside_is_called_for_others() {
    let fixture = fixture().await;
    let inquiry = Inquiry { question: Question::Reachable, ..same_kernel(&alice()) };
    // A loopback address whose request did not arrive over loopback.
    let outside = OwnerNamespace::new("198.51.100.1".parse().unwrap(), Transport::Tcp, 4);
    fixture.liveness.watch(&alice(), outside);
    let begun = Instant::now();
    assert_eq!(fixture.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
    assert!(begun.elapsed() < Duration::from_secs(1));
    let _line = call(fixture.at, "a").await;
    fixture.until_open(1).await;
    assert_eq!(fixture.liveness.probe(&inquiry).await, ProbeAnswer::Alive);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_questions_may_be_open_at_once() {
    let fixture = fixture().await;
    let mut connections = Vec::new();
    for name in ["a", "b", "c", "d"] {
        connections.push(call(fixture.at, name).await);
    }
    fixture.until_open(4).await;
    let begun = Instant::now();
    let mut probes = tokio::task::JoinSet::new();
    for n in 0..4000 {
        let (liveness, name) = (fixture.liveness.clone(), ["a", "b", "c", "d"][n % 4]);
        probes.spawn(async move { liveness.probe(&same_kernel(&host("127.0.0.1", name))).await });
    }
    let answers = probes.join_all().await;
    assert!(answers.iter().all(|answer| *answer == ProbeAnswer::Alive));
    assert!(begun.elapsed() < Duration::from_secs(9));
    assert_eq!(tcp_keepidle(&*fixture.first_stream()), Ok(Duration::from_secs(60)));
}

#[tokio::test]
async fn resets_are_remembered_in_bounded_number() {
    let fixture = fixture().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    for n in 0..9000_u32 {
        let address = IpAddr::from([10, 0, (n / 2 % 250) as u8, (n % 7) as u8]);
        let connection = fixture.liveness.track(address, Opener::Kernel, ours.clone());
        connection.add_name(b"a");
        connection.ended(true);
    }
    assert_eq!(fixture.liveness.0.lock().sizes(), (0, 8192));
}

#[tokio::test]
async fn there_are_no_more_witnesses_than_allowed() {
    let mut registry = Registry::default();
    let witness = || Some(Witness::from(tokio::spawn(std::future::pending())));
    let hosts = ["a", "b", "c"].map(|name| host("127.0.0.1", name));
    let now = Instant::now();
    for host in &hosts {
        assert!(registry.watch(host, namespace(), 2, now, witness));
        assert!(!registry.watch(host, namespace(), 2, now, || panic!("it has one")));
    }
    registry.unwatch(&hosts[0], now);
    registry.unwatch(&hosts[0], now);
    assert!(registry.watch(&hosts[0], namespace(), 2, now, witness));
    registry.unwatch(&hosts[2], now);
    assert!(registry.watch(&hosts[2], namespace(), 2, now, || panic!("there are two")));
    assert_eq!(registry.namespace(&hosts[2]), Some(namespace()));
    // It was given something after it was found to hold nothing.
    registry.unwatch(&hosts[2], now - Duration::from_millis(1));
    assert_eq!(registry.namespace(&hosts[2]), Some(namespace()));
}

#[test]
fn a_client_that_invents_names_does_not_take_the_witnesses_of_others() {
    let mut registry = Registry::<()>::default();
    let now = Instant::now();
    let mut begun = 0;
    for n in 0..200 {
        let invented = host("127.0.0.1", &format!("host{n}"));
        let witness = || {
            begun += 1;
            Some(())
        };
        assert!(registry.watch(&invented, namespace(), 100, now, witness));
    }
    assert_eq!(begun, 64);
    let mut other = false;
    let elsewhere = host("127.0.0.2", "alice");
    registry.watch(&elsewhere, namespace(), 100, now, || {
        other = true;
        Some(())
    });
    assert!(other, "another address has its own");
}

#[test]
fn three_probes_fit_into_an_inquiry() {
    let KeepAlive { idle, interval, count } = super::super::socket::URGENT;
    assert!(idle + 2 * interval < super::super::SAME_KERNEL_MAX - Duration::from_secs(2));
    assert!(interval * count > Duration::from_secs(60), "probing ends a connection");
    assert_ne!(NORMAL, super::super::socket::URGENT);
}
