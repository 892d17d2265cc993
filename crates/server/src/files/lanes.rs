//! The file system that a call needs: its calls have workers of their own (`rpc/workers/schedule.rs`).
//! Only ids that are exported are returned, so peers cannot invent file systems.

use vfs::{FileSystemId, VerifiedHandle};

use super::{Files, LockTarget};

impl Files {
    /// The file system of a handle, if the handle is genuine and its export still exists.
    pub(crate) fn file_system_of(&self, handle: &[u8]) -> Option<FileSystemId> {
        let VerifiedHandle { export, file } = self.verify(handle).ok()?;
        let exports = &self.served().exports;
        let id = exports.by_id(export)?.filesystem.id();
        (id == file.filesystem).then_some(id)
    }

    /// The file system of the export that contains `path`.
    pub(crate) fn file_system_at(&self, path: &[u8]) -> Option<FileSystemId> {
        self.served().exports.by_path(path).map(|(export, _)| export.filesystem.id())
    }

    /// Whether more than one file system is exported.
    pub(crate) fn has_several_file_systems(&self) -> bool {
        let exports = &self.served().exports;
        let mut ids = exports.iter().map(|export| export.filesystem.id());
        let first = ids.next();
        ids.any(|id| Some(id) != first)
    }

    /// The paths under which a file system is exported, for a log line.
    pub(crate) fn export_paths(&self, file_system: Option<FileSystemId>) -> String {
        let exports = &self.served().exports;
        let of_it = exports.iter().filter(|export| Some(export.filesystem.id()) == file_system);
        let paths: Vec<String> = of_it.map(|e| e.path.escape_ascii().to_string()).collect();
        if paths.is_empty() { "no export".into() } else { paths.join(", ") }
    }
}

impl LockTarget {
    /// The file system of the file, if it is exported.
    pub(crate) fn file_system(&self) -> Option<FileSystemId> {
        let id = self.export.as_ref()?.filesystem.id();
        (id == self.opened.file.filesystem).then_some(id)
    }
}
