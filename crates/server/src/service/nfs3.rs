//! NFSv3 (RFC 1813): dispatches calls to the file system that they concern.
//!
//! This file resolves handle and caller and applies the export's rules; the procedures are in
//! [`files`], [`directories`] and [`volume`]. A call is first tried on the network thread; one that
//! would block there is served on a worker.

mod directories;
mod files;
#[cfg(test)]
mod tests;
mod translate;
mod volume;

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use vfs::{
    Attributes, BlockingMode, Caller, Context, Error, ExportAccess, FileSystemId, ObjectId, Result,
};
use wire::nfs3::{self, ErrorReply, Handle, Status, Wcc};
use wire::rpc::{Call, Credential, Procedure};
use wire::{Decode, Encode, Writer};

use super::{CacheClass, ServeOutcome, Service, decode};
use crate::files::{AdmittedExport, Files};
use crate::io_counts::{CallIo, CallKind};
use crate::rpc::admission::Action;
use crate::rpc::pending::IncomingCall;
use crate::transport::Peer;

use translate::status;

pub(crate) struct Nfs3 {
    files: Arc<Files>,
}

/// One call: who makes it, and whether it may block.
struct Request<'a> {
    files: &'a Files,
    credential: &'a Credential,
    peer: &'a Peer,
    mode: Mode,
    /// Of its first handle, and of the second one of RENAME and LINK.
    exports: [OnceCell<AdmittedExport>; 2],
    /// Of file contents that were read or written.
    bytes: Cell<u64>,
    failed: Cell<bool>,
}

/// How a call is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Serve(BlockingMode),
    /// The client is asked to repeat the call later; no file system is called.
    PutOff,
}

/// A file, and the identity under which the call uses it.
struct Target<'a> {
    export: &'a AdmittedExport,
    object: ObjectId,
    caller: Caller,
    blocking: BlockingMode,
}

impl Target<'_> {
    fn context(&self) -> Context<'_> {
        Context { caller: &self.caller, blocking: self.blocking }
    }

    fn attributes(&self) -> Option<Attributes> {
        self.export.filesystem.attributes(&self.context(), &self.object).ok()
    }

    /// The post-operation attributes of a reply, if they can be read.
    fn post_op_attributes(&self) -> Option<nfs3::Attributes> {
        self.attributes().map(|a| translate::attributes(&a, self.export))
    }

    fn unchanged(&self) -> Wcc {
        Wcc { before: None, after: self.post_op_attributes() }
    }

    fn check_writable(&self) -> Result<()> {
        match self.export.rules().access {
            ExportAccess::ReadWrite => Ok(()),
            ExportAccess::ReadOnly => Err(Error::ReadOnly),
        }
    }
}

impl Request<'_> {
    /// The file of a handle, for calls that read attributes and file system properties only.
    fn inspect(&self, handle: &Handle) -> Result<Target<'_>> {
        self.target(handle, Action::Inspect)
    }

    /// The file of a handle, for calls that read its contents or look up names in it.
    fn open(&self, handle: &Handle) -> Result<Target<'_>> {
        self.target(handle, Action::UseFiles)
    }

    /// The file of a handle, for calls that change something.
    fn open_to_change(&self, handle: &Handle) -> Result<Target<'_>> {
        let target = self.open(handle)?;
        target.check_writable()?;
        // Fenced by an operator (B8.2, B8.71).
        if self.files.fences.refuse(self.peer, self.credential) {
            return Err(Error::Denied);
        }
        if !self.files.may_change() {
            return Err(Error::TryLater);
        }
        Ok(target)
    }

    /// The file of a handle, for COMMIT. It changes nothing: what it makes durable was accepted before,
    /// so neither an export that has become read-only nor a fence refuses it (B1.80). It needs the
    /// lease, because after a takeover this server must not vouch for files.
    fn open_to_commit(&self, handle: &Handle) -> Result<Target<'_>> {
        let target = self.open(handle)?;
        if !self.files.may_change() {
            return Err(Error::TryLater);
        }
        Ok(target)
    }

    /// The file of a handle, if the handle is genuine, its export still exists and admits the caller.
    fn target(&self, handle: &Handle, action: Action) -> Result<Target<'_>> {
        let Mode::Serve(blocking) = self.mode else { return Err(Error::TryLater) };
        let opened = self.files.verify_for(handle, self.peer, action)?;
        let admitted = self.files.export_of(&opened, self.peer, action)?;
        let [first, second] = &self.exports;
        let free = if first.get().is_none() { first } else { second };
        let export = free.get_or_init(|| admitted);
        // A file system that always blocks is never called on a network thread.
        if blocking == BlockingMode::Nonblocking && !export.filesystem.supports_nonblocking() {
            return Err(Error::WouldBlock);
        }
        let caller = self.files.caller(export.rules(), self.credential, blocking)?;
        Ok(Target { export, object: opened.file.object, caller, blocking })
    }
}

