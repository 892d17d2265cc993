//! Our own server as a child of the benchmark.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use client::Options;

use crate::Target;
use crate::server::Server;

const PORT: u16 = 20_480;
const ASYNC_PORT: u16 = 20_481;

/// Serves `dir` as it does by default: a change of a directory is on disk before it is answered.
pub(crate) async fn start(
    program: &Path,
    dir: &Path,
    state: &Path,
    options: &Options,
) -> Result<Server> {
    let mut command = Command::new(program);
    command.arg("serve").arg(dir);
    run("lockkeeper", command, PORT, dir, state, options).await
}

/// Serves `dir` with `metadata = "async"`: as the other server does, a change of a directory may
/// be lost if the machine loses power right after it was answered.
pub(crate) async fn start_async(
    program: &Path,
    dir: &Path,
    state: &Path,
    options: &Options,
) -> Result<Server> {
    let config = state.join("lockkeeper-async.toml");
    // A TOML basic string has the escapes of Rust's.
    let text = format!("[[export]]\npath = {:?}\nmetadata = \"async\"\n", dir.to_string_lossy());
    fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(config);
    run("lockkeeper-async", command, ASYNC_PORT, dir, state, options).await
}

async fn run(
    name: &str,
    mut command: Command,
    port: u16,
    dir: &Path,
    state: &Path,
    options: &Options,
) -> Result<Server> {
    let own = state.join(name);
    fs::create_dir(&own)?;
    let log_path = state.join(format!("{name}.log"));
    let log = fs::File::create(&log_path)?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    command.arg("--state").arg(&own).arg("--listen").arg(at.to_string());
    command.args(["--rpcbind", "off", "--ports", "any"]);
    command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
    // MOUNT and NFS are served at one port.
    let export = dir.to_string_lossy().into_owned();
    let target = Target { nfs: at, mount: at, export, options: options.clone() };
    Server::start(name, command, target).await.with_context(|| {
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(10).collect();
        format!("its log ends, last line first: {last:#?}")
    })
}
