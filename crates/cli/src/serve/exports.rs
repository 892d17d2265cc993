//! Opens the configured exports.

mod late;
mod opening;
#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use tracing::{info, warn};

use vfs::local::{self, LocalFs};
use vfs::memory::MemoryFs;
use vfs::{Closing, FileSystem, FileSystemId, OpeningExport, RuleSet};

use crate::cli::Ports;
use crate::config::{self, consistency};
use late::Late;
use opening::{Opened, Opening, Place, Wanted};

/// How long a stop waits for file systems to be given up.
const CLOSING_MAX: Duration = Duration::from_millis(500);
/// How long a start waits for file systems to be opened, all of them at once.
pub(super) const START_MAX: Duration = Duration::from_secs(10);
/// The same of a reload, during which the program does nothing else.
pub(super) const RELOAD_MAX: Duration = Duration::from_secs(3);

/// Keeps file systems open across reloads, with their unwritten data and write verifiers.
pub(super) struct ExportOpener {
    state: PathBuf,
    /// The flag, which overrides what exports say.
    ports: Option<Ports>,
    descriptors_max: usize,
    /// The server is one of a pair, and must make the same handles as the other.
    is_one_of_pair: bool,
    open: Vec<Opened>,
    in_memory: Vec<(MemorySource, Arc<MemoryFs>)>,
    /// Directories that are not served yet.
    late: Vec<Late>,
    /// Attempts that may not have ended, also those of failed reloads and of directories that are open:
    /// no second thread is started for a file system that hangs.
    attempts: Vec<Arc<Opening>>,
    /// What `open`, `in_memory` and `late` are of.
    configured: Vec<config::Export>,
}

/// Identity of a file system in memory: the path that clients mount, and its configured id.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemorySource {
    path: PathBuf,
    id: Option<u64>,
}

/// Exports made of what is open.
struct Assembled {
    exports: vfs::Exports,
    open: Vec<Opened>,
    in_memory: Vec<(MemorySource, Arc<MemoryFs>)>,
}

impl ExportOpener {
    pub(super) fn new(state: &Path, ports: Option<Ports>, descriptors_max: usize) -> Self {
        let state = state.to_owned();
        Self {
            state,
            ports,
            descriptors_max,
            is_one_of_pair: false,
            open: Vec::new(),
            in_memory: Vec::new(),
            late: Vec::new(),
            attempts: Vec::new(),
            configured: Vec::new(),
        }
    }

    /// Refuses file systems to which the other server of a pair would assign another id (B6.82).
    pub(super) fn for_pair(self, is_one_of_pair: bool) -> Self {
        Self { is_one_of_pair, ..self }
    }

    /// Opens the exports, and waits for their file systems at most so long. One that does not answer by
    /// then stays as it was if it is open, and else is served later, see [`retry`](Self::retry).
    pub(super) fn open(
        &mut self,
        configured: &[config::Export],
        limit: Duration,
    ) -> Result<vfs::Exports> {
        let until = Instant::now() + limit;
        self.forget_ended();
        let mut attempts = Vec::new();
        for export in configured {
            if export.memory_path()?.is_none() {
                attempts.push(self.attempt(Wanted::of(export), configured.len()));
            }
        }
        let (mut opened, mut late) = (Vec::new(), Vec::new());
        for attempt in attempts {
            match attempt.wait(until) {
                Some(Ok(one)) => opened.push(one),
                Some(Err(error)) => bail!(error),
                None => match self.open.iter().find(|open| open.wanted == attempt.wanted) {
                    Some(open) => opened.push(open.clone()),
                    None => {
                        let known = self.late_at(&attempt.wanted.path);
                        let since = known.map_or_else(Instant::now, |known| known.since);
                        late.push(Late::new(attempt, since));
                    }
                },
            }
        }
        let assembled = self.assemble(configured, &opened, &late)?;
        configured.iter().for_each(|export| warn_if_late(export, &late));
        for one in &assembled.open {
            if self.late_at(&one.wanted.path).is_some() {
                announce(one);
            }
        }
        drop(Closing::begin(std::mem::replace(&mut self.late, late)));
        self.configured = configured.to_vec();
        Ok(self.replace(assembled))
    }

    /// What was configured when the exports were last opened.
    pub(super) fn configured(&self) -> &[config::Export] {
        &self.configured
    }

    /// Whether there is something to [`retry`](Self::retry).
    pub(super) fn is_waiting(&self) -> bool {
        !self.late.is_empty() || !self.attempts.is_empty()
    }

