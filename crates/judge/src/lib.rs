//! Test support for the wire formats; not part of the product.
//!
//! [`sample`] generates values of every message from a seed ([`source`]), [`programs`] lists every
//! procedure, [`check`] states properties of the decoders for arbitrary bytes (shared by fuzz targets
//! and corpus tests), [`seeds`] generates the fuzz corpus, [`capture`] and [`packet`] write pcap
//! files, and [`tshark`] has an independent dissector check them.

#![warn(unreachable_pub)]
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
