//! Running a program of the host to its end, with an error that says what it printed.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Standard output of a program that must succeed.
pub fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C");
    finish(&mut command)
}

/// The same for a command with settings of its own.
pub fn finish(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
