//! A call that was not served before the server stopped, in words.

use std::fmt;
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

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exports, procedure, peer, age, running, .. } = self;
        let state = if *running { "running" } else { "waiting" };
        write!(f, "{exports}: {procedure} from {peer} has been {state} for {} s", age.as_secs())
    }
}
