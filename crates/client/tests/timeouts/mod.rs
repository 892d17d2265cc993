//! Options of the tests' clients.
#![allow(dead_code, reason = "not every test waits for a timeout")]

use std::time::Duration;

use lockkeeper_client::Options;

/// A timeout that no healthy peer reaches.
pub(crate) fn long() -> Options {
    Options { timeout: Duration::from_secs(5), ..Options::default() }
}

/// A timeout that the test waits for.
pub(crate) fn short() -> Options {
    Options { timeout: Duration::from_millis(100), ..Options::default() }
}
