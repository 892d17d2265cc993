//! Isolation of servers and client: network, mount and PID namespaces.
//!
//! The program runs itself again under `unshare`. Inside, there is only loopback and what the program
//! makes ([`crate::link`]), so every port is free and nothing leaves; `/run` is empty, so that only programs inside reach an rpcbind started
//! there; and the program is process 1, so that the kernel ends its children and the namespaces with
//! it, however it ends.
//!
//! Outside, the first process waits and cleans up. If it is killed, `setpriv --pdeathsig` kills
//! `unshare`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use testbed::process::run;
use tokio::signal::unix::{SignalKind, signal};

/// Set inside, to the directory for data and state.
const SCRATCH: &str = "LOCKKEEPER_BENCH_SCRATCH";

pub(crate) enum Isolation {
    /// This process is inside; the directory is removed later.
    Inside(PathBuf),
    /// This process was outside; the program has run inside and ended so.
    Ended(ExitCode),
}

/// `parent` is where the directory is made.
pub(crate) fn enter(parent: &Path) -> Result<Isolation> {
    if let Some(scratch) = std::env::var_os(SCRATCH)
        && std::process::id() == 1
    {
        prepare()?;
        return Ok(Isolation::Inside(scratch.into()));
    }
    let scratch = tempfile::Builder::new().prefix("lockkeeper-bench-").tempdir_in(parent)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(outside(scratch.path()));
    scratch.close().context("cannot remove the directory for data and state")?;
    ended.map(Isolation::Ended)
}

async fn outside(scratch: &Path) -> Result<ExitCode> {
    let program = std::env::current_exe().context("where this program is")?;
    // Before the child starts, so that no signal is lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut child = tokio::process::Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(SCRATCH, scratch)
        // Temporary files of child processes are on the same disk and removed, too.
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

fn prepare() -> Result<()> {
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]))?;
    std::fs::create_dir_all("/run/rpcbind")?;
    // State of nfs-ganesha and rpc.statd.
    if Path::new("/var/lib/nfs").is_dir() {
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/var/lib/nfs"]))?;
        for dir in ["ganesha", "sm", "sm.bak"] {
            std::fs::create_dir_all(Path::new("/var/lib/nfs").join(dir))?;
        }
    }
    Ok(())
}
