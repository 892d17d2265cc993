//! Lockkeeper as a library: serve your own file system over NFSv3.
//!
//! Implement [`FileSystem`], put it behind an [`Export`], and start a [`Server`]. Nothing here
//! handles signals, sets up logging or ends the process: [`Server::run`] returns, and the program
//! decides. `examples/hello_fs.rs` is a complete program.
//!
//! Without the feature `cli` only the library is built. The feature `admin` adds the API and the page
//! to a server that is embedded, `postgres` the store that two servers can share.

#[cfg(feature = "admin")]
pub use admin;
pub use server::{
    BootError, Config, Control, Ended, Failed, Limits, ListenError, Locks, LocksError,
    RegisterError, RpcbindMode, RpcbindState, Server, Stopper,
};
pub use store;
pub use vfs::{
    Access, Attributes, Caller, Change, Context, CreateMode, Device, DirEntry, Error, Export,
    Exports, FileKind, FileSystem, FileSystemId, HandleKey, Listed, Looked, Made, NewAttributes,
    NodeKind, ObjectId, Patience, Permissions, ReadOut, Removed, Renamed, Result, Rules, SetTime,
    Snapshot, Space, Squash, Stability, Time, Traits, WriteVerifier, Written, local, memory,
    secrets,
};
