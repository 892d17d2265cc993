//! NLM versions 1, 3 and 4: from a call to a question for the keeper, and from its reply back.
//!
//! All versions and forms become one question here; what is asked in which form is in the
//! [`Letter`], which also writes the answer.

mod letter;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;

use keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use keeper::identity::{Caller, HostKey, Incarnation, Lane};
use keeper::range::Range;
use keeper::request::{
    Access, CancelRequest, Form, FreeAllRequest, LockRequest, Mode, OwnerName, ShareRequest,
    TestRequest, UnlockRequest, UnshareRequest,
};
use vfs::Patience;
use wire::Message;
use wire::nlm::{self, Status, Version, Versioned, v4};
use wire::rpc::{Accepted, AuthStatus, Call, Denial, Procedure};

use super::{Deferred, Repeat};
use crate::driver::Driver;
use crate::driver::core::{Ask, Input};
use crate::files::{Files, Needs};
use crate::liveness::Liveness;
use crate::outbound::Outbound;
use crate::task::{Task, success};
use crate::transport::{Mailbag, Peer, Transport};
use letter::{Claim, Letter, Reach};

pub struct Nlm {
    files: Arc<Files>,
    driver: Driver,
    outbound: Outbound,
    liveness: Liveness,
    /// What has no export to say so needs a reserved port (R6.3).
    reserved_ports: bool,
}

impl Nlm {
    pub fn new(
        files: Arc<Files>,
        driver: Driver,
        outbound: Outbound,
        liveness: Liveness,
        reserved_ports: bool,
    ) -> Self {
        Self { files, driver, outbound, liveness, reserved_ports }
    }
}

/// What is asked, whatever the form: the number of the procedure that is called and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Test,
    Lock,
    NmLock,
    Cancel,
    Unlock,
    Share,
    Unshare,
    FreeAll,
}

impl Kind {
    fn of(procedure: u32) -> Option<(Self, Form)> {
        Some(match procedure {
            v4::Test::NUMBER => (Self::Test, Form::Call),
            v4::TestMsg::NUMBER => (Self::Test, Form::Message),
            v4::Lock::NUMBER => (Self::Lock, Form::Call),
            v4::LockMsg::NUMBER => (Self::Lock, Form::Message),
            v4::Cancel::NUMBER => (Self::Cancel, Form::Call),
            v4::CancelMsg::NUMBER => (Self::Cancel, Form::Message),
            v4::Unlock::NUMBER => (Self::Unlock, Form::Call),
            v4::UnlockMsg::NUMBER => (Self::Unlock, Form::Message),
            v4::Share::NUMBER => (Self::Share, Form::Call),
            v4::Unshare::NUMBER => (Self::Unshare, Form::Call),
            v4::NmLock::NUMBER => (Self::NmLock, Form::Call),
            v4::FreeAll::NUMBER => (Self::FreeAll, Form::Call),
            _ => return None,
        })
    }

    /// The procedure that carries the answer to a message.
    fn result(self) -> u32 {
        match self {
            Self::Test => v4::TestRes::NUMBER,
            Self::Cancel => v4::CancelRes::NUMBER,
            Self::Unlock => v4::UnlockRes::NUMBER,
            _ => v4::LockRes::NUMBER,
        }
    }
}

impl Deferred for Nlm {
    fn program(&self) -> u32 {
        nlm::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        // Version 2 is a private matter of some clients; the services of this list are exact.
        &[nlm::V1, nlm::V3, nlm::V4]
    }

    fn repeat(&self, call: &Call) -> Repeat {
        match Kind::of(call.procedure) {
            None | Some((Kind::Test, Form::Call)) => Repeat::Harmless,
            Some(_) => Repeat::Lock,
        }
    }

