//! Judges for tests; nothing here ships.
//!
//! [`sample`] makes values of every message from a seed, [`programs`] lists every procedure so
//! that a test can walk all of them, [`check`] holds what must be true of *any* bytes (fuzz
//! targets and corpus tests share it), [`capture`] writes packets to a file and [`tshark`] asks
//! an independent dissector what it thinks of them.
#![forbid(unsafe_code)]

pub mod capture;
pub mod check;
pub mod packet;
pub mod programs;
pub mod sample;
pub mod seeds;
pub mod source;
pub mod tshark;

pub use capture::Capture;
pub use source::{Any, Source};
pub use tshark::{Complaint, judge};
