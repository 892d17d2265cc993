//! Probes whether an RPC program answers at an address. Failures are distinguished, as a closed port, a
//! firewall and a hanging program need different fixes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use client::rpcbind::{LookupError, RpcTransport, Rpcbind};
use client::{CallError, ConnectError, Connection, Datagram, Options, Refusal};
use wire::rpc::Accepted;
use wire::rpc::ProcedureId;
use wire::rpcbind::Netid;

/// Limit for each call to another machine.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeResult {
    Answers,
    /// Not registered with rpcbind.
    NotRegistered,
    /// Another program answers on that port.
    OtherProgram,
    /// The machine refused the connection.
    Refused,
    /// No packet came back.
    Silent,
    /// Accepts connections but answers no call.
    Mute,
    /// Accepts connections and closes them at once.
    HungUp,
    /// The network reports it unreachable.
    NoWay(String),
    /// The reply is malformed.
    Garbled(String),
}

impl ProbeResult {
    pub(super) fn is_answer(&self) -> bool {
        *self == Self::Answers
    }

    /// A predicate, to follow "it".
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Answers => "answers".into(),
            Self::NotRegistered => "is not registered".into(),
            Self::OtherProgram => "is not the program answering on its port".into(),
            Self::Refused => "refuses connections".into(),
            Self::Silent => "does not respond, as if a firewall drops packets".into(),
            Self::Mute => "accepts the connection but never replies".into(),
            Self::HungUp => "accepts the connection and closes it".into(),
            Self::NoWay(why) => format!("is unreachable: {why}"),
            Self::Garbled(what) => format!("sends a malformed reply: {what}"),
        }
    }
}

/// Calls the NULL procedure of a program.
pub(super) async fn null_call(
    at: SocketAddr,
    over: RpcTransport,
    (program, version): (u32, u32),
) -> ProbeResult {
    let (options, null) = (options(), ProcedureId::new(program, version, 0));
    let answer = match over {
        RpcTransport::Tcp => match Connection::connect(at, &options).await {
            Ok(connection) => connection.call_raw(null, &[]).await,
            Err(error) => return not_connected(error),
        },
        RpcTransport::Udp => match Datagram::connect(at, &options).await {
            Ok(mut datagram) => datagram.call_raw(null, &[]).await,
            Err(error) => return not_connected(error),
        },
    };
    match answer {
        Ok(_) => ProbeResult::Answers,
        Err(error) => not_called(error, over),
    }
}

/// Looks up a program's port at `rpcbind` over `by`, then calls its NULL procedure over `over`.
pub(super) async fn look_up_and_probe(
    rpcbind: SocketAddr,
    by: RpcTransport,
    over: RpcTransport,
    (program, version): (u32, u32),
) -> ProbeResult {
    let netid = netid(rpcbind, over);
    let mut connected = match Rpcbind::connect(rpcbind, by, &options()).await {
        Ok(connected) => connected,
        Err(error) => return not_connected(error),
    };
    let port = match netid.is_v6() {
        true => {
            connected.get_addr(program, version, netid, rpcbind).await.map(|address| address.port())
        }
        false => connected.get_port(program, version, netid).await,
    };
    match port {
        Ok(port) => null_call(SocketAddr::new(rpcbind.ip(), port), over, (program, version)).await,
        Err(LookupError::NotRegistered { .. }) => ProbeResult::NotRegistered,
        Err(LookupError::Connect(error)) => not_connected(error),
        Err(LookupError::Call(error)) => not_called(error, by),
        Err(LookupError::BadAddress(text)) => ProbeResult::Garbled(format!("{text:?}")),
    }
}

pub(super) fn netid(at: SocketAddr, over: RpcTransport) -> Netid {
    match (over, at.is_ipv6()) {
        (RpcTransport::Tcp, false) => Netid::Tcp,
        (RpcTransport::Tcp, true) => Netid::Tcp6,
        (RpcTransport::Udp, false) => Netid::Udp,
        (RpcTransport::Udp, true) => Netid::Udp6,
    }
}

pub(super) fn options() -> Options {
    Options { connect_timeout: TIMEOUT, timeout: TIMEOUT, ..Options::default() }
}

fn not_connected(error: ConnectError) -> ProbeResult {
    match error {
        ConnectError::Timeout(_) => ProbeResult::Silent,
        ConnectError::Connect(error) => of_io(&error),
        other => ProbeResult::NoWay(other.to_string()),
    }
}

fn not_called(error: CallError, over: RpcTransport) -> ProbeResult {
    match error {
        CallError::Timeout(_) if over == RpcTransport::Udp => ProbeResult::Silent,
        CallError::Timeout(_) => ProbeResult::Mute,
        CallError::Closed => ProbeResult::HungUp,
        CallError::Io(error) => match of_io(&error) {
            ProbeResult::NoWay(_) if error.kind() == io::ErrorKind::ConnectionReset => {
                ProbeResult::HungUp
            }
            result => result,
        },
        // The program is there, in another version.
        CallError::Refused(Refusal::NotRun(Accepted::ProgramMismatch { .. })) => {
            ProbeResult::Answers
        }
        CallError::Refused(_) => ProbeResult::OtherProgram,
        other => ProbeResult::Garbled(other.to_string()),
    }
}

fn of_io(error: &io::Error) -> ProbeResult {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ProbeResult::Refused,
        io::ErrorKind::TimedOut => ProbeResult::Silent,
        _ => ProbeResult::NoWay(error.to_string()),
    }
}
