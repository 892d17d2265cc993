//! How a directory of the host is served.

use std::path::PathBuf;

use crate::FileSystemId;

/// How to serve a directory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The directory to serve.
    pub root: PathBuf,
    /// A directory for ids and the inode map, writable by the server only.
    pub state: PathBuf,
    /// `None`: derived from the file system and recorded in `state`.
    pub id: Option<FileSystemId>,
    /// When metadata operations return.
    pub metadata: MetadataMode,
    /// The bound on cached open descriptors; at least 64.
    pub descriptors_max: usize,
    /// How objects are identified.
    pub handles: HandleChoice,
    /// Nothing but this server changes the file system: no program of the host and no other server.
    /// Changes of directories and attributes then come with the attributes of before, so that
    /// clients keep what they have cached.
    pub exclusive: bool,
}

impl Options {
    /// The defaults: synchronous metadata, 4096 descriptors, kernel handles if available, not
    /// exclusive.
    pub fn new(root: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            state: state.into(),
            id: None,
            metadata: MetadataMode::Sync,
            descriptors_max: 4096,
            handles: HandleChoice::Auto,
            exclusive: false,
        }
    }

    /// An id of its own, instead of that of the file system.
    #[must_use]
    pub fn with_id(self, id: FileSystemId) -> Self {
        Self { id: Some(id), ..self }
    }

    /// When metadata operations return.
    #[must_use]
    pub fn with_metadata(self, metadata: MetadataMode) -> Self {
        Self { metadata, ..self }
    }

    /// The bound on cached open descriptors; at least 64.
    #[must_use]
    pub fn with_descriptors_max(self, descriptors_max: usize) -> Self {
        Self { descriptors_max, ..self }
    }

    /// How objects are identified.
    #[must_use]
    pub fn with_handles(self, handles: HandleChoice) -> Self {
        Self { handles, ..self }
    }

    /// Whether nothing but this server changes the file system.
    #[must_use]
    pub fn with_exclusive(self, exclusive: bool) -> Self {
        Self { exclusive, ..self }
    }
}

/// When operations that create, remove, rename or change attributes return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataMode {
    /// When they are durable, as RFC 1813 requires.
    Sync,
    /// Before that. A crash of the host may undo the last seconds.
    Async,
}

/// How objects are to be identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleChoice {
    /// By kernel file handles if privilege and file system allow it and they last, else by the
    /// inode map.
    Auto,
    /// By the inode map.
    InodeMap,
}
