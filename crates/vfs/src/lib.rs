//! Served file systems: the trait behind which they stand, the handles that name their files, the
//! exports that say who may reach them, and the callers of their operations.
//!
//! [`FileSystem`] states the contract between the server and a file system. [`local`] serves a
//! directory of the host, [`memory`] a tree in memory; a program that embeds the server implements
//! the trait itself. The crate knows no protocol: no XDR, no sockets, no locks.
//!
//! | file | content |
//! |---|---|
//! | `filesystem.rs` | the trait, its contract, its arguments and replies |
//! | `attributes.rs`, `error.rs`, `caller.rs` | file attributes; errors and their NFSv3 status; caller identity |
//! | `handle.rs` | the bytes of a file handle; signing and verifying it |
//! | `export.rs` | exports and their rules: clients, squashing, access |
//! | `listing.rs` | directory cookies for file systems that have none |
//! | `buffers.rs` | buffers for the data of READ and WRITE, used again |
//! | `closing.rs` | dropping file systems without waiting for their disks |
//! | `groups.rs` | supplementary groups, cached; `groups/host_names.rs` asks the host's name service |
//! | `names.rs` | the last known name of each file, for display |
//! | `secrets.rs` | keys that outlive the process |
//! | `memory.rs` | [`memory::MemoryFs`]: `memory/state.rs` (tree), `file.rs` (permissions), `data.rs` (sparse content) |
//! | `local.rs`, `local/options.rs` | [`local::LocalFs`]: opening, dispatch; how to serve a directory |
//! | `local/tree.rs` | object id to open file; lookup without leaving the export |
//! | `local/node.rs` | open files and the bounded cache of them |
//! | `local/directory.rs` | create, remove, rename, link |
//! | `local/listing.rs`, `listing/sorted.rs` | READDIR by offset, or by the hashes of names |
//! | `local/change.rs` | SETATTR |
//! | `local/io.rs`, `uncommitted.rs` | READ, WRITE, COMMIT and the write verifier; files that await a COMMIT |
//! | `local/permission.rs`, `identity.rs` | access checks by the kernel, cached; acting as the caller |
//! | `local/kind.rs`, `access_time.rs` | what a kind of file system can be relied on for; whether reading writes an access time |
//! | `local/fsid.rs`, `device.rs` | file-system ids; what exports of one file system share |
//! | `local/inodes.rs`, `inodes/` | object ids where kernel handles are unavailable: table, file, records |
//! | `local/background.rs`, `housekeeping.rs`, `state.rs` | background threads and their work; small state files |
//! | `local/status.rs`, `sys.rs` | statx; raw system calls, the crate's unsafe code |

#![warn(missing_docs)]
#![warn(unreachable_pub)]

mod attributes;
pub mod buffers;
mod caller;
mod closing;
mod error;
pub mod export;
mod filesystem;
pub mod groups;
mod handle;
mod listing;
pub mod local;
pub mod memory;
pub mod names;
pub mod secrets;

pub use attributes::{
    AttributeChange, Attributes, Device, FileKind, NewAttributes, SetTime, Time, WccAttributes,
};
pub use caller::Caller;
pub use closing::Closing;
pub use error::{Error, Result};
pub use export::{
    ExclusiveLock, Export, ExportAccess, Exports, MountWalk, OpeningExport, RuleNumber, RuleSet,
    Rules, Squash,
};
pub use filesystem::{
    BlockingMode, Context, CreateMode, CreateReply, DirEntry, FileSystem, FileSystemInfo,
    LookupReply, NodeKind, ObjectId, Permissions, ReadDirReply, ReadReply, RemoveReply,
    RenameReply, Space, Stability, WriteReply, WriteVerifier, verifier_as_times,
};
pub use handle::{FileKey, FileSystemId, HandleKey, SignedHandle, VerifiedHandle};
pub use listing::Listing;
