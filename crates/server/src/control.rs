//! The interface between a running server and what observes and operates it, the admin API or an
//! embedding program: reads of the keeper, operators' commands, and the paths of locked files. Lists for
//! embedding programs are in `lock_listing.rs`, events in `event_reader.rs`.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::identity::HostKey;
use keeper::request::{OperatorAction, OperatorRequest, ProbeAnswer, Question};
use keeper::step::{OperatorError, OperatorOutcome, Reply};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use vfs::{BlockingMode, Caller, Context, Export, Exports, FileKey, FileKind, FileSystemId};

use crate::client_io::ClientIo;
use crate::engine::request::Request;
use crate::engine::{Decision, Engine};
use crate::event_log::EventLog;
use crate::event_text::EventText;
use crate::files::{Files, file_of_lock, lock_key};
use crate::io_counts::IoTotals;
use crate::liveness::{Inquiry, Liveness};
use crate::metrics::Metrics;
use crate::path_lookup::{Findings, PathLookups};
use crate::read_budget::ReadBudget;
use crate::registrar::RpcbindState;
use crate::restore::OpenReason;
use crate::roster_copy::CopyHealth;

/// How long a command may take: longer than [`STALL_MAX`](crate::engine::request::STALL_MAX).
const COMMAND_MAX: Duration = Duration::from_secs(10);
/// How long a read of the keeper may wait. It waits this long only while the store fails.
const READ_MAX: Duration = Duration::from_secs(2);

/// A reference to a running server: lists locks and clients, carries out operators' commands, reads
/// events.
#[derive(Clone)]
pub struct Control {
    pub(crate) engine: Engine,
    pub(crate) files: Arc<Files>,
    pub(crate) liveness: Liveness,
    pub(crate) event_log: Arc<EventLog>,
    pub(crate) metrics: Option<Arc<Metrics>>,
    pub(crate) rpcbind: RpcbindState,
    pub(crate) open_reason: Option<OpenReason>,
    pub(crate) roster_copy: Option<CopyHealth>,
    pub(crate) lookups: Arc<PathLookups>,
    /// Of reads; `None` does not limit them.
    pub(crate) budget: Option<ReadBudget>,
}

/// Why a read or a command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The command was not possible.
    #[error(transparent)]
    Refused(#[from] OperatorError),
    /// The store fails, or the lease on it.
    #[error("the store does not answer; locks wait until it does")]
    Stalled,
    /// The budget of reads is used up by others.
    #[error("too many requests")]
    Busy,
    /// Nothing is decided any more.
    #[error("the server is stopping")]
    Ending,
}

/// The path of a locked file, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileLocation {
    /// The path of the export that has the file.
    pub export: Option<Vec<u8>>,
    /// The path below the export; empty for its root.
    pub path: Option<Vec<u8>>,
    /// Its inode number, if it has no known path.
    pub inode: Option<u64>,
    /// The file system did not answer in time.
    pub unanswered: bool,
}

impl FileLocation {
    fn of(export: &Export, path: Vec<u8>) -> Self {
        Self { path: Some(path), ..Self::in_export(export) }
    }

    fn in_export(export: &Export) -> Self {
        Self { export: Some(export.path.to_vec()), ..Self::default() }
    }
}

/// A file or directory that a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathMatch {
    pub file: keeper::bytes::FileKey,
    pub directory: bool,
    /// The path of the export.
    pub export: Vec<u8>,
    /// The path below the export, without leading slash; empty for its root.
    pub path: Vec<u8>,
}

impl PathMatch {
    /// Whether a file is below this directory. False if its path is not known.
    pub fn contains(&self, file: &FileLocation) -> bool {
        let Some(path) = &file.path else { return false };
        let below = path.strip_prefix(&self.path[..]);
        file.export.as_ref() == Some(&self.export)
            && below.is_some_and(|below| self.path.is_empty() || below.starts_with(b"/"))
    }

    /// Whether a file may be below this directory whose file system did not say where it is.
    pub fn may_contain(&self, key: &keeper::bytes::FileKey, file: &FileLocation) -> bool {
        let filesystem = |key| file_of_lock(key).map(|file| file.filesystem);
        file.unanswered && filesystem(key) == filesystem(&self.file)
    }
}

/// What a path names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedPath {
    /// In the order of the exports.
    pub matches: Vec<PathMatch>,
    /// The paths of exports that may have it too, whose file systems did not answer.
    pub unanswered: Vec<Vec<u8>>,
}

