//! Servers and clients for the tests of the program.
#![allow(dead_code, reason = "each test uses its part")]

pub mod leftovers;
pub mod live;
pub mod node;
pub mod prometheus;
pub mod recorder;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");