    /// All exports, if anything has changed since; tries again to open what has failed.
    pub(super) fn retry(&mut self) -> Option<vfs::Exports> {
        self.forget_ended();
        let place = self.place(self.configured.len());
        let mut late = std::mem::take(&mut self.late);
        let mut has_news = false;
        for one in &mut late {
            has_news |= one.has_news();
            self.attempts.extend(one.try_again(&place, &self.open));
        }
        if !has_news {
            self.late = late;
            return None;
        }
        // One at a time: one that is refused keeps no other from being served.
        let (mut opened, mut still) = (self.open.clone(), Vec::new());
        for mut one in late {
            let Some(answered) = one.opened() else {
                still.push(one);
                continue;
            };
            opened.push(answered.clone());
            match self.assemble(&self.configured, &opened, &[]) {
                Ok(_) => announce(&answered),
                Err(error) => {
                    opened.pop();
                    one.has_problem(format!("{error:#}"), "change the configuration and reload");
                    still.push(one);
                }
            }
        }
        self.late = still;
        match self.assemble(&self.configured, &opened, &self.late) {
            Ok(assembled) => Some(self.replace(assembled)),
            Err(error) => {
                warn!("the exports stay as they are: {error:#}");
                None
            }
        }
    }

    /// Begins to open a directory, unless an attempt is under way.
    fn attempt(&mut self, wanted: Wanted, exports: usize) -> Arc<Opening> {
        if let Some(known) = self.attempts.iter().find(|known| known.wanted == wanted) {
            return known.clone();
        }
        let late = self.late.iter().filter_map(Late::opened);
        let known: Vec<Opened> = self.open.iter().cloned().chain(late).collect();
        let attempt = Opening::begin(wanted, self.place(exports), &known);
        self.attempts.push(attempt.clone());
        attempt
    }

    fn forget_ended(&mut self) {
        let (hung, ended) = self.attempts.drain(..).partition(|attempt| attempt.hangs());
        self.attempts = hung;
        // Unused file systems are closed, which may take as long as the disk.
        let ended: Vec<Arc<Opening>> = ended;
        drop(Closing::begin(ended));
    }

    fn late_at(&self, path: &Path) -> Option<&Late> {
        self.late.iter().find(|late| late.attempt.wanted.path == path)
    }

    fn place(&self, exports: usize) -> Place {
        let descriptors_max = (self.descriptors_max / exports.max(1)).max(64);
        Place { state: self.state.clone(), descriptors_max }
    }

    fn replace(&mut self, assembled: Assembled) -> vfs::Exports {
        let closed = std::mem::replace(&mut self.open, assembled.open);
        // Not waited for: it may take as long as the disk of a removed export.
        drop(Closing::begin(closed));
        self.in_memory = assembled.in_memory;
        assembled.exports
    }

    /// Directories that are not in `opened` are served later; `late` says what is known of them.
    fn assemble(
        &self,
        configured: &[config::Export],
        opened: &[Opened],
        late: &[Late],
    ) -> Result<Assembled> {
        let (mut open, mut in_memory) = (Vec::new(), Vec::new());
        let (mut exports, mut opening) = (Vec::new(), Vec::new());
        for export in configured {
            let id = |path: &Bytes| export.id.unwrap_or_else(|| vfs::Export::id_of_path(path));
            let (path, filesystem): (Bytes, Arc<dyn FileSystem>) = match export.memory_path()? {
                Some(path) => {
                    let shown = Bytes::copy_from_slice(path.as_os_str().as_bytes());
                    let source = MemorySource { path, id: export.filesystem_id };
                    let filesystem = self.memory(&source, &shown);
                    in_memory.push((source, filesystem.clone()));
                    (shown, filesystem)
                }
                None => {
                    let wanted = Wanted::of(export);
                    let Some(one) = opened.iter().find(|one| one.wanted == wanted) else {
                        let path = mount_path(&export.path, &without_dots(&export.path)?);
                        let known = late.iter().find(|late| late.attempt.wanted == wanted);
                        opening.push(OpeningExport {
                            id: id(&path),
                            path,
                            rules: self.rules(export)?,
                            since: known.map_or_else(Instant::now, |known| known.since),
                            problem: known.and_then(|known| known.problem.clone()),
                        });
                        continue;
                    };
                    self.keep_state_private(export, one)?;
                    self.refuse_unportable_id(export, &one.filesystem)?;
                    open.push(one.clone());
                    (mount_path(&export.path, &one.source.root), one.filesystem.clone())
                }
            };
            let number = id(&path);
            exports.push(
                vfs::Export::new(path, filesystem).with_id(number).with_rules(self.rules(export)?),
            );
        }
        refuse_shared_ids(&open)?;
        let exports = vfs::Exports::new(exports).and_then(|some| some.with_opening(opening));
        Ok(Assembled { exports: exports.map_err(|error| anyhow!(error))?, open, in_memory })
    }

    fn refuse_unportable_id(&self, export: &config::Export, filesystem: &LocalFs) -> Result<()> {
        if !self.is_one_of_pair || filesystem.id_is_portable() {
            return Ok(());
        }
        let id = i64::try_from(filesystem.id().0).ok();
        let keep =
            id.map(|id| format!(" (filesystem_id = {id} keeps the handles of this server valid)"));
        bail!(
            "cannot export {}: the id of its file system is known to this server only (no UUID was \
             visible when it was first served), so the servers of a pair would give clients different \
             file handles; set the same `filesystem_id` in this [[export]] on all of them{}",
            export.path.display(),
            keep.unwrap_or_default()
        )
    }

