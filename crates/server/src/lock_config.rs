//! What the lock service is started with: its store, its recovery, its hook.

use std::path::PathBuf;
use std::time::Duration;

use keeper::change::Protocol;
use keeper::config::GraceMode;
use store::{Lease, Memory, Store};

#[cfg(doc)]
use crate::control::Control;
use crate::lock_events::{LockEvent, LockHook};
use crate::service_lease::WritePolicy;

/// Where locks are stored, and how they are recovered: [`LockConfig::new`] or
/// [`LockConfig::in_memory`], changed by the methods `with_...` or field by field.
#[non_exhaustive]
pub struct LockConfig {
    /// Has every lock across restarts.
    pub store: Box<dyn Store>,
    /// Recovery, unreachable clients, bounds.
    pub config: keeper::config::Config,
    /// A file with a copy of the epoch, outside the store: after the store was restored from a
    /// backup, the next epoch is still larger than any before (B4.1).
    pub epoch_copy: Option<PathBuf>,
    /// A file with a copy of the roster, outside the store (B4.100). None for a store that ends with
    /// the process.
    pub roster_copy: Option<PathBuf>,
    /// The operator's word that the store lost what it had acknowledged: every client may reclaim
    /// (B4.102).
    pub store_lost: bool,
    /// The lease on a store that is shared with a standby. Without a held lease nothing is sent.
    pub lease: Option<Lease>,
    /// Whether files are changed while the lease is not fresh (B6.80).
    pub writes: WritePolicy,
    /// Lock and status calls that concern no export must come from a reserved port (B7.7).
    pub require_reserved_ports: bool,
    pub(crate) lock_hook: Option<LockHook>,
}

impl LockConfig {
    /// Locks that are in this store, with the default configuration.
    pub fn new(store: Box<dyn Store>) -> Self {
        Self {
            store,
            config: keeper::config::Config::default(),
            epoch_copy: None,
            roster_copy: None,
            store_lost: false,
            lease: None,
            writes: WritePolicy::default(),
            require_reserved_ports: false,
            lock_hook: None,
        }
    }

    /// Locks that end with the process.
    pub fn in_memory() -> Self {
        Self::new(Box::new(Memory::new()))
    }

    /// How long clients have to reclaim their locks after a restart.
    #[must_use]
    pub fn with_window(mut self, window: Duration) -> Self {
        self.config.window = window;
        self
    }

    /// Which new locks wait while clients reclaim.
    #[must_use]
    pub fn with_grace(mut self, grace: GraceMode) -> Self {
        self.config.grace = grace;
        self
    }

    /// Clients of this protocol have a recovery window of their own.
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol, window: Duration) -> Self {
        self.config.windows.insert(protocol, window);
        self
    }

    /// Keeps a copy of epoch, token and clients in this file, outside the store: the next start then
    /// notices that the store was lost or restored from a backup.
    #[must_use]
    pub fn with_roster_copy(self, file: impl Into<PathBuf>) -> Self {
        Self { roster_copy: Some(file.into()), ..self }
    }

    /// A file with a copy of the epoch, for a store that may be restored from a backup.
    #[must_use]
    pub fn with_epoch_copy(self, file: impl Into<PathBuf>) -> Self {
        Self { epoch_copy: Some(file.into()), ..self }
    }

    /// The operator's word that the store lost what it had acknowledged.
    #[must_use]
    pub fn with_store_lost(self, store_lost: bool) -> Self {
        Self { store_lost, ..self }
    }

    /// Recovery, unreachable clients, bounds.
    #[must_use]
    pub fn with_config(self, config: keeper::config::Config) -> Self {
        Self { config, ..self }
    }

    /// Whether files are changed while the lease is not fresh.
    #[must_use]
    pub fn with_writes(self, writes: WritePolicy) -> Self {
        Self { writes, ..self }
    }

    /// Whether lock and status calls that concern no export must come from a port below 1024.
    #[must_use]
    pub fn with_require_reserved_ports(self, require_reserved_ports: bool) -> Self {
        Self { require_reserved_ports, ..self }
    }

    /// The lease of a store that is shared with a standby.
    #[must_use]
    pub fn with_lease(self, lease: Lease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Calls `hook` for every lock that is granted or released from here on, once that is durable and
    /// before the client is answered; in order, by the thread that has the engine. It must not block:
    /// all lock requests wait for it. A panic in it is caught and logged.
    ///
    /// Locks that were recovered at the start were granted before: [`Control::locks`] has them.
    #[must_use]
    pub fn with_lock_hook(self, hook: impl Fn(LockEvent) + Send + Sync + 'static) -> Self {
        Self { lock_hook: Some(Box::new(hook)), ..self }
    }
}
