//! Exports, handles and file permissions, shared by the NFS, MOUNT, NLM and NSM services.
//!
//! Called from network and worker threads. No lock is held while a file system is called.

mod lanes;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use tracing::warn;
use vfs::groups::GroupCache;
use vfs::names::Names;
use vfs::{
    BlockingMode, Caller, Closing, Context, Error, ExclusiveLock, Export, ExportAccess, Exports,
    FileKey, FileSystemId, HandleKey, MountWalk, ObjectId, OpeningExport, Result, RuleNumber,
    Rules, VerifiedHandle,
};
use wire::nfs3::Handle;
use wire::rpc::Credential;

use crate::client_io::ClientTable;
use crate::fences::Fences;
use crate::io_counts::{CallIo, ExportIo, IoTotals};
use crate::log_rate_limit::LogRateLimit;
use crate::mounted_hosts::MountedHosts;
use crate::rpc::admission::{Action, NotAdmitted, admit};
use crate::service_lease::ServiceLease;
use crate::transport::Peer;

pub(crate) struct Files {
    served: RwLock<Served>,
    key: HandleKey,
    lease: ServiceLease,
    pub names: Names,
    groups: GroupCache,
    pub fences: Fences,
    pub mounted: MountedHosts,
    pub client_io: Arc<ClientTable>,
    stalled: Mutex<Vec<FileSystemId>>,
}

/// The exports, and those that are served by their ids.
#[derive(Default)]
struct Served {
    exports: Arc<Exports>,
    by_id: HashMap<u32, Arc<ServedExport>>,
}

/// An export and what was done in it.
struct ServedExport {
    export: Arc<Export>,
    io: Arc<ExportIo>,
}

impl Served {
    /// An export that keeps its id keeps its counts.
    fn new(exports: Exports, before: &Self) -> Self {
        let served = |export: &Arc<Export>| {
            let known = before.by_id.get(&export.id).map(|known| known.io.clone());
            let io = known.unwrap_or_default();
            (export.id, Arc::new(ServedExport { export: export.clone(), io }))
        };
        let by_id = exports.iter().map(served).collect();
        Self { exports: Arc::new(exports), by_id }
    }
}

/// An export that has admitted a peer, with the rules that apply to it.
pub(crate) struct AdmittedExport {
    served: Arc<ServedExport>,
    rule: RuleNumber,
}

impl AdmittedExport {
    pub(crate) fn rules(&self) -> &Rules {
        self.served.export.rules.numbered(self.rule)
    }

    pub(crate) fn count(&self, call: CallIo) {
        self.served.io.count(call);
    }
}

impl Deref for AdmittedExport {
    type Target = Export;

