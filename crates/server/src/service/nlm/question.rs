//! From the arguments of a call, in any version and form, to a request in the keeper's words. No
//! I/O: what the file itself says is asked afterwards.

use std::time::Duration;

use bytes::Bytes;

use keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use keeper::identity::{Caller, HostKey, Incarnation, Lane};
use keeper::range::Range;
use keeper::request::{
    Access, CancelRequest, Form, FreeAllRequest, LockRequest, Mode, OwnerName, ShareRequest,
    TestRequest, UnlockRequest, UnshareRequest,
};
use wire::nlm::{self, Status, Version, Versioned};

use super::super::source;
use super::reply::ReplyFormat;
use super::{Kind, Nlm};
use crate::engine::request::Request;
use crate::files::{LockTarget, Needs};
use crate::rpc::pending::Incoming;
use crate::transport::{Peer, Transport};

/// A request, how it is answered, and the file that it concerns, if it concerns one.
pub struct Question {
    pub request: Request,
    pub format: ReplyFormat,
    pub subject: Option<Subject>,
}

/// What must be looked at before a request is handed on.
pub struct Subject {
    pub target: LockTarget,
    pub needs: Needs,
}

/// Why a call is not handed on.
pub enum Refused {
    Garbage,
    /// Not from a port that only an administrator of the client can use.
    Port,
    Status(ReplyFormat, Status),
}

/// A call as it was received.
pub struct Receipt<'a> {
    pub nlm: &'a Nlm,
    pub incoming: &'a Incoming<'a>,
    pub asked: (Version, Kind, Form),
    /// Since when its connection is open, by the engine's clock.
    pub connected: Option<Duration>,
}

/// Who asks, and about what file.
struct Asker {
    caller: Caller,
    owner: OwnerName,
    file: FileKey,
    handle: Handle,
    stateless: bool,
}

