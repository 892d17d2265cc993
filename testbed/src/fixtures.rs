//! Stores written by released versions, in `crates/store/tests/fixtures/VERSION/NAME`; see the README
//! there.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/store/tests/fixtures");
/// The directories of an embedded fixture.
const DIRECTORIES: [&str; 2] = ["state", "run"];
/// The lengths of files whose trailing zeros are not kept.
const LENGTHS: &str = "lengths.txt";
/// At least this many trailing zeros are preallocated space, not part of a record.
const PREALLOCATED_MIN: usize = 4096;
/// The lock file of a running server: empty, and created by the next.
const LOCK: &str = "lock";

/// One store of one version.
#[derive(Clone, Debug)]
pub struct Fixture {
    pub version: String,
    pub name: String,
    pub path: PathBuf,
}

impl Fixture {
    /// Every fixture of every version; never none.
    pub fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for version in directories(Path::new(ROOT))? {
            for path in directories(&version)? {
                all.push(Self { version: name(&version)?, name: name(&path)?, path });
            }
        }
        ensure!(!all.is_empty(), "{ROOT} has no fixtures");
        Ok(all)
    }

    /// Fixtures of the embedded store.
    pub fn embedded() -> Result<Vec<Self>> {
        Ok(Self::all()?.into_iter().filter(|one| one.path.join("state").exists()).collect())
    }

    /// Fixtures of the PostgreSQL store.
    pub fn postgres() -> Result<Vec<Self>> {
        Ok(Self::all()?.into_iter().filter(|one| one.path.join("dump.sql").exists()).collect())
    }

    /// One of its text files.
    pub fn text(&self, name: &str) -> Result<String> {
        let path = self.path.join(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Writes `state` and `run` below `to`, as the server left them.
    pub fn unpack(&self, to: &Path) -> Result<()> {
        for directory in DIRECTORIES {
            copy(&self.path.join(directory), &to.join(directory))?;
        }
        for line in self.text(LENGTHS)?.lines() {
            let (file, length) = line.split_once(' ').context("lengths.txt: FILE LENGTH")?;
            File::options().write(true).open(to.join(file))?.set_len(length.parse()?)?;
        }
        Ok(())
    }

    /// Keeps `state` and `run` of a server that has ended, as a fixture at `to`.
    pub fn pack(from: &Path, to: &Path) -> Result<()> {
        let mut lengths = String::new();
        for directory in DIRECTORIES {
            copy(&from.join(directory), &to.join(directory))?;
            for file in files(&to.join(directory))? {
                let bytes = fs::read(&file)?;
                let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                if bytes.len() - written >= PREALLOCATED_MIN {
                    let name = file.strip_prefix(to)?.display();
                    lengths += &format!("{name} {}\n", bytes.len());
                    fs::write(&file, &bytes[..written])?;
                }
            }
        }
        fs::write(to.join(LENGTHS), lengths)?;
        Ok(())
    }
}

/// Sets the modes that Git does not keep: a server refuses secrets that others can read.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o700))?;
    for source in entries(from)? {
        let target = to.join(name(&source)?);
        if source.is_dir() {
            copy(&source, &target)?;
        } else if name(&source)? != LOCK {
            fs::copy(&source, &target)?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}

/// All files below a directory.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(directory)? {
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

fn directories(directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(directory)?.into_iter().filter(|path| path.is_dir()).collect())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        found.push(entry?.path());
    }
    found.sort();
    Ok(found)
}

fn name(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(name.with_context(|| format!("{} has no name", path.display()))?.to_owned())
}
