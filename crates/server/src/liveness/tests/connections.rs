//! Connections, registry, rounds and inquiries, on scripted sockets.

use keeper::change::{Client, Protocol};
use keeper::identity::{ClientId, Epoch, OwnerNamespace, Transport};

use super::super::connection::{EndCause, ProbeGuard, TrackedConnection};
use super::super::inquiry::{Evidence, KernelInquiry};
use super::super::registry::{ProbeCandidate, RESETS_KEPT_FOR, Registry};
use super::super::round::Round;
use super::super::socket::{KeepAlive, NORMAL, Socket, SocketStatus, TcpState, URGENT};
use super::super::verdict::Response;
use super::*;
use crate::liveness::registry::TakenBy;

const ADDRESS: [u8; 4] = [10, 0, 0, 1];

struct Scripted {
    status: Mutex<Option<SocketStatus>>,
    keep_alives: Mutex<Vec<KeepAlive>>,
    end: Mutex<Option<bool>>,
}

impl Socket for Scripted {
    fn status(&self) -> Option<SocketStatus> {
        *self.status.lock().unwrap()
    }

    fn set_keep_alive(&self, keep_alive: KeepAlive) {
        self.keep_alives.lock().unwrap().push(keep_alive);
    }

    fn take_end(&self) -> Option<bool> {
        self.end.lock().unwrap().take()
    }
}

impl Scripted {
    fn says(&self, state: TcpState, last_ack: Instant, unanswered: u32) {
        *self.status.lock().unwrap() = Some(SocketStatus { state, last_ack, unanswered });
    }
}

/// Seconds after a fixed moment of one test.
struct Clock(Instant);

impl Clock {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn at(&self, seconds: u64) -> Instant {
        self.0 + Duration::from_secs(seconds)
    }

    /// A connection opened then, acknowledged last at that time.
    fn connection(&self, opened: u64, opener: Opener) -> (Arc<TrackedConnection>, Arc<Scripted>) {
        let status =
            SocketStatus { state: TcpState::Established, last_ack: self.at(opened), unanswered: 0 };
        let socket = Arc::new(Scripted {
            status: Mutex::new(Some(status)),
            keep_alives: Mutex::default(),
            end: Mutex::default(),
        });
        let known: Arc<dyn Socket> = socket.clone();
        let connection =
            TrackedConnection::new(ADDRESS.into(), opener, Arc::downgrade(&known), self.at(opened));
        (Arc::new(connection), socket)
    }

    fn named(&self, opened: u64, name: &str) -> (Arc<TrackedConnection>, Arc<Scripted>) {
        let (connection, socket) = self.connection(opened, Opener::Kernel);
        connection.add_name(name.as_bytes());
        (connection, socket)
    }
}

fn alice() -> HostKey {
    host("10.0.0.1", "alice")
}

fn namespace() -> OwnerNamespace {
    OwnerNamespace::new([10, 0, 0, 100].into(), Transport::Tcp, 4)
}

fn registry(connections: &[&Arc<TrackedConnection>]) -> Registry<()> {
    let mut registry = Registry::default();
    connections.iter().for_each(|connection| registry.insert((*connection).clone()));
    registry
}

fn opened(candidates: &[ProbeCandidate]) -> Vec<Instant> {
    candidates.iter().map(|candidate| candidate.connection.opened).collect()
}

fn probe(connection: &Arc<TrackedConnection>, is_named: bool, asked: Instant) -> Round {
    Round::new(vec![ProbeCandidate { connection: connection.clone(), is_named }], asked, true)
}

fn response(round: &mut Round, now: Instant) -> Response {
    round.poll(&mut |connection, by_reset| {
        connection.set_ended(by_reset, now);
    });
    round.observations().next().unwrap().response
}

#[test]
fn the_oldest_connections_that_were_open_when_asked_are_probed() {
    let clock = Clock::new();
    let connections: Vec<_> = [30, 10, 20, 40].map(|at| clock.named(at, "alice")).into();
    let registry =
        registry(&connections.iter().map(|(connection, _)| connection).collect::<Vec<_>>());
    let asked = |before, max| opened(&registry.connections_of(&alice(), clock.at(before), max));
    assert_eq!(asked(30, 9), [10, 20, 30].map(|at| clock.at(at)));
    assert_eq!(asked(29, 9), [10, 20].map(|at| clock.at(at)));
    assert_eq!(asked(40, 2), [10, 20].map(|at| clock.at(at)));
}

