//! The secret that lets a caller over TCP change things: who can read the state directory has it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

#[derive(Debug, thiserror::Error)]
#[error("cannot keep the token in {}: {error}", path.display())]
pub struct TokenError {
    path: PathBuf,
    error: io::Error,
}

pub fn read_or_make(path: &Path) -> Result<String, TokenError> {
    let failed = |error| TokenError { path: path.to_owned(), error };
    match fs::read_to_string(path) {
        Ok(text) if text.trim().len() >= 32 => return Ok(text.trim().to_string()),
        Ok(_) => {
            return Err(failed(io::Error::other("it is too short; delete it to get a new one")));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let mut secret = [0; 32];
    getrandom(&mut secret, GetRandomFlags::empty()).map_err(|error| failed(error.into()))?;
    let token: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| writeln!(file, "{token}")).map_err(failed)?;
    Ok(token)
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
        fs::write(&path, "short\n").unwrap();
        assert!(read_or_make(&path).unwrap_err().to_string().contains("too short"));
    }
}
