//! Secrets that must outlive the process, such as the key that signs file handles.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A place for secrets: a directory of one server, or a store that several servers share.
pub trait Secrets {
    /// The secret of this name. Generated on the first call, and the same in all later calls.
    fn secret(&self, name: &str) -> io::Result<[u8; 16]>;
}

/// A directory with one file, `<name>.key`, per secret. Refuses a file that another user owns or
/// can read.
#[derive(Debug)]
pub struct SecretsInDirectory {
    dir: PathBuf,
}

impl SecretsInDirectory {
    /// Secrets in `dir`, which must exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// A secret that is not kept anywhere yet.
    pub fn generate() -> io::Result<[u8; 16]> {
        let mut secret = [0; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        Ok(secret)
    }

    /// The secret of this name, if there is one.
    pub fn find(&self, name: &str) -> io::Result<Option<[u8; 16]>> {
        let path = self.path(name);
        let explain = explain(&path);
        match fs::File::open(&path) {
            Ok(mut file) => {
                let found = file.metadata()?;
                if found.uid() != rustix::process::geteuid().as_raw() {
                    let text = "owned by another user; delete it to generate a new one (clients \
                                must then mount again)";
                    return Err(explain(io::Error::new(io::ErrorKind::PermissionDenied, text)));
                }
                if found.mode() & 0o077 != 0 {
                    let text = "readable by other users; run chmod 600 on it, or delete it to \
                                generate a new one (clients must then mount again)";
                    return Err(explain(io::Error::new(io::ErrorKind::PermissionDenied, text)));
                }
                let mut secret = [0; 16];
                file.read_exact(&mut secret).map_err(explain)?;
                Ok(Some(secret))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(explain(error)),
        }
    }

    /// Keeps a secret under this name, in place of any other.
    pub fn put(&self, name: &str, secret: &[u8; 16]) -> io::Result<()> {
        let path = self.path(name);
        let explain = explain(&path);
        // Renamed into place, so that a crash cannot leave part of a key.
        let fresh = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(&explain)?;
        file.write_all(secret).map_err(&explain)?;
        file.sync_all().map_err(&explain)?;
        fs::rename(&fresh, &path).map_err(&explain)?;
        fs::File::open(&self.dir)?.sync_all().map_err(&explain)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.key"))
    }
}

fn explain(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Secrets for SecretsInDirectory {
    fn secret(&self, name: &str) -> io::Result<[u8; 16]> {
        if let Some(secret) = self.find(name)? {
            return Ok(secret);
        }
        let secret = Self::generate()?;
        self.put(name, &secret)?;
        Ok(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_made_once_and_kept_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = SecretsInDirectory::new(dir.path()).secret("handle").unwrap();
        let again = SecretsInDirectory::new(dir.path()).secret("handle").unwrap();
        assert_eq!(first, again);
        assert_ne!(first, SecretsInDirectory::new(dir.path()).secret("other").unwrap());
        let mode = fs::metadata(dir.path().join("handle.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = SecretsInDirectory::new(dir.path());
        secrets.secret("handle").unwrap();
        let path = dir.path().join("handle.key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = secrets.secret("handle").unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}
