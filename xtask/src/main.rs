//! `cargo xtask`: how the project is tested and measured.

mod package;
mod planted;
mod rings;
mod shell;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  test [RING...]            everything CI runs, or only these rings: lints unit cost sim planted fuzz e2e
  e2e [--short] [STEP...]   the drill with real Linux kernels in virtual machines
  fuzz [--seconds N]        every fuzz target for N seconds (20)
  sim [--seeds N] [--seed S]  the keeper in a simulated world; one seed is told as a story
  planted [--all]           every planted bug must be caught; --all looks for a seed for each
  package [--check]         the Debian package, with man pages and completions; --check installs it in a root of its own
  bench [--check] [...]     speed beside NFS-Ganesha's; --check asserts the bars";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["test", wanted @ ..] => return rings::test(wanted),
        ["e2e", rest @ ..] => rings::e2e(rest),
        ["fuzz"] => rings::fuzz(rings::FUZZ_SECONDS),
        ["fuzz", "--seconds", seconds] => match seconds.parse() {
            Ok(seconds) => rings::fuzz(seconds),
            Err(_) => Err(anyhow::anyhow!("--seconds takes a number")),
        },
        ["sim", rest @ ..] => rings::sim(rest),
        ["planted"] => planted::check(false),
        ["planted", "--all"] => planted::check(true),
        ["package"] => package::package(false),
        ["package", "--check"] => package::package(true),
        ["bench", rest @ ..] => rings::bench(rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
