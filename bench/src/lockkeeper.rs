//! Our own server as a child of the benchmark.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use client::Options;

use crate::database::Database;
use crate::server::Server;
use load::Target;

/// How it is set up; each has a port and a state of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Variant {
    /// As it is by default: a change of a directory is on disk before it is answered, a lock
    /// survives the end of the server.
    Default,
    /// With `metadata = "async"`: as with the other server, a change of a directory may be lost if
    /// the machine loses power right after it was answered.
    AsyncMetadata,
    /// With `durability = "power"`: a lock, too, is on disk before it is answered.
    Power,
    /// Locks are kept in PostgreSQL, which has a lock on disk before it is answered.
    Postgres,
    /// As by default, but a client may hold any number of locks.
    ManyLocks,
    /// Any number of locks, kept in PostgreSQL.
    ManyLocksPostgres,
}

impl Variant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Default => "lockkeeper",
            Self::AsyncMetadata => "lockkeeper-async",
            Self::Power => "lockkeeper-power",
            Self::Postgres => "lockkeeper-postgres",
            Self::ManyLocks => "lockkeeper-many",
            Self::ManyLocksPostgres => "lockkeeper-postgres-many",
        }
    }

    fn in_postgres(self) -> bool {
        matches!(self, Self::Postgres | Self::ManyLocksPostgres)
    }

    fn port(self) -> u16 {
        20_480 + self as u16
    }

    /// Where it is looked at while locks come and go.
    pub(crate) fn web(self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 20_580 + self as u16))
    }

    fn configuration(self, dir: &Path) -> String {
        let (limits, export) = match self {
            Self::Default | Self::Power | Self::Postgres => ("", ""),
            Self::AsyncMetadata => ("", "metadata = \"async\"\n"),
            Self::ManyLocks | Self::ManyLocksPostgres => {
                ("[limits]\nlocks_per_client = 10_000_000\nclients = 20_000\n", "")
            }
        };
        // A TOML basic string has the escapes of Rust's.
        let admin = format!("[admin]\nsocket = \"off\"\nlisten = \"{}\"\n", self.web());
        format!("{limits}{admin}[[export]]\npath = {:?}\n{export}", dir.to_string_lossy())
    }
}

/// Serves `dir`. A variant that keeps its locks in `database` has one of its own there.
pub(crate) async fn start(
    program: &Path,
    variant: Variant,
    dir: &Path,
    state: &Path,
    options: &Options,
    database: Option<&Arc<Database>>,
) -> Result<Server> {
    let name = variant.name();
    let own = state.join(name);
    fs::create_dir(&own)?;
    let config = state.join(format!("{name}.toml"));
    fs::write(&config, variant.configuration(dir))?;
    let log_path = state.join(format!("{name}.log"));
    let log = fs::File::create(&log_path)?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, variant.port()));
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(config);
    command.arg("--state").arg(&own).arg("--listen").arg(at.to_string());
    command.args(["--rpcbind", "off", "--ports", "any"]);
    if let Variant::Power = variant {
        command.args(["--durability", "power"]);
    }
    if variant.in_postgres() {
        let database = database.context("no PostgreSQL to keep locks in")?;
        command.arg("--store").arg(database.create(name)?);
    }
    command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
    // All is served at one port.
    let export = dir.to_string_lossy().into_owned();
    let target = Target { nfs: at, mount: at, nlm: Some(at), export, options: options.clone() };
    let mut server = Server::start(name, command, target).await.with_context(|| {
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(10).collect();
        format!("its log ends, last line first: {last:#?}")
    })?;
    server.database = database.filter(|_| variant.in_postgres()).cloned();
    Ok(server)
}
