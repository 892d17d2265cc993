//! The key that signs file handles. With a store of its own a server keeps it in the state directory;
//! servers that share a database share the key in it, and each keeps a copy, so that a new database
//! gets the same key and clients need not remount (B6.81).
//!
//! ```text
//! handle.key          of this server; also of an embedded store in this directory
//! handle-shared.key   copy of the one in the database
//! ```

use std::path::Path;

use anyhow::{Context as _, Result};
use store::Postgres;
use vfs::secrets::{Secrets as _, SecretsInDirectory};

const OWN: &str = "handle";
const SHARED: &str = "handle-shared";

/// The key of a server with a store of its own.
pub(super) fn own(state: &Path) -> Result<[u8; 16]> {
    Ok(SecretsInDirectory::new(state).secret(OWN)?)
}

/// The key in the database. A new database gets the copy; if there is none, this server's own key.
pub(super) fn shared(state: &Path, store: &mut Postgres) -> Result<[u8; 16]> {
    let candidate = candidate(state)?;
    let shared = store.key_or_insert(OWN, &candidate)?;
    keep_copy(state, &shared)
}

fn candidate(state: &Path) -> Result<[u8; 16]> {
    let secrets = SecretsInDirectory::new(state);
    let known = match secrets.find(SHARED)? {
        Some(copy) => Some(copy),
        None => secrets.find(OWN)?,
    };
    Ok(known.map_or_else(SecretsInDirectory::generate, Ok)?)
}

/// Copies the key of the database. This server's own key stays: an embedded store in the state
/// directory may have been served with it. A server without one adopts that of the database.
pub(super) fn keep_copy(state: &Path, shared: &[u8]) -> Result<[u8; 16]> {
    let secrets = SecretsInDirectory::new(state);
    let key = shared.try_into().ok().context("the file handle key in the store is damaged")?;
    for name in [SHARED, OWN] {
        let found = secrets.find(name)?;
        if found.is_none() || (name == SHARED && found != Some(key)) {
            secrets.put(name, &key)?;
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B6.81
    #[test]
    fn a_node_keeps_the_shared_key_beside_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        let mine = own(state).unwrap();
        assert_eq!(candidate(state).unwrap(), mine, "a database without a key gets this one");
        let shared = [7; 16];
        assert_eq!(keep_copy(state, &shared).unwrap(), shared);
        assert_eq!(candidate(state).unwrap(), shared, "a new database gets the shared one");
        assert_eq!(own(state).unwrap(), mine, "that of an embedded store stays");
        keep_copy(state, &[8; 16]).unwrap();
        assert_eq!(candidate(state).unwrap(), [8; 16]);
        assert!(keep_copy(state, &[8; 15]).is_err());
    }

    /// B6.81
    #[test]
    fn a_node_without_a_key_adopts_the_shared_one() {
        let dir = tempfile::tempdir().unwrap();
        keep_copy(dir.path(), &[7; 16]).unwrap();
        assert_eq!(own(dir.path()).unwrap(), [7; 16]);
    }
}
