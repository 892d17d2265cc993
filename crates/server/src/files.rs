//! The files that are served, as all services see them: exports, handles, and who may do what.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use vfs::groups::GroupCache;
use vfs::names::Names;
use vfs::{
    Access, Caller, Context, Error, Export, Exports, FileKey, HandleKey, ObjectId, Opened,
    Patience, Result,
};
use wire::nfs3::Handle;
use wire::rpc::Credential;

use crate::transport::Peer;

/// What NFS, MOUNT and the lock services share.
pub struct Files {
    exports: RwLock<Arc<Exports>>,
    key: HandleKey,
    pub names: Names,
    groups: GroupCache,
    pub fences: Fences,
}

impl Files {
    pub fn new(exports: Exports, key: HandleKey, names_max: usize) -> Self {
        Self {
            exports: RwLock::new(Arc::new(exports)),
            key,
            names: Names::new(names_max),
            groups: GroupCache::default(),
            fences: Fences::default(),
        }
    }

    pub fn exports(&self) -> Arc<Exports> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From the next request on, these are served.
    pub fn replace_exports(&self, exports: Exports) {
        let mut current = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, Arc::new(exports));
        drop(current);
        // The last of a file system may wait for its disk when it goes; nobody shall wait for it.
        std::thread::spawn(move || drop(old));
    }

    /// As whom a mount walks down to a directory below the export's root. Where ports are
    /// reserved, root of the client asks: it mounts for others and may pass closed directories.
    pub fn walker(&self, export: &Export, credential: &Credential) -> Result<Caller> {
        if export.rules.reserved_ports {
            return Ok(Caller::new(0, 0, &[]));
        }
        self.caller(export, credential, Patience::Wait)
    }

    pub fn caller(
        &self,
        export: &Export,
        credential: &Credential,
        patience: Patience,
    ) -> Result<Caller> {
        let rules = &export.rules;
        match credential {
            Credential::None => Ok(rules.anonymous()),
            Credential::Sys(sys) => {
                rules.caller(sys.uid, sys.gid, sys.groups.as_slice(), &self.groups, patience)
            }
        }
    }

    pub fn seal(&self, export: &Export, object: &ObjectId) -> Handle {
        let file = FileKey { filesystem: export.filesystem.id(), object: *object };
        Handle(bytes::Bytes::copy_from_slice(self.key.seal(export.id, &file).as_bytes()))
    }

    /// Remembers by what name a file was seen.
    pub fn saw(&self, export: &Export, object: &ObjectId, dir: &ObjectId, name: &[u8]) {
        let file = FileKey { filesystem: export.filesystem.id(), object: *object };
        self.names.saw(&file, dir, name);
    }

    /// What a handle names, if it is one of ours.
    pub fn open(&self, handle: &[u8]) -> Result<Opened> {
        self.key.open(handle)
    }

    /// The export that a handle was given out for, if it is still there and this client may use it.
    pub fn export_of(&self, opened: &Opened, peer: &Peer) -> Result<Arc<Export>> {
        let export = self.exports_now().by_id(opened.export).ok_or(Error::Stale)?.clone();
        if export.filesystem.id() != opened.file.filesystem {
            return Err(Error::Stale);
        }
        if !export.rules.admits(peer.remote.ip()) {
            return Err(Error::Denied);
        }
        Ok(export)
    }

    /// Whether any export admits this address.
    pub fn admits(&self, address: IpAddr) -> bool {
        self.exports_now().iter().any(|export| export.rules.admits(address))
    }

    /// The file that a lock is on. The export may be gone: whoever gives something back needs
    /// nothing but the handle (R3.7).
    pub fn lock_target(&self, handle: &[u8]) -> Result<LockTarget> {
        let opened = self.open(handle)?;
        let export = self.exports_now().by_id(opened.export).cloned();
        Ok(LockTarget { file: lock_key(&opened.file), export, opened })
    }

    /// Whether this caller may take a lock there (R3.7).
    pub fn may_lock(
        &self,
        target: &LockTarget,
        needs: Needs,
        credential: &Credential,
        peer: &Peer,
        patience: Patience,
    ) -> Result<()> {
        if needs == Needs::Handle {
            return Ok(());
        }
        let export = self.export_of(&target.opened, peer)?;
        if needs == Needs::Write && export.rules.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        if !export.rules.lock_auth {
            return Ok(());
        }
        if patience == Patience::Now && !export.filesystem.prompt() {
            return Err(Error::WouldBlock);
        }
        let caller = self.caller(&export, credential, patience)?;
        let context = Context { caller: &caller, patience };
        let (may, found) = export.filesystem.access(&context, &target.opened.file.object)?;
        let allowed = match needs {
            Needs::Write => may.write,
            _ => may.read || may.write,
        };
        // Who owns a file could give itself the permission.
        if allowed || caller.uid == found.uid || caller.is_root() {
            return Ok(());
        }
        Err(Error::Denied)
    }

    fn exports_now(&self) -> RwLockReadGuard<'_, Arc<Exports>> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a caller must be allowed to do with a file to lock it (R3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it gives back what it holds, or takes back what is recorded as its own.
    Handle,
    Read,
    Write,
}

/// What a lock is on. The export is not known for every handle.
pub struct LockTarget {
    pub file: keeper::bytes::FileKey,
    pub export: Option<Arc<Export>>,
    opened: Opened,
}

/// A lock belongs to the file, whatever export or link it was reached by (R3.2).
pub fn lock_key(file: &FileKey) -> keeper::bytes::FileKey {
    let mut bytes = [0; 8 + ObjectId::MAX];
    let object = file.object.as_bytes();
    bytes[..8].copy_from_slice(&file.filesystem.0.to_be_bytes());
    bytes[8..8 + object.len()].copy_from_slice(object);
    keeper::bytes::FileKey::new(&bytes[..8 + object.len()])
}

/// The addresses of machines that an operator has shut out: they may not write.
#[derive(Default)]
pub struct Fences {
    any: AtomicBool,
    addresses: RwLock<HashSet<IpAddr>>,
}

impl Fences {
    pub fn has(&self, address: IpAddr) -> bool {
        self.any.load(Ordering::Acquire)
            && self.addresses.read().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }

    pub fn set(&self, address: IpAddr, fenced: bool) {
        let mut addresses = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
        match fenced {
            true => addresses.insert(address),
            false => addresses.remove(&address),
        };
        self.any.store(!addresses.is_empty(), Ordering::Release);
    }
}
