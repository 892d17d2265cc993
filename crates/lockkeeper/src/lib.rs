//! Lockkeeper as a library: serve your own file system over NFSv3.
//!
//! Implement [`FileSystem`], put it behind an [`Export`], and start a [`Server`]. Nothing here
//! handles signals, sets up logging or ends the process: [`Server::run`] returns, and the program
//! decides. `examples/hello_fs.rs` is a complete program.

pub use server::{
    BootError, Config, Ended, Failed, Limits, ListenError, Locks, LocksError, RegisterError,
    RpcbindMode, RpcbindState, Server, Stopper,
};
pub use vfs::{
    Access, Attributes, Caller, Change, Context, CreateMode, Device, DirEntry, Error, Export,
    Exports, FileKind, FileSystem, FileSystemId, HandleKey, Listed, Looked, Made, NewAttributes,
    NodeKind, ObjectId, Patience, Permissions, ReadOut, Removed, Renamed, Result, Rules, SetTime,
    Snapshot, Space, Squash, Stability, Time, Traits, WriteVerifier, Written, local, memory,
    secrets,
};
