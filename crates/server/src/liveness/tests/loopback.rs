//! What the lines of living kernels say, and how they end.

use keeper::identity::{Lane, Transport};
use rustix::net::sockopt::{tcp_keepidle, tcp_keepintvl};

use super::super::Socket;
use super::super::pulse::{CALM, Rhythm, State};
use super::super::registry::Registry;
use super::super::witness::Witness;
use super::*;

fn lane() -> Lane {
    Lane::new("127.0.0.1".parse().unwrap(), Transport::Tcp, 4)
}

async fn station() -> Station {
    Station::at("127.0.0.1:0", Settings::default()).await
}

fn alice() -> HostKey {
    host("127.0.0.1", "a")
}

#[tokio::test]
async fn a_peer_that_acknowledges_is_alive_and_is_asked_in_peace_again() {
    let station = station().await;
    let line = call(station.at, "a").await;
    station.until_open(1).await;
    let begun = Instant::now();
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
    assert!(begun.elapsed() < Duration::from_secs(5), "it took as long as silence does");
    let socket = station.first_stream();
    let rhythm = (tcp_keepidle(&*socket), tcp_keepintvl(&*socket));
    assert_eq!(rhythm, (Ok(Duration::from_secs(60)), Ok(Duration::from_secs(30))));
    drop(line);
}

