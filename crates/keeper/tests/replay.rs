//! A store is only a bag of changes: whatever happens, applying all changes of a run to an empty
//! `Snapshot` gives what the keeper believes to be durable, and a keeper that is restored from it
//! believes the same. And whatever comes in, from whomever, in whatever order, nothing panics.
//!
//! `PROPTEST_CASES=10000` makes more runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may do I/O")]

mod chaos;

use chaos::input::{Input, Line, inputs, settings};
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
        for Line(input) in run {
            world.play(input);
        }
        world.play(Input::Poll);
        world.play(Input::Restart { roster: false, lose: false });
        world.play(Input::Restart { roster: true, lose: false });
    }
}