impl Control {
    /// Not part of the interface of the library.
    #[doc(hidden)]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Not part of the interface of the library.
    #[doc(hidden)]
    pub fn event_log(&self) -> &EventLog {
        &self.event_log
    }

    /// Not part of the interface of the library.
    #[doc(hidden)]
    pub fn metrics(&self) -> Option<&Metrics> {
        self.metrics.as_deref()
    }

    /// How clients find the lock service.
    pub fn rpcbind(&self) -> &RpcbindState {
        &self.rpcbind
    }

    /// Why the store was not believed at the start, other than by its own judgement.
    pub fn open_reason(&self) -> Option<OpenReason> {
        self.open_reason
    }

    /// Why the copy of the roster is out of date; `None` if it is not, or there is none.
    #[doc(hidden)]
    pub fn roster_copy_problem(&self) -> Option<String> {
        self.roster_copy.as_ref().and_then(CopyHealth::problem)
    }

    /// What is served now.
    pub fn exports(&self) -> Arc<Exports> {
        self.files.exports()
    }

    /// Whether a file system has answered none of its calls for a while.
    pub fn is_stalled(&self, file_system: FileSystemId) -> bool {
        self.files.is_stalled(file_system)
    }

    /// What was done in each export that is served, by its id.
    pub fn export_io(&self) -> HashMap<u32, IoTotals> {
        self.files.export_io()
    }

    /// The clients with the most NFS calls, at most so many, and the number of all that are known.
    pub fn client_io(&self, limit: usize) -> (Vec<ClientIo>, usize) {
        self.files.client_io.list(limit)
    }

