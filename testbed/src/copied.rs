//! A program where others may run it: the build directory may be closed to them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// By another process: what this one writes, its children hold open for a moment, and what is open
/// for writing cannot be run.
pub fn program(from: &Path, to: &Path) -> Result<()> {
    let mut install = Command::new("install");
    let status = install.args(["-m", "755"]).arg(from).arg(to).status();
    let status = status.context("cannot run install, of coreutils")?;
    ensure!(status.success(), "install {}: {status}", to.display());
    Ok(())
}
