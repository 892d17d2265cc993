//! Arbitrary inputs of a keeper, from well-behaved, misbehaving and unknown peers.

use std::fmt;

use lockkeeper_keeper::config::{Config, GraceMode, Limits, Unreachable};
use lockkeeper_keeper::identity::Incarnation;
use lockkeeper_keeper::range::Range;
use lockkeeper_keeper::request::{Access, GrantAnswer, Mode, NoticeResult, ProbeAnswer, Question};
use proptest::prelude::*;

/// An input, printed on one line.
#[derive(Clone)]
pub struct InputLine(pub Input);

impl fmt::Debug for InputLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[derive(Clone, Debug)]
pub enum Input {
    Lock {
        who: Process,
        file: u8,
        range: Range,
        mode: Mode,
        state: u32,
        terms: Terms,
    },
    Test {
        who: Process,
        file: u8,
        range: Range,
        mode: Mode,
    },
    Unlock {
        who: Process,
        file: u8,
        range: Range,
    },
    Cancel {
        who: Process,
        file: u8,
        range: Range,
        mode: Mode,
    },
    Share {
        who: Process,
        file: u8,
        access: Access,
        deny: Access,
        reclaim: bool,
    },
    Unshare {
        who: Process,
        file: u8,
    },
    Granted {
        grant: IdChoice,
        answer: GrantAnswer,
    },
    Reboot {
        source: u8,
        name: u8,
        state: u32,
    },
    FreeAll {
        source: u8,
        name: u8,
    },
    Monitor {
        source: u8,
        watched: u8,
    },
    Unmonitor {
        source: u8,
        watched: Option<u8>,
    },
    Noticed {
        notice: IdChoice,
        result: NoticeResult,
    },
    /// The answer to an outstanding probe.
    Probed {
        probe: IdChoice,
        answer: ProbeAnswer,
    },
    /// An answer to no probe.
    Volunteered {
        client: IdChoice,
        question: Question,
        answer: ProbeAnswer,
    },
    Reset {
        client: IdChoice,
    },
    Heard {
        source: u8,
    },
    /// The server has the first, the second, both or none of two addresses from now on, and after a
    /// restart the second is said to replace the first.
    Renumber {
        first: bool,
        second: bool,
        formerly: bool,
    },
    Register {
        source: u8,
        protocol: u8,
        state: u32,
    },
    Unregister {
        source: u8,
        protocol: u8,
    },
    Operator {
        action: u8,
        which: IdChoice,
    },
    Stop,
    Wait {
        milliseconds: u64,
        wall_jump: i64,
    },
    /// Polls and commits the step of all inputs so far.
    Poll,
    /// The server crashes and restarts; with `lose` the last step is not committed.
    Restart {
        roster: bool,
        lose: bool,
    },
}

/// A caller: a host, how it reaches the server, and a process on it.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub host: u8,
    pub namespace: u8,
    pub number: u32,
    pub tag: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub wait: bool,
    pub reclaim: bool,
    pub monitored: bool,
    pub message: bool,
    pub stateless: bool,
}

/// An id: one that was seen, latest first, or any number.
#[derive(Clone, Copy, Debug)]
pub enum IdChoice {
    Seen(usize),
    Any(u64),
}

pub fn inputs() -> impl Strategy<Value = InputLine> {
    let lock = (who(), file(), range(), mode(), state(), terms()).prop_map(
        |(who, file, range, mode, state, terms)| Input::Lock {
            who,
            file,
            range,
            mode,
            state,
            terms,
        },
    );
    let test = (who(), file(), range(), mode()).prop_map(|(who, file, range, mode)| Input::Test {
        who,
        file,
        range,
        mode,
    });
    let unlock =
        (who(), file(), range()).prop_map(|(who, file, range)| Input::Unlock { who, file, range });
    let cancel = (who(), file(), range(), mode())
        .prop_map(|(who, file, range, mode)| Input::Cancel { who, file, range, mode });
    let share = (who(), file(), access(), access(), any::<bool>()).prop_map(
        |(who, file, access, deny, reclaim)| Input::Share { who, file, access, deny, reclaim },
    );
    let unshare = (who(), file()).prop_map(|(who, file)| Input::Unshare { who, file });
    let granted =
        (which(), grant_answer()).prop_map(|(grant, answer)| Input::Granted { grant, answer });
    let reboot = (0..6u8, 0..8u8, state()).prop_map(|(source, name, state)| Input::Reboot {
        source,
        name,
        state,
    });
    let free_all = (0..6u8, 0..8u8).prop_map(|(source, name)| Input::FreeAll { source, name });
    let monitor = (0..6u8, 0..8u8).prop_map(|(source, watched)| Input::Monitor { source, watched });
    let unmonitor = (0..6u8, prop::option::of(0..8u8))
        .prop_map(|(source, watched)| Input::Unmonitor { source, watched });
    let noticed =
        (which(), notice_result()).prop_map(|(notice, result)| Input::Noticed { notice, result });
    let probed =
        (which(), probe_answer()).prop_map(|(probe, answer)| Input::Probed { probe, answer });
    let volunteered = (which(), question(), probe_answer())
        .prop_map(|(client, question, answer)| Input::Volunteered { client, question, answer });
    let renumber = (any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(first, second, formerly)| Input::Renumber { first, second, formerly });
    let register = (0..6u8, 0..3u8, state())
        .prop_map(|(source, protocol, state)| Input::Register { source, protocol, state });
    let unregister =
        (0..6u8, 0..3u8).prop_map(|(source, protocol)| Input::Unregister { source, protocol });
    let operator = (0..7u8, which()).prop_map(|(action, which)| Input::Operator { action, which });
    let span = prop_oneof![4 => 0..5_000u64, 3 => 5_000..120_000u64, 1 => 0..200_000_000u64];
    let jump = prop_oneof![8 => Just(0i64), 1 => any::<i32>().prop_map(i64::from)];
    let wait =
        (span, jump).prop_map(|(milliseconds, wall_jump)| Input::Wait { milliseconds, wall_jump });
    let restart =
        (any::<bool>(), any::<bool>()).prop_map(|(roster, lose)| Input::Restart { roster, lose });
    prop_oneof![
        30 => lock,
        3 => test,
        12 => unlock,
        5 => cancel,
        6 => share,
        3 => unshare,
        6 => granted,
        6 => reboot,
        2 => free_all,
        2 => monitor,
        1 => unmonitor,
        4 => noticed,
        10 => probed,
        1 => volunteered,
        2 => which().prop_map(|client| Input::Reset { client }),
        1 => (0..6u8).prop_map(|source| Input::Heard { source }),
        3 => renumber,
        2 => register,
        1 => unregister,
        4 => operator,
        1 => Just(Input::Stop),
        12 => wait,
        20 => Just(Input::Poll),
        3 => restart,
    ]
    .prop_map(InputLine)
}