impl Nfs3 {
    pub(crate) fn new(files: Arc<Files>) -> Self {
        Self { files }
    }

    fn request<'a>(&'a self, call: &'a Call, peer: &'a Peer, mode: Mode) -> Request<'a> {
        Request {
            files: &self.files,
            credential: &call.credential,
            peer,
            mode,
            exports: Default::default(),
            bytes: Cell::new(0),
            failed: Cell::new(false),
        }
    }

    /// The file system of the first handle: every procedure's arguments begin with it. RENAME and LINK
    /// have a second one, which must be of the same export.
    fn file_system_of(&self, call: &Call) -> Option<FileSystemId> {
        let (length, rest) = call.args.split_first_chunk::<4>()?;
        self.files.file_system_of(rest.get(..u32::from_be_bytes(*length) as usize)?)
    }
}

impl Service for Nfs3 {
    fn program(&self) -> u32 {
        nfs3::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        &[nfs3::VERSION]
    }

    fn cache_class(&self, call: &Call, peer: &Peer) -> CacheClass {
        let class = match call.procedure {
            nfs3::SetAttr::NUMBER
            | nfs3::Create::NUMBER
            | nfs3::MkDir::NUMBER
            | nfs3::SymLink::NUMBER
            | nfs3::MkNod::NUMBER
            | nfs3::Remove::NUMBER
            | nfs3::RmDir::NUMBER
            | nfs3::Rename::NUMBER
            | nfs3::Link::NUMBER => CacheClass::Once,
            nfs3::Write::NUMBER => CacheClass::Bulk,
            _ => return CacheClass::Uncached,
        };
        // Refused each time; must not fill the duplicate request cache.
        if self.files.admits(peer.remote.ip()) { class } else { CacheClass::Uncached }
    }

    fn reply_bytes(&self, call: &Call) -> usize {
        match call.procedure {
            // The byte count is the last argument of all three.
            nfs3::Read::NUMBER | nfs3::ReadDir::NUMBER | nfs3::ReadDirPlus::NUMBER => {
                let count = call.args.last_chunk().map_or(0, |word| u32::from_be_bytes(*word));
                512 + count.min(nfs3::IO_BYTES_MAX) as usize
            }
            _ => 512,
        }
    }

    fn serve(
        &self,
        incoming: &mut IncomingCall<'_>,
        blocking: BlockingMode,
        out: &mut Writer,
    ) -> ServeOutcome {
        let (call, peer) = (incoming.call, incoming.peer);
        let mut request = self.request(call, peer, Mode::Serve(blocking));
        let mut outcome = request.run(call, out);
        if outcome == WOULD_BLOCK {
            if blocking == BlockingMode::Nonblocking {
                let file_system = self.file_system_of(call);
                return ServeOutcome::WouldBlock { file_system, order: None };
            }
            // The file system has nothing to offer on a worker either.
            request.mode = Mode::PutOff;
            outcome = request.run(call, out);
        }
        if outcome == ServeOutcome::Reply
            && let Some(io) = request.io(call)
        {
            incoming.count(io);
        }
        outcome
    }

    fn write_try_later(&self, call: &Call, peer: &Peer, out: &mut Writer) -> bool {
        self.request(call, peer, Mode::PutOff).run(call, out) == ServeOutcome::Reply
    }

    fn files(&self) -> Option<Arc<Files>> {
        Some(self.files.clone())
    }
}

/// The call is to be served on a worker.
const WOULD_BLOCK: ServeOutcome = ServeOutcome::WouldBlock { file_system: None, order: None };

