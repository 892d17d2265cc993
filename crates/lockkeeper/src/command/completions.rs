//! `lockkeeper completions` and `man`: what other programs want to know about this one's options.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::daemon::Failed;
use crate::terminal;

#[derive(Debug, Args)]
pub struct Completions {
    shell: Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// It must exist
    dir: PathBuf,
}

impl Completions {
    pub fn run(self) -> Result<(), Failed> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "lockkeeper", &mut script);
        terminal::print(&String::from_utf8_lossy(&script))
    }
}

impl Man {
    /// One page for each command.
    pub fn run(self) -> Result<(), Failed> {
        clap_mangen::generate_to(Cli::command(), &self.dir).map_err(|error| {
            Failed::Other(format!("cannot write manual pages into {}: {error}", self.dir.display()))
        })
    }
}
