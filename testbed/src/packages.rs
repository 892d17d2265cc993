//! Debian packages, installed by name without starting a daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Serializes installations: the tests of one program run in parallel.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Installs what is missing; needs root only then.
pub fn install(packages: &[&str]) -> Result<()> {
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let missing: Vec<&str> = packages.iter().copied().filter(|name| !is_installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(" "));
    let _policy = NoDaemons::enforce()?;
    apt_get(&["update"], &[])?;
    apt_get(&["install", "--yes", "--no-install-recommends"], &missing)
        .with_context(|| format!("as root: apt-get install {}", missing.join(" ")))
}

fn is_installed(name: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status}", name]);
    query.output().is_ok_and(|output| output.stdout == b"installed")
}

fn apt_get(arguments: &[&str], packages: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .arg("-q")
        .args(arguments)
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .context("cannot run apt-get: the tests need Debian")?;
    ensure!(status.success(), "apt-get {} ended with {status}", arguments.join(" "));
    Ok(())
}

/// While it lives, installing a package starts no daemon: rpcbind and others would take the ports
/// under test.
struct NoDaemons {
    ours: bool,
}

impl NoDaemons {
    fn enforce() -> Result<Self> {
        if Path::new(POLICY).exists() {
            let answer = Command::new(POLICY).args(["rpcbind", "start"]).status()?.code();
            ensure!(answer == Some(101), "{POLICY} would let daemons start: change or remove it");
            return Ok(Self { ours: false });
        }
        fs::write(POLICY, "#!/bin/sh\nexit 101\n").context(POLICY)?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(Self { ours: true })
    }
}

impl Drop for NoDaemons {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}
