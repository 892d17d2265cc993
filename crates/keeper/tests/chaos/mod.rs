//! Arbitrary inputs for a keeper, and a run that plays them against a store.

pub mod input;
pub mod run;
