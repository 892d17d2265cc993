//! Opens the configured exports.

mod opening;

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use tracing::{info, warn};

use vfs::local::{self, LocalFs};
use vfs::memory::MemoryFs;
use vfs::{Closing, FileSystem, FileSystemId, OpeningExport, Rules};

use crate::cli::Ports;
use crate::config;
use opening::{Opened, Opening, Place, Wanted};

/// How long a stop waits for file systems to be given up.
const CLOSING_MAX: Duration = Duration::from_millis(500);
/// How long a start waits for file systems to be opened, all of them at once.
pub(super) const START_MAX: Duration = Duration::from_secs(10);
/// The same of a reload, during which the program does nothing else.
pub(super) const RELOAD_MAX: Duration = Duration::from_secs(3);
/// The pause between attempts to open a directory.
const RETRY_EVERY: Duration = Duration::from_secs(10);

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
    /// Directories whose file systems do not answer yet.
    opening: Vec<Arc<Opening>>,
    /// What `open`, `in_memory` and `opening` are of.
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
            opening: Vec::new(),
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
        let place = self.place(configured.len());
        let mut attempts = Vec::new();
        for export in configured {
            if export.memory_path()?.is_none() {
                let wanted = Wanted::of(export);
                // No second thread for a file system that hangs.
                let hangs = |known: &&Arc<Opening>| known.wanted == wanted && known.hangs();
                attempts.push(match self.opening.iter().find(hangs) {
                    Some(known) => known.clone(),
                    None => Opening::begin(wanted, place.clone(), &self.open),
                });
            }
        }
        let (mut opened, mut opening) = (Vec::new(), Vec::new());
        for attempt in attempts {
            match attempt.wait(until) {
                Some(Ok(one)) => opened.push(one),
                Some(Err(error)) => bail!(error),
                None => match self.open.iter().find(|open| open.wanted == attempt.wanted) {
                    Some(open) => opened.push(open.clone()),
                    None => opening.push(attempt),
                },
            }
        }
        let assembled = self.assemble(configured, &opened)?;
        for attempt in &opening {
            let path = attempt.wanted.path.display();
            warn!(
                "{path} is not served yet: its file system does not answer; its clients wait, and it is \
                 served when it does"
            );
        }
        self.opening = opening;
        self.configured = configured.to_vec();
        Ok(self.replace(assembled))
    }

    /// Whether file systems do not answer yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.opening.is_empty()
    }

    /// All exports, if a file system has answered since; tries again to open what has failed.
    pub(super) fn retry(&mut self) -> Option<vfs::Exports> {
        let (mut opened, mut still) = (self.open.clone(), Vec::new());
        let before = opened.len();
        for attempt in std::mem::take(&mut self.opening) {
            match attempt.wait(Instant::now()) {
                Some(Ok(one)) => {
                    opened.push(one);
                    continue;
                }
                Some(Err(error)) if attempt.failed_before(RETRY_EVERY) => {
                    warn!("{error}; trying again");
                    let place = self.place(self.configured.len());
                    still.push(Opening::begin(attempt.wanted.clone(), place, &self.open));
                }
                Some(Err(_)) | None => still.push(attempt),
            }
        }
        self.opening = still;
        if opened.len() == before {
            return None;
        }
        match self.assemble(&self.configured, &opened) {
            Ok(assembled) => {
                for one in &opened[before..] {
                    info!("{} is served now", one.wanted.path.display());
                }
                Some(self.replace(assembled))
            }
            Err(error) => {
                let names =
                    opened[before..].iter().map(|one| one.wanted.path.display().to_string());
                let names = names.collect::<Vec<_>>().join(", ");
                warn!("{names} cannot be served: {error:#}; change the configuration and reload");
                None
            }
        }
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

    /// Directories that are not in `opened` are served later.
    fn assemble(&self, configured: &[config::Export], opened: &[Opened]) -> Result<Assembled> {
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
                        let absolute = std::path::absolute(&export.path)?;
                        let path = mount_path(&export.path, &absolute);
                        let (id, rules) = (id(&path), self.rules(export));
                        opening.push(OpeningExport { id, path, rules });
                        continue;
                    };
                    self.keep_state_private(export, one)?;
                    self.refuse_unportable_id(export, &one.filesystem)?;
                    open.push(one.clone());
                    (mount_path(&export.path, &one.source.root), one.filesystem.clone())
                }
            };
            exports.push(vfs::Export {
                id: id(&path),
                path,
                filesystem,
                rules: self.rules(export),
            });
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
        Closing::begin(self.open).wait(CLOSING_MAX);
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
        let reachable = !filesystem.acts_as_caller() || export.squash == config::Squash::None;
        if reachable && self.state.starts_with(&source.root) {
            bail!(
                "the state directory {} is inside the export {}, where clients could read its \
                 keys; choose another with --state DIR",
                self.state.display(),
                source.root.display()
            );
        }
        Ok(())
    }

    /// Whether operations of an export run as the server's own user instead of the caller.
    pub(super) fn acts_as_server(&self, export: &vfs::Export) -> bool {
        let id = export.filesystem.id();
        self.open.iter().any(|open| open.filesystem.id() == id && !open.filesystem.acts_as_caller())
    }

    fn rules(&self, export: &config::Export) -> Rules {
        let clients = export.clients.as_ref();
        Rules {
            access: match export.access {
                config::Access::Rw => vfs::ExportAccess::ReadWrite,
                config::Access::Ro => vfs::ExportAccess::ReadOnly,
            },
            clients: clients.map_or_else(vfs::export::private_networks, |networks| {
                networks.iter().map(|network| network.0).collect()
            }),
            squash: match export.squash {
                config::Squash::None => vfs::Squash::None,
                config::Squash::Root => vfs::Squash::Root,
                config::Squash::All => vfs::Squash::All,
            },
            anonymous_uid: export.anonymous_uid,
            anonymous_gid: export.anonymous_gid,
            require_reserved_ports: self
                .ports
                .or(export.ports)
                .map_or_else(require_reserved_by_default, |ports| ports == Ports::Reserved),
            lock_auth: export.lock_auth,
            exclusive_lock: match export.exclusive_lock {
                config::ExclusiveLock::Read => vfs::ExclusiveLock::Read,
                config::ExclusiveLock::Write => vfs::ExclusiveLock::Write,
            },
            stateless_clients: export.stateless_clients,
        }
    }

    /// Warnings about limitations of the exported file systems.
    pub(super) fn notes(&self) -> Vec<String> {
        let in_memory = self.in_memory.iter().map(|(source, _)| {
            format!("{}: its files are in memory and end with the server", source.path.display())
        });
        let local = self
            .open
            .iter()
            .filter(|open| open.filesystem.handle_kind() == local::HandleKind::InodeMap)
            .map(|open| {
                format!(
                    "{}: no kernel file handles (they require root): a file renamed on the host \
                     becomes stale for clients",
                    open.source.root.display()
                )
            });
        local.chain(in_memory).collect()
    }
}

