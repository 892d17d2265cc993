//! The section `[admin]`: where the API, the page and the metrics are served, and who sees what.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Admin {
    pub socket: Option<AdminSocket>,
    pub listen: Option<AdminListen>,
    /// Whether `/metrics` is served.
    pub metrics: Option<bool>,
    /// Where metrics and probes alone are served.
    pub metrics_listen: Option<AdminListen>,
    /// Who is shown the paths of locked files.
    pub paths: Option<Paths>,
}

/// Who is shown the paths of locked files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Paths {
    /// Root, the server's user, the group `lockkeeper`, and callers with the token.
    #[default]
    Operators,
    /// All who may read.
    All,
}

/// A unix socket, or "off".
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum AdminSocket {
    Off,
    At(PathBuf),
}

impl TryFrom<String> for AdminSocket {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "off" => Ok(Self::Off),
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            _ => Err("expected an absolute path or \"off\"".into()),
        }
    }
}

/// An address and port, or "off".
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum AdminListen {
    Off,
    At(SocketAddr),
}

impl TryFrom<String> for AdminListen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "off" => Ok(Self::Off),
            address => address.parse().map(Self::At).map_err(|_| {
                "expected an address and port such as 127.0.0.1:9049, or \"off\"".into()
            }),
        }
    }
}

impl AdminListen {
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(*address),
        }
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_string().try_into()
    }
}
