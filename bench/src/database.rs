//! Debian's PostgreSQL, for our server to keep its locks in.
//!
//! As installed: with the sizes of Debian's own configuration, and with every commit on disk before
//! it is acknowledged. It is reached through a unix socket.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use testbed::postgres::{Options, Server};

use load::usage;

const PROGRAM: &str = "postgres";
/// The defaults; instances for tests are smaller.
const SIZES: [&str; 3] = ["shared_buffers = 128MB", "max_wal_size = 1GB", "min_wal_size = 80MB"];

pub(crate) struct Database {
    server: Server,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("url", &self.server.url()).finish()
    }
}

impl Database {
    /// Only inside a private namespace, where no other PostgreSQL is visible.
    pub(crate) fn start() -> Result<Self> {
        let config = SIZES.map(str::to_owned).to_vec();
        let options = Options { fsync: true, config, ..Options::default() };
        Ok(Self { server: Server::start_with(&options).context("cannot start PostgreSQL")? })
    }

    /// Creates an empty database of this name and returns its URL.
    pub(crate) fn create(&self, name: &str) -> Result<String> {
        self.server.psql(&format!("CREATE DATABASE \"{name}\""))?;
        let url = self.server.url();
        let host = url.split(' ').find(|setting| setting.starts_with("host="));
        let host = host.context("PostgreSQL has no socket")?;
        Ok(format!("postgres:///{name}?user=postgres&{host}"))
    }

    /// The processor time of all its processes, including those that have ended.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        usage::cpu_of_all(PROGRAM)
    }
}
