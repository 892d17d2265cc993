//! Our own server as a child of the benchmark.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use client::Options;
use serde::Serialize;
use testbed::process::run;

use crate::database::Database;
use crate::link::Link;
use crate::server::Server;
use load::{Operation, Shape, Target};

/// One of our binaries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binary<'a> {
    pub(crate) build: Build,
    pub(crate) path: &'a Path,
}

/// Which of our binaries; its servers have names and ports of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    Current,
    /// An older one to compare with. It is started with the same options, so it must know those of
    /// every variant that is measured.
    Before,
}

/// For millions of locks of thousands of clients, all at one address.
const LIMITS_OF_MANY: &str = "\
[limits]
clients = 20_000
clients_per_address = 20_000
locks_per_client = 10_000_000
locks_per_address = 10_000_000
";

/// A configuration of the server. Each has its own port and state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The defaults: a change to a directory is on disk before the reply, and a lock survives a
    /// crash of the server process.
    Default,
    /// With `metadata = "async"`: as with nfs-ganesha, a power failure soon after the reply may
    /// lose a change to a directory.
    Async,
    /// With `durability = "power"`: a lock, too, is on disk before the reply.
    Power,
    /// Locks are kept in PostgreSQL, which writes them to disk before the reply.
    Postgres,
    /// The defaults, but with limits high enough for millions of locks.
    Many,
    /// As `Many`, with the locks in PostgreSQL.
    PostgresMany,
}

impl Build {
    pub(crate) fn name(self, variant: Variant) -> String {
        let build = match self {
            Self::Current => "lockkeeper",
            Self::Before => "before",
        };
        match variant.label() {
            "" => build.to_owned(),
            label => format!("{build}-{label}"),
        }
    }

    fn port(self, variant: Variant) -> u16 {
        let first = match self {
            Self::Current => 20_480,
            Self::Before => 20_470,
        };
        first + variant as u16
    }

    /// Where its web page is requested under load.
    pub(crate) fn web(self, variant: Variant) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port(variant) + 100))
    }
}

impl Variant {
    /// What distinguishes it from the default, in a word.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::Async => "async",
            Self::Power => "power",
            Self::Postgres => "postgres",
            Self::Many => "many",
            Self::PostgresMany => "postgres-many",
        }
    }

    /// Whether a row is measured with this variant: the default is measured with all, others only with
    /// operations that they affect. Locks that wait for a disk are measured where several wait at once:
    /// otherwise it is only the disk that is measured.
    pub(crate) fn measures(self, operation: Operation, shape: Shape) -> bool {
        match self {
            Self::Default => true,
            Self::Async => operation == Operation::CreateRemove,
            Self::Power | Self::Postgres => operation.locks() && shape.depth > 1,
            Self::Many | Self::PostgresMany => false,
        }
    }

    fn in_postgres(self) -> bool {
        matches!(self, Self::Postgres | Self::PostgresMany)
    }

    fn configuration(self, dir: &Path, web: SocketAddr) -> String {
        let (limits, export) = match self {
            Self::Default | Self::Power | Self::Postgres => ("", ""),
            Self::Async => ("", "metadata = \"async\"\n"),
            Self::Many | Self::PostgresMany => (LIMITS_OF_MANY, ""),
        };
        let admin = format!("[admin]\nsocket = \"off\"\nlisten = \"{web}\"\n");
        // Without control characters, `{:?}` yields a TOML basic string.
        format!("{limits}{admin}[[export]]\npath = {:?}\n{export}", dir.to_string_lossy())
    }
}

/// Where our servers run, and what they serve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) dir: &'a Path,
    /// Parent of the servers' state directories.
    pub(crate) state: &'a Path,
    pub(crate) link: Link,
    /// Options of the measuring client.
    pub(crate) options: &'a Options,
    /// The PostgreSQL server, if there is one. Each variant that needs it gets its own database.
    pub(crate) database: Option<&'a Arc<Database>>,
}

impl Site<'_> {
    /// Starts a server. Each variant of a binary can be started once.
    pub(crate) async fn start(&self, binary: Binary<'_>, variant: Variant) -> Result<Server> {
        let name = binary.build.name(variant);
        let program = Command::new(binary.path);
        let mut server = self.start_as(&name, program, binary.build, variant).await?;
        server.version = Some(version(binary.path)?);
        Ok(server)
    }

    /// Starts a server under a name of its own. `program` is the command that runs the binary; it
    /// gets the server's arguments.
    pub(crate) async fn start_as(
        &self,
        name: &str,
        program: Command,
        build: Build,
        variant: Variant,
    ) -> Result<Server> {
        let own = self.state.join(name);
        fs::create_dir(&own)?;
        let config = self.state.join(format!("{name}.toml"));
        fs::write(&config, variant.configuration(self.dir, build.web(variant)))?;
        let log = self.state.join(format!("{name}.log"));
        let at = SocketAddr::from((self.link.server(), build.port(variant)));
        let mut command = program;
        command.arg("serve").arg("--config").arg(config);
        command.arg("--state").arg(&own).arg("--listen").arg(at.to_string());
        command.args(["--rpcbind", "off", "--ports", "any"]);
        if let Variant::Power = variant {
            command.args(["--durability", "power"]);
        }
        let database = self.database.filter(|_| variant.in_postgres());
        if variant.in_postgres() {
            let database = database.context("no PostgreSQL to keep locks in")?;
            command.arg("--store").arg(database.create(name)?);
        }
        // All programs are served on one port.
        let export = self.dir.to_string_lossy().into_owned();
        let options = self.options.clone();
        let target = Target { nfs: at, mount: at, nlm: Some(at), export, options };
        let mut server = Server::start(name, self.link.beyond(command), &log, target).await?;
        server.database = database.cloned();
        Ok(server)
    }
}

/// The last word of `lockkeeper --version`.
fn version(binary: &Path) -> Result<String> {
    let told = run(Command::new(binary).arg("--version"))?;
    Ok(told.split_whitespace().next_back().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ganesha;
    use crate::limit::Loop;
    use std::collections::HashSet;

    #[test]
    fn every_server_has_a_name_and_ports_of_its_own() {
        use Variant::*;
        let (mut names, mut ports) = (HashSet::new(), HashSet::new());
        let ganesha = [ganesha::NFS_PORT, ganesha::MOUNT_PORT, ganesha::NLM_PORT];
        ports.extend(ganesha);
        ports.extend(Loop::ALL.map(Loop::port));
        for build in [Build::Current, Build::Before] {
            for variant in [Default, Async, Power, Postgres, Many, PostgresMany] {
                assert!(names.insert(build.name(variant)), "{build:?} {variant:?}");
                assert!(ports.insert(build.port(variant)), "{build:?} {variant:?}");
                assert!(ports.insert(build.web(variant).port()), "{build:?} {variant:?}");
            }
        }
    }
}