impl Receipt<'_> {
    pub fn question(&self) -> Result<Question, Refused> {
        let (_, kind, _) = self.asked;
        let id = self.nlm.engine.new_id();
        match kind {
            Kind::Test => {
                let args: nlm::TestArgs = self.decode()?;
                let format = self.format(args.cookie, false);
                let (asker, subject) = self.asker(&format, &args.lock, needs(args.exclusive))?;
                let range = range(&format, args.lock.range)?;
                let Asker { caller, owner, file, .. } = asker;
                let mode = mode(args.exclusive);
                let request = Request::Test(TestRequest { id, caller, owner, file, range, mode });
                Ok(Question { request, format, subject: Some(subject) })
            }
            Kind::Lock | Kind::NmLock => {
                let args: nlm::LockArgs = self.decode()?;
                let format = self.format(args.cookie, args.block);
                let needed = match args.reclaim {
                    true => Needs::Handle,
                    false => needs(args.exclusive),
                };
                let (asker, subject) = self.asker(&format, &args.lock, needed)?;
                let range = range(&format, args.lock.range)?;
                let Asker { caller, owner, file, handle, stateless } = asker;
                let request = LockRequest {
                    id,
                    caller,
                    owner,
                    file,
                    handle,
                    range,
                    mode: mode(args.exclusive),
                    wait: args.block,
                    reclaim: args.reclaim,
                    monitored: kind == Kind::Lock,
                    // A reclaim carries none, whatever it says (R3.6).
                    incarnation: match args.reclaim {
                        true => Incarnation::UNKNOWN,
                        false => Incarnation(args.state as u32),
                    },
                    form: format.form,
                    stateless,
                    connected: self.connected,
                };
                Ok(Question { request: Request::Lock(request), format, subject: Some(subject) })
            }
            Kind::Cancel => {
                let args: nlm::CancelArgs = self.decode()?;
                let format = self.format(args.cookie, args.block);
                let (asker, subject) = self.asker(&format, &args.lock, Needs::Handle)?;
                let range = range(&format, args.lock.range)?;
                let Asker { caller, owner, file, .. } = asker;
                let mode = mode(args.exclusive);
                let request =
                    Request::Cancel(CancelRequest { id, caller, owner, file, range, mode });
                Ok(Question { request, format, subject: Some(subject) })
            }
            Kind::Unlock => {
                let args: nlm::UnlockArgs = self.decode()?;
                let format = self.format(args.cookie, false);
                let (asker, subject) = self.asker(&format, &args.lock, Needs::Handle)?;
                let range = range(&format, args.lock.range)?;
                let Asker { caller, owner, file, .. } = asker;
                let request = Request::Unlock(UnlockRequest { id, caller, owner, file, range });
                Ok(Question { request, format, subject: Some(subject) })
            }
            Kind::Share | Kind::Unshare => {
                let args: nlm::ShareArgs = self.decode()?;
                let format = self.format(args.cookie, false);
                let nlm::Share { caller_name, file, owner, mode, access } = args.share;
                let (access, deny) = (access_of(access as u32), access_of(mode as u32));
                let needed = match kind == Kind::Unshare || args.reclaim {
                    true => Needs::Handle,
                    false => needs(access.write),
                };
                let target = self.target(&format, &file)?;
                let (caller, tag) = (self.caller(&caller_name), OwnerTag::new(&owner));
                let file = target.file.clone();
                let subject = Subject { target, needs: needed };
                let request = match kind {
                    Kind::Unshare => Request::Unshare(UnshareRequest { id, caller, tag, file }),
                    _ => {
                        let reclaim = args.reclaim;
                        let request = ShareRequest { id, caller, tag, file, access, deny, reclaim };
                        Request::Share(request)
                    }
                };
                Ok(Question { request, format, subject: Some(subject) })
            }
            Kind::FreeAll => {
                let args: nlm::FreeAllArgs = self.decode()?;
                self.admit_port(self.nlm.reserved_ports)?;
                let (source, name) = (source(self.incoming.peer), Name::new(&args.name));
                let format = self.format(nlm::Cookie::default(), false);
                let request = Request::FreeAll(FreeAllRequest { id, source, name });
                Ok(Question { request, format, subject: None })
            }
        }
    }

    fn decode<T: Versioned>(&self) -> Result<T, Refused> {
        let args: Bytes = self.incoming.call.args.clone();
        T::from_bytes_as(self.asked.0, args).map_err(|_| Refused::Garbage)
    }

    fn format(&self, cookie: nlm::Cookie, waits: bool) -> ReplyFormat {
        let (version, kind, form) = self.asked;
        ReplyFormat { kind, form, version, cookie, waits }
    }

    fn caller(&self, name: &nlm::CallerName) -> Caller {
        let Peer { remote, local, transport } = *self.incoming.peer;
        let transport = match transport {
            Transport::Tcp => keeper::identity::Transport::Tcp,
            Transport::Udp => keeper::identity::Transport::Udp,
        };
        Caller {
            host: HostKey::new(remote.ip(), Name::new(name)),
            lane: Lane::new(local.ip(), transport, self.asked.0.number() as u8),
        }
    }

    fn asker(
        &self,
        format: &ReplyFormat,
        lock: &nlm::Lock,
        needs: Needs,
    ) -> Result<(Asker, Subject), Refused> {
        let target = self.target(format, &lock.file)?;
        let (number, tag) = (lock.svid as u32, OwnerTag::new(&lock.owner));
        let (caller, file) = (self.caller(&lock.caller_name), target.file.clone());
        let stateless = target.export.as_ref().is_some_and(|e| e.rules.stateless_clients);
        let (handle, owner) = (Handle::new(&lock.file), OwnerName { number, tag });
        Ok((Asker { caller, owner, file, handle, stateless }, Subject { target, needs }))
    }

    /// The file of a handle, if its caller uses a port that the export allows.
    fn target(
        &self,
        format: &ReplyFormat,
        handle: &nlm::FileHandle,
    ) -> Result<LockTarget, Refused> {
        let target = self.nlm.files.lock_target(handle);
        let target = target.map_err(|error| Refused::Status(format.clone(), status(error)))?;
        let rules = target.export.as_ref().map(|export| &export.rules);
        self.admit_port(rules.map_or(self.nlm.reserved_ports, |rules| rules.reserved_ports))?;
        Ok(target)
    }

    fn admit_port(&self, reserved: bool) -> Result<(), Refused> {
        let refused = reserved && !self.incoming.peer.uses_reserved_port();
        if refused { Err(Refused::Port) } else { Ok(()) }
    }
}

/// An UNLOCK or CANCEL of what cannot be held is done: nothing else makes a client content.
fn range(format: &ReplyFormat, range: nlm::Range) -> Result<Range, Refused> {
    Range::at(range.offset, range.length).map_err(|_| {
        let status = match format.kind {
            Kind::Unlock | Kind::Cancel => Status::Granted,
            _ => Status::FBig,
        };
        Refused::Status(format.clone(), status)
    })
}

fn needs(exclusive: bool) -> Needs {
    if exclusive { Needs::Write } else { Needs::Read }
}

fn mode(exclusive: bool) -> Mode {
    if exclusive { Mode::Exclusive } else { Mode::Shared }
}

/// Both `fsh_mode` and `fsh_access` are two bits: read, write.
fn access_of(bits: u32) -> Access {
    Access { read: bits & 1 != 0, write: bits & 2 != 0 }
}

pub fn status(error: vfs::Error) -> Status {
    match error {
        vfs::Error::Stale | vfs::Error::BadHandle | vfs::Error::NotFound => Status::StaleFh,
        vfs::Error::ReadOnly => Status::RoFs,
        // Not DENIED: the program would take that for a lock of another owner.
        _ => Status::Failed,
    }
}
