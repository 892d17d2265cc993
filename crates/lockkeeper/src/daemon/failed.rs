//! Why a command ends without having done its work, and the exit code that says so.

use std::fmt;

use admin::api::Problem;

#[derive(Debug)]
pub enum Failed {
    /// The daemon says no.
    Refused(Problem),
    /// Nobody answers there.
    Unreachable { detail: String, hint: String },
    /// It is asked for in a way that makes no sense.
    Usage(String),
    /// Anything else, said in one line.
    Other(String),
    /// The operator, when asked, said no.
    Declined(String),
    /// Nobody reads our output any more: no reason to complain.
    Unheard,
}

impl Failed {
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unheard => 0,
            Self::Refused(_) | Self::Other(_) | Self::Declined(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable { .. } => 3,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => problem.hint.as_deref(),
            Self::Unreachable { hint, .. } => Some(hint),
            _ => None,
        }
    }

    /// Whether it is worth another try: the daemon may be starting, or about to take over.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
            || matches!(self.code(), Some("standby" | "unavailable"))
    }

    /// What kind of refusal it is: `no-such-lock`, `forbidden`, ...
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => Some(&problem.code),
            _ => None,
        }
    }
}

/// What is wrong, without the hint.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(problem) => f.write_str(&problem.detail),
            Self::Unreachable { detail, .. }
            | Self::Usage(detail)
            | Self::Other(detail)
            | Self::Declined(detail) => f.write_str(detail),
            Self::Unheard => f.write_str("nobody reads the output"),
        }
    }
}

impl std::error::Error for Failed {}
