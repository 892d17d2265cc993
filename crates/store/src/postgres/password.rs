//! Where the password for the database comes from: the url, a file that holds nothing else, or a
//! passfile. Files are read for each connection, so that a new password needs no restart.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::passfile::{Login, Passfile};
use crate::error::StoreError;

#[derive(Clone, Debug)]
pub(super) enum PasswordSource {
    Url,
    File(PathBuf),
    Passfile(Option<Passfile>),
}

impl PasswordSource {
    /// Sets the password for the one host of `config`, if there is one.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), StoreError> {
        let password = match self {
            Self::Url | Self::Passfile(None) => None,
            Self::File(path) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    let path = path.display();
                    StoreError::BadSettings(format!("the password file {path}: {error}"))
                })?;
                // One newline, with which editors end a file.
                let password = text.strip_suffix('\n').unwrap_or(&text);
                Some(password.strip_suffix('\r').unwrap_or(password).to_owned())
            }
            Self::Passfile(Some(passfile)) => {
                let role = config.get_user().unwrap_or_default();
                let host = match (config.get_hosts().first(), config.get_hostaddrs().first()) {
                    (Some(Host::Tcp(name)), _) => name.clone(),
                    (Some(Host::Unix(path)), _) => path.display().to_string(),
                    (None, Some(address)) => address.to_string(),
                    (None, None) => "localhost".to_owned(),
                };
                passfile.password(&Login {
                    host: &host,
                    port: config.get_ports().first().copied().unwrap_or(5432),
                    database: config.get_dbname().unwrap_or(role),
                    role,
                })
            }
        };
        if let Some(password) = password {
            config.password(password);
        }
        Ok(())
    }

    /// Why a passfile is not used, although there is one.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Self::Passfile(Some(passfile)) => passfile.problem(),
            Self::Passfile(None) | Self::Url | Self::File(_) => None,
        }
    }
}

/// Never the password itself.
impl fmt::Display for PasswordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => f.write_str("the url"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Passfile(Some(passfile)) => write!(f, "passfile {}", passfile.path().display()),
            Self::Passfile(None) => f.write_str("a passfile"),
        }
    }
}
