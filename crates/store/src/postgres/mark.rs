//! The mark of a leader: the last batch that it acknowledged, in a directory that a restart of the
//! machine empties. After a failover of the database it tells a server that was started again whether
//! the promoted replica has everything.
//!
//! One line of fixed length, rewritten by one `pwrite` with every acknowledgement, and never synced: it
//! need survive only the process. It is tied to the store, the start of the machine and the leadership;
//! a server that is one of a pair has none, because another may have led since.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::boot_id::BootId;
use crate::store::Token;

#[derive(Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
    file: File,
    boot: BootId,
    nonce: i64,
}

fn path(directory: &Path, store: &str) -> PathBuf {
    let plain = |letter: char| letter.is_ascii_alphanumeric();
    let name: String = store.chars().filter(|letter| plain(*letter)).take(64).collect();
    directory.join(format!("{name}.postgres-mark"))
}

fn line(boot: BootId, nonce: i64, token: Token) -> String {
    let boot = u128::from_be_bytes(boot.0);
    format!("1 {boot:032x} {:016x} {:016x}\n", nonce.cast_unsigned(), token.0)
}

impl MarkFile {
    /// The last batch that the leader with this nonce acknowledged. `None`, the safe answer, if there
    /// is no such mark.
    pub(super) fn read(directory: &Path, store: &str, nonce: i64) -> Option<Token> {
        let boot = BootId::of_this_machine().ok()?;
        let text = fs::read_to_string(path(directory, store)).ok()?;
        let token = text.trim_end().rsplit(' ').next()?;
        let token = Token(u64::from_str_radix(token, 16).ok()?);
        (text == line(boot, nonce, token)).then_some(token)
    }

    pub(super) fn create(
        directory: &Path,
        store: &str,
        nonce: i64,
        token: Token,
    ) -> io::Result<Self> {
        let boot = BootId::of_this_machine()?;
        fs::create_dir_all(directory)?;
        let path = path(directory, store);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let mark = Self { path, file, boot, nonce };
        mark.write(token)?;
        Ok(mark)
    }

    /// To be called before `token` is acknowledged.
    pub(super) fn write(&self, token: Token) -> io::Result<()> {
        self.file.write_all_at(line(self.boot, self.nonce, token).as_bytes(), 0)
    }

    pub(super) fn remove(self) {
        // An unreadable mark is as good as none.
        let _ = self.file.set_len(0);
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the mark of a store, of any boot and process.
pub(super) fn remove(directory: &Path, store: &str) {
    let _ = fs::remove_file(path(directory, store));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_belongs_to_one_store_and_one_leadership() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let mark = MarkFile::create(at, "0a1b", -5, Token(7)).unwrap();
        mark.write(Token(8)).unwrap();
        assert_eq!(MarkFile::read(at, "0a1b", -5), Some(Token(8)));
        assert_eq!(MarkFile::read(at, "0a1b", -6), None);
        assert_eq!(MarkFile::read(at, "0a1c", -5), None);
        fs::write(path(at, "0a1b"), "1 00").unwrap();
        assert_eq!(MarkFile::read(at, "0a1b", -5), None);
        let other = line(BootId([1; 16]), -5, Token(8));
        fs::write(path(at, "0a1b"), other).unwrap();
        assert_eq!(MarkFile::read(at, "0a1b", -5), None, "of another start of the machine");
        mark.remove();
        assert!(!path(at, "0a1b").exists());
    }
}
