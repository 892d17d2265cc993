//! A load generator for NFSv3 servers: throughput and latency.
//!
//! A [`Plan`] says what is measured; a [`Session`] is the connections and files that this needs;
//! [`run`] measures one operation in one shape; [`Bursts`] are a fixed number of calls.
//! `lockkeeper bench` measures one server, the comparison in `bench/` several in turn.
//!
//! Client and server often share a machine, so the generator is cheap: one thread, calls encoded
//! once, replies parsed in place.

#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod args;
mod bursts;
mod calls;
mod load;
mod operation;
mod owner;
mod plan;
mod report;
mod samples;
mod session;
mod shape;
mod target;
pub mod usage;

pub use args::LoadArgs;
pub use bursts::Bursts;
pub use load::{LoadError, Timing, run};
pub use operation::Operation;
pub use owner::Owner;
pub use plan::Plan;
pub use report::{Measurement, table};
pub use samples::Samples;
pub use session::{OpenError, Session};
pub use shape::Shape;
pub use target::{Ports, Target};
