//! Opens the sockets of one port: TCP and UDP, IPv6 and IPv4.

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
use super::{AnswersMax, tcp, udp};
use crate::engine::batch::DurableEpoch;
use crate::rpc::dispatch::Dispatcher;
use crate::service_lease::ServiceLease;

/// Connections that may wait to be accepted: after a restart every client connects at once.
const BACKLOG: i32 = 1024;
/// How many ports of the kernel's choice are tried until one is free for all sockets.
const FREE_PORT_ATTEMPTS: usize = 64;

/// Why a socket could not be opened.
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
            "; another process uses this port: find it with `ss -lptun sport = :{}`",
            address.port()
        ),
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root or CAP_NET_BIND_SERVICE".to_string()
        }
        _ => String::new(),
    }
}

/// The sockets of one port, bound so that the port is taken and known. Clients can connect from
/// [`listen`](Self::listen) on.
pub(crate) struct BoundSockets {
    tcp: Vec<Socket>,
    udp: Vec<Arc<Datagrams>>,
    addresses: Vec<SocketAddr>,
}

impl BoundSockets {
    /// `[::]` is every address of both families, or of IPv4 where the host has no IPv6. Port 0 is a
    /// free port, the same for all sockets. The epoch is an argument because no socket may open before
    /// it is durable (I3). Without `udp` there are sockets for TCP only.
    pub(crate) fn bind(
        listen: SocketAddr,
        udp: bool,
        lease: &ServiceLease,
        _epoch: DurableEpoch,
    ) -> Result<Self, ListenError> {
        let mut attempt = 1;
        loop {
            match Self::bind_once(listen, udp, lease) {
                // Free for the first socket does not mean free for all.
                Err(failed)
                    if listen.port() == 0
                        && failed.error.kind() == io::ErrorKind::AddrInUse
                        && attempt < FREE_PORT_ATTEMPTS =>
                {
                    attempt += 1;
                }
                bound => return bound,
            }
        }
    }

    fn bind_once(listen: SocketAddr, udp: bool, lease: &ServiceLease) -> Result<Self, ListenError> {
        let mut sockets = Self { tcp: Vec::new(), udp: Vec::new(), addresses: Vec::new() };
        if listen.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            sockets.bind_one(listen, udp, lease)?;
            return Ok(sockets);
        }
        let without_ipv6 = |error: &io::Error| {
            matches!(
                Errno::from_io_error(error),
                Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT)
            )
        };
        let mut port = listen.port();
        match sockets.bind_one(listen, udp, lease) {
            Ok(taken) => port = taken,
            Err(failed) if without_ipv6(&failed.error) => {}
            Err(failed) => return Err(failed),
        }
        sockets.bind_one(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), udp, lease)?;
        Ok(sockets)
    }

    fn bind_one(
        &mut self,
        mut address: SocketAddr,
        udp: bool,
        lease: &ServiceLease,
    ) -> Result<u16, ListenError> {
        let failed = |kind, address| move |error| ListenError { address, kind, error };
        let tcp = tcp_socket(address).map_err(failed("tcp", address))?;
        let bound = tcp.local_addr().map_err(failed("tcp", address))?;
        let port = bound.as_socket().map_or(address.port(), |bound| bound.port());
        address.set_port(port);
        if udp {
            let udp = udp_socket(address, lease).map_err(failed("udp", address))?;
            self.udp.push(Arc::new(udp));
        }
        self.tcp.push(tcp);
        self.addresses.push(address);
        Ok(port)
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The UDP sockets with their addresses, for outgoing calls.
    pub(crate) fn datagrams(&self) -> Vec<(SocketAddr, Arc<Datagrams>)> {
        self.addresses.iter().copied().zip(self.udp.iter().cloned()).collect()
    }

    /// Lets clients connect. Their requests wait until [`Listeners::serve`].
    pub(crate) fn listen(self) -> Result<Listeners, ListenError> {
        let tcp = self.tcp.into_iter().zip(&self.addresses).map(|(socket, address)| {
            let listener =
                socket.listen(BACKLOG).and_then(|()| TcpListener::from_std(socket.into()));
            listener.map_err(|error| ListenError { address: *address, kind: "tcp", error })
        });
        Ok(Listeners { tcp: tcp.collect::<Result<_, _>>()?, udp: self.udp })
    }
}

/// The sockets of one port, to which clients can connect.
pub(crate) struct Listeners {
    tcp: Vec<TcpListener>,
    udp: Vec<Arc<Datagrams>>,
}

impl Listeners {
    /// Spawns the tasks that pass requests to `dispatcher`. `connections` counts those of this port.
    pub(crate) fn serve(
        self,
        dispatcher: &Arc<Dispatcher>,
        connections: &Arc<Connections>,
        stop: &watch::Receiver<AnswersMax>,
        tasks: &mut JoinSet<()>,
    ) {
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
    // A restarted server binds its port while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn udp_socket(address: SocketAddr, lease: &ServiceLease) -> io::Result<Datagrams> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // For a burst of large requests. The kernel caps the size without an error.
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_send_buffer_size(4 << 20)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Datagrams::new(UdpSocket::from_std(socket.into())?, lease.clone())
}
