//! Load on NFSv3 servers: how many calls per second, and how long one takes.
//!
//! [`load`] measures one operation in one shape against a [`Session`]; [`compare`] starts two
//! servers on the same directory and measures them in turn.
//!
//! Client and server usually share the machine, so the load costs as little as it can: one thread,
//! calls encoded once, replies looked at where they lie.
#![forbid(unsafe_code)]

mod bars;
mod calls;
pub mod command;
pub mod compare;
mod crowd;
mod database;
mod ganesha;
mod grantee;
mod interference;
pub mod load;
mod lockkeeper;
mod namespace;
mod operation;
mod owner;
pub mod packages;
pub mod report;
pub mod restart;
mod samples;
mod server;
mod session;
mod shape;
mod table;
mod target;
mod usage;
pub mod waiting;

pub use bars::misses;
pub use load::Timing;
pub use operation::Operation;
pub use report::Measurement;
pub use samples::Samples;
pub use session::Session;
pub use shape::Shape;
pub use target::Target;
