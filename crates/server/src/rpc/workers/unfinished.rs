//! A call that was not served before the server stopped.

use std::net::IpAddr;
use std::time::Duration;

use vfs::FileSystemId;

/// A call that still runs on a worker, or waits for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// The file system that the call needs; `None` if it is not known.
    pub(crate) file_system: Option<FileSystemId>,
    /// The paths under which it is exported.
    pub(crate) exports: String,
    /// The procedure, as in `WRITE`.
    pub(crate) procedure: String,
    pub(crate) peer: IpAddr,
    /// Since the call was received.
    pub(crate) age: Duration,
    /// It occupies a thread, perhaps inside the kernel.
    pub(crate) running: bool,
}
