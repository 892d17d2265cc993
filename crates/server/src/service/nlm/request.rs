//! Translates NLM arguments, in any version and form, into a request to the keeper.
//!
//! One function per procedure. No I/O: the caller's permission to use the file is returned as a
//! [`FileAccess`] for the service to check.

use std::time::Duration;

use keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use keeper::identity::{Caller, HostKey, Incarnation, OwnerNamespace, RequestId};
use keeper::range::Range;
use keeper::request::{
    Access, CancelRequest, Form, FreeAllRequest, LockRequest, Mode, OwnerName, ShareRequest,
    TestRequest, UnlockRequest, UnshareRequest,
};
use vfs::Rules;
use wire::nlm::{self, Status, Version, Versioned};

use super::super::source;
use super::reply::ReplyFormat;
use super::{Nlm, Operation};
use crate::engine::request::Request;
use crate::files::{LockTarget, RequiredAccess};
use crate::rpc::admission::{Action, admit};
use crate::rpc::pending::IncomingCall;

/// A call to one of the procedures that the keeper decides.
pub(super) struct NlmCall<'a> {
    pub(super) nlm: &'a Nlm,
    pub(super) incoming: &'a IncomingCall<'a>,
    pub(super) version: Version,
    pub(super) operation: Operation,
    pub(super) form: Form,
    /// When its connection was opened, by the engine's clock; `None` for datagrams.
    pub(super) connected: Option<Duration>,
}

/// A request, the format of its reply, and the access that its caller needs, if it names a file.
pub(super) struct PreparedRequest {
    pub(super) request: Request,
    pub(super) format: ReplyFormat,
    pub(super) access: Option<FileAccess>,
}

/// To be checked before the request is handed to the engine.
pub(super) struct FileAccess {
    pub(super) target: LockTarget,
    pub(super) required: RequiredAccess,
}

/// A reply that needs no decision of the keeper.
pub(super) enum EarlyReply {
    Garbage,
    TooWeak,
    Status(ReplyFormat, Status),
}

/// The lock that a call names, and its owner.
struct LockSubject {
    caller: Caller,
    owner: OwnerName,
    file: FileKey,
    handle: Handle,
    range: Range,
    stateless: bool,
    access: FileAccess,
}

type Prepared = Result<PreparedRequest, EarlyReply>;