/// Defaults, or limits so low that each is reached.
pub fn settings() -> impl Strategy<Value = Config> {
    let limits = prop_oneof![
        Just(Limits::default()),
        (1..6usize, 1..12usize, 1..5usize).prop_map(|(clients, locks, few)| Limits {
            clients,
            clients_per_address: few + 1,
            locks,
            locks_per_client: few + 2,
            locks_per_address: few + 4,
            locks_per_file: few + 1,
            waiters_per_file: few,
            registrations_per_address: few,
            parked: few,
            parked_per_address: few,
        })
    ];
    let grace = prop_oneof![Just(GraceMode::Strict), Just(GraceMode::Instant)];
    let unreachable = prop_oneof![
        Just(Unreachable::OnDemand),
        Just(Unreachable::Immediate),
        Just(Unreachable::Retain),
    ];
    (limits, grace, unreachable).prop_map(|(limits, grace, unreachable)| Config {
        limits,
        grace,
        unreachable,
        ..Config::default()
    })
}

fn who() -> impl Strategy<Value = Process> {
    let namespace = prop_oneof![2 => Just(0u8), 1 => Just(1), 2 => Just(2)];
    (0..6u8, namespace, 0..2u32, 0..3u8).prop_map(|(host, namespace, number, tag)| Process {
        host,
        namespace,
        number,
        tag: tag / 2,
    })
}

fn file() -> impl Strategy<Value = u8> {
    0..3u8
}

fn range() -> impl Strategy<Value = Range> {
    let near = (0..20u64, 0..8u64).prop_map(|(first, more)| (first, first + more));
    let open = (0..20u64).prop_map(|first| (first, u64::MAX));
    let any =
        (any::<u64>(), any::<u64>()).prop_map(|(one, other)| (one.min(other), one.max(other)));
    prop_oneof![10 => near, 2 => open, 1 => any]
        .prop_map(|(first, last)| Range::between(first, last).unwrap())
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)]
}

fn state() -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(3u32), 2 => Just(0), 2 => Just(5), 1 => Just(1), 1 => any::<u32>()]
}

fn terms() -> impl Strategy<Value = Terms> {
    let seldom = || prop::bool::weighted(0.15);
    (any::<bool>(), seldom(), seldom(), seldom(), seldom()).prop_map(
        |(wait, reclaim, unmonitored, message, stateless)| Terms {
            wait,
            reclaim,
            monitored: !unmonitored,
            message,
            stateless,
        },
    )
}

fn access() -> impl Strategy<Value = Access> {
    (any::<bool>(), any::<bool>()).prop_map(|(read, write)| Access { read, write })
}

fn which() -> impl Strategy<Value = IdChoice> {
    prop_oneof![12 => (0..6usize).prop_map(IdChoice::Seen), 1 => (0..40u64).prop_map(IdChoice::Any),
        1 => any::<u64>().prop_map(IdChoice::Any)]
}

fn grant_answer() -> impl Strategy<Value = GrantAnswer> {
    prop_oneof![
        Just(GrantAnswer::Accepted),
        Just(GrantAnswer::Denied),
        Just(GrantAnswer::Unclear),
        Just(GrantAnswer::Unsent),
    ]
}

fn notice_result() -> impl Strategy<Value = NoticeResult> {
    prop_oneof![
        Just(NoticeResult::Answered),
        Just(NoticeResult::Failed),
        Just(NoticeResult::Unsent),
    ]
}

fn probe_answer() -> impl Strategy<Value = ProbeAnswer> {
    prop_oneof![
        Just(ProbeAnswer::Alive),
        Just(ProbeAnswer::Gone),
        Just(ProbeAnswer::Silent),
        (0..9u32).prop_map(|state| ProbeAnswer::InState(Incarnation(state))),
    ]
}

fn question() -> impl Strategy<Value = Question> {
    prop_oneof![
        (0..9u32).prop_map(|state| Question::SameKernel(Incarnation(state))),
        Just(Question::Reachable),
        Just(Question::State)
    ]
}
