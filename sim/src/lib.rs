//! The simulator: a seeded world around the production lock code, with judges that check the
//! invariants I1-I14 after every decision.
//!
//! One seed is one run, on one thread, in virtual time, and repeats exactly: nothing reads a clock,
//! a random source or a hash order of the machine. A run has faults for some minutes, then a calm
//! phase with one more restart, then every process gives back its locks, and liveness is checked.
//!
//! **Simulated:** client hosts (Linux, macOS, Windows and netboot clients, an SM_MON registrant, an
//! adversary) with kernels, status monitors and processes; a network that loses, duplicates, delays
//! and partitions; TCP connections as kernels see them; a store with a page cache that fails, loses
//! commit outcomes and loses power; crashes, stops and lease pauses of the server; operators.
//!
//! **Production code:** the keeper; the server's inbox, decider and commit stages
//! (`server::engine`), duplicate request cache, request order and admission (`server::rpc`),
//! liveness verdicts (`server::liveness`), permission to call (`server::peer::permission`); the
//! durability rules of `store`. Not run: sockets, XDR, the real stores, file systems.
//!
//! | file | content |
//! |---|---|
//! | `world.rs` | all state, the events, the main loop and the phases of a run |
//! | `scenario.rs` | what the seed decides first: configuration, hosts, fault rates |
//! | `queue.rs`, `random.rs` | virtual time; the only random source |
//! | `host.rs`, `host/` | a client: `lockd.rs` (lock client), `statd.rs` (boot, notices, reclaim), `sharer.rs` (SHARE) |
//! | `adversary.rs`, `watcher.rs` | forged requests; an SM_MON registrant |
//! | `chaos.rs` | faults and operator actions |
//! | `network.rs`, `packet.rs`, `connections.rs` | links; requests with the ground truth beside them; TCP |
//! | `server.rs`, `server/`, `engine.rs` | the server process: start and stop, `reception.rs`, `commit.rs`, `outgoing.rs` |
//! | `renumbering.rs` | the server's own addresses, which a restart may change |
//! | `translate.rs` | packets to engine requests, as the services do |
//! | `disk.rs` | the simulated store |
//! | `model.rs`, `cells.rs` | the model that the judges compare with: locks byte by byte |
//! | `judge.rs`, `judge/` | the judges; see `judge.rs` |
//! | `coverage.rs` | how often rare states were reached |
//! | `trace.rs`, `trace_text.rs` | the trace of a run, and violations |
//! | `fuzz.rs` | runs whose random draws a fuzzer chooses |
//! | `runner.rs`, `main.rs` | many seeds on several threads; the command line |
//!
//! `cargo xtask sim` runs seeds and prints for the first violation the end of its trace, for all
//! violations seed and rule, and what was reached how often. `cargo xtask sim --seed N` prints the
//! whole trace of one seed: virtual time, then an event of the world, `>` an input of the keeper,
//! or, indented, its events and messages; the last line is the violation. Rules are invariants of
//! ARCHITECTURE.md (`I4`), rules of the specification, `liveness`, or consistency checks
//! (`reply`, `ids`, `getters`, `snapshot`).
//!
//! The order of random draws is part of what a seed means: a new draw changes every run after it.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
// One index walks several grids at once; iterators would hide which byte is meant.
#![allow(clippy::needless_range_loop)]

mod adversary;
mod cells;
mod chaos;
mod connections;
mod coverage;
mod disk;
mod engine;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod host;
mod judge;
mod model;
mod network;
mod packet;
mod queue;
mod random;
mod renumbering;
pub mod runner;
mod scenario;
mod server;
mod trace;
mod trace_text;
mod translate;
mod watcher;
mod world;

pub use coverage::Coverage;
pub use trace::Violation;
pub use world::{Options, Outcome, run, run_chosen};
