//! Running external programs.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
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
    run_command(Command::new(program).args(arguments).envs(environment.iter().copied()))
}

/// The same for a command with an environment or a directory of its own.
pub(crate) fn run_command(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().map(|one| one.to_string_lossy()).collect();
    let first = arguments.first().map_or(String::new(), |first| first.to_string());
    println!("$ {program} {}", arguments.join(" "));
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} {first}: {status}");
    Ok(())
}

/// Installs `cargo NAME` if it is missing, which takes minutes.
pub(crate) fn need_cargo_tool(name: &str) -> Result<()> {
    if output("cargo", &[name, "--version"]).is_empty() {
        run("cargo", &["install", &format!("cargo-{name}"), "--locked"])?;
    }
    Ok(())
}

/// The directory of build output, as an absolute path.
pub(crate) fn target() -> Result<PathBuf> {
    let named = std::env::var_os("CARGO_TARGET_DIR");
    Ok(std::path::absolute(named.map_or_else(|| "target".into(), PathBuf::from))?)
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
