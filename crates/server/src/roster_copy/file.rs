//! The file of the copy: read once at a start, replaced by a rename.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::{DecodeError, RosterCopy};

/// Why the copy cannot be used at a start.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("cannot read the copy of the roster {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error(
        "the copy of the roster {} is damaged. It tells whether the lock store is complete: if the \
         store was neither moved nor restored since the server last ran, delete the copy; otherwise \
         delete it and start once with --store-lost",
        path.display()
    )]
    Damaged { path: PathBuf },
    #[error(
        "the copy of the roster {} was written by a newer version of this program (format {found}). \
         Start the newer version again; or delete the copy, and start once with --store-lost if the \
         lock store was moved or restored",
        path.display()
    )]
    Newer { path: PathBuf, found: u64 },
}

/// The file that has the copy.
#[derive(Clone, Debug)]
pub struct RosterFile(PathBuf);

impl RosterFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `None` if there is no copy. A copy that cannot be used is an error, never no copy.
    pub fn read(&self) -> Result<Option<RosterCopy>, CopyError> {
        let path = self.0.clone();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CopyError::Unreadable { path, error }),
        };
        let decoded = std::str::from_utf8(&bytes).map_err(|_| DecodeError::Damaged);
        match decoded.and_then(RosterCopy::decode) {
            Ok(copy) => Ok(Some(copy)),
            Err(DecodeError::Damaged) => Err(CopyError::Damaged { path }),
            Err(DecodeError::Newer(found)) => Err(CopyError::Newer { path, found }),
        }
    }

    /// Replaces the copy; it is on the disk when this returns. After an error the former copy is
    /// still there. Blocks.
    pub fn write(&self, copy: &RosterCopy) -> io::Result<()> {
        let fresh = self.0.with_extension("new");
        let options =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).to_owned();
        let mut file = options.open(&fresh)?;
        file.write_all(copy.encode().as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &self.0)?;
        self.0.parent().map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use keeper::identity::Epoch;
    use store::Token;

    use super::*;

    /// B4.103
    #[test]
    fn a_copy_is_replaced_and_a_damaged_one_is_no_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = RosterFile::new(dir.path().join("roster"));
        assert_eq!(file.read().unwrap(), None);
        for token in 1..3 {
            let copy = RosterCopy { epoch: Epoch(7), token: Token(token), hosts: Vec::new() };
            file.write(&copy).unwrap();
            assert_eq!(file.read().unwrap(), Some(copy));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
        fs::write(file.path(), b"\xff").unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("--store-lost"), "{error}");
        let text = RosterCopy::default().encode().replacen("roster 1", "roster 9", 1);
        fs::write(file.path(), text).unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("format 9"), "{error}");
    }
}
