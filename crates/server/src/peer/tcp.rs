//! Opens TCP connections to peers: source address and port, and bounds on replies.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use client::{ConnectError, Connection, Options, Pipeline};
use tokio::time::Instant;
use tracing::debug;
use wire::rpc::{Accepted, ProcedureId};

use super::{Failure, Peers, remaining};

impl Peers {
    /// Makes several calls of one procedure over a new connection, without a credential, and runs
    /// `answered` with the index of each call as its reply arrives, if it succeeded. Returns Ok once
    /// all are answered or the connection ends.
    pub(crate) async fn call_each(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        procedure: ProcedureId,
        calls: &[(usize, Bytes)],
        until: Instant,
        answered: impl Fn(usize),
    ) -> Result<(), Failure> {
        let mut pipeline = self.open(to, ours, &self.stream_options(ours, until)).await?;
        self.0.gate.pass(to.ip(), ours)?;
        let mut waiting: HashMap<u32, usize> = calls
            .iter()
            .map(|(index, args)| (pipeline.send_raw(procedure, args), *index))
            .collect();
        while !waiting.is_empty() {
            let Ok(reply) = pipeline.recv().await else { break };
            if let Some(index) = waiting.remove(&reply.xid)
                && reply.verdict == Ok(Accepted::Success)
            {
                answered(index);
            }
        }
        Ok(())
    }

    /// A new connection whose calls carry root's credential.
    pub(super) async fn connect(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        until: Instant,
    ) -> Result<Connection, Failure> {
        let credential = self.0.credential.clone();
        let options = Options { credential, ..self.stream_options(ours, until) };
        Ok(Connection::over(self.open(to, ours, &options).await?, to, &options))
    }

    pub(super) fn stream_options(&self, ours: IpAddr, until: Instant) -> Options {
        Options {
            source: Some(ours),
            reserved_port: self.0.settings.send_from_reserved_ports,
            connect_timeout: remaining(until),
            timeout: remaining(until),
            ..short_replies()
        }
    }

    /// Connects from a reserved port if the options ask for one and one is free, else from any: most
    /// peers accept either.
    pub(super) async fn open(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        options: &Options,
    ) -> Result<Pipeline, Failure> {
        self.0.gate.pass(to.ip(), ours)?;
        let opened = match Pipeline::connect(to, options).await {
            Err(error) if options.reserved_port && lacks_reserved_port(&error) => {
                let any = Options { reserved_port: false, ..options.clone() };
                Pipeline::connect(to, &any).await
            }
            opened => opened,
        };
        opened.map_err(|error| not_connected(to, &error))
    }
}

fn not_connected(to: SocketAddr, error: &ConnectError) -> Failure {
    debug!("{to}: {error}");
    match error {
        ConnectError::Bind(_) | ConnectError::NoReservedPort => Failure::Unsent,
        ConnectError::Timeout(_) | ConnectError::Connect(_) => Failure::NoAnswer,
    }
}

/// Whether binding failed for want of a reserved port: none is free, or this process lacks the
/// privilege.
pub(super) fn lacks_reserved_port(error: &ConnectError) -> bool {
    match error {
        ConnectError::NoReservedPort => true,
        ConnectError::Bind(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// Options for streams: all expected replies are short, and a peer must not make us buffer more.
pub(super) fn short_replies() -> Options {
    Options { record_bytes_max: 4096, read_bytes: 1024, fragments_max: 8, ..Options::default() }
}
