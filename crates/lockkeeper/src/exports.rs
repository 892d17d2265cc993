//! From configured exports to served ones.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;

use vfs::local::{self, LocalFs};
use vfs::{FileSystemId, Rules};

use crate::config;

/// The file systems that are open, so that reading the configuration again keeps them, with
/// their unwritten data and their write verifier.
pub struct Opener {
    state: PathBuf,
    reserved_ports: bool,
    descriptors_max: usize,
    open: Vec<(Source, Arc<LocalFs>)>,
}

/// What makes two configured exports the same file system to open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    root: PathBuf,
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
            let (source, filesystem) = self.filesystem(export)?;
            let path = Bytes::copy_from_slice(source.root.as_os_str().as_bytes());
            exports.push(vfs::Export {
                id: export.id.unwrap_or_else(|| vfs::Export::id_of_path(&path)),
                path,
                filesystem: filesystem.clone(),
                rules: self.rules(export),
            });
            open.push((source, filesystem));
        }
        let exports = vfs::Exports::new(exports).map_err(|error| anyhow!(error))?;
        self.open = open;
        Ok(exports)
    }

    fn filesystem(&self, export: &config::Export) -> Result<(Source, Arc<LocalFs>)> {
        let shown = export.path.display();
        let root = export.path.canonicalize().with_context(|| {
            format!("cannot export {shown}; is it there? Make it with: mkdir -p {shown}")
        })?;
        let source = Source { root, id: export.filesystem_id, metadata: export.metadata };
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
            descriptors_max: self.descriptors_max,
            handles: local::Handles::Auto,
        };
        let filesystem =
            LocalFs::open(options).with_context(|| format!("cannot export {shown}"))?;
        Ok((source, Arc::new(filesystem)))
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
        }
    }

    /// Notes for the operator, such as promises that a file system cannot keep.
    pub fn notes(&self) -> Vec<String> {
        self.open
            .iter()
            .filter(|(_, filesystem)| filesystem.promises() == local::HandleKind::InodeMap)
            .map(|(source, _)| {
                format!(
                    "{}: no kernel file handles here (they need root or CAP_DAC_READ_SEARCH): a \
                     file that is renamed behind the server's back becomes stale for clients",
                    source.root.display()
                )
            })
            .collect()
    }
}
