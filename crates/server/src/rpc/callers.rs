//! Whom this server serves at all, by address (B7.95). Asked before anything is read: by the listeners for each
//! connection and each datagram, and again for open connections when the exports change.
//!
//! | address | is | may |
//! |---|---|---|
//! | loopback, or the one it calls | a local caller | connect; each call is judged by `rpc/admission.rs` |
//! | admitted by an export, or by one that is not served yet | a client | the same |
//! | none of these, but of a host that holds or awaits locks | a holder | the same: what it locked while an export admitted it, it can unlock |
//! | any other | a stranger | nothing: its connections are closed unread, its datagrams dropped |

use std::net::IpAddr;
use std::sync::Arc;

use crate::files::Files;
use crate::liveness::Liveness;
use crate::transport::Peer;

/// What an address is to this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Stranger,
    /// No export admits it any more, but it has locks.
    Holder,
    Client,
    Local,
}

/// See the [module](self). Cheap to clone.
#[derive(Clone)]
pub(crate) struct Callers {
    files: Arc<Files>,
    liveness: Liveness,
    /// For addresses that no export admits (B7.7).
    require_reserved_ports: bool,
}

impl Callers {
    pub(crate) fn new(files: Arc<Files>, liveness: Liveness, require_reserved_ports: bool) -> Self {
        Self { files, liveness, require_reserved_ports }
    }

    pub(crate) fn standing(&self, peer: &Peer) -> Standing {
        let address = peer.remote.ip();
        if peer.is_local() {
            Standing::Local
        } else if self.files.admits(address) {
            Standing::Client
        } else if self.liveness.watches(address) {
            Standing::Holder
        } else {
            Standing::Stranger
        }
    }

    pub(crate) fn serves(&self, peer: &Peer) -> bool {
        self.standing(peer) != Standing::Stranger
    }

    /// Whether the address holds or awaits locks.
    pub(crate) fn is_holder(&self, address: IpAddr) -> bool {
        self.liveness.watches(address)
    }

    /// Whether the port of the peer is one that can lock: where all exports that admit it demand
    /// reserved ports, the kernel of a lock holder has no other connections.
    pub(crate) fn can_lock(&self, peer: &Peer) -> bool {
        peer.uses_reserved_port()
            || match self.files.demands_reserved_port(peer.remote.ip()) {
                Some(demands) => !demands,
                None => !self.require_reserved_ports,
            }
    }
}

#[cfg(test)]
mod tests {
    use keeper::bytes::Name;
    use keeper::identity::{HostKey, OwnerNamespace, Transport as Over};
    use vfs::memory::MemoryFs;
    use vfs::{Export, Exports, FileSystemId, HandleKey, Rules};

    use super::*;
    use crate::fences::Fences;
    use crate::service_lease::ServiceLease;
    use crate::transport::Transport;

    fn callers(clients: &str, require_reserved_ports: bool) -> (Callers, Liveness) {
        let clients = vec![clients.parse().unwrap()];
        let export = Export {
            id: 1,
            path: "/srv".into(),
            filesystem: Arc::new(MemoryFs::new(FileSystemId(1))),
            rules: Rules { clients, require_reserved_ports, ..Rules::default() }.into(),
        };
        let exports = Exports::new(vec![export]).unwrap();
        let key = HandleKey::new([0; 16]);
        let files =
            Arc::new(Files::new(exports, key, 1, ServiceLease::default(), Fences::default()));
        let liveness = Liveness::default();
        (Callers::new(files, liveness.clone(), true), liveness)
    }

    fn peer(remote: &str) -> Peer {
        Peer::new(remote.parse().unwrap(), "10.0.0.1:2049".parse().unwrap(), Transport::Tcp)
    }

    /// B7.95
    #[test]
    fn a_stranger_is_who_is_neither_client_nor_holder_nor_local() {
        let (callers, liveness) = callers("10.0.0.2/32", true);
        let standing = |remote| callers.standing(&peer(remote));
        assert_eq!(standing("10.0.0.2:700"), Standing::Client);
        assert_eq!(standing("10.0.0.1:700"), Standing::Local);
        assert_eq!(standing("127.0.0.5:40000"), Standing::Local);
        assert_eq!(standing("10.0.0.3:700"), Standing::Stranger);
        let address = "10.0.0.3".parse().unwrap();
        let host = HostKey::new(address, Name::from("alice"));
        let ours = "10.0.0.1".parse().unwrap();
        liveness.watch(&host, OwnerNamespace::new(ours, Over::Tcp, 4));
        assert_eq!(standing("10.0.0.3:700"), Standing::Holder);
        assert_eq!(standing("10.0.0.4:700"), Standing::Stranger);
    }

    /// B7.97
    #[test]
    fn a_port_can_lock_if_an_export_for_its_address_takes_it() {
        for (require, expected) in [(true, false), (false, true)] {
            let (callers, _) = callers("10.0.0.2/32", require);
            assert_eq!(callers.can_lock(&peer("10.0.0.2:40000")), expected);
            assert!(callers.can_lock(&peer("10.0.0.2:700")));
            assert!(!callers.can_lock(&peer("10.0.0.3:40000")), "the server demands it");
        }
    }
}