    /// Every question but FREE_ALL begins with a cookie, up to two flags, and the caller's name.
    fn sender<'a>(&self, call: &'a Call) -> Option<&'a [u8]> {
        let flags = match Kind::of(call.procedure)?.0 {
            Kind::Test => 1,
            Kind::Lock | Kind::NmLock | Kind::Cancel => 2,
            Kind::Unlock | Kind::Share | Kind::Unshare => 0,
            Kind::FreeAll => return opaque_at(&call.args, 0).map(|(name, _)| name),
        };
        let (_, after_cookie) = opaque_at(&call.args, 0)?;
        opaque_at(&call.args, after_cookie + 4 * flags).map(|(name, _)| name)
    }

    fn take(&self, task: Task, patience: Patience, mail: &mut Mailbag) -> Option<Task> {
        let Some(version) = Version::from_number(task.call.version) else {
            task.not_run(mail, Accepted::ProcedureUnavailable);
            return None;
        };
        let procedure = task.call.procedure;
        match procedure {
            v4::Null::NUMBER => task.reply(mail, |_| ()),
            // We wait for nobody's locks.
            v4::Granted::NUMBER => self.deny_granted(task, version, mail),
            v4::GrantedMsg::NUMBER => task.reply(mail, |_| ()),
            v4::TestRes::NUMBER..=v4::UnlockRes::NUMBER => task.reply(mail, |_| ()),
            v4::GrantedRes::NUMBER => self.take_granted_res(task, version, mail),
            _ => match Kind::of(procedure) {
                Some((kind, form)) if procedure < 20 || version.has_shares() => {
                    return self.take_question(task, version, kind, form, patience, mail);
                }
                _ => task.not_run(mail, Accepted::ProcedureUnavailable),
            },
        }
        None
    }

    /// A message gets its result again, as another message.
    fn again(&self, call: &Call, peer: &Peer, kept: Message) -> Message {
        let (Some((kind, Form::Message)), Some(version)) =
            (Kind::of(call.procedure), Version::from_number(call.version))
        else {
            return kept;
        };
        self.outbound.send_result(peer, version, kind.result(), kept.to_bytes());
        success(call.xid, |_| ())
    }

    fn flush(&self) {
        self.driver.flush();
    }

    fn heard(&self, address: IpAddr) {
        self.driver.report(Input::Heard(address));
    }
}

/// Where a question comes from and what file it concerns.
struct Asker {
    caller: Caller,
    owner: OwnerName,
    file: FileKey,
    handle: Handle,
}

impl Nlm {
    fn deny_granted(&self, task: Task, version: Version, mail: &mut Mailbag) {
        match nlm::TestArgs::from_bytes_as(version, task.call.args.clone()) {
            Ok(args) => {
                let status = Status::Denied;
                let reply = nlm::StatusReply { cookie: args.cookie, status };
                task.reply(mail, |out| reply.encode_as(version, out));
            }
            Err(_) => task.not_run(mail, Accepted::GarbageArgs),
        }
    }

    fn take_granted_res(&self, task: Task, version: Version, mail: &mut Mailbag) {
        // A user of the waiter's machine could deny what its kernel has taken.
        if self.reserved_ports && !task.peer.uses_reserved_port() {
            return task.deny(mail, Denial::Auth(AuthStatus::TooWeak));
        }
        match nlm::StatusReply::from_bytes_as(version, task.call.args.clone()) {
            Ok(answer) => {
                let from = task.peer.remote.ip();
                self.outbound.granted_res(from, &answer.cookie, answer.status);
                task.reply(mail, |_| ());
            }
            Err(_) => task.not_run(mail, Accepted::GarbageArgs),
        }
    }

    fn take_question(
        &self,
        task: Task,
        version: Version,
        kind: Kind,
        form: Form,
        patience: Patience,
        mail: &mut Mailbag,
    ) -> Option<Task> {
        match self.question(&task, version, kind, form, patience) {
            Ok((ask, letter)) => {
                let claim = Claim::of(&ask, &self.liveness);
                let outbound = self.outbound.clone();
                self.driver.ask(ask, Box::new(Reach { task, letter, outbound, claim }));
                None
            }
            Err(Refused::NotNow) => Some(task),
            Err(Refused::Garbage) => {
                task.not_run(mail, Accepted::GarbageArgs);
                None
            }
            Err(Refused::Port) => {
                task.deny(mail, Denial::Auth(AuthStatus::TooWeak));
                None
            }
            Err(Refused::Status(letter, status)) => {
                let outbound = self.outbound.clone();
                Reach { task, letter, outbound, claim: None }.refuse(status, mail);
                None
            }
        }
    }