/// Root can demand reserved ports of its clients; other users' servers are for trials.
pub(super) fn require_reserved_by_default() -> bool {
    rustix::process::geteuid().is_root()
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
    let plain = configured.is_absolute()
        && configured.components().all(|part| !matches!(part, Component::ParentDir));
    let path: PathBuf = match plain {
        true => configured.components().collect(),
        false => resolved.to_owned(),
    };
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn open(configured: &[config::Export]) -> Result<vfs::Exports> {
        let state = tempfile::tempdir().unwrap();
        ExportOpener::new(state.path(), None, 64).open(configured, START_MAX)
    }

    #[test]
    fn two_copies_of_one_file_system_are_refused() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let export = |dir: &tempfile::TempDir, id| config::Export {
            filesystem_id: Some(id),
            ..config::Export::of(dir.path().to_owned())
        };
        let error = open(&[export(&one, 7), export(&two, 7)]).err().unwrap().to_string();
        assert!(error.contains("set a `filesystem_id`"), "{error}");
        assert!(open(&[export(&one, 7), export(&two, 8)]).is_ok());
        let inner = config::Export {
            filesystem_id: Some(7),
            ..config::Export::of(tempfile::tempdir_in(one.path()).unwrap().keep())
        };
        assert!(open(&[export(&one, 7), inner]).is_ok());
    }

    /// B6.82
    #[test]
    fn a_pair_needs_an_id_that_both_assign() {
        let (dir, state) =
            (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let without = config::Export::of(dir.path().to_owned());
        let with = config::Export { filesystem_id: Some(7), ..without.clone() };
        let opener = || ExportOpener::new(state.path(), None, 64);
        assert!(opener().open(std::slice::from_ref(&without), START_MAX).is_ok());
        // An id from a time when no UUID was visible: another server has another one.
        let table = state.path().join("filesystems");
        let text = fs::read_to_string(&table).unwrap();
        let changed = text.lines().map(|line| {
            let (id, key) = line.split_once(' ').unwrap();
            format!("{:016x} {key}\n", u64::from_str_radix(id, 16).unwrap() ^ 1)
        });
        fs::write(&table, changed.collect::<String>()).unwrap();
        let error =
            opener().for_pair(true).open(std::slice::from_ref(&without), START_MAX).err().unwrap();
        assert!(error.to_string().contains("the same `filesystem_id`"), "{error}");
        assert!(opener().for_pair(true).open(&[with], START_MAX).is_ok());
        assert!(opener().open(&[without], START_MAX).is_ok());
    }

    /// B1.51
    #[test]
    fn directories_and_file_systems_in_memory_are_exported_together() {
        let dir = tempfile::tempdir().unwrap();
        let memory = |path: &str| config::Export::of(path.into());
        let both =
            [config::Export::of(dir.path().to_owned()), memory("memory:"), memory("memory:/b")];
        let state = tempfile::tempdir().unwrap();
        let mut opener = ExportOpener::new(state.path(), None, 64);
        let exports = opener.open(&both, START_MAX).unwrap();
        let paths: Vec<&[u8]> = exports.iter().map(|export| &export.path[..]).collect();
        assert_eq!(paths[1..], [&b"/memory"[..], b"/b"]);
        let filesystem = |exports: &vfs::Exports, path: &[u8]| {
            let found = exports.iter().find(|export| export.path == path);
            found.map(|export| export.filesystem.root())
        };
        let before = filesystem(&exports, b"/b").unwrap();
        assert_ne!(filesystem(&exports, b"/memory").unwrap(), before);
        let again = opener.open(&both[1..], START_MAX).unwrap();
        assert_eq!(filesystem(&again, b"/b").unwrap(), before, "a reload keeps its files");
        let error = open(&[memory("memory:"), memory("memory:/memory")]).err().unwrap().to_string();
        assert_eq!(error, "/memory is exported twice");
    }

    #[test]
    fn clients_mount_what_was_configured() {
        let path = |configured: &str| {
            let path = mount_path(Path::new(configured), Path::new("/real"));
            String::from_utf8(path.to_vec()).unwrap()
        };
        assert_eq!(path("/data"), "/data");
        assert_eq!(path("/data//x/./"), "/data/x");
        assert_eq!(path("/"), "/");
        assert_eq!(path("./share"), "/real");
        assert_eq!(path("/a/../b"), "/real");
    }
}
