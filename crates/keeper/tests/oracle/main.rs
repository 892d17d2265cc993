//! The same random operations on the keeper, on a plain byte map and on the kernel's own locks: all
//! three must say the same (R3.2: "the kernel's own locks are the oracle").
//!
//! Two drivers share the judges. A proptest state machine finds and shrinks short sequences; a
//! plain loop, some hundred times faster, does the bulk: 10^6 operations by default,
//! `LOCKKEEPER_ORACLE_OPERATIONS=100000000 cargo test --release -p lockkeeper-keeper --test oracle`
//! for more, `LOCKKEEPER_ORACLE_SEED=n` for others. A run that fails is cut down to the operations
//! that matter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may do I/O")]

mod byte_map;
mod keeper;
mod kernel;
mod operation;

use byte_map::ByteMap;
use keeper::Asked;
use kernel::Kernel;
use operation::{OWNERS, Operation, Places, Verb, Verdict};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

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
        let mut random = Random(seed ^ file.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let places = Places::new(random.next());
        let run: Vec<_> =
            (0..OPERATIONS_PER_FILE).map(|_| places.operation(random.next())).collect();
        if let Err((at, _)) = replay(&run, places, &kernel) {
            let shortest = shorten(&run[..=at], places, &kernel);
            let (_, why) = replay(&shortest, places, &kernel).expect_err("it still fails");
            panic!("seed {seed}, file {file}, operation {at}: {why}\n{shortest:#?}");
        }
    }
}

/// Runs the operations on a new file; the first one on which the judges differ, and how.
fn replay(run: &[Operation], places: Places, kernel: &Kernel) -> Result<(), (usize, String)> {
    kernel.clear();
    let (mut asked, mut map) = (Asked::new(), ByteMap::new(places));
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
    asked: &mut Asked,
    map: &mut ByteMap,
    kernel: &Kernel,
) -> Result<(), String> {
    let verdicts = [asked.judge(operation), map.judge(operation), kernel.judge(operation)];
    let [keeper, plain, kernel] = verdicts;
    let agree = match (keeper, plain, kernel) {
        // Any lock that is in the way may be named, but only such a one, and as it is.
        (Verdict::Held(one), Verdict::Held(_), Verdict::Held(two)) => {
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

fn compare_tables(asked: &Asked, map: &ByteMap) -> Result<(), String> {
    for owner in 0..OWNERS {
        let (keeper, plain) = (asked.held_by(owner), map.held_by(owner));
        if keeper != plain {
            return Err(format!("owner {owner} holds {keeper:?}, by the byte map {plain:?}"));
        }
    }
    Ok(())
}

/// Leaves out whatever can be left out without losing the difference.
fn shorten(run: &[Operation], places: Places, kernel: &Kernel) -> Vec<Operation> {
    let mut run = run.to_vec();
    let mut piece = run.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < run.len() {
            let mut shorter = run.clone();
            shorter.drain(at..(at + piece).min(run.len()));
            match replay(&shorter, places, kernel) {
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

/// xorshift64*: one seed, one run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// The byte map as proptest's reference.
struct Reference;

const MIDDLE: Places = Places { middle: 1 << 32 };

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
struct Both {
    asked: Asked,
    kernel: Kernel,
    map: ByteMap,
}

impl StateMachineTest for Both {
    type SystemUnderTest = Both;
    type Reference = Reference;

    fn init_test(map: &ByteMap) -> Both {
        Both { asked: Asked::new(), kernel: Kernel::new(), map: map.clone() }
    }

    fn apply(mut both: Both, after: &ByteMap, operation: Operation) -> Both {
        compare(operation, &mut both.asked, &mut both.map, &both.kernel).unwrap();
        compare_tables(&both.asked, after).unwrap();
        both
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn short_sequences_agree_and_shrink(sequential 1..80 => Both);
}

/// The generator must reach what it is for.
#[test]
fn operations_reach_every_kind_of_place() {
    let mut random = Random(7);
    let places = Places::new(random.next());
    let run: Vec<_> = (0..10_000).map(|_| places.operation(random.next())).collect();
    let count = |wanted: &dyn Fn(&Operation) -> bool| run.iter().filter(|op| wanted(op)).count();
    let end = |op: &Operation| op.offset.checked_add(op.length.wrapping_sub(1));
    assert!(count(&|op| op.offset == 0) > 50);
    assert!(count(&|op| op.length == 0) > 300, "to the end");
    assert!(count(&|op| end(op) == Some(operation::LAST)) > 50, "exactly to the largest offset");
    assert!(count(&|op| op.length > 0 && end(op) > Some(operation::LAST)) > 50, "too far");
    assert!(count(&|op| matches!(op.verb, Verb::Test(_))) > 500);
}
