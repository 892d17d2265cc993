//! What is served: file systems behind one trait, the handles that name their files, the exports
//! that say who may reach them, and the callers that ask.
//!
//! [`FileSystem`] is the trait; [`local`] serves a directory of the host, [`memory`] keeps
//! everything in memory. Another program serves its own file system by implementing the trait.

pub mod attributes;
pub mod caller;
pub mod error;
pub mod export;
pub mod filesystem;
pub mod groups;
pub mod handle;
pub mod local;
pub mod memory;
pub mod names;
pub mod secrets;

pub use attributes::{
    Attributes, Change, Device, FileKind, NewAttributes, SetTime, Snapshot, Time,
};
pub use caller::Caller;
pub use error::{Error, Result};
pub use export::{Access, Export, Exports, Rules, Squash};
pub use filesystem::{
    Context, CreateMode, DirEntry, FileSystem, Listed, Looked, Made, NodeKind, ObjectId, Patience,
    Permissions, ReadOut, Removed, Renamed, Space, Stability, Traits, WriteVerifier, Written,
};
pub use handle::{FileKey, FileSystemId, HandleKey, Opened};
