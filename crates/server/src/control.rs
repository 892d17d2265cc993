//! A running server as others see and steer it: what it knows, where a locked file is, and what an
//! operator wants done.

use std::sync::Arc;
use std::time::Duration;

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::identity::HostKey;
use keeper::request::{OperatorAction, OperatorRequest, ProbeAnswer, Question};
use keeper::step::{OperatorDone, OperatorError, Reply};
use tokio::sync::oneshot;
use tokio::time::timeout;
use vfs::{Caller, Context, Export, Exports, FileKey, FileKind, FileSystemId, ObjectId, Patience};

use crate::chronicle::Chronicle;
use crate::engine::request::Request;
use crate::engine::{Decision, Engine};
use crate::files::{Files, lock_key};
use crate::liveness::{Inquiry, Liveness};
use crate::meters::Meters;
use crate::news::News;
use crate::registrar::RpcbindState;

/// How long an operator waits for an answer: longer than a request waits for a store that stalls.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a look at the keeper may take: longer only while the store does not work.
const LOOK_MAX: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Control {
    pub(crate) engine: Engine,
    pub(crate) files: Arc<Files>,
    pub(crate) liveness: Liveness,
    pub(crate) chronicle: Arc<Chronicle>,
    pub(crate) meters: Option<Arc<Meters>>,
    pub(crate) rpcbind: RpcbindState,
}

/// Why an operator's wish was not fulfilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    #[error("{0:?}")]
    Refused(OperatorError),
    #[error("the store does not answer; locks wait until it does")]
    Stalled,
    #[error("the server is ending")]
    Ending,
}

/// Where a locked file is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The path of the export.
    pub export: Option<Vec<u8>>,
    /// Below the export; empty for its root.
    pub path: Option<Vec<u8>>,
    pub inode: Option<u64>,
}

impl Place {
    fn of(export: &Export, path: Vec<u8>) -> Self {
        Self { export: Some(export.path.to_vec()), path: Some(path), inode: None }
    }
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub file: keeper::bytes::FileKey,
    pub directory: bool,
    /// The path of the export, and the way below it.
    pub export: Vec<u8>,
    pub path: Vec<u8>,
}

impl Found {
    /// Whether a file lies below this directory.
    pub fn has_below(&self, place: &Place) -> bool {
        let Some(path) = &place.path else { return false };
        let below = path.strip_prefix(&self.path[..]);
        place.export.as_ref() == Some(&self.export)
            && below.is_some_and(|below| self.path.is_empty() || below.starts_with(b"/"))
    }
}

impl Control {
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn chronicle(&self) -> &Chronicle {
        &self.chronicle
    }

    pub fn meters(&self) -> Option<&Meters> {
        self.meters.as_deref()
    }

    pub fn rpcbind(&self) -> &RpcbindState {
        &self.rpcbind
    }

    pub fn exports(&self) -> Arc<Exports> {
        self.files.exports()
    }

