//! Ports for servers that start again on the same one.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Below the ports that the kernel gives to clients and to port 0.
const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// A port that is free for TCP and UDP on every address. No other caller of this network namespace gets it
/// until this process has ended: a socket in the abstract namespace marks it, and ends with the process.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Relaxed)) % COUNT;
        let port = (FIRST + offset) as u16;
        if is_free(port) && claim(port)? {
            return Ok(port);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

fn is_free(port: u16) -> bool {
    let addresses = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    ];
    // A host without IPv6 has no port taken there.
    let is_taken =
        |bound: io::Result<()>| bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    // One after the other: an IPv6 socket takes the port of IPv4, too.
    addresses.into_iter().all(|address| {
        !is_taken(TcpListener::bind(address).map(drop))
            && !is_taken(UdpSocket::bind(address).map(drop))
    })
}

/// Whether the port was not claimed before.
fn claim(port: u16) -> io::Result<bool> {
    let mark = UnixAddress::from_abstract_name(format!("lockkeeper-test-port-{port}"))?;
    match UnixListener::bind_addr(&mark) {
        Ok(claimed) => {
            // Until the process ends.
            std::mem::forget(claimed);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice_or_while_it_is_taken() {
        let first = free_port().unwrap();
        assert!(!claim(first).unwrap());
        let taken = free_port().unwrap();
        let _socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, taken)).unwrap();
        assert!(!is_free(taken) && is_free(first));
        assert_ne!(first, taken);
    }
}
