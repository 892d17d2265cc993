//! What can go wrong with a connection and with a call.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use wire::rpc::{Accepted, Denial};
use wire::{record, xdr};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no answer to connecting within {0:?}")]
    Timeout(Duration),
    #[error("every port of 512..=1023 is taken")]
    NoReservedPort,
    #[error("cannot bind a local address: {0}")]
    Bind(#[source] io::Error),
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
}

/// Why a call has no results. A procedure's own failure is not here: it is in the results.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// Nobody knows whether the call was carried out.
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    /// Nobody knows whether the call was carried out.
    #[error("the peer closed the connection")]
    Closed,
    /// The server answered that it did not run the procedure.
    #[error("{0}")]
    Refused(Refusal),
    #[error("the reply cannot be understood: {0}")]
    BadReply(xdr::Error),
    /// The stream cannot be read on, so all its calls end.
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

/// A reply that says why the procedure did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the server denied the call: {0:?}")]
    Denied(Denial),
    /// Any verdict but `Success`.
    #[error("the server did not run the call: {0:?}")]
    NotRun(Accepted),
}
