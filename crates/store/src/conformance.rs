//! The test suite for every [`Store`](crate::Store), and the rows that its tests use. A store passes it
//! with a [`TestBed`], which makes new stores and produces the failures of their medium.
//!
//! Behind the feature `conformance`, for tests: a program that brings its own store enables it in its
//! `[dev-dependencies]`.
//!
//! ```
//! use lockkeeper_store::conformance::{TestBed, Unchecked, check};
//! use lockkeeper_store::Memory;
//!
//! struct MemoryBed;
//!
//! impl TestBed for MemoryBed {
//!     type Store = Memory;
//!     const OUTLIVES_PROCESS: bool = false;
//!     fn fresh(&mut self) -> Memory {
//!         Memory::new()
//!     }
//!     fn reopen_after_kill(&mut self, store: Memory) -> Memory {
//!         store
//!     }
//! }
//!
//! let Unchecked(rules) = check(&mut MemoryBed).unwrap();
//! assert!(!rules.is_empty(), "a store in memory cannot fail");
//! ```
//!
//! What no suite can produce for every store is tested by each store itself:
//!
//! | property | embedded | PostgreSQL |
//! |---|---|---|
//! | crashes at every operation of the medium | `embedded/tests/crashes.rs`, `tests/kills.rs` | `tests/postgres/faults.rs` |
//! | evidence of another run proves nothing | `embedded/tests/trust.rs` | `tests/postgres/faults.rs` |
//! | damage and newer formats are errors | `embedded/tests/damage.rs`, `tests/versions` | `tests/postgres/conformance.rs`, `tests/versions` |
//! | a full disk is `NotWritten`, and passes | `tests/full.rs` | `tests/postgres/full.rs` |
//! | statements that arrive late change nothing | - | `tests/postgres/late_statements.rs` |

mod bed;
mod failure;
mod model;
mod operation;
mod rows;

use std::fmt;

pub use bed::{TestBed, Unchecked};
pub use rows::{batch, client, lock, share};

use crate::error::StoreError;

/// The expectation that a store did not meet, as a sentence.
#[derive(Debug)]
pub struct Nonconformance(String);

impl fmt::Display for Nonconformance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Nonconformance {}

impl From<StoreError> for Nonconformance {
    fn from(error: StoreError) -> Self {
        Nonconformance(format!("the store failed: {error}"))
    }
}

/// A rule of normal operation.
type Rule<B> = fn(&mut B) -> Result<(), Nonconformance>;
/// A rule of failure; returns whether the bed could produce what it needs.
type FailureRule<B> = fn(&mut B) -> Result<bool, Nonconformance>;

/// Runs the whole suite. Returns the rules that the bed does not let it check, or the first rule that
/// the store breaks, by name.
pub fn check<B: TestBed>(bed: &mut B) -> Result<Unchecked, Nonconformance> {
    let rules: [(&str, Rule<B>); 8] = [
        ("a new store is empty and exact", operation::a_new_store_is_empty_and_exact),
        ("every change comes back", operation::every_change_comes_back),
        ("a token names the last batch", operation::a_token_names_the_last_batch),
        ("a big batch is one batch", operation::a_big_batch_is_one_batch),
        ("any sequence of batches comes back", operation::any_sequence_of_batches_comes_back),
        ("what a start records is kept", operation::what_a_start_records_is_kept),
        ("clearing is refused", operation::clearing_is_refused_while_locks_are_held),
        ("clearing keeps epoch and ids", operation::clearing_keeps_the_epoch_and_the_ids),
    ];
    for (name, rule) in rules {
        rule(bed).map_err(|broken| broken.of(name))?;
    }
    let rules: [(&'static str, FailureRule<B>); 6] = [
        (NOT_WRITTEN, failure::a_batch_that_is_not_written_has_no_effect),
        (UNKNOWN, failure::an_unknown_batch_is_settled_by_the_last_token),
        (KILL, failure::a_kill_leaves_no_half_batch),
        (POWER_LOSS, failure::a_power_loss_takes_only_locks_and_is_noticed),
        (ONE_WRITER, failure::a_store_has_one_writer),
        (QUICK, failure::a_quick_batch_waits_for_nothing),
    ];
    let mut unchecked = Unchecked::default();
    for (name, rule) in rules {
        if !rule(bed).map_err(|broken| broken.of(name))? {
            unchecked.0.push(name);
        }
    }
    Ok(unchecked)
}

/// The rules of failure, as [`Unchecked`] names them.
pub const NOT_WRITTEN: &str = "a batch that is not written has no effect";
/// See [`NOT_WRITTEN`].
pub const UNKNOWN: &str = "an unknown batch is settled by the last token";
/// See [`NOT_WRITTEN`].
pub const KILL: &str = "a kill leaves no half batch";
/// See [`NOT_WRITTEN`].
pub const POWER_LOSS: &str = "a power loss takes only locks and is noticed";
/// See [`NOT_WRITTEN`].
pub const ONE_WRITER: &str = "a store has one writer";
/// See [`NOT_WRITTEN`].
pub const QUICK: &str = "a quick batch waits for nothing";

impl Nonconformance {
    fn of(self, rule: &str) -> Self {
        Nonconformance(format!("{rule}: {}", self.0))
    }
}
