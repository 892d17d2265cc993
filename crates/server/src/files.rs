//! Exports, handles and file permissions, shared by the NFS, MOUNT, NLM and NSM services.
//!
//! Called from network and worker threads. No lock is held while a file system is called.

mod lanes;

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tracing::warn;
use vfs::groups::GroupCache;
use vfs::names::Names;
use vfs::{
    BlockingMode, Caller, Closing, Context, Error, ExclusiveLock, Export, ExportAccess, Exports,
    FileKey, FileSystemId, HandleKey, MountWalk, ObjectId, OpeningExport, Result, VerifiedHandle,
};
use wire::nfs3::Handle;
use wire::rpc::Credential;

use crate::fences::Fences;
use crate::log_rate_limit::LogRateLimit;
use crate::mounted_hosts::MountedHosts;
use crate::rpc::admission::{Action, NotAdmitted, admit};
use crate::service_lease::ServiceLease;
use crate::transport::Peer;

pub(crate) struct Files {
    exports: RwLock<Arc<Exports>>,
    key: HandleKey,
    lease: ServiceLease,
    pub names: Names,
    groups: GroupCache,
    pub fences: Fences,
    pub mounted: MountedHosts,
}

impl Files {
    pub(crate) fn new(
        exports: Exports,
        key: HandleKey,
        names_max: usize,
        lease: ServiceLease,
        fences: Fences,
    ) -> Self {
        Self {
            exports: RwLock::new(Arc::new(exports)),
            key,
            lease,
            names: Names::new(names_max),
            groups: GroupCache::default(),
            fences,
            mounted: MountedHosts::default(),
        }
    }

    /// Whether the lease on the store allows a call to begin to change files (B6.80).
    pub(crate) fn may_change(&self) -> bool {
        self.lease.may_change_files()
    }

    pub(crate) fn exports(&self) -> Arc<Exports> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the exports for all requests that arrive from now on.
    pub(crate) fn replace_exports(&self, exports: Exports) {
        let mut current = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, Arc::new(exports));
        drop(current);
        drop(close(old));
    }

    /// Serves no export any more.
    pub(crate) fn close(&self) -> Closing {
        let mut current = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::take(&mut *current);
        drop(current);
        close(old)
    }

    /// The identity that resolves a MOUNT path below the export's root (B1.85). May wait for the name
    /// service.
    pub(crate) fn mount_caller(&self, export: &Export, credential: &Credential) -> Result<Caller> {
        match export.rules.mount_walk {
            MountWalk::Caller => self.caller(export, credential, BlockingMode::MayBlock),
            MountWalk::Server => Ok(Caller::new(0, 0, &[])),
        }
    }

    /// The identity under which a call with this credential uses files of the export.
    pub(crate) fn caller(
        &self,
        export: &Export,
        credential: &Credential,
        blocking: BlockingMode,
    ) -> Result<Caller> {
        let rules = &export.rules;
        match credential {
            Credential::None => Ok(rules.anonymous()),
            Credential::Sys(sys) => {
                rules.caller(sys.uid, sys.gid, sys.groups.as_slice(), &self.groups, blocking)
            }
        }
    }

    /// The signed handle of a file.
    pub(crate) fn sign(&self, export: &Export, object: &ObjectId) -> Handle {
        let file = FileKey { filesystem: export.filesystem.id(), object: *object };
        Handle(bytes::Bytes::copy_from_slice(self.key.sign(export.id, &file).as_bytes()))
    }

    /// Records a name of a file, for display.
    pub(crate) fn record_name(
        &self,
        export: &Export,
        object: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) {
        let file = FileKey { filesystem: export.filesystem.id(), object: *object };
        self.names.record(&file, dir, name);
    }

    /// The contents of a handle, if its signature is ours.
    pub(crate) fn verify(&self, handle: &[u8]) -> Result<VerifiedHandle> {
        self.key.verify(handle)
    }

    /// The same for a call of this peer. A port that no export would admit is refused whatever the handle is
    /// (B7.98).
    pub(crate) fn verify_for(
        &self,
        handle: &[u8],
        peer: &Peer,
        action: Action,
    ) -> Result<VerifiedHandle> {
        self.verify(handle).map_err(|error| {
            let demands = self.demands_reserved_port(peer.remote.ip()).unwrap_or(false);
            match admit(action, peer, true, demands) {
                Err(NotAdmitted::Port) => Error::NotOwner,
                _ => error,
            }
        })
    }

    /// The export of a handle, if it still exists and admits the peer for `action`. [`Error::TryLater`]
    /// if its file system does not answer yet (B1.84).
    pub(crate) fn export_of(
        &self,
        opened: &VerifiedHandle,
        peer: &Peer,
        action: Action,
    ) -> Result<Arc<Export>> {
        let export = {
            let exports = self.current_exports();
            exports.by_id(opened.export).cloned().ok_or_else(|| {
                match opening(&exports, opened.export) {
                    Some(opening) if opening.rules.admits(peer.remote.ip()) => Error::TryLater,
                    Some(_) => Error::Denied,
                    None => Error::Stale,
                }
            })?
        };
        if export.filesystem.id() != opened.file.filesystem {
            return Err(Error::Stale);
        }
        admit_to_export(&export, peer, action)?;
        self.mounted.note(peer);
        Ok(export)
    }

    /// Whether any export admits this address.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let exports = self.current_exports();
        exports.iter().any(|export| export.rules.admits(address))
            || exports.opening().iter().any(|export| export.rules.admits(address))
    }

    /// Whether all exports that admit this address demand reserved ports; `None` if none admits it.
    pub(crate) fn demands_reserved_port(&self, address: IpAddr) -> Option<bool> {
        let exports = self.current_exports();
        let opening = exports.opening().iter().map(|export| &export.rules);
        let rules = exports.iter().map(|export| &export.rules).chain(opening);
        let admitting = rules.filter(|rules| rules.admits(address));
        admitting.map(|rules| rules.require_reserved_ports).reduce(|all, one| all && one)
    }

    /// The file that a lock request names. Its export may no longer exist: releasing a lock needs
    /// only the handle (B2.8).
    pub(crate) fn lock_target(&self, handle: &[u8]) -> Result<LockTarget> {
        let opened = self.verify(handle)?;
        let exports = self.current_exports();
        let export = exports.by_id(opened.export).cloned();
        let opening = opening(&exports, opened.export).cloned();
        Ok(LockTarget { file: lock_key(&opened.file), export, opening, opened })
    }

    /// Ok if the caller has the required access to the file (B2.8). Does not check the source port.
    pub(crate) fn may_lock(
        &self,
        target: &LockTarget,
        required: RequiredAccess,
        credential: &Credential,
        peer: &Peer,
        blocking: BlockingMode,
    ) -> Result<()> {
        if required == RequiredAccess::Handle {
            return Ok(());
        }
        let export = self.export_of(&target.opened, peer, Action::Inspect)?;
        let must_write = match required {
            RequiredAccess::Write => true,
            RequiredAccess::Exclusive => export.rules.exclusive_lock == ExclusiveLock::Write,
            RequiredAccess::Read | RequiredAccess::Handle => false,
        };
        if must_write && export.rules.access == ExportAccess::ReadOnly {
            return Err(Error::ReadOnly);
        }
        if !export.rules.lock_auth {
            return Ok(());
        }
        if blocking == BlockingMode::Nonblocking && !export.filesystem.supports_nonblocking() {
            return Err(Error::WouldBlock);
        }
        let caller = self.caller(&export, credential, blocking)?;
        let context = Context { caller: &caller, blocking };
        let (may, found) = export.filesystem.access(&context, &target.opened.file.object)?;
        let allowed = may.write || (may.read && !must_write);
        // The owner of a file could grant itself the permission.
        if allowed || caller.uid == found.uid || caller.is_root() {
            return Ok(());
        }
        Err(Error::Denied)
    }

    fn current_exports(&self) -> RwLockReadGuard<'_, Arc<Exports>> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The export of this id, if its file system does not answer yet (B1.84).
