//! What tests and benchmarks need of the machine they run on.

pub mod copied;
pub mod fixtures;
pub mod packages;
pub mod postgres;
pub mod small_disk;
