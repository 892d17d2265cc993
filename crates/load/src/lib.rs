//! Load on an NFSv3 server: how many calls per second, and how long one takes.
//!
//! A [`Plan`] says what is measured; [`Session`] is the work place that it needs on a server;
//! [`run`] measures one operation in one shape, [`Bursts`] are a fixed number of calls.
//! `lockkeeper bench` measures one server with it, the comparison in `bench/` several in turn.
//!
//! Client and server often share the machine, so the load costs as little as it can: one thread,
//! calls encoded once, replies looked at where they lie.
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
