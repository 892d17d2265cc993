//! A directory of the host as a file system.

pub use vfs::local::{HandleChoice, HandleKind, LocalFs, MetadataMode, OpenError, Options};