#[test]
fn a_connection_without_a_name_counts_where_only_one_host_uses_the_address() {
    let clock = Clock::new();
    let (alices, _a) = clock.named(1, "alice");
    let (nameless, _n) = clock.connection(2, Opener::Kernel);
    let (quiet, _q) = clock.connection(3, Opener::Kernel);
    nameless.add_name(b"");
    assert!(nameless.has_requests() && !nameless.is_named());
    let mut registry = registry(&[&alices, &nameless, &quiet]);
    let found = |registry: &Registry<()>| {
        let found = registry.connections_of(&alice(), clock.at(9), 9);
        found.iter().map(|one| (one.connection.opened, one.is_named)).collect::<Vec<_>>()
    };
    assert_eq!(found(&registry), [(clock.at(1), true), (clock.at(2), false)]);
    let (bobs, _b) = clock.named(4, "bob");
    registry.insert(bobs);
    assert_eq!(found(&registry), [(clock.at(1), true)]);
}

#[test]
fn a_reset_is_evidence_for_a_quarter_of_an_hour_if_no_user_can_cause_it() {
    let clock = Clock::new();
    let (first, _f) = clock.named(0, "alice");
    let (second, _s) = clock.named(1, "alice");
    let (bobs, _b) = clock.named(1, "bob");
    let (users, _u) = clock.connection(1, Opener::User);
    users.add_name(b"alice");
    let (nameless, _n) = clock.connection(1, Opener::Kernel);
    let (closed, _c) = clock.named(1, "alice");
    let all = [&first, &second, &bobs, &users, &nameless, &closed];
    let mut registry = registry(&all);
    for connection in all {
        let end = connection.set_ended(!Arc::ptr_eq(connection, &closed), clock.at(10)).unwrap();
        registry.end(connection, end);
    }
    let count = |registry: &Registry<()>, before, max, now| {
        registry.resets_of(&alice(), before, max, now).len()
    };
    assert_eq!(registry.sizes(), (0, 3));
    assert_eq!(count(&registry, clock.at(9), 9, clock.at(10)), 2);
    assert_eq!(count(&registry, clock.at(1), 9, clock.at(10)), 2);
    assert_eq!(count(&registry, clock.at(0), 9, clock.at(10)), 1, "opened after the inquiry");
    assert_eq!(count(&registry, clock.at(9), 1, clock.at(10)), 1);
    let last = clock.at(10) + RESETS_KEPT_FOR;
    assert_eq!(count(&registry, clock.at(9), 9, last), 2);
    assert_eq!(count(&registry, clock.at(9), 9, last + Duration::from_secs(1)), 0);
    // The next one drops the old ones.
    let (late, _l) = clock.named(2000, "alice");
    registry.insert(late.clone());
    let end = late.set_ended(true, clock.at(2000)).unwrap();
    registry.end(&late, end);
    assert_eq!(registry.sizes(), (0, 1));
}

#[test]
fn an_unprompted_reset_names_the_host_and_whether_other_connections_can_be_probed() {
    let clock = Clock::new();
    let (first, _f) = clock.named(0, "alice");
    let (second, _s) = clock.named(5, "alice");
    let (users, _u) = clock.connection(0, Opener::User);
    users.add_name(b"bob");
    let mut registry = registry(&[&first, &second, &users]);
    let mut end = |connection: &Arc<TrackedConnection>| {
        let end = connection.set_ended(true, clock.at(9)).unwrap();
        let resets = registry.end(connection, end);
        resets.iter().map(|it| (it.host.clone(), it.no_other_connection)).collect::<Vec<_>>()
    };
    assert_eq!(end(&users), []);
    assert_eq!(end(&first), [(alice(), false)]);
    let guard = ProbeGuard::new(second.clone(), false);
    assert_eq!(end(&second), [(alice(), true)]);
    drop(guard);
    let (asked, _a) = clock.named(0, "alice");
    let guard = ProbeGuard::new(asked.clone(), true);
    assert_eq!(end(&asked), [], "a probe caused it");
    drop(guard);
}

