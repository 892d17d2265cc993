//! Where a server listens, as it is named or found.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::admin;

const DEFAULT_PORT: u16 = 9049;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Socket(PathBuf),
    /// Host as `http` writes it (`[::1]`), and port.
    Tcp(String, u16),
    /// What was named is no place; said when it is first used.
    Nowhere(String),
}

impl Place {
    /// Where a server listens that nobody told where to.
    pub fn usual() -> Self {
        Self::Socket(first_open(&admin::sockets()))
    }

    /// `http://ADDR:PORT`, `unix:/PATH` or a path.
    pub fn parse(text: &str) -> Self {
        let nowhere =
            || Self::Nowhere(format!("`{text}` is no server: name a socket, or http://ADDR:PORT"));
        if let Some(path) = text.strip_prefix("unix:") {
            return Self::Socket(path.into());
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return if text.is_empty() { nowhere() } else { Self::Socket(text.into()) };
        };
        let uri: Option<hyper::Uri> = text.parse().ok();
        match uri.as_ref().and_then(hyper::Uri::authority) {
            Some(at) if scheme == "http" && !rest.contains('@') && !at.host().is_empty() => {
                Self::Tcp(at.host().to_owned(), at.port_u16().unwrap_or(DEFAULT_PORT))
            }
            _ => nowhere(),
        }
    }
}

/// The first at which somebody listens; what a server that is gone has left hides no other. If there
/// is none, one that can be named in a complaint: one that we may not use, a leftover, or our own.
fn first_open(sockets: &[PathBuf]) -> PathBuf {
    let found: Vec<_> = sockets.iter().map(|path| (path, probe(path))).collect();
    let first = |is: fn(&Result<(), Errno>) -> bool| {
        found.iter().find(|(_, result)| is(result)).map(|(path, _)| path.to_path_buf())
    };
    first(Result::is_ok)
        .or_else(|| first(|result| *result == Err(Errno::ACCESS)))
        .or_else(|| first(|result| *result != Err(Errno::NOENT)))
        .or_else(|| sockets.get(1).or(sockets.first()).cloned())
        .unwrap_or_default()
}

/// Without waiting: somebody who has no time right now listens all the same.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_socket_or_an_address() {
        assert_eq!(Place::parse("/a/b.sock"), Place::Socket("/a/b.sock".into()));
        assert_eq!(Place::parse("unix:/a/b.sock"), Place::Socket("/a/b.sock".into()));
        assert_eq!(Place::parse("http://127.0.0.1:90/"), Place::Tcp("127.0.0.1".into(), 90));
        assert_eq!(Place::parse("http://[::1]"), Place::Tcp("[::1]".into(), DEFAULT_PORT));
        for wrong in ["", "https://a:1", "http://", "http://me@a:1", "ftp://x"] {
            assert!(matches!(Place::parse(wrong), Place::Nowhere(_)), "{wrong}");
        }
    }

    #[test]
    fn the_first_socket_that_somebody_listens_on_is_taken() {
        use std::os::unix::net::UnixListener;
        let dir = tempfile::tempdir().unwrap();
        let [absent, stale, live, other] =
            ["absent", "stale", "live", "other"].map(|name| dir.path().join(name));
        drop(UnixListener::bind(&stale).unwrap());
        let _live = UnixListener::bind(&live).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let all = [absent, stale, live, other];
        assert_eq!(first_open(&all), all[2]);
        assert_eq!(first_open(&all[..2]), all[1]);
        assert_eq!(first_open(&all[..1]), all[0]);
    }
}