    fn deref(&self) -> &Export {
        &self.served.export
    }
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
            served: RwLock::new(Served::new(exports, &Served::default())),
            key,
            lease,
            names: Names::new(names_max),
            groups: GroupCache::default(),
            fences,
            mounted: MountedHosts::default(),
            client_io: Arc::default(),
            stalled: Mutex::default(),
        }
    }

    /// Whether the lease on the store allows a call to begin to change files (B6.80).
    pub(crate) fn may_change(&self) -> bool {
        self.lease.may_change_files()
    }

    pub(crate) fn exports(&self) -> Arc<Exports> {
        self.served().exports.clone()
    }

    /// What was done in each export that is served.
    pub(crate) fn export_io(&self) -> HashMap<u32, IoTotals> {
        self.served().by_id.iter().map(|(id, export)| (*id, export.io.read())).collect()
    }

    /// These file systems have answered none of their calls for a while.
    pub(crate) fn set_stalled(&self, file_systems: Vec<FileSystemId>) {
        *self.stalled.lock().unwrap_or_else(PoisonError::into_inner) = file_systems;
    }

    pub(crate) fn is_stalled(&self, file_system: FileSystemId) -> bool {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner).contains(&file_system)
    }

    /// Replaces the exports for all requests that arrive from now on.
    pub(crate) fn replace_exports(&self, exports: Exports) {
        let mut current = self.served.write().unwrap_or_else(PoisonError::into_inner);
        let new = Served::new(exports, &current);
        let old = std::mem::replace(&mut *current, new);
        drop(current);
        drop(close(old));
    }

    /// Serves no export any more.
    pub(crate) fn close(&self) -> Closing {
        let mut current = self.served.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::take(&mut *current);
        drop(current);
        close(old)
    }

    /// The identity that resolves a MOUNT path below the export's root (B1.85). May wait for the name
    /// service.
    pub(crate) fn mount_caller(&self, rules: &Rules, credential: &Credential) -> Result<Caller> {
        match rules.mount_walk {
            MountWalk::Caller => self.caller(rules, credential, BlockingMode::MayBlock),
            MountWalk::Server => Ok(Caller::new(0, 0, &[])),
        }
    }

    /// The identity under which a call with this credential uses files of an export with these rules.
    pub(crate) fn caller(
        &self,
        rules: &Rules,
        credential: &Credential,
        blocking: BlockingMode,
    ) -> Result<Caller> {
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
    ) -> Result<AdmittedExport> {
        let served = {
            let current = self.served();
            current.by_id.get(&opened.export).cloned().ok_or_else(|| {
                match opening(&current.exports, opened.export) {
                    Some(opening) if opening.rules.admits(peer.remote.ip()) => Error::TryLater,
                    Some(_) => Error::Denied,
                    None => Error::Stale,
                }
            })?
        };
        if served.export.filesystem.id() != opened.file.filesystem {
            return Err(Error::Stale);
        }
        let rule = admit_to_export(&served.export, peer, action)?;
        self.mounted.note(peer);
        Ok(AdmittedExport { served, rule })
    }

    /// Whether any export admits this address.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let exports = &self.served().exports;
        exports.iter().any(|export| export.rules.admits(address))
            || exports.opening().iter().any(|export| export.rules.admits(address))
    }

    /// Whether all exports that admit this address demand reserved ports; `None` if none admits it.
    pub(crate) fn demands_reserved_port(&self, address: IpAddr) -> Option<bool> {
        let exports = &self.served().exports;
        let opening = exports.opening().iter().map(|export| &export.rules);
        let rules = exports.iter().map(|export| &export.rules).chain(opening);
        let admitting = rules.filter_map(|rules| rules.for_client(address));
        admitting.map(|rules| rules.require_reserved_ports).reduce(|all, one| all && one)
    }

    /// The file that a lock request names. Its export may no longer exist: releasing a lock needs
    /// only the handle (B2.8).
    pub(crate) fn lock_target(&self, handle: &[u8]) -> Result<LockTarget> {
        let opened = self.verify(handle)?;
        let exports = &self.served().exports;
        let export = exports.by_id(opened.export).cloned();
        let opening = opening(exports, opened.export).cloned();
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
        let rules = export.rules();
        let must_write = match required {
            RequiredAccess::Write => true,
            RequiredAccess::Exclusive => rules.exclusive_lock == ExclusiveLock::Write,
            RequiredAccess::Read | RequiredAccess::Handle => false,
        };
        if must_write && rules.access == ExportAccess::ReadOnly {
            return Err(Error::ReadOnly);
        }
        if !rules.lock_auth {
            return Ok(());
        }
        if blocking == BlockingMode::Nonblocking && !export.filesystem.supports_nonblocking() {
            return Err(Error::WouldBlock);
        }
        let caller = self.caller(rules, credential, blocking)?;
        let context = Context { caller: &caller, blocking };
        let (may, owner) = export.filesystem.lock_access(&context, &target.opened.file.object)?;
        let allowed = may.write || (may.read && !must_write);
        // The owner of a file could grant itself the permission.
        if allowed || caller.uid == owner || caller.is_root() {
            return Ok(());
        }
        Err(Error::Denied)
    }

    fn served(&self) -> RwLockReadGuard<'_, Served> {
        self.served.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The export of this id, if its file system does not answer yet (B1.84).
fn opening(exports: &Exports, id: u32) -> Option<&OpeningExport> {
    exports.opening().iter().find(|export| export.id == id)
}

/// Gives up these exports. Dropping the last reference to a file system may wait for its disk.
fn close(served: Served) -> Closing {
    let list: Vec<Arc<Export>> = served.exports.iter().cloned().collect();
    // Before the threads drop theirs, so that this is not the last reference.
    drop(served);
    Closing::begin(list)
}

/// Which of an export's rules apply to a caller, if they admit it. [`Error::Denied`] if its address is not admitted,
/// [`Error::NotOwner`] if its port is not; the latter is logged with the remedy.
pub(crate) fn admit_to_export(export: &Export, peer: &Peer, action: Action) -> Result<RuleNumber> {
    static UNRESERVED_PORTS: LogRateLimit = LogRateLimit::new();
    let rule = export.rules.number_for(peer.remote.ip()).ok_or(Error::Denied)?;
    match admit(action, peer, true, export.rules.numbered(rule).require_reserved_ports) {
        Ok(()) => Ok(rule),
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
