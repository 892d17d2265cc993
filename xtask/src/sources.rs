//! The sources: copies of the working tree, in which something is built that must not touch it; their date; and
//! how what is built names them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell::output;

/// What is built names this directory instead of the one in which it was built.
pub(crate) const INSTALLED: &str = "/usr/src/lockkeeper";

/// The date of what is made of them, in seconds since 1970: that of the last commit, unless the environment names
/// one.
pub(crate) fn date() -> String {
    let named = std::env::var("SOURCE_DATE_EPOCH").ok();
    let date = named.unwrap_or_else(|| output("git", &["log", "-1", "--format=%ct"]));
    if date.trim().is_empty() { "0".to_string() } else { date.trim().to_string() }
}

/// Makes `to` a copy of the files that git tracks or would add. Unchanged files keep their modification time.
pub(crate) fn copy(to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot run git")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    let listed = String::from_utf8(listed.stdout).context("a file name is not UTF-8")?;
    let mut wanted = HashSet::new();
    for name in listed.split('\0').filter(|name| Path::new(name).is_file()) {
        write_if_changed(&to.join(name), &fs::read(name)?)?;
        wanted.insert(to.join(name));
    }
    remove_others(to, &wanted)
}

fn write_if_changed(path: &Path, text: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn remove_others(dir: &Path, wanted: &HashSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
