//! Small files in the state directory, replaced atomically.

use std::{
    fs::{File, OpenOptions},
    io::{Result, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Replaces the content of `path`, durably on return, readable by the server only.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
