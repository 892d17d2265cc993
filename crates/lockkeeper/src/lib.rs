//! Lockkeeper as a library: serves a file system of your own over NFSv3, with locks that survive
//! crashes.
//!
//! Implement [`FileSystem`], whose documentation states the contract of each method (or use
//! [`local::LocalFs`] or [`memory::MemoryFs`]), put it behind an [`Export`], and start a [`Server`]:
//!
//! 1. [`Export`] and [`Rules`] say under which path it is served, to which clients, as whom.
//! 2. [`HandleKey`] signs file handles. It must be the same after each restart; [`secrets`] keeps it.
//! 3. [`LockConfig`] holds the lock store: [`LockConfig::in_memory`], or a store of [`store`] that survives
//!    the process.
//! 4. [`Server::start`] binds the sockets, after the new epoch is committed; [`Server::run`] serves
//!    until [`ServerHandle::stop`].
//!
//! A program that serves another protocol beside NFS keeps its clients in the same tracker:
//! [`Control::register_client`], and `examples/lease_clients.rs`.
//!
//! The library installs no signal handler and no logger and never exits the process; it logs
//! through `tracing` and needs a Tokio runtime. `examples/hello_fs.rs` is a complete program, and
//! `docs/embed.md` a walk through it.
//!
//! Cargo features, none of them on by default: `admin` adds the HTTP API, the metrics and the web
//! page (the module `admin`), `postgres` the store that two servers can share, `conformance` the test
//! suite for a store of your own (`store::conformance`).
//!
//! The items here are the public interface; the crates that they come from (`lockkeeper-server`,
//! `-vfs`, `-store`, `-admin`) are not.

#![warn(missing_docs)]
#![warn(unreachable_pub)]

#[cfg(feature = "admin")]
pub use admin;
pub use server::{
    BootError, Config, Control, ControlError, Limits, ListenError, LockConfig, OpenReason,
    Protocol, RegisterError, RestoreError, RpcbindMode, RpcbindState, Server, ServerError,
    ServerExit, ServerHandle, TrackError, TrackedClient, WritePolicy,
};
pub use store;
pub use vfs::{
    AttributeChange, Attributes, BlockingMode, Caller, Context, CreateMode, CreateReply, Device,
    DirEntry, Error, ExclusiveLock, Export, ExportAccess, Exports, FileKind, FileSystem,
    FileSystemId, FileSystemInfo, HandleKey, LookupReply, NewAttributes, NodeKind, ObjectId,
    Permissions, ReadDirReply, ReadReply, RemoveReply, RenameReply, Result, RuleSet, Rules,
    SetTime, Space, Squash, Stability, Time, WccAttributes, WriteReply, WriteVerifier, local,
    memory, secrets, verifier_as_times,
};
