//! `lockkeeper completions` and `man`: files generated from the command line definition.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::terminal;
use crate::cli::Cli;
use crate::daemon::CommandError;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// An existing directory
    dir: PathBuf,
}

impl Completions {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "lockkeeper", &mut script);
        terminal::print(&String::from_utf8_lossy(&script))
    }
}

impl ManPages {
    /// One page for each command.
    pub(crate) fn run(self) -> Result<(), CommandError> {
        clap_mangen::generate_to(Cli::command(), &self.dir).map_err(|error| {
            CommandError::Other(format!(
                "cannot write manual pages into {}: {error}",
                self.dir.display()
            ))
        })
    }
}
