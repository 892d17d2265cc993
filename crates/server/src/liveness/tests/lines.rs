//! What lines, the registry and rounds decide, on sockets that say what they are told to say.

use keeper::identity::{Lane, Transport};

use super::super::inquiry::{Evidence, SameKernel};
use super::super::line::{How, Line, Socket, Urgent};
use super::super::pulse::{CALM, Pulse, Rhythm, State, URGENT};
use super::super::registry::{Candidate, REMEMBERED, Registry};
use super::super::round::Round;
use super::super::verdict::Said;
use super::*;

const ADDRESS: [u8; 4] = [10, 0, 0, 1];

struct Scripted {
    pulse: Mutex<Option<Pulse>>,
    rhythms: Mutex<Vec<Rhythm>>,
    end: Mutex<Option<bool>>,
}

impl Socket for Scripted {
    fn pulse(&self) -> Option<Pulse> {
        *self.pulse.lock().unwrap()
    }

    fn set_rhythm(&self, rhythm: Rhythm) {
        self.rhythms.lock().unwrap().push(rhythm);
    }

    fn take_end(&self) -> Option<bool> {
        self.end.lock().unwrap().take()
    }
}

impl Scripted {
    fn says(&self, state: State, life: Instant, unanswered: u32) {
        *self.pulse.lock().unwrap() = Some(Pulse { state, life, unanswered });
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

    /// A line opened then, with its last sign of life.
    fn line(&self, opened: u64, opener: Opener) -> (Arc<Line>, Arc<Scripted>) {
        let pulse = Pulse { state: State::Established, life: self.at(opened), unanswered: 0 };
        let socket = Arc::new(Scripted {
            pulse: Mutex::new(Some(pulse)),
            rhythms: Mutex::default(),
            end: Mutex::default(),
        });
        let known: Arc<dyn Socket> = socket.clone();
        let line = Line::new(ADDRESS.into(), opener, Arc::downgrade(&known), self.at(opened));
        (Arc::new(line), socket)
    }

    fn named(&self, opened: u64, name: &str) -> (Arc<Line>, Arc<Scripted>) {
        let (line, socket) = self.line(opened, Opener::Kernel);
        line.named(name.as_bytes());
        (line, socket)
    }
}

fn alice() -> HostKey {
    host("10.0.0.1", "alice")
}

fn lane() -> Lane {
    Lane::new([10, 0, 0, 100].into(), Transport::Tcp, 4)
}

fn registry(lines: &[&Arc<Line>]) -> Registry<()> {
    let mut registry = Registry::default();
    lines.iter().for_each(|line| registry.insert((*line).clone()));
    registry
}

fn opened(candidates: &[Candidate]) -> Vec<Instant> {
    candidates.iter().map(|candidate| candidate.line.opened).collect()
}

fn ask(line: &Arc<Line>, is_named: bool, asked: Instant) -> Round {
    Round::new(vec![Candidate { line: line.clone(), is_named }], asked, true)
}

fn said(round: &mut Round, now: Instant) -> Said {
    round.look(&mut |line, by_reset| {
        line.set_ended(by_reset, now);
    });
    round.testimonies().next().unwrap().said
}

#[test]
fn the_oldest_lines_that_were_open_when_asked_are_asked() {
    let clock = Clock::new();
    let lines: Vec<_> = [30, 10, 20, 40].map(|at| clock.named(at, "alice")).into();
    let registry = registry(&lines.iter().map(|(line, _)| line).collect::<Vec<_>>());
    let asked = |before, max| opened(&registry.lines_of(&alice(), clock.at(before), max));
    assert_eq!(asked(30, 9), [10, 20, 30].map(|at| clock.at(at)));
    assert_eq!(asked(29, 9), [10, 20].map(|at| clock.at(at)));
    assert_eq!(asked(40, 2), [10, 20].map(|at| clock.at(at)));
}

#[test]
fn a_line_without_a_name_counts_where_only_one_machine_speaks() {
    let clock = Clock::new();
    let (alices, _a) = clock.named(1, "alice");
    let (nameless, _n) = clock.line(2, Opener::Kernel);
    let (quiet, _q) = clock.line(3, Opener::Kernel);
    nameless.named(b"");
    assert!(nameless.has_spoken() && !nameless.is_named());
    let mut registry = registry(&[&alices, &nameless, &quiet]);
    let found = |registry: &Registry<()>| {
        let found = registry.lines_of(&alice(), clock.at(9), 9);
        found.iter().map(|one| (one.line.opened, one.is_named)).collect::<Vec<_>>()
    };
    assert_eq!(found(&registry), [(clock.at(1), true), (clock.at(2), false)]);
    let (bobs, _b) = clock.named(4, "bob");
    registry.insert(bobs);
    assert_eq!(found(&registry), [(clock.at(1), true)]);
}

#[test]
fn a_reset_testifies_for_a_quarter_of_an_hour_if_no_user_can_cause_it() {
    let clock = Clock::new();
    let (first, _f) = clock.named(0, "alice");
    let (second, _s) = clock.named(1, "alice");
    let (bobs, _b) = clock.named(1, "bob");
    let (users, _u) = clock.line(1, Opener::User);
    users.named(b"alice");
    let (nameless, _n) = clock.line(1, Opener::Kernel);
    let (closed, _c) = clock.named(1, "alice");
    let all = [&first, &second, &bobs, &users, &nameless, &closed];
    let mut registry = registry(&all);
    for line in all {
        let end = line.set_ended(!Arc::ptr_eq(line, &closed), clock.at(10)).unwrap();
        registry.end(line, end);
    }
    let count = |registry: &Registry<()>, before, max, now| {
        registry.resets_of(&alice(), before, max, now).len()
    };
    assert_eq!(registry.sizes(), (0, 3));
    assert_eq!(count(&registry, clock.at(9), 9, clock.at(10)), 2);
    assert_eq!(count(&registry, clock.at(1), 9, clock.at(10)), 2);
    assert_eq!(count(&registry, clock.at(0), 9, clock.at(10)), 1, "opened after the question");
    assert_eq!(count(&registry, clock.at(9), 1, clock.at(10)), 1);
    let last = clock.at(10) + REMEMBERED;
    assert_eq!(count(&registry, clock.at(9), 9, last), 2);
    assert_eq!(count(&registry, clock.at(9), 9, last + Duration::from_secs(1)), 0);
    // The next one makes the old ones go.
    let (late, _l) = clock.named(2000, "alice");
    registry.insert(late.clone());
    let end = late.set_ended(true, clock.at(2000)).unwrap();
    registry.end(&late, end);
    assert_eq!(registry.sizes(), (0, 1));
}

#[test]
fn a_reset_by_itself_makes_a_host_suspect_and_says_whether_others_can_be_asked() {
    let clock = Clock::new();
    let (first, _f) = clock.named(0, "alice");
    let (second, _s) = clock.named(5, "alice");
    let (users, _u) = clock.line(0, Opener::User);
    users.named(b"bob");
    let mut registry = registry(&[&first, &second, &users]);
    let mut end = |line: &Arc<Line>| {
        let end = line.set_ended(true, clock.at(9)).unwrap();
        let suspects = registry.end(line, end);
        suspects.iter().map(|it| (it.host.clone(), it.alone)).collect::<Vec<_>>()
    };
    assert_eq!(end(&users), []);
    assert_eq!(end(&first), [(alice(), false)]);
    let urgent = Urgent::new(second.clone(), false);
    assert_eq!(end(&second), [(alice(), true)]);
    drop(urgent);
    let (asked, _a) = clock.named(0, "alice");
    let urgent = Urgent::new(asked.clone(), true);
    assert_eq!(end(&asked), [], "we asked for it");
    drop(urgent);
}

#[test]
fn what_a_line_knew_passes_on_to_lines_of_the_same_machine_that_opened_while_it_lived() {
    let clock = Clock::new();
    let (old, socket) = clock.named(0, "alice");
    let (during, _d) = clock.named(50, "alice");
    let (after, _a) = clock.named(51, "alice");
    let (bobs, _b) = clock.named(40, "bob");
    let mut registry = registry(&[&old, &during, &after, &bobs]);
    socket.says(State::Established, clock.at(50), 0);
    let end = old.set_ended(false, clock.at(90)).unwrap();
    assert!(registry.end(&old, end).is_empty());
    assert_eq!(during.since(), clock.at(0));
    assert_eq!(after.since(), clock.at(51));
    assert_eq!(bobs.since(), clock.at(40));
    during.lived_at(clock.at(7));
    assert_eq!(during.since(), clock.at(0));
    assert_eq!(registry.sizes().0, 3);
}

#[test]
fn only_the_first_word_on_an_end_counts_and_only_asking_for_proof_makes_proof() {
    let clock = Clock::new();
    let (line, socket) = clock.named(10, "alice");
    socket.says(State::Closed, clock.at(3), 0);
    let end = line.set_ended(true, clock.at(20)).unwrap();
    assert_eq!((end.how, end.at, end.life), (How::Reset, clock.at(20), clock.at(10)));
    assert!(line.set_ended(false, clock.at(21)).is_none());
    assert_eq!(line.end().unwrap().how, How::Reset);
    let how = |for_proof: &[bool], by_reset| {
        let (line, _s) = clock.named(10, "alice");
        let asking: Vec<_> = for_proof.iter().map(|it| Urgent::new(line.clone(), *it)).collect();
        let how = line.set_ended(by_reset, clock.at(20)).unwrap().how;
        drop(asking);
        how
    };
    assert_eq!(how(&[], false), How::Otherwise);
    assert_eq!(how(&[false], true), How::Reset);
    assert_eq!(how(&[true], true), How::ResetWhenAsked);
    assert_eq!(how(&[false, true], true), How::ResetWhenAsked);
    assert_eq!(how(&[true], false), How::Otherwise);
    let (line, _s) = clock.named(10, "alice");
    drop(Urgent::new(line.clone(), true));
    assert_eq!(line.set_ended(true, clock.at(20)).unwrap().how, How::Reset, "we asked before");
}

#[test]
fn a_line_is_asked_urgently_from_the_first_question_to_the_last() {
    let clock = Clock::new();
    let (line, socket) = clock.named(0, "alice");
    let rhythms = || std::mem::take(&mut *socket.rhythms.lock().unwrap());
    let first = Urgent::new(line.clone(), true);
    assert_eq!(rhythms(), [URGENT]);
    let second = Urgent::new(line.clone(), false);
    drop(first);
    assert_eq!(rhythms(), []);
    drop(second);
    assert_eq!(rhythms(), [CALM]);
}

#[test]
fn a_sign_of_life_counts_if_it_is_later_than_the_question() {
    let clock = Clock::new();
    let step = Duration::from_millis(20);
    let moment = Duration::from_millis(1);
    let heard = |before: Instant, life: Instant| {
        let (line, socket) = clock.named(0, "alice");
        socket.says(State::Established, before, 0);
        let mut round = ask(&line, true, clock.at(100));
        socket.says(State::Established, life, 0);
        let said = said(&mut round, clock.at(101));
        assert_eq!(round.hears_life(), said == Said::Acknowledged);
        assert_eq!(round.is_over(), said == Said::Acknowledged);
        said == Said::Acknowledged
    };
    assert!(!heard(clock.at(90), clock.at(90)));
    assert!(!heard(clock.at(90), clock.at(90) + step), "the clock goes in steps");
    assert!(heard(clock.at(90), clock.at(90) + step + moment));
    // It was heard just after the question, before it was looked at.
    assert!(heard(clock.at(101), clock.at(101)));
    assert!(!heard(clock.at(100) + step, clock.at(100) + step));
}

#[test]
fn a_line_that_does_not_answer_says_so_after_three_questions() {
    let clock = Clock::new();
    let unanswered = |count, is_named, opener| {
        let (line, socket) = clock.line(0, opener);
        line.named(b"alice");
        let mut round = ask(&line, is_named, clock.at(100));
        socket.says(State::Established, clock.at(0), count);
        assert!(!round.is_over());
        said(&mut round, clock.at(110))
    };
    assert_eq!(unanswered(0, true, Opener::Kernel), Said::Unasked);
    assert_eq!(unanswered(2, true, Opener::Kernel), Said::Unasked);
    assert_eq!(unanswered(3, true, Opener::Kernel), Said::Unanswered);
    assert_eq!(unanswered(3, false, Opener::Kernel), Said::Nothing);
    assert_eq!(unanswered(3, true, Opener::User), Said::Nothing);
}

#[test]
fn an_end_says_what_it_proves() {
    let clock = Clock::new();
    let ended = |state, by_reset: Option<bool>, opener| {
        let (line, socket) = clock.line(0, opener);
        line.named(b"alice");
        let mut round = ask(&line, true, clock.at(100));
        socket.says(state, clock.at(5), 0);
        *socket.end.lock().unwrap() = by_reset;
        let said = said(&mut round, clock.at(101));
        (said, round.is_over(), round.testimonies().next().unwrap().life)
    };
    let life = clock.at(5);
    assert_eq!(
        ended(State::Closed, Some(true), Opener::Kernel),
        (Said::ResetWhenAsked, true, life)
    );
    assert_eq!(ended(State::Closed, Some(false), Opener::Kernel), (Said::Nothing, true, life));
    assert_eq!(ended(State::Closed, Some(true), Opener::User), (Said::Nothing, true, life));
    // The task that reads it has taken the error, and reports the end.
    assert_eq!(ended(State::Closed, None, Opener::Kernel), (Said::Nothing, false, life));
    assert_eq!(ended(State::Closing, None, Opener::Kernel), (Said::Nothing, true, life));
}

#[test]
fn the_time_of_a_lock_is_that_of_the_kernel_in_question() {
    let clock = Clock::new();
    let mut registry = Registry::<()>::default();
    let (three, five) = (Incarnation(3), Incarnation(5));
    registry.took(&alice(), three, clock.at(1));
    assert_eq!(registry.taken(&alice(), three), None, "it holds nothing");
    registry.hold(&alice(), lane(), 9, clock.at(0), || None);
    registry.took(&alice(), three, clock.at(10));
    registry.took(&alice(), three, clock.at(5));
    registry.took(&alice(), five, clock.at(20));
    registry.took(&host("10.0.0.1", "bob"), five, clock.at(30));
    assert_eq!(registry.taken(&alice(), three), Some(clock.at(10)));
    assert_eq!(registry.taken(&alice(), five), Some(clock.at(20)));
    registry.took(&alice(), Incarnation::UNKNOWN, clock.at(15));
    assert_eq!(registry.taken(&alice(), three), Some(clock.at(15)), "a reclaim");
    assert_eq!(registry.taken(&alice(), five), Some(clock.at(20)));
    registry.took(&alice(), Incarnation(7), clock.at(25));
    assert_eq!(registry.taken(&alice(), Incarnation(7)), Some(clock.at(25)));
    registry.took(&alice(), Incarnation(9), clock.at(26));
    // The oldest of five made room: only the reclaim is left for it.
    assert_eq!(registry.taken(&alice(), three), Some(clock.at(15)));
    assert_eq!(registry.taken(&alice(), five), Some(clock.at(20)));
    assert_eq!(registry.taken(&alice(), Incarnation(9)), Some(clock.at(26)));
}

#[test]
fn a_holder_is_known_by_address_and_name_until_it_has_nothing() {
    let clock = Clock::new();
    let mut registry = Registry::<()>::default();
    let ((alices, _a), (bobs, _b)) = (clock.named(0, "alice"), clock.named(0, "bob"));
    assert!(registry.hold(&alice(), lane(), 9, clock.at(1), || Some(())));
    assert!(registry.is_holder(&alices) && !registry.is_holder(&bobs));
    assert!(!registry.hold(&alice(), lane(), 9, clock.at(5), || None));
    assert_eq!(registry.holders().collect::<Vec<_>>(), [alice()]);
    registry.release(&alice(), clock.at(4));
    assert!(registry.is_holder(&alices), "it was given something since");
    registry.release(&host("10.0.0.1", "bob"), clock.at(9));
    registry.release(&alice(), clock.at(5));
    assert!(!registry.is_holder(&alices));
    assert_eq!(registry.lane(&alice()), None);
}

#[test]
fn an_inquiry_is_over_when_nothing_could_change_its_answer() {
    let clock = Clock::new();
    let (old, answers) = clock.named(10, "alice");
    let (other, _silent) = clock.named(20, "alice");
    let registry = registry(&[&old, &other]);
    let over = |taken: Option<u64>| {
        answers.says(State::Established, clock.at(10), 0);
        let taken = taken.map(|at| clock.at(at));
        let now = clock.at(100);
        let evidence = Evidence::gather(&registry, &alice(), now, taken, now);
        let mut inquiry = SameKernel::begin(evidence);
        assert!(!inquiry.is_over());
        answers.says(State::Established, clock.at(102), 0);
        inquiry.look(&mut |_, _| ());
        (inquiry.is_over(), inquiry.answer())
    };
    assert_eq!(over(Some(10)), (true, ProbeAnswer::Alive));
    assert_eq!(over(Some(9)), (false, ProbeAnswer::Alive));
    assert_eq!(over(None), (false, ProbeAnswer::Alive));
}