impl NlmCall<'_> {
    pub(super) fn prepare(&self) -> Prepared {
        match self.operation {
            Operation::Test => self.test(),
            Operation::Lock => self.lock(true),
            Operation::NmLock => self.lock(false),
            Operation::Cancel => self.cancel(),
            Operation::Unlock => self.unlock(),
            Operation::Share => self.share(),
            Operation::Unshare => self.unshare(),
            Operation::FreeAll => self.free_all(),
        }
    }

    fn test(&self) -> Prepared {
        let args: nlm::TestArgs = self.decode()?;
        let format = self.format(args.cookie, false);
        let subject = self.subject(&format, &args.lock, required_for(args.exclusive))?;
        let LockSubject { caller, owner, file, range, access, .. } = subject;
        let (id, mode) = (self.id(), mode(args.exclusive));
        let request = Request::Test(TestRequest { id, caller, owner, file, range, mode });
        Ok(PreparedRequest { request, format, access: Some(access) })
    }

    fn lock(&self, monitored: bool) -> Prepared {
        let args: nlm::LockArgs = self.decode()?;
        let format = self.format(args.cookie, args.block);
        // A reclaim takes back what is recorded as the caller's own, and carries no state, whatever
        // its argument says (B4.12).
        let (required, incarnation) = match args.reclaim {
            true => (RequiredAccess::Handle, Incarnation::UNKNOWN),
            false => (required_for(args.exclusive), Incarnation(args.state as u32)),
        };
        let subject = self.subject(&format, &args.lock, required)?;
        let LockSubject { caller, owner, file, handle, range, stateless, access } = subject;
        // Asked of reclaims only.
        let admitted = args.reclaim && self.is_admitted(&access.target);
        let request = Request::Lock(LockRequest {
            id: self.id(),
            caller,
            owner,
            file,
            handle,
            range,
            mode: mode(args.exclusive),
            wait: args.block,
            reclaim: args.reclaim,
            admitted,
            monitored,
            incarnation,
            form: format.form,
            stateless,
            connected: self.connected,
        });
        Ok(PreparedRequest { request, format, access: Some(access) })
    }

    fn cancel(&self) -> Prepared {
        let args: nlm::CancelArgs = self.decode()?;
        let format = self.format(args.cookie, args.block);
        let subject = self.subject(&format, &args.lock, RequiredAccess::Handle)?;
        let LockSubject { caller, owner, file, range, access, .. } = subject;
        let (id, mode) = (self.id(), mode(args.exclusive));
        let request = Request::Cancel(CancelRequest { id, caller, owner, file, range, mode });
        Ok(PreparedRequest { request, format, access: Some(access) })
    }

    fn unlock(&self) -> Prepared {
        let args: nlm::UnlockArgs = self.decode()?;
        let format = self.format(args.cookie, false);
        let subject = self.subject(&format, &args.lock, RequiredAccess::Handle)?;
        let LockSubject { caller, owner, file, range, access, .. } = subject;
        let request = Request::Unlock(UnlockRequest { id: self.id(), caller, owner, file, range });
        Ok(PreparedRequest { request, format, access: Some(access) })
    }

    fn share(&self) -> Prepared {
        let nlm::ShareArgs { cookie, share, reclaim } = self.decode()?;
        let format = self.format(cookie, false);
        let (access, deny) = (share_access(share.access as u32), share_access(share.mode as u32));
        let required = match reclaim {
            true => RequiredAccess::Handle,
            false if access.write => RequiredAccess::Write,
            false => RequiredAccess::Read,
        };
        let target = self.target(&format, &share.file)?;
        let (id, caller, tag) =
            (self.id(), self.caller(&share.caller_name), OwnerTag::new(&share.owner));
        let file = target.file.clone();
        let admitted = reclaim && self.is_admitted(&target);
        let request =
            Request::Share(ShareRequest { id, caller, tag, file, access, deny, reclaim, admitted });
        Ok(PreparedRequest { request, format, access: Some(FileAccess { target, required }) })
    }

    fn unshare(&self) -> Prepared {
        let nlm::ShareArgs { cookie, share, .. } = self.decode()?;
        let format = self.format(cookie, false);
        let target = self.target(&format, &share.file)?;
        let (id, caller, tag) =
            (self.id(), self.caller(&share.caller_name), OwnerTag::new(&share.owner));
        let file = target.file.clone();
        let request = Request::Unshare(UnshareRequest { id, caller, tag, file });
        let access = FileAccess { target, required: RequiredAccess::Handle };
        Ok(PreparedRequest { request, format, access: Some(access) })
    }

    fn free_all(&self) -> Prepared {
        let args: nlm::FreeAllArgs = self.decode()?;
        self.admit(self.nlm.require_reserved_ports)?;
        let format = self.format(nlm::Cookie::default(), false);
        let (id, source, name) = (self.id(), source(self.incoming.peer), Name::new(&args.name));
        let request = Request::FreeAll(FreeAllRequest { id, source, name });
        Ok(PreparedRequest { request, format, access: None })
    }

    fn decode<T: Versioned>(&self) -> Result<T, EarlyReply> {
        let args = self.incoming.call.args.clone();
        T::from_bytes_as(self.version, args).map_err(|_| EarlyReply::Garbage)
    }

    fn format(&self, cookie: nlm::Cookie, waits: bool) -> ReplyFormat {
        let Self { version, operation, form, .. } = *self;
        ReplyFormat { operation, form, version, cookie, waits }
    }

    fn id(&self) -> RequestId {
        self.nlm.engine.new_id()
    }

    fn caller(&self, name: &nlm::CallerName) -> Caller {
        let peer = self.incoming.peer;
        let transport = source(peer).transport;
        Caller {
            host: HostKey::new(peer.remote.ip(), Name::new(name)),
            namespace: OwnerNamespace::new(peer.local.ip(), transport, self.version.number() as u8),
        }
    }

    fn subject(
        &self,
        format: &ReplyFormat,
        lock: &nlm::Lock,
        required: RequiredAccess,
    ) -> Result<LockSubject, EarlyReply> {
        let target = self.target(format, &lock.file)?;
        let range = self.range(format, lock.range)?;
        let stateless = self.holds(&target, |rules| rules.stateless_clients).unwrap_or(false);
        Ok(LockSubject {
            caller: self.caller(&lock.caller_name),
            owner: OwnerName { number: lock.svid as u32, tag: OwnerTag::new(&lock.owner) },
            file: target.file.clone(),
            handle: Handle::new(&lock.file),
            range,
            stateless,
            access: FileAccess { target, required },
        })
    }

    /// The file of a handle, if the caller's port is admitted. A port that no export would admit is refused
    /// whatever the handle is (B7.98).
    fn target(
        &self,
        format: &ReplyFormat,
        handle: &nlm::FileHandle,
    ) -> Result<LockTarget, EarlyReply> {
        let target = match self.nlm.files.lock_target(handle) {
            Ok(target) => target,
            Err(_) if !self.nlm.callers.can_lock(self.incoming.peer) => {
                return Err(EarlyReply::TooWeak);
            }
            Err(error) => return Err(EarlyReply::Status(format.clone(), status(error))),
        };
        let demanded = self.holds(&target, |rules| rules.require_reserved_ports);
        self.admit(demanded.unwrap_or(self.nlm.require_reserved_ports))?;
        Ok(target)
    }

    /// Whether the rules of the file's export have a property for this caller; `None` if the file is not
    /// exported.
    fn holds(&self, target: &LockTarget, property: impl Fn(&Rules) -> bool) -> Option<bool> {
        let export = target.export.as_ref()?;
        Some(export.rules.hold_for(self.incoming.peer.remote.ip(), property))
    }

    fn is_admitted(&self, target: &LockTarget) -> bool {
        target.admits(self.incoming.peer.remote.ip())
    }

    fn admit(&self, require_reserved_ports: bool) -> Result<(), EarlyReply> {
        // `Files::may_lock` checks the address.
        admit(Action::Lock, self.incoming.peer, false, require_reserved_ports)
            .map_err(|_| EarlyReply::TooWeak)
    }

    /// An UNLOCK that ends beyond the largest offset releases what is before it: the client forgets
    /// the lock whatever the reply is. One that begins there, like a CANCEL of an impossible range,
    /// is GRANTED, because a client repeats it until it is.
    fn range(&self, format: &ReplyFormat, range: nlm::Range) -> Result<Range, EarlyReply> {
        let made = match self.operation {
            Operation::Unlock => Range::clamped(range.offset, range.length),
            _ => Range::at(range.offset, range.length),
        };
        made.map_err(|_| {
            let status = match self.operation {
                Operation::Unlock | Operation::Cancel => Status::Granted,
                _ => Status::FBig,
            };
            EarlyReply::Status(format.clone(), status)
        })
    }
}

fn required_for(exclusive: bool) -> RequiredAccess {
    if exclusive { RequiredAccess::Exclusive } else { RequiredAccess::Read }
}

fn mode(exclusive: bool) -> Mode {
    if exclusive { Mode::Exclusive } else { Mode::Shared }
}

/// `fsh_mode` and `fsh_access` are two bits each: read, write.
fn share_access(bits: u32) -> Access {
    Access { read: bits & 1 != 0, write: bits & 2 != 0 }
}

pub(super) fn status(error: vfs::Error) -> Status {
    match error {
        vfs::Error::Stale | vfs::Error::BadHandle | vfs::Error::NotFound => Status::StaleFh,
        vfs::Error::ReadOnly => Status::RoFs,
        // Not now: Linux repeats a LOCK, TEST or SHARE with this status after five seconds, whereas
        // the program would see any other one.
        vfs::Error::TryLater | vfs::Error::WouldBlock => Status::DeniedGracePeriod,
        // Not DENIED: a client reports that as a lock of another owner.
        _ => Status::Failed,
    }
}
