//! The server: sockets, RPC dispatch, the services, the lock engine, and calls to clients.
//!
//! [`Server::start`] restores the locks from their store, opens the sockets and serves;
//! [`Server::run`] returns when the server has stopped. The crate handles no signals, sets up no
//! logging and never ends the process. [`Control`] is what the admin API uses.
//!
//! # Files
//!
//! | module | contents |
//! |---|---|
//! | `boot`, `config`, `lock_config` | start and stop, in order; [`Config`], [`LockConfig`], [`Server`] |
//! | `restore` | load the store, commit the next epoch, build the engine |
//! | `roster_copy` | the copy of epoch, token and hosts outside the store; what it says about the store |
//! | `transport` | TCP and UDP: sockets, records, batches of replies |
//! | `rpc` | the dispatcher, the duplicate request cache, pending calls, workers, [`Limits`] |
//! | `service` | NFSv3, MOUNT, NLM, NSM, rpcbind: translate between `wire` and `keeper` or `vfs` |
//! | `files` | exports, handles, access checks, fences; shared by the services |
//! | `engine` | keeper and store behind one inbox: decide, commit, send |
//! | `effects` | carries out the keeper's messages and records its events |
//! | `callbacks` | GRANTED to waiters, notices of restarts, results of _MSG calls |
//! | `peer` | outgoing calls: permission, port, connection or socket |
//! | `liveness` | whether a host is alive: its connections, witnesses, the verdict |
//! | `holders` | which hosts need a witness |
//! | `registrar` | registration with the host's rpcbind, or the embedded one |
//! | `server_names` | the names that notices carry |
//! | `service_lease` | whether a server that shares its store may serve |
//! | `control` | reads, operators' commands and file paths, for the admin API |
//! | `lock_listing`, `lock_events`, `event_reader`, `block_on` | what an embedding program uses besides |
//! | `path_lookup` | look-ups in file systems for operators, bounded in number and time |
//! | `event_log`, `event_text` | the recent events, and their wording |
//! | `refusals` | refused SM_MON and FREE_ALL calls: log, event log, counters |
//! | `in_process` | the server without sockets, for fuzz targets |
//! | `metrics` | counters and histograms |
//! | `client_io`, `io_counts` | NFS calls, bytes and errors per client and per export |
//! | `log_rate_limit` | limits log lines that peers can cause |
//!
//! # A request's way
//!
//! Every request starts in `transport/tcp.rs` or `udp.rs` (a record), goes to `rpc/dispatch.rs` (the
//! program, the duplicate request cache) and to its service; the reply goes back through
//! `rpc/pending.rs` and `transport/outgoing.rs`.
//!
//! - **READ**: `service/nfs3.rs` (handle, export, caller), `service/nfs3/files.rs`, `vfs`. Served on
//!   the network thread if the file system answers without blocking, else again on a worker
//!   (`rpc/workers.rs`).
//! - **WRITE**: the same files, and its call is in the duplicate request cache until it expires. The
//!   worker takes it when it is the turn of its file system (`rpc/workers/schedule.rs`).
//! - **LOCK**: `service/nlm.rs` (any version or _MSG form to one request; the file's permissions on a
//!   worker, in order of receipt by `rpc/order.rs`), `engine.rs` (inbox), `engine/batch.rs`
//!   (`keeper.handle_lock`, commit), `service/nlm/reply.rs`. A waiter's GRANTED goes through
//!   `effects.rs`, `callbacks/grant.rs` and `peer/`.
//! - **SM_NOTIFY**: `service/nsm.rs` (`rpc/admission.rs`: may this peer report a reboot),
//!   `engine/batch.rs` (`keeper.handle_reboot`). If the keeper wants proof, `effects.rs` has
//!   `liveness/` probe the host, and the answer enters the engine as an input.
//!
//! # Threads
//!
//! | thread | runs |
//! |---|---|
//! | the runtime's | one task per connection and per UDP socket, calls to peers, probes, timers; never blocks on a disk |
//! | `worker-N` | calls that may block on the file system (`rpc/workers.rs`) |
//! | `worker-watch` | starts workers when calls wait, notices file systems that stall |
//! | `committer` | batches that are large or wait for the store (`engine.rs`) |
//!
//! An uncontended lock is decided, committed and answered on the thread that received it.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod block_on;
mod boot;
mod callbacks;
mod client_io;
mod config;
mod control;
mod effects;
pub mod engine;
pub mod event_log;
mod event_reader;
pub mod event_text;
mod fences;
mod files;
pub mod holders;
#[cfg(any(test, feature = "fuzz"))]
pub mod in_process;
mod io_counts;
pub mod liveness;
mod lock_config;
mod lock_events;
mod lock_listing;
mod log_rate_limit;
pub mod metrics;
mod mounted_hosts;
mod path_lookup;
pub mod peer;
mod read_budget;
mod refusals;
mod registrar;
mod restore;
pub mod roster_copy;
pub mod rpc;
mod server_names;
mod service;
mod service_lease;
mod tracked_client;
pub mod transport;

pub use block_on::block_on;
pub use boot::{BootError, SWITCHED_OFF, Server, ServerError, ServerExit, ServerHandle};
pub use client_io::{CLIENTS_MAX, ClientIo};
pub use config::Config;
pub use control::{Control, ControlError, FileLocation, PathMatch, ResolvedPath};
pub use event_reader::Events;
pub use io_counts::IoTotals;
pub use keeper::change::Protocol;
pub use lock_config::LockConfig;
pub use lock_events::{GrantedLock, LockEvent};
pub use lock_listing::{ClientInfo, GraceInfo, LockInfo};
pub use peer::permission;
pub use read_budget::ReadBudget;
pub use registrar::{RegisterError, RpcbindMode, RpcbindState};
pub use restore::{OpenReason, RestoreError};
pub use rpc::limits::Limits;
pub use service_lease::WritePolicy;
pub use tracked_client::{TrackError, TrackedClient};
pub use transport::listen::ListenError;
pub use transport::slots::Network;