#[test]
fn the_age_of_a_kernel_passes_on_to_connections_opened_while_the_ended_one_was_alive() {
    let clock = Clock::new();
    let (old, socket) = clock.named(0, "alice");
    let (during, _d) = clock.named(50, "alice");
    let (after, _a) = clock.named(51, "alice");
    let (bobs, _b) = clock.named(40, "bob");
    let mut registry = registry(&[&old, &during, &after, &bobs]);
    socket.says(TcpState::Established, clock.at(50), 0);
    let end = old.set_ended(false, clock.at(90)).unwrap();
    assert!(registry.end(&old, end).is_empty());
    assert_eq!(during.kernel_since(), clock.at(0));
    assert_eq!(after.kernel_since(), clock.at(51));
    assert_eq!(bobs.kernel_since(), clock.at(40));
    during.extend_kernel_since(clock.at(7));
    assert_eq!(during.kernel_since(), clock.at(0));
    assert_eq!(registry.sizes().0, 3);
}

#[test]
fn only_the_first_report_of_an_end_counts_and_only_a_probe_for_proof_makes_proof() {
    let clock = Clock::new();
    let (connection, socket) = clock.named(10, "alice");
    socket.says(TcpState::Closed, clock.at(3), 0);
    let end = connection.set_ended(true, clock.at(20)).unwrap();
    assert_eq!(
        (end.cause, end.at, end.last_ack),
        (EndCause::ResetUnprompted, clock.at(20), clock.at(10))
    );
    assert!(connection.set_ended(false, clock.at(21)).is_none());
    assert_eq!(connection.end().unwrap().cause, EndCause::ResetUnprompted);
    let cause = |for_proof: &[bool], by_reset| {
        let (connection, _s) = clock.named(10, "alice");
        let guards: Vec<_> =
            for_proof.iter().map(|it| ProbeGuard::new(connection.clone(), *it)).collect();
        let cause = connection.set_ended(by_reset, clock.at(20)).unwrap().cause;
        drop(guards);
        cause
    };
    assert_eq!(cause(&[], false), EndCause::Other);
    assert_eq!(cause(&[false], true), EndCause::ResetUnprompted);
    assert_eq!(cause(&[true], true), EndCause::ResetByProbe);
    assert_eq!(cause(&[false, true], true), EndCause::ResetByProbe);
    assert_eq!(cause(&[true], false), EndCause::Other);
    let (connection, _s) = clock.named(10, "alice");
    drop(ProbeGuard::new(connection.clone(), true));
    assert_eq!(
        connection.set_ended(true, clock.at(20)).unwrap().cause,
        EndCause::ResetUnprompted,
        "the probe was over"
    );
}

#[test]
fn a_connection_is_probed_urgently_from_the_first_probe_to_the_last() {
    let clock = Clock::new();
    let (connection, socket) = clock.named(0, "alice");
    let keep_alives = || std::mem::take(&mut *socket.keep_alives.lock().unwrap());
    let first = ProbeGuard::new(connection.clone(), true);
    assert_eq!(keep_alives(), [URGENT]);
    let second = ProbeGuard::new(connection.clone(), false);
    drop(first);
    assert_eq!(keep_alives(), []);
    drop(second);
    assert_eq!(keep_alives(), [NORMAL]);
}

#[test]
fn an_acknowledgement_counts_if_it_is_later_than_the_probe() {
    let clock = Clock::new();
    let step = Duration::from_millis(20);
    let moment = Duration::from_millis(1);
    let heard = |before: Instant, life: Instant| {
        let (connection, socket) = clock.named(0, "alice");
        socket.says(TcpState::Established, before, 0);
        let mut round = probe(&connection, true, clock.at(100));
        socket.says(TcpState::Established, life, 0);
        let response = response(&mut round, clock.at(101));
        assert_eq!(round.is_acknowledged(), response == Response::Acknowledged);
        assert_eq!(round.is_complete(), response == Response::Acknowledged);
        response == Response::Acknowledged
    };
    assert!(!heard(clock.at(90), clock.at(90)));
    assert!(!heard(clock.at(90), clock.at(90) + step), "within the granularity");
    assert!(heard(clock.at(90), clock.at(90) + step + moment));
    // Acknowledged just after the start of the round, before its first poll.
    assert!(heard(clock.at(101), clock.at(101)));
    assert!(!heard(clock.at(100) + step, clock.at(100) + step));
}

