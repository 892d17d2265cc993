//! The lock keeper decides everything about locks, hosts, grace and notices, and does nothing: no
//! I/O, no clock, no randomness, no async. Requests go in by `handle_*`, what is to be done comes
//! out by `poll_*`, time is an argument. So a simulator can run it through a lifetime of crashes in
//! milliseconds, and one seed is one run.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod change;
pub mod config;
pub mod event;
pub mod identity;
pub mod keeper;
pub mod range;
pub mod request;
pub mod step;
pub mod time;
pub mod view;

mod clients;
mod deadlock;
mod files;
mod grace;
mod grants;
mod ids;
mod limits;
mod locking;
mod map;
mod notices;
mod operator;
mod owners;
mod parking;
mod probes;
mod reads;
mod reboots;
mod registrants;
mod registration;
mod remembered;
mod shares;
mod spelling;
mod sweep;
mod table;
mod timer;
mod tree;
mod unreclaimed;
mod waiters;
mod window;

pub use keeper::Keeper;