    /// The same server, with reads limited by this budget.
    #[doc(hidden)]
    pub fn with_budget(self, budget: ReadBudget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// Calls `read` with the keeper, on the engine's thread: it must be short. Waits for the budget of
    /// reads, if there is one. Fails with [`ControlError::Stalled`] after two seconds, or
    /// [`ControlError::Busy`] if the budget is what it waited for.
    #[doc(hidden)]
    pub async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Keeper) -> R + Send + 'static,
    ) -> Result<R, ControlError> {
        let began = AtomicBool::new(false);
        let answered = async {
            let Some(budget) = &self.budget else {
                began.store(true, Ordering::Relaxed);
                return self.engine.read(read).await;
            };
            let turn = budget.turn().await;
            began.store(true, Ordering::Relaxed);
            let charged = budget.clone();
            let answer = self.engine.read(move |keeper| {
                let start = Instant::now();
                let answer = read(keeper);
                let end = Instant::now();
                charged.charge(end - start, end);
                answer
            });
            let answer = answer.await;
            drop(turn);
            answer
        };
        match timeout(READ_MAX, answered).await {
            Ok(Some(answer)) => Ok(answer),
            _ if self.engine.has_ended() => Err(ControlError::Ending),
            _ if !began.load(Ordering::Relaxed) && self.engine.stalled_for().is_none() => {
                Err(ControlError::Busy)
            }
            _ => Err(ControlError::Stalled),
        }
    }

    /// Carries out an operator's command. Its events carry the name `by`.
    pub async fn operate(
        &self,
        by: &Name,
        action: OperatorAction,
    ) -> Result<OperatorOutcome, ControlError> {
        let request = OperatorRequest { id: self.engine.new_id(), by: by.clone(), action };
        match self.ask(Request::Operator(request)).await? {
            Reply::Operator(done) => done.map_err(ControlError::Refused),
            _ => Err(ControlError::Stalled),
        }
    }

    /// Carries out a request; its changes are durable when it returns.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, ControlError> {
        let (answer, answered) = oneshot::channel();
        let sink = move |decision, _: &mut _| {
            // The caller may have been cancelled; the command is carried out nevertheless.
            let _ = answer.send(decision);
        };
        self.engine.ask(request, Box::new(sink));
        self.engine.flush();
        match timeout(COMMAND_MAX, answered).await {
            Ok(Ok(Decision::Reply(reply))) => Ok(reply),
            Ok(Ok(Decision::Stalled(_))) => Err(ControlError::Stalled),
            Ok(Err(_)) | Err(_) if self.engine.has_ended() => Err(ControlError::Ending),
            Ok(Err(_)) | Err(_) => Err(ControlError::Stalled),
        }
    }

    /// Logs a command that did not go through the keeper, such as a reload.
    #[doc(hidden)]
    pub fn log_command(&self, kind: &'static str, text: String, by: &Name) {
        let event = EventText::of_operator(kind, text, by.clone());
        event.log();
        self.event_log.write(self.engine.clock().now().wall_ms, event);
    }

    /// The addresses from which a machine of this name has mounted.
    #[doc(hidden)]
    pub fn mounted_from(&self, name: &Name) -> Vec<IpAddr> {
        let mounted = self.files.fences.mounted_from(name).into_iter();
        mounted.map(|(host, _)| host.address()).collect()
    }

    /// Asks a host's lock manager whether it is there. May take seconds.
    #[doc(hidden)]
    pub async fn is_reachable(&self, host: HostKey) -> bool {
        let asked = std::time::Instant::now();
        let inquiry = Inquiry { host, question: Question::Reachable, asked };
        self.liveness.probe(&inquiry).await == ProbeAnswer::Alive
    }

    /// The location of a file, if a LOOKUP or a similar request has named it. Does not block.
    #[doc(hidden)]
    pub fn cached_location(&self, file: &keeper::bytes::FileKey) -> Option<FileLocation> {
        let file = file_of_lock(file)?;
        let exports = self.files.exports();
        exports.iter().filter(|export| is_in(&file, export)).find_map(|export| {
            let path = self.files.names.path(&file, &export.filesystem.root())?;
            Some(FileLocation::of(export, path))
        })
    }

    /// The path of the first export that has the file. Does not block.
    #[doc(hidden)]
    pub fn export_of(&self, file: &keeper::bytes::FileKey) -> Option<Vec<u8>> {
        let file = file_of_lock(file)?;
        let exports = self.files.exports();
        exports.iter().find(|export| is_in(&file, export)).map(|export| export.path.to_vec())
    }

    /// The locations of files, as far as they can be found within a second.
    #[doc(hidden)]
    pub async fn locate(
        &self,
        files: impl IntoIterator<Item = keeper::bytes::FileKey>,
    ) -> Vec<(keeper::bytes::FileKey, FileLocation)> {
        let mut located = Vec::new();
        let mut unseen: HashMap<FileSystemId, Vec<(keeper::bytes::FileKey, FileKey)>> =
            HashMap::new();
        for key in files {
            match (self.cached_location(&key), file_of_lock(&key)) {
                (Some(cached), _) => located.push((key, cached)),
                (None, None) => located.push((key, FileLocation::default())),
                (None, Some(file)) => unseen.entry(file.filesystem).or_default().push((key, file)),
            }
        }
        let mut searches = JoinSet::new();
        for (filesystem, files) in unseen {
            let control = self.clone();
            searches.spawn(async move { control.locate_in(filesystem, files).await });
        }
        while let Some(found) = searches.join_next().await {
            located.extend(found.unwrap_or_default());
        }
        located
    }

    async fn locate_in(
        &self,
        filesystem: FileSystemId,
        files: Vec<(keeper::bytes::FileKey, FileKey)>,
    ) -> Vec<(keeper::bytes::FileKey, FileLocation)> {
        let exports = self.files.exports();
        let exports = exports.iter().filter(|export| export.filesystem.id() == filesystem);
        let exports: Vec<Arc<Export>> = exports.cloned().collect();
        let Some(first) = exports.first() else {
            return files.into_iter().map(|(key, _)| (key, FileLocation::default())).collect();
        };
        let unanswered = FileLocation { unanswered: true, ..FileLocation::in_export(first) };
        let sought = files.clone();
        let look = move |found: &Findings<_>| {
            for (key, file) in sought {
                // Fails if the request has been answered without.
                if found.send((key, locate_among(&exports, &file))).is_err() {
                    return;
                }
            }
        };
        let (mut found, all) = self.lookups.run(filesystem, look).await;
        if !all {
            let seen: HashSet<_> = found.iter().map(|(key, _)| key.clone()).collect();
            let rest = files.into_iter().filter(|(key, _)| !seen.contains(key));
            found.extend(rest.map(|(key, _)| (key, unanswered.clone())));
        }
        found
    }

    /// The files that a path names: an absolute path, one below each export, or one that begins with
    /// the last names of an export's own path (`projects/a.db` in `/srv/projects`). Takes a second at
    /// most.
    #[doc(hidden)]
    pub async fn resolve_path(&self, path: &[u8]) -> ResolvedPath {
        let exports = self.files.exports();
        let mut searches = JoinSet::new();
        for (position, export) in exports.iter().cloned().enumerate() {
            if below_export(&export.path, path).is_empty() {
                continue;
            }
            let (lookups, path) = (self.lookups.clone(), path.to_vec());
            searches.spawn(async move {
                let filesystem = export.filesystem.id();
                let exported_at = export.path.to_vec();
                let look = move |found: &Findings<_>| {
                    let below = below_export(&export.path, &path);
                    if let Some(first) = below.iter().find_map(|below| walk(&export, below)) {
                        let _ = found.send(first);
                    }
                };
                let (found, all) = lookups.run(filesystem, look).await;
                (position, found, (!all).then_some(exported_at))
            });
        }
        let mut searched = searches.join_all().await;
        searched.sort_by_key(|(position, ..)| *position);
        let mut resolved = ResolvedPath::default();
        for (_, found, unanswered) in searched {
            let unanswered = unanswered.filter(|_| found.is_empty());
            resolved.matches.extend(found);
            resolved.unanswered.extend(unanswered);
        }
        let late = exports.opening().iter().map(|export| export.path.to_vec());
        resolved.unanswered.extend(late.filter(|late| !below_export(late, path).is_empty()));
        if path.starts_with(b"/") {
            // The innermost export that has it decides.
            let depth = |export: &[u8]| parts(export).len();
            let found = resolved.matches.iter().map(|found| depth(&found.export)).max();
            resolved.unanswered.retain(|export| found.is_none_or(|found| depth(export) > found));
        }
        resolved
    }
}

