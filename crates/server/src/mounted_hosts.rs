//! Hosts that use an export (B4.93). In an open grace they are reported to the engine, which notifies
//! them of the restart: the store may lack them, and a client reclaims only when it is told.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::engine::{Input, Reporter};
use crate::transport::Peer;

/// The most hosts that are reported (I10).
const HOSTS_MAX: usize = 10_000;

#[derive(Default)]
pub(crate) struct MountedHosts {
    /// Spares every call the lock while nothing is reported.
    watching: AtomicBool,
    watch: Mutex<Option<Watch>>,
}

struct Watch {
    reporter: Reporter,
    reported: HashSet<IpAddr>,
}

impl MountedHosts {
    /// Reports hosts from now on, each once.
    pub(crate) fn begin(&self, reporter: Reporter) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        *watch = Some(Watch { reporter, reported: HashSet::new() });
        self.watching.store(true, Ordering::Release);
    }

    /// Reports no more.
    pub(crate) fn end(&self) {
        self.watching.store(false, Ordering::Release);
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Notes a call that an export admitted. An unprivileged user of a host does not speak for it.
    pub(crate) fn note(&self, peer: &Peer) {
        if self.watching.load(Ordering::Acquire) && peer.uses_reserved_port() {
            self.report(peer);
        }
    }

    fn report(&self, peer: &Peer) {
        let (address, ours) = (peer.remote.ip().to_canonical(), peer.local.ip().to_canonical());
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Watch { reporter, reported }) = &mut *watch else { return };
        if reported.len() < HOSTS_MAX && reported.insert(address) {
            let reporter = reporter.clone();
            drop(watch);
            reporter.report(Input::Mounted { address, ours });
        }
    }
}
