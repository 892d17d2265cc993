//! TCP connections to peers: from which address and port, and how much of an answer is read.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use client::{ConnectError, Connection, Options, Pipeline};
use tokio::time::Instant;
use tracing::debug;
use wire::rpc::Accepted;

use super::{Failure, Numbers, Peers, rest};

impl Peers {
    /// Makes calls over one new connection, without a credential. `answered` is told the number of
    /// each call that succeeded as its reply comes. Ok once all are answered or the connection ends.
    pub async fn call_each(
        &self,
        to: SocketAddr,
        ours: IpAddr,
        numbers: Numbers,
        calls: &[(usize, Bytes)],
        until: Instant,
        answered: impl Fn(usize),
    ) -> Result<(), Failure> {
        let mut pipeline = self.open(to, ours, &self.stream_options(ours, until)).await?;
        self.0.gate.pass(to.ip(), ours)?;
        let (program, version, procedure) = numbers;
        let mut waiting: HashMap<u32, usize> = calls
            .iter()
            .map(|(number, args)| (pipeline.send_raw(program, version, procedure, args), *number))
            .collect();
        while !waiting.is_empty() {
            let Ok(reply) = pipeline.recv().await else { break };
            if let Some(number) = waiting.remove(&reply.xid)
                && reply.verdict == Ok(Accepted::Success)
            {
                answered(number);
            }
        }
        Ok(())
    }

    /// A new connection on which calls are made in root's name.
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
            reserved_port: self.0.settings.reserved_ports,
            connect_timeout: rest(until),
            timeout: rest(until),
            ..short_replies()
        }
    }

    /// From a reserved port if the options ask for one and there is one, else from any: most peers
    /// do not look at it.
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

/// Whether any other port would do: all reserved ones are taken, or we may not have one.
pub fn lacks_reserved_port(error: &ConnectError) -> bool {
    match error {
        ConnectError::NoReservedPort => true,
        ConnectError::Bind(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// For streams: no answer that we wait for is long, and a peer must not make us hold more.
pub fn short_replies() -> Options {
    Options { record_bytes_max: 4096, read_bytes: 1024, fragments_max: 8, ..Options::default() }
}
