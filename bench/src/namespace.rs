//! A place of our own for servers and client: network, mounts and processes.
//!
//! The program runs itself again under `unshare`. Inside there is only loopback, so every port is
//! free and nothing leaves; /run is empty, so that an rpcbind started there is reached by its own
//! children and no others; and the program is process 1, so that when it ends, in whatever way,
//! the kernel ends every process it started and the namespaces with them.
//!
//! Outside, the first process waits and clears away. If it is killed, `setpriv` has seen to it
//! that `unshare` is killed too.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tokio::signal::unix::{SignalKind, signal};

/// Set inside, to the directory for data and state.
const SCRATCH: &str = "LOCKKEEPER_BENCH_SCRATCH";

pub(crate) enum Place {
    /// We are inside; here is a directory that is removed later.
    Inside(PathBuf),
    /// We were outside, and the program has run inside to this end.
    Ended(ExitCode),
}

/// `parent` is where the directory is made.
pub(crate) fn enter(parent: &Path) -> Result<Place> {
    if let Some(scratch) = std::env::var_os(SCRATCH)
        && std::process::id() == 1
    {
        furnish()?;
        return Ok(Place::Inside(scratch.into()));
    }
    let scratch = tempfile::Builder::new().prefix("lockkeeper-bench-").tempdir_in(parent)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(outside(scratch.path()));
    scratch.close().context("cannot remove the directory for data and state")?;
    ended.map(Place::Ended)
}

async fn outside(scratch: &Path) -> Result<ExitCode> {
    let program = std::env::current_exe().context("where this program is")?;
    // Before the child starts, so that no signal finds us unprepared.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut child = tokio::process::Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(SCRATCH, scratch)
        // Also what others make inside is cleared away, and is on the same disk.
        .env("TMPDIR", scratch)
        .kill_on_drop(true)
        .spawn()
        .context("cannot run setpriv (package util-linux)")?;
    let stopped_by = tokio::select! {
        status = child.wait() => {
            let code = status?.code().and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
    };
    child.kill().await?;
    bail!("{stopped_by}")
}

fn furnish() -> Result<()> {
    run(&["ip", "link", "set", "lo", "up"])?;
    // The kernel's own default, whatever this machine uses: pacing, as BBR does it, measures the
    // pace and not the server. Where there is no cubic, the machine's choice stays.
    let _ = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic");
    // For locks nfs-ganesha makes connections from reserved ports by the thousand, each for one call.
    // If they lingered for a minute as usual, no port would be left, neither for it nor for us.
    let _ = std::fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0");
    run(&["mount", "-t", "tmpfs", "tmpfs", "/run"])?;
    std::fs::create_dir_all("/run/rpcbind")?;
    // Where nfs-ganesha and rpc.statd keep what they remember of their clients.
    if Path::new("/var/lib/nfs").is_dir() {
        run(&["mount", "-t", "tmpfs", "tmpfs", "/var/lib/nfs"])?;
        for dir in ["ganesha", "sm", "sm.bak"] {
            std::fs::create_dir_all(Path::new("/var/lib/nfs").join(dir))?;
        }
    }
    Ok(())
}

fn run(command: &[&str]) -> Result<()> {
    let status = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", command[0]))?;
    ensure!(status.success(), "{} failed: {status}", command.join(" "));
    Ok(())
}
