//! The token that authorises changes over TCP, a file in the state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use tracing::warn;

/// Shorter tokens could be guessed.
const LENGTH_MIN: usize = 32;

#[derive(Debug, thiserror::Error)]
#[error("cannot use the token file {}: {error}; check that it is readable and writable", path.display())]
pub struct TokenError {
    path: PathBuf,
    error: io::Error,
}

/// Reads the token. Creates it if absent, and replaces an unusable one, such as after a power failure.
pub(crate) fn read_or_make(path: &Path) -> Result<String, TokenError> {
    let failed = |error| TokenError { path: path.to_owned(), error };
    match fs::read(path) {
        Ok(bytes) => match usable(&bytes) {
            Some(token) => return Ok(token),
            None => warn!("{} is not a valid token or too short; replacing it", path.display()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let mut secret = [0; 32];
    getrandom(&mut secret, GetRandomFlags::empty()).map_err(|error| failed(error.into()))?;
    let token: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    write_whole(path, &token).map_err(failed)?;
    Ok(token)
}

fn usable(bytes: &[u8]) -> Option<String> {
    let token = bytes.trim_ascii();
    let good = token.len() >= LENGTH_MIN && token.iter().all(u8::is_ascii_graphic);
    good.then(|| String::from_utf8_lossy(token).into_owned())
}

/// Writes the file atomically.
fn write_whole(path: &Path, token: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = writeln!(file, "{token}").and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_token_stays_and_is_the_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = read_or_make(&path).unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(read_or_make(&path).unwrap(), token);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::write(&path, "a-token-that-somebody-made-himself\n").unwrap();
        assert_eq!(read_or_make(&path).unwrap(), "a-token-that-somebody-made-himself");
    }

    #[test]
    fn what_a_power_cut_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        for left in [&b""[..], b"short\n", &[0; 65], &[0xff; 65]] {
            fs::write(&path, left).unwrap();
            fs::write(dir.path().join("token.new"), "half").unwrap();
            let token = read_or_make(&path).unwrap();
            assert_eq!(token.len(), 64, "{left:?}");
            assert_eq!(read_or_make(&path).unwrap(), token);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let error = read_or_make(dir.path()).unwrap_err().to_string();
        assert!(error.contains(dir.path().to_str().unwrap()), "{error}");
    }
}
