//! A seeded world around the lock keeper. Simulated hosts lock, crash and lie; a simulated network
//! loses, repeats and cuts; a simulated disk forgets what was not synced; and a naive model that
//! shares no code with the keeper checks the invariants I1-I13 after every event. One seed is one
//! run, on one thread, and replays exactly.

#![forbid(unsafe_code)]
// One index walks several pictures at once; iterators over all of them would hide which byte is meant.
#![allow(clippy::needless_range_loop)]

mod adversary;
mod ask;
mod cells;
mod chaos;
mod connections;
mod disk;
mod engine;
mod host;
mod judge;
mod model;
mod narrate;
mod network;
mod packet;
mod queue;
mod random;
pub mod runner;
mod scenario;
mod server;
mod story;
pub mod tally;
mod watcher;
mod world;

pub use story::Violation;
pub use world::{Options, Outcome, run};
