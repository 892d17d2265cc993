//! Errors of connections and calls.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use wire::rpc::{Accepted, Denial};
use wire::{record, xdr};

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    #[error("all ports from 512 to 1023 are in use")]
    NoReservedPort,
    #[error("cannot bind a local address: {0}")]
    Bind(#[source] io::Error),
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
}

/// Why a call has no results. A failure of the procedure itself is part of its results.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The procedure may have run.
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    /// The procedure may have run.
    #[error("the peer closed the connection")]
    Closed,
    /// The server answered that it did not run the procedure.
    #[error("{0}")]
    Refused(Refusal),
    #[error("the reply cannot be decoded: {0}")]
    BadReply(xdr::Error),
    /// The stream cannot be read any further, so all its calls fail.
    #[error("the connection sent {0}")]
    Stream(record::Error),
    #[error("the connection failed: {0}")]
    Io(Arc<io::Error>),
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<xdr::Error> for CallError {
    fn from(error: xdr::Error) -> Self {
        Self::BadReply(error)
    }
}

impl From<record::Error> for CallError {
    fn from(error: record::Error) -> Self {
        Self::Stream(error)
    }
}

/// Why the server did not run the procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the server denied the call: {0:?}")]
    Denied(Denial),
    /// Any status but `Success`.
    #[error("the server did not run the call: {0:?}")]
    NotRun(Accepted),
}