#[tokio::test]
async fn without_a_line_the_answer_is_silence_at_once() {
    let station = station().await;
    let begun = Instant::now();
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_line_that_opened_after_the_question_says_nothing() {
    let station = station().await;
    let inquiry = same_kernel(&alice());
    let _line = call(station.at, "a").await;
    station.until_open(1).await;
    assert_eq!(station.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
}

#[tokio::test]
async fn an_orderly_end_is_no_reset_and_proves_nothing() {
    let station = station().await;
    let line = call(station.at, "a").await;
    station.until_open(1).await;
    drop(line);
    station.until_open(0).await;
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!(station.resets(), 0);
    assert_eq!(station.liveness.0.lock().sizes(), (0, 0));
    let _again = call(station.at, "a").await;
    station.until_open(1).await;
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
}

#[tokio::test]
async fn a_peer_that_said_goodbye_is_not_asked() {
    let station = station().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    let line = station.liveness.opened("127.0.0.1".parse().unwrap(), Opener::Kernel, ours.clone());
    line.named(b"a");
    drop(peer);
    until(|| ours.pulse().unwrap().state == State::Closing).await;
    let begun = Instant::now();
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_reset_by_itself_is_reported_but_is_no_proof() {
    let station = station().await;
    let line = call(station.at, "a").await;
    station.until_open(1).await;
    abort(line);
    until(|| station.resets() == 1).await;
    assert_eq!(*station.resets.lock().unwrap(), [Name::from("a")]);
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!(station.liveness.0.lock().sizes(), (0, 1));
}

/// A user of the victim's machine opens a connection, has a notice sent, and resets it (R6.1).
#[tokio::test]
async fn a_users_connection_testifies_life_and_never_death() {
    let station = station().await;
    let open = async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let ours = Arc::new(listener.accept().await.unwrap().0);
        let at = "127.0.0.1".parse().unwrap();
        let line = station.liveness.opened(at, Opener::User, ours.clone());
        line.named(b"a");
        (peer, ours, line)
    };
    let (peer, _ours, _line) = open().await;
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
    let asked = tokio::spawn({
        let liveness = station.liveness.clone();
        async move { liveness.probe(&same_kernel(&alice())).await }
    });
    abort(peer);
    assert_ne!(asked.await.unwrap(), ProbeAnswer::Gone);
    let (peer, ours, line) = open().await;
    abort(peer);
    until(|| ours.take_error().unwrap().is_some()).await;
    line.ended(true);
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!((station.resets(), station.liveness.0.lock().sizes().1), (0, 0));
}

#[tokio::test]
async fn a_kernel_that_answers_on_an_older_line_is_not_suspected_for_a_reset() {
    let station = station().await;
    let kept = call(station.at, "a").await;
    let aborted = call(station.at, "a").await;
    let other = call(station.at, "b").await;
    station.until_open(3).await;
    abort(aborted);
    station.until_open(2).await;
    abort(other);
    until(|| station.resets() > 0).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(*station.resets.lock().unwrap(), [Name::from("b")]);
    drop(kept);
}

#[tokio::test]
async fn what_an_ended_line_knew_passes_on_to_those_that_opened_while_it_lived() {
    let station = station().await;
    let (first, lost) = (call(station.at, "a").await, call(station.at, "a").await);
    station.until_open(2).await;
    station.liveness.watch(&alice(), lane());
    station.liveness.took(&alice(), STATE, Instant::now());
    abort(lost);
    station.until_open(1).await;
    sleep(Duration::from_secs(2)).await;
    let second = call(station.at, "a").await;
    station.until_open(2).await;
    drop(first);
    station.until_open(1).await;
    // Without the first line, the second would look like another kernel's after the reset.
    assert_eq!(station.liveness.0.lock().sizes(), (1, 1));
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
    drop(second);
}

#[tokio::test]
async fn a_line_after_a_reset_that_it_did_not_overlap_is_no_sign_of_life() {
    let station = station().await;
    let first = call(station.at, "a").await;
    station.until_open(1).await;
    station.liveness.watch(&alice(), lane());
    station.liveness.took(&alice(), STATE, Instant::now());
    abort(first);
    until(|| station.resets() == 1).await;
    sleep(Duration::from_secs(2)).await;
    let second = call(station.at, "a").await;
    until(|| station.liveness.0.lock().sizes() == (1, 1)).await;
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    // A lock taken since then is the new kernel's.
    station.liveness.took(&alice(), STATE, Instant::now());
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
    drop(second);
}

#[tokio::test]
async fn a_machine_does_not_answer_for_another_behind_the_same_address() {
    let station = station().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    let nameless =
        station.liveness.opened("127.0.0.1".parse().unwrap(), Opener::Kernel, ours.clone());
    // Who has only sent a notice yet is no sign of life.
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    nameless.named(b"");
    // Nobody else is known there: whoever it is, somebody lives.
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
    let _bob = call(station.at, "b").await;
    station.until_open(1).await;
    assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    assert_eq!(station.same_kernel(&host("127.0.0.1", "b")).await, ProbeAnswer::Alive);
    assert_eq!(station.same_kernel(&host("127.0.0.2", "b")).await, ProbeAnswer::Silent);
}

#[tokio::test]
async fn names_are_bounded_and_compared_as_machines_are() {
    let station = station().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    let line =
        station.liveness.opened("::ffff:127.0.0.1".parse().unwrap(), Opener::Kernel, ours.clone());
    line.named(&[b'x'; 1025]);
    line.named(b"");
    assert_eq!(line.line.names(), []);
    for name in ["alice.example.com", "Alice", "ALICE", "bob", "carol", "alice.example.com"] {
        line.named(name.as_bytes());
    }
    let known = ["alice.example.com", "Alice", "ALICE"].map(Name::from);
    assert_eq!(line.line.names(), known);
    let found =
        |name| station.liveness.0.lock().lines_of(&host("127.0.0.1", name), Instant::now(), 9);
    assert_eq!(found("alice").len(), 1);
    assert_eq!(found("bob").len(), 0);
}

#[tokio::test]
async fn anybody_who_acknowledges_is_reachable_and_nobody_inside_is_called_for_others() {
    let station = station().await;
    let inquiry = Inquiry { question: Question::Reachable, ..same_kernel(&alice()) };
    // A host on loopback that did not come over loopback.
    let outside = Lane::new("198.51.100.1".parse().unwrap(), Transport::Tcp, 4);
    station.liveness.watch(&alice(), outside);
    let begun = Instant::now();
    assert_eq!(station.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
    assert!(begun.elapsed() < Duration::from_secs(1));
    let _line = call(station.at, "a").await;
    station.until_open(1).await;
    assert_eq!(station.liveness.probe(&inquiry).await, ProbeAnswer::Alive);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_questions_may_be_open_at_once() {
    let station = station().await;
    let mut lines = Vec::new();
    for name in ["a", "b", "c", "d"] {
        lines.push(call(station.at, name).await);
    }
    station.until_open(4).await;
    let begun = Instant::now();
    let mut probes = tokio::task::JoinSet::new();
    for n in 0..4000 {
        let (liveness, name) = (station.liveness.clone(), ["a", "b", "c", "d"][n % 4]);
        probes.spawn(async move { liveness.probe(&same_kernel(&host("127.0.0.1", name))).await });
    }
    let answers = probes.join_all().await;
    assert!(answers.iter().all(|answer| *answer == ProbeAnswer::Alive));
    assert!(begun.elapsed() < Duration::from_secs(9));
    assert_eq!(tcp_keepidle(&*station.first_stream()), Ok(Duration::from_secs(60)));
}

#[tokio::test]
async fn resets_are_remembered_in_bounded_number() {
    let station = station().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let ours = Arc::new(listener.accept().await.unwrap().0);
    for n in 0..9000_u32 {
        let address = IpAddr::from([10, 0, (n / 2 % 250) as u8, (n % 7) as u8]);
        let line = station.liveness.opened(address, Opener::Kernel, ours.clone());
        line.named(b"a");
        line.ended(true);
    }
    assert_eq!(station.liveness.0.lock().sizes(), (0, 8192));
}

#[tokio::test]
async fn there_are_no_more_witnesses_than_allowed() {
    let mut registry = Registry::default();
    let witness = || Some(Witness::from(tokio::spawn(std::future::pending())));
    let hosts = ["a", "b", "c"].map(|name| host("127.0.0.1", name));
    let now = Instant::now();
    for host in &hosts {
        assert!(registry.hold(host, lane(), 2, now, witness));
        assert!(!registry.hold(host, lane(), 2, now, || panic!("it has one")));
    }
    registry.release(&hosts[0], now);
    registry.release(&hosts[0], now);
    assert!(registry.hold(&hosts[0], lane(), 2, now, witness));
    registry.release(&hosts[2], now);
    assert!(registry.hold(&hosts[2], lane(), 2, now, || panic!("there are two")));
    assert_eq!(registry.lane(&hosts[2]), Some(lane()));
    // It was given something after it had been seen to have nothing.
    registry.release(&hosts[2], now - Duration::from_millis(1));
    assert_eq!(registry.lane(&hosts[2]), Some(lane()));
}

#[test]
fn asking_fits_three_questions_into_its_time() {
    let Rhythm { idle, every, count } = super::super::pulse::URGENT;
    assert!(idle + 2 * every < super::super::SAME_KERNEL_MAX - Duration::from_secs(2));
    assert!(every * count > Duration::from_secs(60), "asking ends a connection");
    assert_ne!(CALM, super::super::pulse::URGENT);
}