/// Blocks on the file system.
fn locate_among(exports: &[Arc<Export>], file: &FileKey) -> FileLocation {
    let mut location = FileLocation::default();
    for export in exports {
        if let Some(path) = export.filesystem.path(&file.object) {
            return FileLocation::of(export, path);
        }
        if location.export.is_none() {
            let caller = Caller::new(0, 0, &[]);
            let context = Context { caller: &caller, blocking: BlockingMode::MayBlock };
            let attributes = export.filesystem.attributes(&context, &file.object).ok();
            let inode = attributes.map(|attributes| attributes.fileid);
            location = FileLocation { inode, ..FileLocation::in_export(export) };
        }
    }
    location
}

/// Blocks on the file system.
fn walk(export: &Export, below: &[&[u8]]) -> Option<PathMatch> {
    let caller = Caller::new(0, 0, &[]);
    let context = Context { caller: &caller, blocking: BlockingMode::MayBlock };
    let filesystem = &export.filesystem;
    let mut at = filesystem.root();
    let mut kind = FileKind::Directory;
    for part in below {
        let looked = filesystem.lookup(&context, &at, part).ok()?;
        (at, kind) = (looked.object, looked.attributes.kind);
    }
    let file = lock_key(&FileKey { filesystem: filesystem.id(), object: at });
    let (export, path) = (export.path.to_vec(), below.join(&b'/'));
    Some(PathMatch { file, directory: kind == FileKind::Directory, export, path })
}

/// The paths below an export that `path` may mean, the likeliest first.
fn below_export<'a>(export: &[u8], path: &'a [u8]) -> Vec<Vec<&'a [u8]>> {
    let (of_export, parts) = (parts(export), parts(path));
    if path.starts_with(b"/") {
        let is_below = parts.starts_with(&of_export);
        return is_below.then(|| parts[of_export.len()..].to_vec()).into_iter().collect();
    }
    let ends = (1..=parts.len()).filter(|count| of_export.ends_with(&parts[..*count]));
    let below = ends.rev().map(|count| parts[count..].to_vec()).collect::<Vec<_>>();
    std::iter::once(parts.clone()).chain(below).collect()
}

fn parts(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect()
}

fn is_in(file: &FileKey, export: &Export) -> bool {
    export.filesystem.id() == file.filesystem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_or_below_an_export_or_begins_with_its_last_names() {
        let below = |export: &str, path: &str| -> Vec<String> {
            let found = below_export(export.as_bytes(), path.as_bytes());
            found.iter().map(|parts| parts.join(&b'/').escape_ascii().to_string()).collect()
        };
        assert_eq!(below("/srv/projects", "/srv/projects/a.db"), ["a.db"]);
        assert_eq!(below("/srv/projects", "/srv/projects/"), [""]);
        assert!(below("/srv/projects", "/srv/projects2/a.db").is_empty());
        assert_eq!(below("/", "/srv//a.db"), ["srv/a.db"]);
        assert_eq!(below("/srv/projects", "a.db"), ["a.db"]);
        assert_eq!(below("/srv/projects", "projects/a.db"), ["projects/a.db", "a.db"]);
        assert_eq!(below("/srv/projects", "srv/projects/a.db"), ["srv/projects/a.db", "a.db"]);
        assert_eq!(below("/srv/projects", "projects"), ["projects", ""]);
    }
}
