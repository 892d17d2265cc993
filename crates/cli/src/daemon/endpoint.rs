//! The endpoint of a server's admin API: as given, or the first default socket with a listener.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::serve::admin;

const DEFAULT_PORT: u16 = 9049;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    Socket(PathBuf),
    /// Host in URI syntax (`[::1]`), and port.
    Tcp(String, u16),
    /// Not an endpoint; the error is reported at first use.
    Invalid(String),
}

impl Endpoint {
    /// The first default socket with a listener.
    pub(super) fn default_socket() -> Self {
        Self::Socket(first_open(&admin::sockets()))
    }

    /// `http://ADDR:PORT`, `unix:/PATH` or a path.
    pub(super) fn parse(text: &str) -> Self {
        let invalid =
            || Self::Invalid(format!("`{text}` is neither a socket nor http://ADDR:PORT"));
        if let Some(path) = text.strip_prefix("unix:") {
            return Self::Socket(path.into());
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return if text.is_empty() { invalid() } else { Self::Socket(text.into()) };
        };
        let uri: Option<hyper::Uri> = text.parse().ok();
        match uri.as_ref().and_then(hyper::Uri::authority) {
            Some(at) if scheme == "http" && !rest.contains('@') && !at.host().is_empty() => {
                Self::Tcp(at.host().to_owned(), at.port_u16().unwrap_or(DEFAULT_PORT))
            }
            _ => invalid(),
        }
    }
}

/// The first socket with a listener; stale sockets are skipped. If there is none, the one to name
/// in an error: one without permission, a stale one, or the user's own (root's: the system socket).
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

/// Connects without blocking; a full backlog counts as a listener.
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
        assert_eq!(Endpoint::parse("/a/b.sock"), Endpoint::Socket("/a/b.sock".into()));
        assert_eq!(Endpoint::parse("unix:/a/b.sock"), Endpoint::Socket("/a/b.sock".into()));
        assert_eq!(Endpoint::parse("http://127.0.0.1:90/"), Endpoint::Tcp("127.0.0.1".into(), 90));
        assert_eq!(Endpoint::parse("http://[::1]"), Endpoint::Tcp("[::1]".into(), DEFAULT_PORT));
        for wrong in ["", "https://a:1", "http://", "http://me@a:1", "ftp://x"] {
            assert!(matches!(Endpoint::parse(wrong), Endpoint::Invalid(_)), "{wrong}");
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
