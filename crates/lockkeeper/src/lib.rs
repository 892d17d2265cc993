//! Lockkeeper as a library: serves a file system of your own over NFSv3, with locks that survive
//! crashes.
//!
//! Implement [`FileSystem`], whose documentation states the contract of each method (or use
//! [`local::LocalFs`] or [`memory::MemoryFs`]), put it behind an [`Export`], and start a [`Server`]:
//!
//! 1. [`Export`] and [`Rules`] say under which path it is served, to which clients, as whom.
//! 2. [`HandleKey`] signs file handles. It must be the same after each restart; [`secrets`] keeps it.
//! 3. [`LockConfig`] holds the lock store: [`LockConfig::in_memory`], or a store of [`store`] that survives
//!    the process, or one of your own.
//! 4. [`Server::start`] binds the sockets, after the new epoch is committed; [`Server::run`] serves
//!    until [`ServerHandle::stop`].
//!
//! While it runs, [`Control`] lists [locks](Control::locks) and [clients](Control::clients), releases a
//! lock, reads [events](Control::events) and the grace period; [`LockConfig::with_lock_hook`] has the
//! program told of every lock that comes or goes.
//!
//! A program that serves another protocol beside NFS keeps its clients in the same tracker:
//! [`Control::register_client`], and `examples/lease_clients.rs`.
//!
//! The library installs no signal handler and no logger and never exits the process; it logs
//! through `tracing` and needs a Tokio runtime. `examples/hello_fs.rs` is a complete program,
//! `examples/key_values` one that writes and keeps its locks, and `docs/embed.md` a walk through them.
//!
//! Cargo features, none of them on by default: `admin` adds the HTTP API, the metrics and the web
//! page (the module `admin`), `postgres` the store that two servers can share, `conformance` the test
//! suite for a store of your own (`store::conformance`).
//!
//! The items here are the public interface, kept in `api.txt`; the crates that they come from
//! (`lockkeeper-server`, `-vfs`, `-keeper`, `-store`, `-admin`) are not.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(unreachable_pub)]

#[cfg(feature = "admin")]
pub mod admin;
pub mod events;
pub mod local;
pub mod locks;
pub mod memory;
pub mod secrets;
pub mod store;

/// Contents of files, and paths of exports: shared without copying.
pub use bytes::Bytes;
/// A network, as in `"10.0.0.0/8".parse()`.
pub use ipnet::IpNet;

pub use server::roster_copy::CopyError as RosterCopyError;
pub use server::{
    BootError, ClientInfo, ClientIo, Config, Control, ControlError, FileLocation, GraceInfo,
    GrantedLock, IoTotals, Limits, ListenError, LockConfig, LockEvent, LockInfo, OpenReason,
    Protocol, RegisterError, RestoreError, RpcbindMode, RpcbindState, Server, ServerError,
    ServerExit, ServerHandle, TrackError, TrackedClient, WritePolicy, block_on,
};
pub use vfs::{
    AttributeChange, Attributes, BlockingMode, Caller, Context, CreateMode, CreateReply, Device,
    DirEntry, Error, ExclusiveLock, Export, ExportAccess, Exports, FileKey, FileKind, FileSystem,
    FileSystemId, FileSystemInfo, HandleKey, Listing, LookupReply, MountWalk, NewAttributes,
    NodeKind, ObjectId, OpeningExport, Permissions, ReadDirReply, ReadReply, RemoveReply,
    RenameReply, Result, RuleNumber, RuleSet, Rules, SetTime, Space, Squash, Stability, Time,
    WccAttributes, WriteReply, WriteVerifier, verifier_as_times,
};
