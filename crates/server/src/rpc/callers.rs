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
