//! NFSv3 (RFC 1813): from a call to the file system that it concerns.
//!
//! This file finds the file and the caller and applies the export's rules; what each procedure
//! does is in [`files`], [`directories`] and [`volume`].

mod directories;
mod files;
mod translate;
mod volume;

use std::sync::Arc;

use tracing::warn;

use vfs::{Access, Attributes, Caller, Context, Error, Export, ObjectId, Patience, Result};
use wire::nfs3::{self, Failed, Handle, Status, Wcc};
use wire::rpc::{Call, Credential, Procedure};
use wire::{Decode, Encode, Writer};

use super::{Repeat, Served, Service, decode};
use crate::files::Files;
use crate::rarely::Rarely;
use crate::rpc::pending::Incoming;
use crate::transport::Peer;

pub use translate::status;

static UNRESERVED: Rarely = Rarely::new();

pub struct Nfs3 {
    files: Arc<Files>,
}

/// One call on its way through.
struct Request<'a> {
    files: &'a Files,
    credential: &'a Credential,
    peer: &'a Peer,
    patience: Patience,
}

/// A file that a handle led to, and as whom it is used.
struct Target {
    export: Arc<Export>,
    object: ObjectId,
    caller: Caller,
    patience: Patience,
}

impl Target {
    fn context(&self) -> Context<'_> {
        Context { caller: &self.caller, patience: self.patience }
    }

    fn attributes(&self) -> Option<Attributes> {
        self.export.filesystem.attributes(&self.context(), &self.object).ok()
    }

    /// What a reply tells of a file that an operation did not change.
    fn seen(&self) -> Option<nfs3::Attributes> {
        self.attributes().map(|a| translate::attributes(&a, &self.export))
    }

    fn unchanged(&self) -> Wcc {
        Wcc { before: None, after: self.seen() }
    }

    fn may_change(&self) -> Result<()> {
        match self.export.rules.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly),
        }
    }
}

impl Request<'_> {
    /// The file of a handle, to read it or to find others by it. Not from a port that any user
    /// of the client can send from, if the export says so: such a user could claim to be another.
    fn open(&self, handle: &Handle) -> Result<Target> {
        let target = self.open_to_look(handle)?;
        admit_port(&target.export, self.peer)?;
        Ok(target)
    }

    /// The file of a handle, if it is ours, still exported, and this client may use it; to look
    /// at what tells nothing of its content.
    fn open_to_look(&self, handle: &Handle) -> Result<Target> {
        let opened = self.files.open(handle)?;
        let export = self.files.export_of(&opened, self.peer)?;
        // A file system that is not prompt is never asked on a network thread.
        if self.patience == Patience::Now && !export.filesystem.prompt() {
            return Err(Error::WouldBlock);
        }
        let caller = self.files.caller(&export, self.credential, self.patience)?;
        Ok(Target { export, object: opened.file.object, caller, patience: self.patience })
    }

    /// The same, for an operation that changes something.
    fn open_to_change(&self, handle: &Handle) -> Result<Target> {
        let target = self.open(handle)?;
        target.may_change()?;
        // An operator has shut this machine out (R8.1).
        if self.files.fences.has(self.peer.remote.ip()) {
            return Err(Error::Denied);
        }
        Ok(target)
    }
}

/// Refuses ports that any user can send from, and tells the operator how to allow them.
pub fn admit_port(export: &Export, peer: &Peer) -> Result<()> {
    if !export.rules.reserved_ports || peer.uses_reserved_port() {
        return Ok(());
    }
    if UNRESERVED.due() {
        let (path, from) = (export.path.escape_ascii(), peer.remote);
        warn!(
            "refused {path} to {from}, which is not a reserved port; mount it with -o resvport \
             (the default on Linux, not on macOS), or set ports = \"any\" for the export"
        );
    }
    Err(Error::NotOwner)
}

impl Nfs3 {
    pub fn new(files: Arc<Files>) -> Self {
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

    fn repeat(&self, call: &Call, peer: &Peer) -> Repeat {
        let repeat = match call.procedure {
            nfs3::SetAttr::NUMBER
            | nfs3::Create::NUMBER
            | nfs3::MkDir::NUMBER
            | nfs3::SymLink::NUMBER
            | nfs3::MkNod::NUMBER
            | nfs3::Remove::NUMBER
            | nfs3::RmDir::NUMBER
            | nfs3::Rename::NUMBER
            | nfs3::Link::NUMBER => Repeat::Once,
            nfs3::Write::NUMBER => Repeat::Bulk,
            _ => return Repeat::Harmless,
        };
        // A stranger's calls are refused as often as they come.
        if self.files.admits(peer.remote.ip()) { repeat } else { Repeat::Harmless }
    }

    fn reply_bytes(&self, call: &Call) -> usize {
        match call.procedure {
            // The count is the last word of all three.
            nfs3::Read::NUMBER | nfs3::ReadDir::NUMBER | nfs3::ReadDirPlus::NUMBER => {
                let count = call.args.last_chunk().map_or(0, |word| u32::from_be_bytes(*word));
                512 + count.min(nfs3::IO_BYTES_MAX) as usize
            }
            _ => 512,
        }
    }

    fn serve(&self, incoming: &mut Incoming<'_>, patience: Patience, out: &mut Writer) -> Served {
        let (call, peer) = (incoming.call, incoming.peer);
        let request = Request { files: &self.files, credential: &call.credential, peer, patience };
        // Changes wait for disks, and listings may: they start on a worker.
        let now = patience == Patience::Now;
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
            nfs3::SetAttr::NUMBER..=nfs3::Commit::NUMBER if now => Served::NOT_NOW,
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
            _ => Served::NO_SUCH_PROCEDURE,
        }
    }
}

/// A failure on its way to the client, with what the reply still tells; `Err(None)` is a call
/// that needs patience.
type Refusal<F> = Option<Box<Failed<F>>>;

fn run<A: Decode, T: Encode, F: Encode>(
    call: &Call,
    out: &mut Writer,
    procedure: impl FnOnce(A) -> std::result::Result<T, Refusal<F>>,
) -> Served {
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
        Err(None) => return Served::NOT_NOW,
    }
    Served::Reply
}

/// Turns an error into a refusal; `told` is asked for only if there is somebody to tell.
fn refuse<F>(told: impl FnOnce() -> F) -> impl FnOnce(Error) -> Refusal<F> {
    move |error| match error {
        Error::WouldBlock => None,
        error => Some(Box::new(Failed(status(error), told()))),
    }
}

/// Names that no file can have.
fn check_name(name: &[u8]) -> Result<()> {
    const NAME_MAX: usize = 255;
    match name {
        [] => Err(Error::Invalid),
        name if name.len() > NAME_MAX => Err(Error::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}
