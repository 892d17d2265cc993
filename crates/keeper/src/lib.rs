//! The lock keeper: decides everything about locks, hosts, grace and notices, and does nothing. It is
//! a deterministic state machine without I/O, clock, randomness, threads or async.
//!
//! Inputs are the `handle_*` methods of [`Keeper`], each with the current [`time::Time`]. The output
//! is a [`step::Step`]: commit its changes, then send its messages, never the reverse (I2). Timers
//! are polled with [`Keeper::poll_timeout`]. The same inputs always yield the same steps, so a
//! simulator can run years of crashes and replay any run from its seed.
//!
//! # Files
//!
//! Interface: `keeper` (inputs and outputs), `request`, `step`, `change` (what is durable), `event`,
//! `config`, `reads` and `view` (queries), `identity`, `bytes`, `range`, `time`, `spelling` (ids as
//! text).
//!
//! | decisions | |
//! |---|---|
//! | `locking` | LOCK, TEST, UNLOCK, CANCEL |
//! | `shares` | SHARE, UNSHARE |
//! | `grants` | freed ranges to waiters, GRANTED callbacks |
//! | `deadlock` | cycles of waiting owners |
//! | `limits` | what fits |
//! | `grace`, `window`, `remembered`, `roster_end` | recovery after a restart, its window, records of an inexact store, what becomes of them |
//! | `open_start` | recovery from a store that may lack hosts |
//! | `namespaces` | owners after the server got another address |
//! | `registration`, `registrants` | who is monitored; SM_MON, SM_UNMON |
//! | `reconnection` | clients of protocols that an embedding program serves |
//! | `notices` | SM_NOTIFY to clients, and its repetition |
//! | `incarnations` | which kernel sent a LOCK; what an accepted reboot does |
//! | `reboot_reports`, `unreclaimed` | SM_NOTIFY and FREE_ALL from clients; those that only a reclaim can refute |
//! | `roaming` | reports from another address than the recorded one |
//! | `probes`, `parking`, `waiter_probes` | questions about hosts; requests and waiters that wait for an answer, requests that wait for grace |
//! | `sweep` | releases that the owner did not ask for |
//! | `operator`, `fences` | operator actions; machines that are shut out |
//! | `settle` | the end of every input |
//!
//! State: `table` and `tree` (held locks), `waiters`, `clients` (the client tracker), `interned`
//! (files and owners by id), `names` (clients by name), `taken` (what a host holds, by kernel), `ids`,
//! `timer`, `map`.
//!
//! # Three walks
//!
//! - **LOCK**: [`Keeper::handle_lock`] notes that the host called; `decide_lock` checks fence, stale
//!   request, kernel, reclaim, grace, conflicts and deadlock in this order; `take` registers the host
//!   and edits the table. The step holds the registration, the lock and the reply.
//! - **SM_NOTIFY**: [`Keeper::handle_reboot`] finds the hosts concerned and parks the report while the
//!   old kernel is probed. [`Keeper::handle_probe_answer`] makes it ready; `settle` resumes it, an
//!   accepted report sweeps the host, and the next round of `settle` grants the freed ranges.
//! - **Restart**: [`Keeper::restore`] takes the snapshot, marks every lock as unconfirmed, begins grace
//!   and queues the notices. Reclaims confirm; the last one, or the window's timer, ends grace, and
//!   `settle` decides what was held back.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

pub mod bytes;
pub mod change;
pub mod config;
pub mod event;
pub mod identity;
pub mod keeper;
pub mod pages;
pub mod range;
pub mod request;
pub mod step;
pub mod time;
pub mod view;

mod clients;
mod deadlock;
mod fences;
mod grace;
mod grants;
mod ids;
mod incarnations;
mod interned;
mod limits;
mod locking;
mod map;
mod names;
mod namespaces;
mod notices;
mod open_start;
mod operator;
mod parking;
mod probes;
mod reads;
mod reboot_reports;
mod reconnection;
mod registrants;
mod registration;
mod remembered;
mod roaming;
mod roster_end;
mod settle;
mod shares;
mod spelling;
mod sweep;
mod table;
mod taken;
mod timer;
mod tree;
mod unreclaimed;
mod waiter_probes;
mod waiters;
mod window;

pub use fences::FenceScope;
pub use keeper::Keeper;
