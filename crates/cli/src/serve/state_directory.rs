//! The state directory: data that must survive restarts; locked by one server at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Locked until dropped.
pub(crate) struct StateDirectory {
    pub path: PathBuf,
    _lock: File,
}

impl StateDirectory {
    pub(crate) fn open(named: Option<&Path>) -> Result<Self> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => default_path()?,
        };
        let shown = path.display();
        DirBuilder::new().recursive(true).mode(0o700).create(&path).with_context(|| {
            format!("cannot create the state directory {shown}; choose another with --state DIR")
        })?;
        let path = fs::canonicalize(&path)?;
        let found = fs::metadata(&path)?;
        let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
        if owner != user {
            bail!(
                "the state directory {shown} belongs to uid {owner}, and the server runs as uid {user}: \
                 start it as that user ({start}), or choose another directory with --state DIR",
                start = if owner == 0 { "sudo".into() } else { format!("sudo -u '#{owner}'") }
            );
        }
        if found.mode() & 0o022 != 0 {
            bail!("the state directory {shown} is writable by others: chmod 700 {shown}");
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .with_context(|| format!("cannot use the state directory {shown}"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(Errno::WOULDBLOCK) => bail!(
                "another lockkeeper is using the state directory {shown}; stop it, or choose another \
                 with --state DIR"
            ),
            Err(error) => Err(error).with_context(|| format!("cannot lock {shown}")),
        }
    }
}

/// Default state directory.
pub(crate) fn default_path() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/lockkeeper".into());
    }
    if let Some(dir) = std::env::var_os("XDG_STATE_HOME") {
        return Ok(PathBuf::from(dir).join("lockkeeper"));
    }
    match std::env::var_os("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(".local/state/lockkeeper")),
        None => bail!(
            "no default state directory: neither XDG_STATE_HOME nor HOME is set; use --state DIR"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_server_on_the_same_state_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDirectory::open(Some(dir.path())).unwrap();
        let error = StateDirectory::open(Some(dir.path())).err().unwrap().to_string();
        assert!(error.contains("another lockkeeper"), "{error}");
        drop(first);
        assert!(StateDirectory::open(Some(dir.path())).is_ok());
    }

    #[test]
    fn a_state_directory_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = StateDirectory::open(Some(dir.path())).err().unwrap().to_string();
        assert!(error.contains("chmod 700"), "{error}");
    }

    /// B8.107
    #[test]
    fn a_state_directory_of_another_user_is_told_with_whose_it_is() {
        let user = rustix::process::geteuid().as_raw();
        // Of root for a user, and of a user for root.
        let of_root = user != 0;
        let dir = tempfile::tempdir().unwrap();
        let path = if of_root { Path::new("/") } else { dir.path() };
        if !of_root {
            std::os::unix::fs::chown(path, Some(1234), None).unwrap();
        }
        let error = StateDirectory::open(Some(path)).err().unwrap().to_string();
        let owner = if of_root { 0 } else { 1234 };
        let told = format!("belongs to uid {owner}, and the server runs as uid {user}");
        assert!(error.contains(&told) && error.contains("--state DIR"), "{error}");
    }
}
