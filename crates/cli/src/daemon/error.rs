//! Errors of commands, with hints and exit codes.

use std::fmt;

use admin::api::Problem;

use crate::config::{self, ConfigError};

#[derive(Debug)]
pub(crate) enum CommandError {
    /// The server refused.
    Refused(Problem),
    /// No server answered.
    Unreachable { detail: String, hint: String },
    /// Wrong usage.
    Usage(String),
    /// The configuration is wrong.
    Config(ConfigError),
    /// Anything else, in one line.
    Other(String),
    /// The operator did not confirm.
    Declined(String),
    /// What was shown means that clients are not served; not reported again.
    NotServing,
    /// Standard output was closed; not reported.
    BrokenPipe,
}

impl CommandError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::BrokenPipe => 0,
            Self::Refused(_) | Self::Other(_) | Self::Declined(_) | Self::NotServing => 1,
            Self::Usage(_) => 2,
            Self::Unreachable { .. } => 3,
            Self::Config(_) => config::EXIT_CODE,
        }
    }

    /// What to do next.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => problem.hint.as_deref(),
            Self::Unreachable { hint, .. } => Some(hint),
            _ => None,
        }
    }

    /// Whether a retry may succeed: the server may be starting or taking over.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
            || matches!(self.code(), Some("standby" | "unavailable" | "unanswered"))
    }

    /// The problem code of a refusal: `no-such-lock`, `forbidden`, ...
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => Some(&problem.code),
            _ => None,
        }
    }
}

/// The message without the hint.
impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(problem) => f.write_str(&problem.detail),
            Self::Unreachable { detail, .. }
            | Self::Usage(detail)
            | Self::Other(detail)
            | Self::Declined(detail) => f.write_str(detail),
            Self::Config(error) => error.fmt(f),
            Self::NotServing => f.write_str("not serving"),
            Self::BrokenPipe => f.write_str("output closed"),
        }
    }
}

impl std::error::Error for CommandError {}
