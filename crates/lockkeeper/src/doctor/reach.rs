//! Whether an RPC program answers at an address; and if not, in which way not: a port that is
//! closed, a firewall and a program that hangs want different cures.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use client::rpcbind::{LookupError, Over, Rpcbind};
use client::{CallError, ConnectError, Connection, Datagram, Options, Refusal};
use wire::rpc::Accepted;
use wire::rpcbind::Netid;

/// For everything that is asked of another machine.
pub const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    Answers,
    /// Its rpcbind does not know the program.
    NotRegistered,
    /// Somebody else answers at that port.
    OtherProgram,
    /// Nobody listens there, says the machine.
    Refused,
    /// Nothing came back at all.
    Silent,
    /// It takes connections and answers no call.
    Mute,
    /// It takes connections and ends them at once.
    HungUp,
    /// The network says that it does not lead there.
    NoWay(String),
    /// What came back is no answer.
    Garbled(String),
}

impl Reach {
    pub fn is_fine(&self) -> bool {
        *self == Self::Answers
    }

    /// To go after "it".
    pub fn words(&self) -> String {
        match self {
            Self::Answers => "answers".into(),
            Self::NotRegistered => "is not registered".into(),
            Self::OtherProgram => "is not what answers at its port".into(),
            Self::Refused => "is refused: nobody listens".into(),
            Self::Silent => "is silent: no reply at all, as behind a firewall that drops".into(),
            Self::Mute => "takes the connection and never replies".into(),
            Self::HungUp => "takes the connection and hangs up".into(),
            Self::NoWay(why) => format!("cannot be reached: {why}"),
            Self::Garbled(what) => format!("answers what is no answer: {what}"),
        }
    }
}

/// Whether a program answers to its NULL procedure.
pub async fn ask(at: SocketAddr, over: Over, (program, version): (u32, u32)) -> Reach {
    let options = options();
    let answer = match over {
        Over::Tcp => match Connection::connect(at, &options).await {
            Ok(connection) => connection.call_raw(program, version, 0, &[]).await,
            Err(error) => return not_connected(error),
        },
        Over::Udp => match Datagram::connect(at, &options).await {
            Ok(mut datagram) => datagram.call_raw(program, version, 0, &[]).await,
            Err(error) => return not_connected(error),
        },
    };
    match answer {
        Ok(_) => Reach::Answers,
        Err(error) => not_called(error, over),
    }
}

/// Asks the rpcbind at `rpcbind`, over `by`, where a program is, and then the program itself, over
/// `over`.
pub async fn look_up_and_ask(
    rpcbind: SocketAddr,
    by: Over,
    over: Over,
    (program, version): (u32, u32),
) -> Reach {
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
        Ok(port) => ask(SocketAddr::new(rpcbind.ip(), port), over, (program, version)).await,
        Err(LookupError::NotRegistered { .. }) => Reach::NotRegistered,
        Err(LookupError::Connect(error)) => not_connected(error),
        Err(LookupError::Call(error)) => not_called(error, by),
        Err(LookupError::BadAddress(text)) => Reach::Garbled(format!("{text:?}")),
    }
}

pub fn netid(at: SocketAddr, over: Over) -> Netid {
    match (over, at.is_ipv6()) {
        (Over::Tcp, false) => Netid::Tcp,
        (Over::Tcp, true) => Netid::Tcp6,
        (Over::Udp, false) => Netid::Udp,
        (Over::Udp, true) => Netid::Udp6,
    }
}

pub fn options() -> Options {
    Options { connect_timeout: PATIENCE, timeout: PATIENCE, ..Options::default() }
}

fn not_connected(error: ConnectError) -> Reach {
    match error {
        ConnectError::Timeout(_) => Reach::Silent,
        ConnectError::Connect(error) => of_io(&error),
        other => Reach::NoWay(other.to_string()),
    }
}

fn not_called(error: CallError, over: Over) -> Reach {
    match error {
        CallError::Timeout(_) if over == Over::Udp => Reach::Silent,
        CallError::Timeout(_) => Reach::Mute,
        CallError::Closed => Reach::HungUp,
        CallError::Io(error) => match of_io(&error) {
            Reach::NoWay(_) if error.kind() == io::ErrorKind::ConnectionReset => Reach::HungUp,
            reach => reach,
        },
        // Another version of it is good enough: the program is there.
        CallError::Refused(Refusal::NotRun(Accepted::ProgramMismatch { .. })) => Reach::Answers,
        CallError::Refused(_) => Reach::OtherProgram,
        other => Reach::Garbled(other.to_string()),
    }
}

fn of_io(error: &io::Error) -> Reach {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Reach::Refused,
        io::ErrorKind::TimedOut => Reach::Silent,
        _ => Reach::NoWay(error.to_string()),
    }
}
