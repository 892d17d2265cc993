//! The same random operations on the keeper, on a plain byte map and on the kernel's own locks: all
//! three must say the same (B2.5).
//!
//! Two drivers share the judges. A proptest state machine finds and shrinks short sequences; a
//! plain loop, some hundred times faster, does the bulk: 10^6 operations by default,
//! `LOCKKEEPER_ORACLE_OPERATIONS=100000000 cargo test --release -p lockkeeper-keeper --test oracle`
//! for more, `LOCKKEEPER_ORACLE_SEED=n` for others. A run that fails is cut down to the operations
//! that matter.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may do I/O")]

mod byte_map;
mod keeper;
mod kernel;
mod operation;

use byte_map::ByteMap;
use keeper::KeeperUnderTest;
use kernel::Kernel;
use operation::{Answer, OWNERS, Operation, Stretches, Verb};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use testbed::random::Random;

/// The operations on one file before the next file begins.
const OPERATIONS_PER_FILE: usize = 2000;

#[test]
fn keeper_byte_map_and_kernel_agree() {
    let variable = |name: &str, otherwise| match std::env::var(name) {
        Ok(value) => value.parse().expect("a number"),
        Err(_) => otherwise,
    };
    let operations: usize = variable("LOCKKEEPER_ORACLE_OPERATIONS", 1_000_000u64) as usize;
    let seed = variable("LOCKKEEPER_ORACLE_SEED", 1);
    let kernel = Kernel::new();
    for file in 0..operations.div_ceil(OPERATIONS_PER_FILE) as u64 {
        let mut random = Random::new(seed.wrapping_mul(1 << 32) ^ file);
        let stretches = Stretches::new(random.next());
        let run: Vec<_> =
            (0..OPERATIONS_PER_FILE).map(|_| stretches.operation(random.next())).collect();
        if let Err((at, _)) = replay(&run, stretches, &kernel) {
            let shortest = shorten(&run[..=at], stretches, &kernel);
            let (_, why) = replay(&shortest, stretches, &kernel).expect_err("it still fails");
            panic!("seed {seed}, file {file}, operation {at}: {why}\n{shortest:#?}");
        }
    }
}

/// Runs the operations on a new file; on a difference, its index and a description.
fn replay(run: &[Operation], stretches: Stretches, kernel: &Kernel) -> Result<(), (usize, String)> {
    kernel.clear();
    let (mut asked, mut map) = (KeeperUnderTest::new(), ByteMap::new(stretches));
    for (at, operation) in run.iter().enumerate() {
        compare(*operation, &mut asked, &mut map, kernel).map_err(|why| (at, why))?;
        if at % 64 == 0 || at + 1 == run.len() {
            compare_tables(&asked, &map).map_err(|why| (at, why))?;
        }
    }
    Ok(())
}

fn compare(
    operation: Operation,
    asked: &mut KeeperUnderTest,
    map: &mut ByteMap,
    kernel: &Kernel,
) -> Result<(), String> {
    let verdicts = [asked.judge(operation), map.judge(operation), kernel.judge(operation)];
    let [keeper, plain, kernel] = verdicts;
    let agree = match (keeper, plain, kernel) {
        // Any conflicting lock may be reported, but only such a one, and exactly.
        (Answer::Held(one), Answer::Held(_), Answer::Held(two)) => {
            let named = |held| map.conflicts(operation).any(|conflict| conflict == held);
            named(one) && named(two)
        }
        _ => keeper == plain && plain == kernel,
    };
    if agree {
        return Ok(());
    }
    Err(format!("{operation:?}: keeper {keeper:?}, byte map {plain:?}, kernel {kernel:?}"))
}

fn compare_tables(asked: &KeeperUnderTest, map: &ByteMap) -> Result<(), String> {
    for owner in 0..OWNERS {
        let (keeper, plain) = (asked.held_by(owner), map.held_by(owner));
        if keeper != plain {
            return Err(format!("owner {owner} holds {keeper:?}, by the byte map {plain:?}"));
        }
    }
    Ok(())
}

/// Removes every operation that can be removed without losing the difference.
fn shorten(run: &[Operation], stretches: Stretches, kernel: &Kernel) -> Vec<Operation> {
    let mut run = run.to_vec();
    let mut piece = run.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < run.len() {
            let mut shorter = run.clone();
            shorter.drain(at..(at + piece).min(run.len()));
            match replay(&shorter, stretches, kernel) {
                Err((failed_at, _)) => {
                    shorter.truncate(failed_at + 1);
                    run = shorter;
                }
                Ok(()) => at += piece,
            }
        }
        piece /= 2;
    }
    run
}

/// The byte map as proptest's reference.
struct Reference;

const MIDDLE: Stretches = Stretches { middle: 1 << 32 };

impl ReferenceStateMachine for Reference {
    type State = ByteMap;
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<ByteMap> {
        Just(ByteMap::new(MIDDLE)).boxed()
    }

    fn transitions(_: &ByteMap) -> BoxedStrategy<Operation> {
        any::<u64>().prop_map(|number| MIDDLE.operation(number)).boxed()
    }

    fn apply(mut map: ByteMap, operation: &Operation) -> ByteMap {
        map.judge(*operation);
        map
    }
}

/// Keeper and kernel as the system under test.
struct SystemUnderTest {
    asked: KeeperUnderTest,
    kernel: Kernel,
    map: ByteMap,
}

impl StateMachineTest for SystemUnderTest {
    type SystemUnderTest = SystemUnderTest;
    type Reference = Reference;

    fn init_test(map: &ByteMap) -> SystemUnderTest {
        SystemUnderTest { asked: KeeperUnderTest::new(), kernel: Kernel::new(), map: map.clone() }
    }

    fn apply(mut both: SystemUnderTest, after: &ByteMap, operation: Operation) -> SystemUnderTest {
        compare(operation, &mut both.asked, &mut both.map, &both.kernel).unwrap();
        compare_tables(&both.asked, after).unwrap();
        both
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn short_sequences_agree_and_shrink(sequential 1..80 => SystemUnderTest);
}

/// The generator must reach every kind of answer.
#[test]
fn operations_reach_every_kind_of_place() {
    let mut random = Random::new(7);
    let stretches = Stretches::new(random.next());
    let run: Vec<_> = (0..10_000).map(|_| stretches.operation(random.next())).collect();
    let count = |wanted: &dyn Fn(&Operation) -> bool| run.iter().filter(|op| wanted(op)).count();
    let end = |op: &Operation| op.offset.checked_add(op.length.wrapping_sub(1));
    assert!(count(&|op| op.offset == 0) > 50);
    assert!(count(&|op| op.length == 0) > 300, "to the end");
    assert!(count(&|op| end(op) == Some(operation::LAST)) > 50, "exactly to the largest offset");
    assert!(count(&|op| op.length > 0 && end(op) > Some(operation::LAST)) > 50, "too far");
    assert!(count(&|op| matches!(op.verb, Verb::Test(_))) > 500);
}