#[test]
fn a_connection_is_unanswered_after_three_probes() {
    let clock = Clock::new();
    let unanswered = |count, is_named, opener| {
        let (connection, socket) = clock.connection(0, opener);
        connection.add_name(b"alice");
        let mut round = probe(&connection, is_named, clock.at(100));
        socket.says(TcpState::Established, clock.at(0), count);
        assert!(!round.is_complete());
        response(&mut round, clock.at(110))
    };
    assert_eq!(unanswered(0, true, Opener::Kernel), Response::NotProbed);
    assert_eq!(unanswered(2, true, Opener::Kernel), Response::NotProbed);
    assert_eq!(unanswered(3, true, Opener::Kernel), Response::Unanswered);
    assert_eq!(unanswered(3, false, Opener::Kernel), Response::Inconclusive);
    assert_eq!(unanswered(3, true, Opener::User), Response::Inconclusive);
}

#[test]
fn an_end_is_as_much_evidence_as_its_cause() {
    let clock = Clock::new();
    let ended = |state, by_reset: Option<bool>, opener| {
        let (connection, socket) = clock.connection(0, opener);
        connection.add_name(b"alice");
        let mut round = probe(&connection, true, clock.at(100));
        socket.says(state, clock.at(5), 0);
        *socket.end.lock().unwrap() = by_reset;
        let response = response(&mut round, clock.at(101));
        (response, round.is_complete(), round.observations().next().unwrap().last_ack)
    };
    let life = clock.at(5);
    assert_eq!(
        ended(TcpState::Closed, Some(true), Opener::Kernel),
        (Response::ResetByProbe, true, life)
    );
    assert_eq!(
        ended(TcpState::Closed, Some(false), Opener::Kernel),
        (Response::Inconclusive, true, life)
    );
    assert_eq!(
        ended(TcpState::Closed, Some(true), Opener::User),
        (Response::Inconclusive, true, life)
    );
    // The task that reads the socket has taken the error and reports the end.
    assert_eq!(
        ended(TcpState::Closed, None, Opener::Kernel),
        (Response::Inconclusive, false, life)
    );
    assert_eq!(
        ended(TcpState::Closing, None, Opener::Kernel),
        (Response::Inconclusive, true, life)
    );
}

#[test]
fn the_time_of_a_lock_is_that_of_the_kernel_in_question() {
    let clock = Clock::new();
    let mut registry = Registry::<()>::default();
    let (three, five) = (Incarnation(3), Incarnation(5));
    let lock = |state: u32| TakenBy::Lock(Incarnation(state));
    registry.record_lock(&alice(), lock(3), clock.at(1));
    assert_eq!(registry.last_lock(&alice(), three), None, "it holds nothing");
    registry.watch(&alice(), namespace(), 9, clock.at(0), || None);
    registry.record_lock(&alice(), lock(3), clock.at(10));
    registry.record_lock(&alice(), lock(3), clock.at(5));
    registry.record_lock(&alice(), lock(5), clock.at(20));
    registry.record_lock(&host("10.0.0.1", "bob"), lock(5), clock.at(30));
    assert_eq!(registry.last_lock(&alice(), three), Some(clock.at(10)));
    assert_eq!(registry.last_lock(&alice(), five), Some(clock.at(20)));
    registry.record_lock(&alice(), TakenBy::Reclaim, clock.at(15));
    assert_eq!(registry.last_lock(&alice(), three), Some(clock.at(15)), "a reclaim");
    assert_eq!(registry.last_lock(&alice(), five), Some(clock.at(20)));
    registry.record_lock(&alice(), lock(7), clock.at(25));
    assert_eq!(registry.last_lock(&alice(), Incarnation(7)), Some(clock.at(25)));
    registry.record_lock(&alice(), lock(9), clock.at(26));
    registry.record_lock(&alice(), lock(11), clock.at(27));
    // The oldest of five made room: only the reclaim is left for it.
    assert_eq!(registry.last_lock(&alice(), three), Some(clock.at(15)));
    assert_eq!(registry.last_lock(&alice(), five), Some(clock.at(20)));
    assert_eq!(registry.last_lock(&alice(), Incarnation(9)), Some(clock.at(26)));
}

