//! The program `lockkeeper`; see the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_cli::run()
}
