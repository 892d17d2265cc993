//! `lockkeeper config`: is the file right, and what does it come to?

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::config::{DEFAULT_PATH, File};
use crate::daemon::Failed;
use crate::terminal;

mod effective;

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Say whether the file is right, or what is wrong in which line
    Check(Which),
    /// Print all settings as the server would use them, defaults too, passwords hidden
    Show(Which),
}

#[derive(Debug, Args)]
pub struct Which {
    /// Configuration file [default: /etc/lockkeeper/lockkeeper.toml, if it is there]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Config {
    pub fn run(self) -> Result<(), Failed> {
        match self {
            Self::Check(which) => {
                which.read()?;
                terminal::print(&format!("ok: {}\n", which.shown()))
            }
            Self::Show(which) => {
                let table = effective::table(which.read()?);
                let text =
                    toml::to_string(&table).map_err(|error| Failed::Other(error.to_string()))?;
                terminal::print(&format!("# {}\n{text}", which.shown()))
            }
        }
    }
}

impl Which {
    fn read(&self) -> Result<File, Failed> {
        File::load(self.config.as_deref()).map_err(|error| Failed::Other(format!("{error:#}")))
    }

    fn shown(&self) -> String {
        match &self.config {
            Some(path) => path.display().to_string(),
            None if std::path::Path::new(DEFAULT_PATH).exists() => DEFAULT_PATH.to_owned(),
            None => format!("there is no {DEFAULT_PATH}, so all settings are the defaults"),
        }
    }
}