    /// Looks at the keeper, if that is possible soon.
    pub async fn look<R: Send + 'static>(
        &self,
        look: impl FnOnce(&Keeper) -> R + Send + 'static,
    ) -> Result<R, NotDone> {
        match timeout(LOOK_MAX, self.engine.read(look)).await {
            Ok(Some(seen)) => Ok(seen),
            _ if self.engine.has_ended() => Err(NotDone::Ending),
            _ => Err(NotDone::Stalled),
        }
    }

    /// Does what an operator wants; it is on record with the operator's name.
    pub async fn operate(
        &self,
        by: &Name,
        action: OperatorAction,
    ) -> Result<OperatorDone, NotDone> {
        let (answer, answered) = oneshot::channel();
        let request = OperatorRequest { id: self.engine.new_id(), by: by.clone(), action };
        let sink = move |decision, _: &mut _| {
            // The operator may have gone away; it is done nevertheless.
            let _ = answer.send(decision);
        };
        self.engine.ask(Request::Operator(request), Box::new(sink));
        self.engine.flush();
        match timeout(PATIENCE, answered).await {
            Ok(Ok(Decision::Reply(Reply::Operator(done)))) => done.map_err(NotDone::Refused),
            Ok(Ok(Decision::Reply(_) | Decision::Stalled(_))) => Err(NotDone::Stalled),
            Ok(Err(_)) | Err(_) if self.engine.has_ended() => Err(NotDone::Ending),
            Ok(Err(_)) | Err(_) => Err(NotDone::Stalled),
        }
    }

    /// Something that an operator did to the server itself.
    pub fn note(&self, kind: &'static str, text: String, by: &Name) {
        let news = News::of_operator(kind, text, by.clone());
        news.log();
        self.chronicle.write(self.engine.clock().now().wall_ms, news);
    }

    /// Whether a host's lock manager answers now.
    pub async fn answers(&self, host: HostKey) -> bool {
        let asked = std::time::Instant::now();
        let inquiry = Inquiry { host, question: Question::Reachable, asked };
        self.liveness.probe(&inquiry).await == ProbeAnswer::Alive
    }

    /// Where a file is, if its name was seen.
    pub fn place_seen(&self, file: &keeper::bytes::FileKey) -> Option<Place> {
        let file = file_of(file)?;
        let exports = self.files.exports();
        exports.iter().filter(|export| is_in(&file, export)).find_map(|export| {
            let path = self.files.names.path(&file, &export.filesystem.root())?;
            Some(Place::of(export, path))
        })
    }

    /// Where a file is, as far as that can be known. May wait for a disk.
    pub fn place(&self, file: &keeper::bytes::FileKey) -> Place {
        if let Some(seen) = self.place_seen(file) {
            return seen;
        }
        let Some(file) = file_of(file) else { return Place::default() };
        let exports = self.files.exports();
        let mut place = Place::default();
        for export in exports.iter().filter(|export| is_in(&file, export)) {
            let filesystem = &export.filesystem;
            if let Some(path) = filesystem.path(&file.object) {
                return Place::of(export, path);
            }
            if place.export.is_none() {
                let caller = Caller::new(0, 0, &[]);
                let context = Context { caller: &caller, patience: Patience::Wait };
                place.export = Some(export.path.to_vec());
                place.inode =
                    filesystem.attributes(&context, &file.object).ok().map(|found| found.fileid);
            }
        }
        place
    }

    /// What a path names: below an export, or absolute. May wait for a disk.
    pub fn find(&self, path: &[u8]) -> Vec<Found> {
        let caller = Caller::new(0, 0, &[]);
        let context = Context { caller: &caller, patience: Patience::Wait };
        let exports = self.files.exports();
        let mut found = Vec::new();
        for export in exports.iter() {
            let below = match path.strip_prefix(&export.path[..]) {
                Some(below) if below.is_empty() || below[0] == b'/' => below,
                Some(below) if &export.path[..] == b"/" => below,
                _ if path.starts_with(b"/") => continue,
                _ => path,
            };
            let filesystem = &export.filesystem;
            let parts = below.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
            let parts: Vec<&[u8]> = parts.collect();
            let mut at = filesystem.root();
            let mut kind = FileKind::Directory;
            let walked = parts.iter().try_for_each(|part| {
                let looked = filesystem.lookup(&context, &at, part).ok()?;
                (at, kind) = (looked.object, looked.attributes.kind);
                Some(())
            });
            if walked.is_some() {
                let file = lock_key(&FileKey { filesystem: filesystem.id(), object: at });
                let (export, path) = (export.path.to_vec(), parts.join(&b'/'));
                let directory = kind == FileKind::Directory;
                found.push(Found { file, directory, export, path });
            }
        }
        found
    }
}

fn is_in(file: &FileKey, export: &Export) -> bool {
    export.filesystem.id() == file.filesystem
}

/// The file behind the keeper's key.
fn file_of(key: &keeper::bytes::FileKey) -> Option<FileKey> {
    let (filesystem, object) = key.bytes().split_first_chunk()?;
    let filesystem = FileSystemId(u64::from_be_bytes(*filesystem));
    Some(FileKey { filesystem, object: ObjectId::new(object)? })
}
