//! Sockets with the source address and port of the options.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::{ConnectError, Options, xid};

const RESERVED: RangeInclusive<u16> = 512..=1023;

pub(crate) async fn connect(to: SocketAddr, options: &Options) -> Result<TcpStream, ConnectError> {
    let stream = timeout(options.connect_timeout, connect_from_any(to, options))
        .await
        .map_err(|_| ConnectError::Timeout(options.connect_timeout))??;
    // Calls are complete when they are written; Nagle's algorithm would only delay them.
    stream.set_nodelay(true).map_err(ConnectError::Connect)?;
    Ok(stream)
}

async fn connect_from_any(to: SocketAddr, options: &Options) -> Result<TcpStream, ConnectError> {
    for from in sources(to, options) {
        let socket = match to {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
        .map_err(ConnectError::Bind)?;
        // Allows a port whose last connection is in TIME_WAIT.
        socket.set_reuseaddr(true).map_err(ConnectError::Bind)?;
        match socket.bind(from) {
            Ok(()) => {}
            Err(error) if is_taken(&error, options) => continue,
            Err(error) => return Err(ConnectError::Bind(error)),
        }
        match socket.connect(to).await {
            Ok(stream) => return Ok(stream),
            // The pair of addresses is in use, which `bind` does not detect.
            Err(error)
                if options.reserved_port && error.kind() == io::ErrorKind::AddrNotAvailable => {}
            Err(error) => return Err(ConnectError::Connect(error)),
        }
    }
    Err(ConnectError::NoReservedPort)
}

/// A connected socket: the system drops datagrams from any other address.
pub(crate) async fn datagram(to: SocketAddr, options: &Options) -> Result<UdpSocket, ConnectError> {
    let socket = open_datagram(to, options).await?;
    socket.connect(to).await.map_err(ConnectError::Connect)?;
    Ok(socket)
}

/// An unconnected socket of the family of `to`.
pub(crate) async fn open_datagram(
    to: SocketAddr,
    options: &Options,
) -> Result<UdpSocket, ConnectError> {
    for from in sources(to, options) {
        match UdpSocket::bind(from).await {
            Ok(socket) => return Ok(socket),
            Err(error) if is_taken(&error, options) => continue,
            Err(error) => return Err(ConnectError::Bind(error)),
        }
    }
    Err(ConnectError::NoReservedPort)
}

fn is_taken(error: &io::Error, options: &Options) -> bool {
    options.reserved_port && error.kind() == io::ErrorKind::AddrInUse
}

/// The source addresses to try, in order: all reserved ports from a random one on, or port 0.
fn sources(to: SocketAddr, options: &Options) -> impl Iterator<Item = SocketAddr> {
    let ip = options.source.unwrap_or(match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    });
    let count = RESERVED.len() as u32;
    let first = xid::next() % count;
    let tries = if options.reserved_port { count } else { 1 };
    let reserved = options.reserved_port;
    (0..tries).map(move |n| {
        let port = RESERVED.start() + ((first + n) % count) as u16;
        SocketAddr::new(ip, if reserved { port } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reserved_port_is_tried_once() {
        let options = Options { reserved_port: true, ..Options::default() };
        let to = "127.0.0.1:1".parse().unwrap();
        let ports: HashSet<u16> = sources(to, &options).map(|from| from.port()).collect();
        assert_eq!(ports, RESERVED.collect());
        assert_eq!(sources(to, &options).count(), RESERVED.len());
    }

    #[test]
    fn without_the_option_the_system_chooses_the_port() {
        let to = "[::1]:1".parse().unwrap();
        let found: Vec<_> = sources(to, &Options::default()).collect();
        assert_eq!(found, ["[::]:0".parse().unwrap()]);
    }
}
