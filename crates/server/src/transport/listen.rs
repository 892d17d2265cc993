//! Opening the sockets: TCP and UDP on one port, IPv6 and IPv4.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connections::Connections;
use super::udp::Datagrams;
use super::{tcp, udp};
use crate::engine::batch::DurableEpoch;
use crate::rpc::dispatch::Dispatcher;
use crate::tenure::Tenure;

/// Connections that wait to be accepted: after a restart, every client's.
const BACKLOG: i32 = 1024;

/// A failure to open a socket, and what it was to be.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({kind}): {error}{}", hint(.error, .address))]
pub struct ListenError {
    pub address: SocketAddr,
    pub kind: &'static str,
    pub error: io::Error,
}

fn hint(error: &io::Error, address: &SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "; another server has this port: find it with `ss -lptun sport = :{}`",
            address.port()
        ),
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root or CAP_NET_BIND_SERVICE".to_string()
        }
        _ => String::new(),
    }
}

/// The sockets of one port: bound first, so that the port is ours and known; connections are
/// taken from [`Listeners::listen`] on.
pub struct Listeners {
    tcp: Vec<Socket>,
    udp: Vec<Arc<Datagrams>>,
    addresses: Vec<SocketAddr>,
}

impl Listeners {
    /// `[::]` means every address of both families; where the host has no IPv6 it means IPv4.
    /// Port 0 takes a free port, the same for all sockets.
    /// Only a durable epoch may open sockets (I3).
    pub fn bind(
        listen: SocketAddr,
        tenure: &Tenure,
        _epoch: DurableEpoch,
    ) -> Result<Self, ListenError> {
        let mut listeners = Self { tcp: Vec::new(), udp: Vec::new(), addresses: Vec::new() };
        if listen.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            listeners.bind_one(listen, tenure)?;
            return Ok(listeners);
        }
        let without_ipv6 = |error: &io::Error| {
            matches!(
                Errno::from_io_error(error),
                Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT)
            )
        };
        let mut port = listen.port();
        match listeners.bind_one(listen, tenure) {
            Ok(taken) => port = taken,
            Err(failed) if without_ipv6(&failed.error) => {}
            Err(failed) => return Err(failed),
        }
        listeners.bind_one(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), tenure)?;
        Ok(listeners)
    }

    fn bind_one(&mut self, mut address: SocketAddr, tenure: &Tenure) -> Result<u16, ListenError> {
        let failed = |kind, address| move |error| ListenError { address, kind, error };
        let tcp = tcp_socket(address).map_err(failed("tcp", address))?;
        let bound = tcp.local_addr().map_err(failed("tcp", address))?;
        let port = bound.as_socket().map_or(address.port(), |bound| bound.port());
        address.set_port(port);
        let udp = udp_socket(address, tenure).map_err(failed("udp", address))?;
        self.tcp.push(tcp);
        self.udp.push(Arc::new(udp));
        self.addresses.push(address);
        Ok(port)
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The UDP sockets, to speak from as well.
    pub fn datagrams(&self) -> Vec<(SocketAddr, Arc<Datagrams>)> {
        self.addresses.iter().copied().zip(self.udp.iter().cloned()).collect()
    }

    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// From now on clients can connect; they are heard as soon as this is served.
    pub fn listen(self) -> Result<Listening, ListenError> {
        let tcp = self.tcp.into_iter().zip(&self.addresses).map(|(socket, address)| {
            let listener =
                socket.listen(BACKLOG).and_then(|()| TcpListener::from_std(socket.into()));
            listener.map_err(|error| ListenError { address: *address, kind: "tcp", error })
        });
        Ok(Listening { tcp: tcp.collect::<Result<_, _>>()?, udp: self.udp })
    }
}

/// Sockets that clients reach.
pub struct Listening {
    tcp: Vec<TcpListener>,
    udp: Vec<Arc<Datagrams>>,
}

impl Listening {
    /// Starts serving: from now on requests reach `dispatcher`.
    pub fn serve(
        self,
        dispatcher: &Arc<Dispatcher>,
        stop: &watch::Receiver<bool>,
        tasks: &mut JoinSet<()>,
    ) {
        let connections = Arc::<Connections>::default();
        for listener in self.tcp {
            let (dispatcher, connections) = (dispatcher.clone(), connections.clone());
            tasks.spawn(tcp::accept(listener, dispatcher, connections, stop.clone()));
        }
        for socket in self.udp {
            tasks.spawn(udp::serve(socket, dispatcher.clone(), stop.clone()));
        }
    }
}

fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A restarted server takes its port again at once.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn udp_socket(address: SocketAddr, tenure: &Tenure) -> io::Result<Datagrams> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Room for a burst of large requests; the kernel caps it without an error.
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_send_buffer_size(4 << 20)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Datagrams::new(UdpSocket::from_std(socket.into())?, tenure.clone())
}
