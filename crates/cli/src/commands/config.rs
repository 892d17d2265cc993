//! `lockkeeper config`: check the configuration file, or print the effective settings.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::terminal;
use crate::config::consistency::{self, Ports};
use crate::config::{ConfigError, DEFAULT_PATH, Export, File, effective};
use crate::daemon::CommandError;
use crate::serve::state_directory;

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Check the file, ports and directories as `serve` does; report the first error, and warnings
    Check(ConfigFileArg),
    /// Print the effective settings including defaults, without passwords
    Show(ConfigFileArg),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigFileArg {
    /// Configuration file [default: /etc/lockkeeper/lockkeeper.toml, if it exists]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Config {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self {
            Self::Check(file) => {
                let read = file.read()?;
                for warning in read.warnings() {
                    terminal::print_note(&format!("warning: {}", terminal::clean(&warning)));
                }
                let ports = Ports::of(&read, None, None, None);
                consistency::check(&read.exports, &read.limits, &ports)
                    .map_err(|ConfigError(why)| file.wrong(&why))?;
                let unusable = read.exports.iter().filter_map(consistency::unusable);
                let unusable: Vec<String> =
                    unusable.chain(consistency::unusable_database(&read)).collect();
                if !unusable.is_empty() {
                    return Err(file.wrong(&unusable.join("; ")));
                }
                if let Some(ConfigError(why)) = read.exports.iter().find_map(revealing) {
                    return Err(file.wrong(&why));
                }
                if read.exports.is_empty() {
                    terminal::print_note(
                        "warning: nothing to export: `serve` needs a directory, or an [[export]] here",
                    );
                }
                terminal::print(&format!("ok: {}\n", file.shown()))
            }
            Self::Show(file) => {
                let table = effective::table(file.read()?);
                let text = toml::to_string(&table)
                    .map_err(|error| CommandError::Other(error.to_string()))?;
                terminal::print(&format!("# {}\n{text}", file.shown()))
            }
        }
    }
}

/// With the state directory that `serve` uses unless an option says otherwise.
fn revealing(export: &Export) -> Option<ConfigError> {
    let state = state_directory::default_path().ok()?;
    let (state, path) = (state.canonicalize().unwrap_or(state), export.path.canonicalize().ok()?);
    let is_readable = export.admits_root() && state.starts_with(&path);
    is_readable.then(|| consistency::reveals_state(&path, &state))
}

impl ConfigFileArg {
    fn read(&self) -> Result<File, CommandError> {
        File::load(self.config.as_deref()).map_err(CommandError::Config)
    }

    fn wrong(&self, why: &str) -> CommandError {
        CommandError::Config(ConfigError(format!("{}: {why}", self.shown())))
    }

    fn shown(&self) -> String {
        match &self.config {
            Some(path) => path.display().to_string(),
            None if std::path::Path::new(DEFAULT_PATH).exists() => DEFAULT_PATH.to_owned(),
            None => format!("no {DEFAULT_PATH}; all settings have their defaults"),
        }
    }
}
