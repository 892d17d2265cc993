//! Applying all changes of a run to an empty `Snapshot` yields what the keeper takes to be durable,
//! and a keeper restored from it agrees. No input in any order panics.
//!
//! `PROPTEST_CASES=10000` runs more cases.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may do I/O")]

mod chaos;

use chaos::input::{Input, InputLine, inputs, settings};
use chaos::run::Run;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_changes_of_any_run_give_the_durable_state_back(
        config in settings(),
        run in prop::collection::vec(inputs(), 1..250),
    ) {
        let mut world = Run::new(config);
        for InputLine(input) in run {
            world.play(input);
        }
        world.play(Input::Poll);
        world.play(Input::Restart { roster: false, lose: false });
        world.play(Input::Restart { roster: true, lose: false });
    }
}
