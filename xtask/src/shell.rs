//! Running programs.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

/// The commands know files by their paths in the tree.
pub fn enter_root() -> Result<()> {
    Ok(std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?)
}

/// Runs a program to its end, with its output where ours goes.
pub fn run(program: &str, arguments: &[&str]) -> Result<()> {
    run_with(program, arguments, &[])
}

pub fn run_with(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    println!("$ {program} {}", arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} {}: {status}", arguments.first().unwrap_or(&""));
    Ok(())
}

/// Runs tests by cargo to their end, with their output where ours goes. The error has what failed,
/// as whoever reads only the end of a long log needs it.
pub fn run_tests(arguments: &[&str]) -> Result<()> {
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

/// What the test programs print between `failures:` and their result.
#[derive(Default)]
struct Failures {
    inside: bool,
    /// Of the program that is being read.
    kept: usize,
    lines: Vec<String>,
}

/// Lines that are kept of one program: of a long log, the end is what people see.
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

/// What a program prints; empty if it cannot be run.
pub fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
