//! Creates a tree of small files, and computes a digest of one over names, types, modes, links and
//! contents. Owners and times are excluded, because a copy may change them.

use std::fs;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::random::Random;

const FILES_PER_DIRECTORY: u64 = 50;

/// `count` files below `dir`, fifty to a directory, of 0 to 12 KB and a few larger ones; every
/// hundredth also has a symbolic link.
pub fn make(dir: &Path, count: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    for number in 0..count {
        let inside = dir.join(format!("d{:03}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(&inside).with_context(|| inside.display().to_string())?;
        }
        let length =
            if number % 200 == 7 { 300_000 } else { random.below(12_000) >> random.below(6) };
        let path = inside.join(format!("file-{number:05}"));
        fs::write(&path, random.bytes(length as usize))
            .with_context(|| path.display().to_string())?;
        let mode = [0o644, 0o600, 0o755, 0o444][random.below(4) as usize];
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        if number % 100 == 99 {
            symlink(format!("file-{number:05}"), inside.join(format!("link-{number:05}")))?;
        }
    }
    Ok(())
}

/// The digest and the number of entries, as text.
pub fn checksum(dir: &Path) -> Result<String> {
    let mut hasher = SipHasher13::new();
    let mut entries = 0_u64;
    let mut todo: Vec<PathBuf> = vec![dir.to_path_buf()];
    while let Some(path) = todo.pop() {
        let context = || path.display().to_string();
        let metadata = fs::symlink_metadata(&path).with_context(context)?;
        let name = path.strip_prefix(dir).with_context(context)?;
        field(&mut hasher, name.as_os_str().as_bytes());
        field(&mut hasher, &metadata.mode().to_le_bytes());
        if metadata.is_dir() {
            let mut names = Vec::new();
            for entry in fs::read_dir(&path).with_context(context)? {
                names.push(entry.with_context(context)?.path());
            }
            names.sort_unstable();
            if names.windows(2).any(|pair| pair[0] == pair[1]) {
                bail!("{}: the same name twice in one directory", path.display());
            }
            todo.extend(names);
        } else if metadata.is_symlink() {
            let target = fs::read_link(&path).with_context(context)?;
            field(&mut hasher, target.as_os_str().as_bytes());
        } else if metadata.is_file() {
            field(&mut hasher, &fs::read(&path).with_context(context)?);
        }
        entries += 1;
    }
    let digest = hasher.finish128().as_u128();
    Ok(format!("{digest:032x} {entries} entries"))
}

/// Prefixed by its length, so that fields cannot be confused.
fn field(hasher: &mut SipHasher13, bytes: &[u8]) {
    hasher.write(&(bytes.len() as u64).to_le_bytes());
    hasher.write(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_tree() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&one, &two] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            make(dir.path(), 120, 5).unwrap();
        }
        assert_eq!(checksum(one.path()).unwrap(), checksum(two.path()).unwrap());
    }

    #[test]
    fn a_changed_byte_mode_name_or_link_changes_the_digest() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), 100, 5).unwrap();
        let mut seen = vec![checksum(dir.path()).unwrap()];
        let file = dir.path().join("d000/file-00007");
        let mut contents = fs::read(&file).unwrap();
        contents[123] ^= 1;
        fs::write(&file, contents).unwrap();
        seen.push(checksum(dir.path()).unwrap());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        seen.push(checksum(dir.path()).unwrap());
        fs::rename(&file, dir.path().join("d000/renamed")).unwrap();
        seen.push(checksum(dir.path()).unwrap());
        let link = dir.path().join("d001/link-00099");
        fs::remove_file(&link).unwrap();
        symlink("elsewhere", &link).unwrap();
        seen.push(checksum(dir.path()).unwrap());
        let distinct: std::collections::HashSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), 5);
    }
}
