//! A disk that is soon full: a test that runs again by itself, in a place where a directory is one.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

/// Runs the ignored test `name` of this test program where `directory` is a file system of `size`; it
/// finds the directory in the variable `told_by`. Needs root.
pub fn run_test_inside(name: &str, directory: &Path, size: &str, told_by: &str) -> Result<()> {
    let script = format!("mount -t tmpfs -o size={size} none \"$1\" && shift && exec \"$@\"");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(directory)
        .arg(std::env::current_exe()?)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(told_by, directory)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "this test needs root: {said}");
    ensure!(said.contains("1 passed"), "{said}");
    Ok(())
}