fn opening(exports: &Exports, id: u32) -> Option<&OpeningExport> {
    exports.opening().iter().find(|export| export.id == id)
}

/// Gives up these exports. Dropping the last reference to a file system may wait for its disk.
fn close(exports: Arc<Exports>) -> Closing {
    let list: Vec<Arc<Export>> = exports.iter().cloned().collect();
    // Before the threads drop theirs, so that this is not the last reference.
    drop(exports);
    Closing::begin(list)
}

/// Applies an export's rules to a caller. [`Error::Denied`] if its address is not admitted,
/// [`Error::NotOwner`] if its port is not; the latter is logged with the remedy.
pub(crate) fn admit_to_export(export: &Export, peer: &Peer, action: Action) -> Result<()> {
    static UNRESERVED_PORTS: LogRateLimit = LogRateLimit::new();
    let rules = &export.rules;
    let address_admitted = rules.admits(peer.remote.ip());
    match admit(action, peer, address_admitted, rules.require_reserved_ports) {
        Ok(()) => Ok(()),
        Err(NotAdmitted::Port) => {
            if UNRESERVED_PORTS.due() {
                let (path, from) = (export.path.escape_ascii(), peer.remote);
                warn!(
                    event.kind = "mount-refused",
                    event.address = %from.ip(),
                    event.export = %path,
                    "refused {path} to {from}, which is not a reserved port; mount it with -o \
                     resvport (the default on Linux, not on macOS), or set ports = \"any\" for the \
                     export"
                );
            }
            Err(Error::NotOwner)
        }
        Err(NotAdmitted::Address | NotAdmitted::Transport) => Err(Error::Denied),
    }
}

/// The access to a file that a lock request requires (B2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredAccess {
    /// None beyond a valid handle: it releases a lock, or reclaims a recorded one.
    Handle,
    /// To read or to write.
    Read,
    /// What the export demands for an exclusive lock.
    Exclusive,
    Write,
}

/// The file of a lock request.
pub(crate) struct LockTarget {
    pub file: keeper::bytes::FileKey,
    /// `None` if it is no longer exported, or not yet.
    pub export: Option<Arc<Export>>,
    opening: Option<OpeningExport>,
    opened: VerifiedHandle,
}

impl LockTarget {
    /// Whether the file is exported, or will be, and its export admits this address.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let opening = self.opening.as_ref();
        self.export.as_ref().is_some_and(|export| {
            export.filesystem.id() == self.opened.file.filesystem && export.rules.admits(address)
        }) || opening.is_some_and(|export| export.rules.admits(address))
    }
}

/// The key of a file in the lock table: independent of the export or link by which it was reached
/// (B2.2).
pub(crate) fn lock_key(file: &FileKey) -> keeper::bytes::FileKey {
    let mut bytes = [0; 8 + ObjectId::MAX];
    let object = file.object.as_bytes();
    bytes[..8].copy_from_slice(&file.filesystem.0.to_be_bytes());
    bytes[8..8 + object.len()].copy_from_slice(object);
    keeper::bytes::FileKey::new(&bytes[..8 + object.len()])
}
/// The inverse of [`lock_key`].
pub(crate) fn file_of_lock(key: &keeper::bytes::FileKey) -> Option<FileKey> {
    let (filesystem, object) = key.bytes().split_first_chunk()?;
    let filesystem = FileSystemId(u64::from_be_bytes(*filesystem));
    Some(FileKey { filesystem, object: ObjectId::new(object)? })
}