    /// Gives up the file systems; one that hangs is left to the kernel.
    pub(super) fn close(self) {
        let Self { open, late, attempts, .. } = self;
        drop(Closing::begin(late));
        drop(Closing::begin(attempts));
        Closing::begin(open).wait(CLOSING_MAX);
    }

    /// A reload keeps the files.
    fn memory(&self, source: &MemorySource, path: &[u8]) -> Arc<MemoryFs> {
        if let Some((_, filesystem)) = self.in_memory.iter().find(|(known, _)| known == source) {
            return filesystem.clone();
        }
        // Ids of local file systems are hashes of 64 bits.
        const PREFIX: u64 = 0x6d65_6d6f << 32;
        let id = source.id.unwrap_or_else(|| PREFIX | u64::from(vfs::Export::id_of_path(path)));
        Arc::new(MemoryFs::new(FileSystemId(id)))
    }

    /// The handle key must not be readable through an export.
    fn keep_state_private(&self, export: &config::Export, opened: &Opened) -> Result<()> {
        let Opened { source, filesystem, .. } = opened;
        let reachable = !filesystem.acts_as_caller() || export.admits_root();
        if reachable && self.state.starts_with(&source.root) {
            return Err(consistency::reveals_state(&source.root, &self.state).into());
        }
        Ok(())
    }

    /// Whether operations of an export run as the server's own user instead of the caller.
    pub(super) fn acts_as_server(&self, export: &vfs::Export) -> bool {
        let id = export.filesystem.id();
        self.open.iter().any(|open| open.filesystem.id() == id && !open.filesystem.acts_as_caller())
    }

    fn rules(&self, export: &config::Export) -> Result<RuleSet> {
        export.rule_set(self.ports).map_err(|error| anyhow!(error))
    }

    /// Warnings about limitations of the exported file systems.
    pub(super) fn notes(&self) -> Vec<String> {
        let in_memory = self.in_memory.iter().map(|(source, _)| {
            format!("{}: its files are in memory and end with the server", source.path.display())
        });
        self.open.iter().filter_map(note).chain(in_memory).collect()
    }
}

/// A warning about limitations of a file system.
fn note(open: &Opened) -> Option<String> {
    let limitation = limitation(open.filesystem.handle_kind())?;
    Some(format!("{}: {limitation}", open.source.root.display()))
}

/// Logs that a directory is served later than the others.
fn announce(one: &Opened) {
    let path = one.wanted.path.display();
    info!(event.kind = "export-served", event.export = %path, "{path} is served now");
    if let Some(note) = note(one) {
        warn!("{note}");
    }
}

fn warn_if_late(export: &config::Export, late: &[Late]) {
    let wanted = Wanted::of(export);
    if !late.iter().any(|late| late.attempt.wanted == wanted) {
        return;
    }
    let path = export.path.display();
    warn!(
        event.kind = "export-late",
        event.export = %path,
        "{path} is not served yet: its file system does not answer; clients that have it mounted wait, new \
         mounts are refused, and it is served when it answers"
    );
    if !is_plain(&export.path) && export.id.is_none() {
        warn!(
            "{path}: until then its files may be stale for clients, as its path cannot be resolved; \
             configure an absolute path without `..`, or an `id`"
        );
    }
}

fn limitation(handles: local::HandleKind) -> Option<&'static str> {
    match handles {
        local::HandleKind::Kernel => None,
        local::HandleKind::InodeMap => Some(
            "no kernel file handles (they require root, and a file system whose handles last): a \
             file renamed on the host becomes stale for clients",
        ),
        local::HandleKind::Mount => Some(
            "this kind of file system may number its files anew when it is mounted: the files of \
             clients become stale then, and when a file is renamed on the host",
        ),
        local::HandleKind::Process => Some(
            "this kind of file system may number its files anew when it is mounted, and this \
             kernel (before Linux 6.8) does not tell mounts apart: the files of clients become \
             stale when the server restarts, and when a file is renamed on the host",
        ),
    }
}

/// Two mounted copies of a file system share an id, so locks on one would conflict with the other's.
fn refuse_shared_ids(open: &[Opened]) -> Result<()> {
    for (index, one) in open.iter().enumerate() {
        let same_id = open[..index].iter().find(|other| {
            other.filesystem.id() == one.filesystem.id()
                && other.source.device != one.source.device
                && !one.has_subvolumes
        });
        if let Some(other) = same_id {
            bail!(
                "{} and {} are copies of one file system (same UUID), so their locks would \
                 collide; set a `filesystem_id` for one of them",
                other.source.root.display(),
                one.source.root.display()
            );
        }
    }
    Ok(())
}

/// The path clients mount: as configured, even if it is a symlink; resolved if it is relative or
/// contains `..`.
fn mount_path(configured: &Path, resolved: &Path) -> Bytes {
    let path: PathBuf = match is_plain(configured) {
        true => configured.components().collect(),
        false => resolved.to_owned(),
    };
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|part| !matches!(part, Component::ParentDir))
}

/// The path resolved without asking a file system: right if none of its directories is a symlink.
fn without_dots(path: &Path) -> Result<PathBuf> {
    let mut resolved = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            part => resolved.push(part),
        }
    }
    Ok(resolved)
}
