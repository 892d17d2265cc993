//! A file system in memory.

pub use vfs::memory::{MemoryFs, Options};
