//! The files of this repository, for tests that compare documents with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The paths of all files below [`root`], relative to it and sorted: those that git tracks or does not
/// ignore; in an exported tree, all but build output.
pub fn files() -> Vec<String> {
    let root = root();
    let mut paths = listed_by_git(&root).unwrap_or_else(|| {
        let mut found = Vec::new();
        walk(&root, &root, &mut found);
        found
    });
    // Removed, and not committed yet.
    paths.retain(|path| root.join(path).is_file());
    paths.sort();
    paths
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let paths = String::from_utf8(output.stdout).ok()?;
    Some(paths.split_terminator('\0').map(str::to_string).collect())
}

fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "target" && name != ".git" {
                walk(root, &path, found);
            }
        } else if let Ok(relative) = path.strip_prefix(root) {
            found.push(relative.to_string_lossy().into_owned());
        }
    }
}
