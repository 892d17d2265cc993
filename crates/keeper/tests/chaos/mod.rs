//! Arbitrary inputs for a keeper, and a run that applies them against a store.

pub mod input;
pub mod run;