impl Request<'_> {
    /// What the call did, after it has run; counts it for its export.
    fn io(&self, call: &Call) -> Option<CallIo> {
        let (kind, failed) = (CallKind::of(call.procedure)?, self.failed.get());
        let io = CallIo { kind, bytes: self.bytes.get(), failed };
        if let Some(export) = self.exports[0].get() {
            export.count(io);
        }
        Some(io)
    }

    /// Decodes the arguments, runs the procedure and writes its results.
    fn run(&self, call: &Call, out: &mut Writer) -> ServeOutcome {
        // Changes wait for the disk, and listings may: they go to a worker at once.
        let on_network_thread = self.mode == Mode::Serve(BlockingMode::Nonblocking);
        match call.procedure {
            nfs3::Null::NUMBER => super::simple(call, out, |()| ()),
            nfs3::GetAttr::NUMBER => self.procedure(call, out, |args| self.get_attr(args)),
            nfs3::Lookup::NUMBER => self.procedure(call, out, |args| self.lookup(args)),
            nfs3::Access::NUMBER => self.procedure(call, out, |args| self.access(args)),
            nfs3::ReadLink::NUMBER => self.procedure(call, out, |args| self.read_link(args)),
            nfs3::Read::NUMBER => self.procedure(call, out, |args| self.read(args)),
            nfs3::FsStat::NUMBER => self.procedure(call, out, |args| self.fs_stat(args)),
            nfs3::FsInfo::NUMBER => self.procedure(call, out, |args| self.fs_info(args)),
            nfs3::PathConf::NUMBER => self.procedure(call, out, |args| self.path_conf(args)),
            nfs3::SetAttr::NUMBER..=nfs3::Commit::NUMBER if on_network_thread => WOULD_BLOCK,
            nfs3::SetAttr::NUMBER => self.procedure(call, out, |args| self.set_attr(args)),
            nfs3::Write::NUMBER => self.procedure(call, out, |args| self.write(args)),
            nfs3::Create::NUMBER => self.procedure(call, out, |args| self.create(args)),
            nfs3::MkDir::NUMBER => self.procedure(call, out, |args| self.mk_dir(args)),
            nfs3::SymLink::NUMBER => self.procedure(call, out, |args| self.sym_link(args)),
            nfs3::MkNod::NUMBER => self.procedure(call, out, |args| self.mk_nod(args)),
            nfs3::Remove::NUMBER => self.procedure(call, out, |args| self.remove(args)),
            nfs3::RmDir::NUMBER => self.procedure(call, out, |args| self.rm_dir(args)),
            nfs3::Rename::NUMBER => self.procedure(call, out, |args| self.rename(args)),
            nfs3::Link::NUMBER => self.procedure(call, out, |args| self.link(args)),
            nfs3::ReadDir::NUMBER => self.procedure(call, out, |args| self.read_dir(args)),
            nfs3::ReadDirPlus::NUMBER => self.procedure(call, out, |args| self.read_dir_plus(args)),
            nfs3::Commit::NUMBER => self.procedure(call, out, |args| self.commit(args)),
            _ => ServeOutcome::NO_SUCH_PROCEDURE,
        }
    }

    fn procedure<A: Decode, T: Encode, F: Encode>(
        &self,
        call: &Call,
        out: &mut Writer,
        procedure: impl FnOnce(A) -> std::result::Result<T, Refusal<F>>,
    ) -> ServeOutcome {
        let args: A = decode!(call);
        match procedure(args) {
            Ok(body) => {
                Status::Ok.encode(out);
                body.encode(out);
            }
            Err(Some(failed)) => {
                // To look for a name is no error.
                let absent = failed.0 == Status::NoEnt && call.procedure == nfs3::Lookup::NUMBER;
                self.failed.set(!absent);
                failed.0.encode(out);
                failed.1.encode(out);
            }
            Err(None) => return WOULD_BLOCK,
        }
        ServeOutcome::Reply
    }
}

/// A failure with the attributes that its reply carries; `None` if the call would block and must be
/// served on a worker.
type Refusal<F> = Option<Box<ErrorReply<F>>>;

/// Turns an error into a refusal. `attributes` runs only if a reply is sent.
fn refuse<F>(attributes: impl FnOnce() -> F) -> impl FnOnce(Error) -> Refusal<F> {
    move |error| match error {
        Error::WouldBlock => None,
        error => Some(Box::new(ErrorReply(status(error), attributes()))),
    }
}

/// Rejects names that no file can have.
fn check_name(name: &[u8]) -> Result<()> {
    const NAME_MAX: usize = 255;
    match name {
        [] => Err(Error::Invalid),
        name if name.len() > NAME_MAX => Err(Error::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}