/// A dead kernel must not be taken for the one that took a share after it.
#[test]
fn a_share_is_of_the_state_that_its_host_was_known_to_be_in() {
    let clock = Clock::new();
    let mut registry = Registry::<()>::default();
    let (three, five) = (Incarnation(3), Incarnation(5));
    registry.watch(&alice(), namespace(), 9, clock.at(0), || None);
    registry.record_lock(&alice(), TakenBy::Share, clock.at(1));
    assert_eq!(registry.last_lock(&alice(), three), Some(clock.at(1)), "no state is known");
    registry.record_lock(&alice(), TakenBy::Lock(three), clock.at(2));
    registry.record_lock(&alice(), TakenBy::Share, clock.at(3));
    registry.record_lock(&alice(), TakenBy::Lock(five), clock.at(4));
    registry.record_lock(&alice(), TakenBy::Share, clock.at(5));
    assert_eq!(registry.last_lock(&alice(), three), Some(clock.at(3)));
    assert_eq!(registry.last_lock(&alice(), five), Some(clock.at(5)));
    registry.record_state(&row_of_alice(Incarnation(7)));
    registry.record_lock(&alice(), TakenBy::Share, clock.at(6));
    assert_eq!(registry.last_lock(&alice(), five), Some(clock.at(5)));
    assert_eq!(registry.last_lock(&alice(), Incarnation(7)), Some(clock.at(6)));
    // A LOCK without a state counts for no known state.
    registry.record_lock(&alice(), TakenBy::Lock(Incarnation::UNKNOWN), clock.at(8));
    assert_eq!(registry.last_lock(&alice(), five), Some(clock.at(5)));
    assert_eq!(registry.last_lock(&alice(), Incarnation::UNKNOWN), Some(clock.at(8)));
}

/// The keeper asks about its shares by the state that it has recorded: none.
#[test]
fn a_host_that_registers_anew_shares_in_no_known_state() {
    let clock = Clock::new();
    let mut registry = Registry::<()>::default();
    registry.watch(&alice(), namespace(), 9, clock.at(0), || None);
    registry.record_state(&row_of_alice(Incarnation(3)));
    registry.record_lock(&alice(), TakenBy::Share, clock.at(1));
    assert_eq!(registry.last_lock(&alice(), Incarnation::UNKNOWN), None);
    registry.record_state(&row_of_alice(Incarnation::UNKNOWN));
    registry.record_lock(&alice(), TakenBy::Share, clock.at(2));
    assert_eq!(registry.last_lock(&alice(), Incarnation::UNKNOWN), Some(clock.at(2)));
}

fn row_of_alice(incarnation: Incarnation) -> Client {
    Client {
        id: ClientId(1),
        protocol: Protocol::NLM,
        address: alice().address(),
        name: alice().name().clone(),
        incarnation,
        reboot: None,
        monitored: true,
        fenced: false,
        used: Vec::new(),
        registered_at_ms: 0,
        epoch: Epoch(1),
        registrant: None,
    }
}

#[test]
fn a_watched_host_is_known_by_address_and_name_until_it_has_nothing() {
    let clock = Clock::new();
    let mut registry = Registry::<()>::default();
    let ((alices, _a), (bobs, _b)) = (clock.named(0, "alice"), clock.named(0, "bob"));
    assert!(registry.watch(&alice(), namespace(), 9, clock.at(1), || Some(())));
    assert!(registry.is_watched(&alices) && !registry.is_watched(&bobs));
    assert!(!registry.watch(&alice(), namespace(), 9, clock.at(5), || None));
    assert_eq!(registry.watched().collect::<Vec<_>>(), [alice()]);
    registry.unwatch(&alice(), clock.at(4));
    assert!(registry.is_watched(&alices), "it was given something since");
    registry.unwatch(&host("10.0.0.1", "bob"), clock.at(9));
    registry.unwatch(&alice(), clock.at(5));
    assert!(!registry.is_watched(&alices));
    assert_eq!(registry.namespace(&alice()), None);
}

#[test]
fn an_inquiry_is_complete_when_nothing_could_change_its_answer() {
    let clock = Clock::new();
    let (old, answers) = clock.named(10, "alice");
    let (other, _silent) = clock.named(20, "alice");
    let registry = registry(&[&old, &other]);
    let complete = |last_lock: Option<u64>| {
        answers.says(TcpState::Established, clock.at(10), 0);
        let last_lock = last_lock.map(|at| clock.at(at));
        let now = clock.at(100);
        let evidence = Evidence::gather(&registry, &alice(), now, last_lock, now);
        let mut inquiry = KernelInquiry::begin(evidence);
        assert!(!inquiry.is_complete());
        answers.says(TcpState::Established, clock.at(102), 0);
        inquiry.poll(&mut |_, _| ());
        (inquiry.is_complete(), inquiry.answer())
    };
    assert_eq!(complete(Some(10)), (true, ProbeAnswer::Alive));
    assert_eq!(complete(Some(9)), (false, ProbeAnswer::Alive));
    assert_eq!(complete(None), (false, ProbeAnswer::Alive));
}
