//! Running external programs.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

/// Changes to the root of the workspace, to which all paths are relative.
pub(crate) fn enter_root() -> Result<()> {
    Ok(std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?)
}

/// Runs a program to completion, with inherited output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    run_with(program, arguments, &[])
}

pub(crate) fn run_with(
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    println!("$ {program} {}", arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} {}: {status}", arguments.first().unwrap_or(&""));
    Ok(())
}

/// Runs tests by cargo and passes their output on. The error repeats the failures, so that they are at
/// the end of a long log.
pub(crate) fn run_tests(arguments: &[&str]) -> Result<()> {
    println!("$ cargo {}", arguments.join(" "));
    let mut child = Command::new("cargo")
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let mut failures = Failures::default();
    if let Some(printed) = child.stdout.take() {
        for line in BufReader::new(printed).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            println!("{line}");
            failures.read(line);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!(
            "cargo {}: {status}\n{}",
            arguments.first().unwrap_or(&""),
            failures.lines.join("\n")
        );
    }
    Ok(())
}

/// The output of test programs between `failures:` and their result.
#[derive(Default)]
struct Failures {
    inside: bool,
    /// Lines kept of the current program.
    kept: usize,
    lines: Vec<String>,
}

/// Lines kept per program.
const KEPT_MAX: usize = 60;

impl Failures {
    fn read(&mut self, line: String) {
        let ends = line.starts_with("test result:");
        self.inside |= line == "failures:";
        if self.inside && !line.is_empty() && (ends || self.kept < KEPT_MAX) {
            self.kept += 1;
            self.lines.push(line);
        }
        if ends {
            (self.inside, self.kept) = (false, 0);
        }
    }
}

/// The standard output of a program; empty if it cannot be run.
pub(crate) fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