    fn question(
        &self,
        task: &Task,
        version: Version,
        kind: Kind,
        form: Form,
        patience: Patience,
    ) -> Result<(Ask, Letter), Refused> {
        let args = task.call.args.clone();
        let id = self.driver.new_id();
        let letter = |cookie: nlm::Cookie, waits| Letter {
            kind,
            form,
            version,
            cookie,
            waits,
            reclaim: false,
        };
        let at = Place { nlm: self, task, version, patience };
        match kind {
            Kind::Test => {
                let args: nlm::TestArgs = decode(version, args)?;
                let letter = letter(args.cookie, false);
                let (asker, _) = at.asker(&letter, &args.lock, needs(args.exclusive))?;
                let range = at.range(&letter, args.lock.range)?;
                let Asker { caller, owner, file, .. } = asker;
                let mode = mode(args.exclusive);
                Ok((Ask::Test(TestRequest { id, caller, owner, file, range, mode }), letter))
            }
            Kind::Lock | Kind::NmLock => {
                let args: nlm::LockArgs = decode(version, args)?;
                let letter = Letter { reclaim: args.reclaim, ..letter(args.cookie, args.block) };
                let needed = match args.reclaim {
                    true => Needs::Handle,
                    false => needs(args.exclusive),
                };
                let (asker, stateless) = at.asker(&letter, &args.lock, needed)?;
                let range = at.range(&letter, args.lock.range)?;
                let Asker { caller, owner, file, handle } = asker;
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
                    form,
                    stateless,
                    connected: task.connected().map(|since| self.driver.clock().mono(since)),
                };
                Ok((Ask::Lock(request), letter))
            }
            Kind::Cancel => {
                let args: nlm::CancelArgs = decode(version, args)?;
                let letter = letter(args.cookie, args.block);
                let (asker, _) = at.asker(&letter, &args.lock, Needs::Handle)?;
                let range = at.range(&letter, args.lock.range)?;
                let Asker { caller, owner, file, .. } = asker;
                let mode = mode(args.exclusive);
                Ok((Ask::Cancel(CancelRequest { id, caller, owner, file, range, mode }), letter))
            }
            Kind::Unlock => {
                let args: nlm::UnlockArgs = decode(version, args)?;
                let letter = letter(args.cookie, false);
                let (asker, _) = at.asker(&letter, &args.lock, Needs::Handle)?;
                let range = at.range(&letter, args.lock.range)?;
                let Asker { caller, owner, file, .. } = asker;
                Ok((Ask::Unlock(UnlockRequest { id, caller, owner, file, range }), letter))
            }
            Kind::Share | Kind::Unshare => {
                let args: nlm::ShareArgs = decode(version, args)?;
                let letter = letter(args.cookie, false);
                let nlm::Share { caller_name, file, owner, mode, access } = args.share;
                let (access, deny) = (access_of(access as u32), access_of(mode as u32));
                let needed = match kind == Kind::Unshare || args.reclaim {
                    true => Needs::Handle,
                    false => needs(access.write),
                };
                let (file, _, _) = at.file(&letter, &file, needed)?;
                let (caller, tag) = (at.caller(&caller_name), OwnerTag::new(&owner));
                let ask = match kind {
                    Kind::Unshare => Ask::Unshare(UnshareRequest { id, caller, tag, file }),
                    _ => {
                        let reclaim = args.reclaim;
                        let request = ShareRequest { id, caller, tag, file, access, deny, reclaim };
                        Ask::Share(request)
                    }
                };
                Ok((ask, letter))
            }
            Kind::FreeAll => {
                let args: nlm::FreeAllArgs = decode(version, args)?;
                at.admit_port(self.reserved_ports)?;
                let (source, name) = (task.peer.remote.ip(), Name::new(&args.name));
                let letter = letter(nlm::Cookie::default(), false);
                Ok((Ask::FreeAll(FreeAllRequest { id, source, name }), letter))
            }
        }
    }
}

