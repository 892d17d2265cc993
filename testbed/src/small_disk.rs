//! Full disks: an ignored test is run in a process of its own, on a tmpfs of limited size.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

/// Runs the ignored test `name` of this test program with a tmpfs of `size` on `directory`, whose path
/// is in the environment variable `variable`. Needs root.
pub fn run_test_inside(name: &str, directory: &Path, size: &str, variable: &str) -> Result<()> {
    let script = format!("mount -t tmpfs -o size={size} none \"$1\" && shift && exec \"$@\"");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(directory)
        .arg(std::env::current_exe()?)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(variable, directory)
        .output()?;
    let output_text =
        String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "this test needs root: {output_text}");
    ensure!(output_text.contains("1 passed"), "{output_text}");
    Ok(())
}
