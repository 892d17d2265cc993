//! Opens directories, each on a thread of its own: a file system that hangs delays no other (B8.82).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use std::os::unix::fs::MetadataExt;

use vfs::FileSystemId;
use vfs::local::{self, LocalFs};

use crate::config;

/// What the configuration says about a directory, as far as its file system depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) path: PathBuf,
    id: Option<u64>,
    metadata: config::Metadata,
    exclusive: bool,
}

impl Wanted {
    pub(super) fn of(export: &config::Export) -> Self {
        Self {
            path: export.path.clone(),
            id: export.filesystem_id,
            metadata: export.metadata,
            exclusive: export.exclusive,
        }
    }
}

/// Identity of an opened file system. Includes device and inode, as another disk may have been
/// mounted on the same path since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExportSource {
    pub(super) root: PathBuf,
    pub(super) device: u64,
    inode: u64,
    id: Option<u64>,
    metadata: config::Metadata,
    exclusive: bool,
}

/// A directory that is open.
#[derive(Clone)]
pub(super) struct Opened {
    pub(super) wanted: Wanted,
    pub(super) source: ExportSource,
    pub(super) filesystem: Arc<LocalFs>,
    /// On btrfs each subvolume has its own device number, and handles distinguish them.
    pub(super) has_subvolumes: bool,
}

/// Where and how directories are opened.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) state: PathBuf,
    pub(super) descriptors_max: usize,
}

/// An attempt to open a directory; it goes on when no call waits for it.
pub(super) struct Opening {
    pub(super) wanted: Wanted,
    outcome: Mutex<Option<(Result<Opened, String>, Instant)>>,
    ended: Condvar,
}

impl Opening {
    /// Takes the file system from `known` if it is the one that is wanted.
    pub(super) fn begin(wanted: Wanted, place: Place, known: &[Opened]) -> Arc<Self> {
        let opening = Self::pending(wanted);
        // A thread that hangs must not keep other file systems open.
        let known: Vec<(ExportSource, Weak<LocalFs>)> = known
            .iter()
            .map(|open| (open.source.clone(), Arc::downgrade(&open.filesystem)))
            .collect();
        let attempt = opening.clone();
        let work = move || {
            let opened = open(&attempt.wanted, &place, &known);
            attempt.end(opened.map_err(|error| format!("{error:#}")));
        };
        if let Err(error) = thread::Builder::new().name("open-export".into()).spawn(work) {
            opening.end(Err(format!("cannot start a thread: {error}")));
        }
        opening
    }

    /// An attempt to which [`end`](Self::end) gives its outcome.
    pub(super) fn pending(wanted: Wanted) -> Arc<Self> {
        Arc::new(Self { wanted, outcome: Mutex::default(), ended: Condvar::new() })
    }

    /// The outcome, if there is one by then.
    pub(super) fn wait(&self, until: Instant) -> Option<Result<Opened, String>> {
        let mut outcome = self.outcome();
        while outcome.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.ended.wait_timeout(outcome, left);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        outcome.as_ref().map(|(outcome, _)| outcome.clone())
    }

    /// Whether it failed that long ago.
    pub(super) fn failed_before(&self, age: Duration) -> bool {
        matches!(&*self.outcome(), Some((Err(_), since)) if since.elapsed() >= age)
    }

    /// Whether the file system has not answered.
    pub(super) fn hangs(&self) -> bool {
        self.outcome().is_none()
    }

    pub(super) fn end(&self, outcome: Result<Opened, String>) {
        *self.outcome() = Some((outcome, Instant::now()));
        self.ended.notify_all();
    }

    fn outcome(&self) -> MutexGuard<'_, Option<(Result<Opened, String>, Instant)>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(wanted: &Wanted, place: &Place, known: &[(ExportSource, Weak<LocalFs>)]) -> Result<Opened> {
    let shown = wanted.path.display();
    let root = wanted.path.canonicalize().map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => format!("; create it with: mkdir -p {shown}"),
            _ => String::new(),
        };
        anyhow!("cannot export {shown}: {error}{hint}")
    })?;
    let found = fs::metadata(&root).with_context(|| format!("cannot export {shown}"))?;
    ensure!(
        found.is_dir(),
        "cannot export {shown}: not a directory; name the one that contains it"
    );
    let has_subvolumes = has_subvolumes(&root);
    let source = ExportSource {
        root,
        device: found.dev(),
        inode: found.ino(),
        id: wanted.id,
        metadata: wanted.metadata,
        exclusive: wanted.exclusive,
    };
    let known = known.iter().find(|(known, _)| *known == source);
    let filesystem = match known.and_then(|(_, filesystem)| filesystem.upgrade()) {
        Some(filesystem) => filesystem,
        None => {
            let metadata = match source.metadata {
                config::Metadata::Sync => local::MetadataMode::Sync,
                config::Metadata::Async => local::MetadataMode::Async,
            };
            let options = local::Options::new(&source.root, &place.state)
                .with_metadata(metadata)
                .with_descriptors_max(place.descriptors_max)
                .with_exclusive(source.exclusive);
            let options = match source.id {
                Some(id) => options.with_id(FileSystemId(id)),
                None => options,
            };
            // Not as a context: the text of the error has its source in it.
            let opened = LocalFs::open(options);
            Arc::new(opened.map_err(|error| anyhow!("cannot export {shown}: {error}"))?)
        }
    };
    Ok(Opened { wanted: wanted.clone(), source, filesystem, has_subvolumes })
}

fn has_subvolumes(root: &Path) -> bool {
    const BTRFS: i64 = 0x9123_683e;
    rustix::fs::statfs(root).is_ok_and(|found| found.f_type == BTRFS)
}