/// Why a question does not reach the keeper.
enum Refused {
    NotNow,
    Garbage,
    /// Not from a port that only an administrator of the client can use.
    Port,
    Status(Letter, Status),
}

/// One call on its way to becoming a question.
struct Place<'a> {
    nlm: &'a Nlm,
    task: &'a Task,
    version: Version,
    patience: Patience,
}

impl Place<'_> {
    fn caller(&self, name: &nlm::CallerName) -> Caller {
        let Peer { remote, local, transport } = self.task.peer;
        let transport = match transport {
            Transport::Tcp => keeper::identity::Transport::Tcp,
            Transport::Udp => keeper::identity::Transport::Udp,
        };
        Caller {
            host: HostKey::new(remote.ip(), Name::new(name)),
            lane: Lane::new(local.ip(), transport, self.version.number() as u8),
        }
    }

    fn asker(
        &self,
        letter: &Letter,
        lock: &nlm::Lock,
        needs: Needs,
    ) -> Result<(Asker, bool), Refused> {
        let (file, handle, stateless) = self.file(letter, &lock.file, needs)?;
        let owner = OwnerName { number: lock.svid as u32, tag: OwnerTag::new(&lock.owner) };
        Ok((Asker { caller: self.caller(&lock.caller_name), owner, file, handle }, stateless))
    }

    fn file(
        &self,
        letter: &Letter,
        handle: &nlm::FileHandle,
        needs: Needs,
    ) -> Result<(FileKey, Handle, bool), Refused> {
        let Task { call, peer, .. } = self.task;
        let files = &self.nlm.files;
        let refused = |error| match error {
            vfs::Error::WouldBlock => Refused::NotNow,
            error => Refused::Status(letter.clone(), status(error)),
        };
        let target = files.lock_target(handle).map_err(refused)?;
        let rules = target.export.as_ref().map(|export| &export.rules);
        self.admit_port(rules.map_or(self.nlm.reserved_ports, |rules| rules.reserved_ports))?;
        let stateless = rules.is_some_and(|rules| rules.stateless_clients);
        files.may_lock(&target, needs, &call.credential, peer, self.patience).map_err(refused)?;
        Ok((target.file, Handle::new(handle), stateless))
    }

    fn admit_port(&self, reserved: bool) -> Result<(), Refused> {
        let refused = reserved && !self.task.peer.uses_reserved_port();
        if refused { Err(Refused::Port) } else { Ok(()) }
    }

    /// An UNLOCK or CANCEL of what cannot be held is done: nothing else makes a client content.
    fn range(&self, letter: &Letter, range: nlm::Range) -> Result<Range, Refused> {
        Range::at(range.offset, range.length).map_err(|_| {
            let status = match letter.kind {
                Kind::Unlock | Kind::Cancel => Status::Granted,
                _ => Status::FBig,
            };
            Refused::Status(letter.clone(), status)
        })
    }
}

fn decode<T: Versioned>(version: Version, args: Bytes) -> Result<T, Refused> {
    T::from_bytes_as(version, args).map_err(|_| Refused::Garbage)
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

fn status(error: vfs::Error) -> Status {
    match error {
        vfs::Error::Stale | vfs::Error::BadHandle | vfs::Error::NotFound => Status::StaleFh,
        vfs::Error::ReadOnly => Status::RoFs,
        // Not DENIED: the program would take that for "somebody else has it".
        _ => Status::Failed,
    }
}

/// The bytes of an opaque field at `at`, and where the next field is.
fn opaque_at(args: &Bytes, at: usize) -> Option<(&[u8], usize)> {
    let length = args.get(at..)?.first_chunk::<4>().map(|word| u32::from_be_bytes(*word))?;
    let end = (at + 4).checked_add(length as usize)?;
    let bytes = args.get(at + 4..end)?;
    Some((bytes, end.next_multiple_of(4)))
}
