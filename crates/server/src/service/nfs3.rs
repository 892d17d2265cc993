//! NFSv3 (RFC 1813): dispatches calls to the file system that they concern.
//!
//! This file resolves handle and caller and applies the export's rules; the procedures are in
//! [`files`], [`directories`] and [`volume`]. A call is first tried on the network thread; one that
//! would block there is served on a worker.

mod directories;
mod files;
mod translate;
mod volume;

use std::sync::Arc;

use vfs::{
    Attributes, BlockingMode, Caller, Context, Error, Export, ExportAccess, ObjectId, Result,
};
use wire::nfs3::{self, ErrorReply, Handle, Status, Wcc};
use wire::rpc::{Call, Credential, Procedure};
use wire::{Decode, Encode, Writer};

use super::{CacheClass, ServeOutcome, Service, decode};
use crate::files::Files;
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
    blocking: BlockingMode,
}

/// A file, and the identity under which the call uses it.
struct Target {
    export: Arc<Export>,
    object: ObjectId,
    caller: Caller,
    blocking: BlockingMode,
}

impl Target {
    fn context(&self) -> Context<'_> {
        Context { caller: &self.caller, blocking: self.blocking }
    }

    fn attributes(&self) -> Option<Attributes> {
        self.export.filesystem.attributes(&self.context(), &self.object).ok()
    }

    /// The post-operation attributes of a reply, if they can be read.
    fn post_op_attributes(&self) -> Option<nfs3::Attributes> {
        self.attributes().map(|a| translate::attributes(&a, &self.export))
    }

    fn unchanged(&self) -> Wcc {
        Wcc { before: None, after: self.post_op_attributes() }
    }

    fn check_writable(&self) -> Result<()> {
        match self.export.rules.access {
            ExportAccess::ReadWrite => Ok(()),
            ExportAccess::ReadOnly => Err(Error::ReadOnly),
        }
    }
}

impl Request<'_> {
    /// The file of a handle, for calls that read attributes and file system properties only.
    fn inspect(&self, handle: &Handle) -> Result<Target> {
        self.target(handle, Action::Inspect)
    }

    /// The file of a handle, for calls that read its contents or look up names in it.
    fn open(&self, handle: &Handle) -> Result<Target> {
        self.target(handle, Action::UseFiles)
    }

    /// The file of a handle, for calls that change something.
    fn open_to_change(&self, handle: &Handle) -> Result<Target> {
        let target = self.open(handle)?;
        target.check_writable()?;
        // Fenced by an operator (B8.2).
        if self.files.fences.has(self.peer.remote.ip()) {
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
    fn open_to_commit(&self, handle: &Handle) -> Result<Target> {
        let target = self.open(handle)?;
        if !self.files.may_change() {
            return Err(Error::TryLater);
        }
        Ok(target)
    }

    /// The file of a handle, if the handle is genuine, its export still exists and admits the caller.
    fn target(&self, handle: &Handle, action: Action) -> Result<Target> {
        let opened = self.files.verify(handle)?;
        let export = self.files.export_of(&opened, self.peer, action)?;
        // A file system that always blocks is never called on a network thread.
        if self.blocking == BlockingMode::Nonblocking && !export.filesystem.supports_nonblocking() {
            return Err(Error::WouldBlock);
        }
        let caller = self.files.caller(&export, self.credential, self.blocking)?;
        Ok(Target { export, object: opened.file.object, caller, blocking: self.blocking })
    }
}

impl Nfs3 {
    pub(crate) fn new(files: Arc<Files>) -> Self {
        Self { files }
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
        let request = Request { files: &self.files, credential: &call.credential, peer, blocking };
        // Changes wait for the disk, and listings may: they go to a worker at once.
        let on_network_thread = blocking == BlockingMode::Nonblocking;
        match call.procedure {
            nfs3::Null::NUMBER => super::simple(call, out, |()| ()),
            nfs3::GetAttr::NUMBER => run(call, out, |args| request.get_attr(args)),
            nfs3::Lookup::NUMBER => run(call, out, |args| request.lookup(args)),
            nfs3::Access::NUMBER => run(call, out, |args| request.access(args)),
            nfs3::ReadLink::NUMBER => run(call, out, |args| request.read_link(args)),
            nfs3::Read::NUMBER => run(call, out, |args| request.read(args)),
            nfs3::FsStat::NUMBER => run(call, out, |args| request.fs_stat(args)),
            nfs3::FsInfo::NUMBER => run(call, out, |args| request.fs_info(args)),
            nfs3::PathConf::NUMBER => run(call, out, |args| request.path_conf(args)),
            nfs3::SetAttr::NUMBER..=nfs3::Commit::NUMBER if on_network_thread => {
                ServeOutcome::WOULD_BLOCK
            }
            nfs3::SetAttr::NUMBER => run(call, out, |args| request.set_attr(args)),
            nfs3::Write::NUMBER => run(call, out, |args| request.write(args)),
            nfs3::Create::NUMBER => run(call, out, |args| request.create(args)),
            nfs3::MkDir::NUMBER => run(call, out, |args| request.mk_dir(args)),
            nfs3::SymLink::NUMBER => run(call, out, |args| request.sym_link(args)),
            nfs3::MkNod::NUMBER => run(call, out, |args| request.mk_nod(args)),
            nfs3::Remove::NUMBER => run(call, out, |args| request.remove(args)),
            nfs3::RmDir::NUMBER => run(call, out, |args| request.rm_dir(args)),
            nfs3::Rename::NUMBER => run(call, out, |args| request.rename(args)),
            nfs3::Link::NUMBER => run(call, out, |args| request.link(args)),
            nfs3::ReadDir::NUMBER => run(call, out, |args| request.read_dir(args)),
            nfs3::ReadDirPlus::NUMBER => run(call, out, |args| request.read_dir_plus(args)),
            nfs3::Commit::NUMBER => run(call, out, |args| request.commit(args)),
            _ => ServeOutcome::NO_SUCH_PROCEDURE,
        }
    }
}

/// A failure with the attributes that its reply carries; `None` if the call would block and must be
/// served on a worker.
type Refusal<F> = Option<Box<ErrorReply<F>>>;

fn run<A: Decode, T: Encode, F: Encode>(
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
            failed.0.encode(out);
            failed.1.encode(out);
        }
        Err(None) => return ServeOutcome::WOULD_BLOCK,
    }
    ServeOutcome::Reply
}

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
