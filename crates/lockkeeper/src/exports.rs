//! From configured exports to served ones.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;

use vfs::local::{self, LocalFs};
use vfs::{FileSystem as _, FileSystemId, Rules};

use crate::config;

/// The file systems that are open, so that reading the configuration again keeps them, with
/// their unwritten data and their write verifier.
pub struct Opener {
    state: PathBuf,
    reserved_ports: bool,
    descriptors_max: usize,
    open: Vec<(Source, Arc<LocalFs>)>,
}

/// What makes two configured exports the same file system to open. The root counts by what it
/// is now and not only by its path: a disk may have been mounted there since.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    root: PathBuf,
    device: u64,
    inode: u64,
    id: Option<u64>,
    metadata: config::Metadata,
}

impl Opener {
    pub fn new(state: &Path, reserved_ports: bool, descriptors_max: usize) -> Self {
        Self { state: state.to_owned(), reserved_ports, descriptors_max, open: Vec::new() }
    }

    pub fn open(&mut self, configured: &[config::Export]) -> Result<vfs::Exports> {
        let mut open = Vec::new();
        let mut exports = Vec::new();
        for export in configured {
            let (source, filesystem) = self.filesystem(export, configured.len())?;
            self.keep_state_private(export, &source, &filesystem)?;
            let path = mount_path(&export.path, &source.root);
            exports.push(vfs::Export {
                id: export.id.unwrap_or_else(|| vfs::Export::id_of_path(&path)),
                path,
                filesystem: filesystem.clone(),
                rules: self.rules(export),
            });
            open.push((source, filesystem));
        }
        refuse_twins(&open)?;
        let exports = vfs::Exports::new(exports).map_err(|error| anyhow!(error))?;
        self.open = open;
        Ok(exports)
    }

    fn filesystem(
        &self,
        export: &config::Export,
        exports: usize,
    ) -> Result<(Source, Arc<LocalFs>)> {
        let shown = export.path.display();
        let root = export.path.canonicalize().map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::NotFound => format!("; make it with: mkdir -p {shown}"),
                _ => String::new(),
            };
            anyhow!("cannot export {shown}: {error}{hint}")
        })?;
        let found = fs::metadata(&root).with_context(|| format!("cannot export {shown}"))?;
        let source = Source {
            root,
            device: found.dev(),
            inode: found.ino(),
            id: export.filesystem_id,
            metadata: export.metadata,
        };
        if let Some((_, filesystem)) = self.open.iter().find(|(known, _)| *known == source) {
            return Ok((source, filesystem.clone()));
        }
        let options = local::Options {
            root: source.root.clone(),
            state: self.state.clone(),
            id: source.id.map(FileSystemId),
            metadata: match source.metadata {
                config::Metadata::Sync => local::Metadata::Sync,
                config::Metadata::Async => local::Metadata::Async,
            },
            descriptors_max: (self.descriptors_max / exports.max(1)).max(64),
            handles: local::Handles::Auto,
        };
        let filesystem =
            LocalFs::open(options).with_context(|| format!("cannot export {shown}"))?;
        Ok((source, Arc::new(filesystem)))
    }

    /// The key of all handles must not be reachable through one.
    fn keep_state_private(
        &self,
        export: &config::Export,
        source: &Source,
        filesystem: &LocalFs,
    ) -> Result<()> {
        let reachable = !filesystem.acts_as_caller() || export.squash == config::Squash::None;
        if reachable && self.state.starts_with(&source.root) {
            bail!(
                "the state directory {} lies inside the export {}, where clients could read its \
                 keys; name another with --state DIR",
                self.state.display(),
                source.root.display()
            );
        }
        Ok(())
    }

    /// Whether every operation is done as the user who runs the server.
    pub fn act_as_server(&self) -> bool {
        self.open.iter().any(|(_, filesystem)| !filesystem.acts_as_caller())
    }

    fn rules(&self, export: &config::Export) -> Rules {
        let clients = export.clients.as_ref();
        Rules {
            access: match export.access {
                config::Access::Rw => vfs::Access::ReadWrite,
                config::Access::Ro => vfs::Access::ReadOnly,
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
            reserved_ports: export
                .ports
                .map_or(self.reserved_ports, |ports| ports == crate::cli::Ports::Reserved),
            lock_auth: export.lock_auth,
            stateless_clients: export.stateless_clients,
        }
    }

    /// Notes for the operator, such as promises that a file system cannot keep.
    pub fn notes(&self) -> Vec<String> {
        self.open
            .iter()
            .filter(|(_, filesystem)| filesystem.promises() == local::HandleKind::InodeMap)
            .map(|(source, _)| {
                format!(
                    "{}: no kernel file handles here (they need root): a file that is renamed \
                     behind the server's back becomes stale for clients",
                    source.root.display()
                )
            })
            .collect()
    }
}

/// Two mounted copies of one file system have one id: a lock on a file of one would be a lock on
/// the same file of the other.
fn refuse_twins(open: &[(Source, Arc<LocalFs>)]) -> Result<()> {
    for (index, (one, filesystem)) in open.iter().enumerate() {
        let twin = open[..index].iter().find(|(other, known)| {
            known.id() == filesystem.id() && other.device != one.device && !has_subvolumes(one)
        });
        if let Some((other, _)) = twin {
            bail!(
                "{} and {} are copies of one file system (equal UUID), and their locks would \
                 collide; set a `filesystem_id` of its own for one of these exports",
                other.root.display(),
                one.root.display()
            );
        }
    }
    Ok(())
}

/// There every subvolume has a device number of its own, and handles tell them apart.
fn has_subvolumes(source: &Source) -> bool {
    const BTRFS: i64 = 0x9123_683e;
    rustix::fs::statfs(&source.root).is_ok_and(|found| found.f_type == BTRFS)
}

/// What clients mount: the path as it was configured, also where it is a link; one that is
/// relative or has `..` in it as it was resolved.
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
    use super::*;

    fn open(configured: &[config::Export]) -> Result<vfs::Exports> {
        let state = tempfile::tempdir().unwrap();
        Opener::new(state.path(), false, 64).open(configured)
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
