//! Builds the package twice, in directories with different names, from nothing. Equal bits mean that the
//! package can be checked by anyone who has the sources and the toolchain that `rust-toolchain.toml` names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Build, stdout_of};
use crate::shell::target;
use crate::sources;

/// Of different lengths, as a path that is left in a binary moves what follows it.
const PLACES: [&str; 2] = ["reproduce/one/sources", "reproduce/in-another-place/lockkeeper"];

pub(super) fn reproduce(profile: &str) -> Result<()> {
    let target = target()?;
    let trees = PLACES.map(|place| target.join(place));
    // Both before a build, which takes minutes: the sources may be edited and committed meanwhile.
    for tree in &trees {
        // What an earlier run left would not be built again.
        if tree.exists() {
            fs::remove_dir_all(tree)?;
        }
        sources::copy(tree)?;
    }
    let date = sources::date();
    let mut packages = Vec::new();
    for tree in trees {
        let (copy, target) = (tree.clone(), tree.join("target"));
        let (profile, date) = (profile.to_string(), date.clone());
        let build = Build { tree, copy, target, profile, date };
        packages.push(build.package()?);
    }
    let differing = differences(&packages, &target.join("reproduce"))?;
    for path in &differing {
        println!("differs: {path}");
    }
    ensure!(
        differing.is_empty(),
        "the packages differ; compare {} with {}, for example by diffoscope",
        packages[0].display(),
        packages[1].display()
    );
    let sum = stdout_of("sha256sum".as_ref(), &[&packages[0].to_string_lossy()])?;
    let sum = String::from_utf8_lossy(&sum);
    let sum = sum.split_whitespace().next().unwrap_or_default();
    println!("two builds, equal bits (profile {profile}): sha256 {sum}");
    Ok(())
}

/// The files of two packages that differ; the packages themselves if only their archives do.
fn differences(packages: &[PathBuf], scratch: &Path) -> Result<Vec<String>> {
    let [one, other] = packages else { anyhow::bail!("two packages are compared") };
    if fs::read(one)? == fs::read(other)? {
        return Ok(Vec::new());
    }
    let mut roots = Vec::new();
    for (package, name) in [(one, "unpacked-one"), (other, "unpacked-other")] {
        let root = scratch.join(name);
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        let [from, to] = [package, &root].map(|path| path.to_string_lossy().into_owned());
        stdout_of("dpkg-deb".as_ref(), &["--raw-extract", &from, &to])?;
        roots.push(root);
    }
    let (first, second) = (files(&roots[0])?, files(&roots[1])?);
    let mut names: Vec<&String> = first.iter().chain(&second).collect();
    names.sort();
    names.dedup();
    let differ = |name: &&String| {
        let content = |root: &PathBuf| fs::read(root.join(name)).ok();
        content(&roots[0]) != content(&roots[1])
    };
    let mut differing: Vec<String> = names.into_iter().filter(differ).cloned().collect();
    if differing.is_empty() {
        let name = one.file_name().context("a package has a name")?;
        differing.push(format!("{} (its files are equal)", name.to_string_lossy()));
    }
    Ok(differing)
}

/// The paths of all files below a directory, relative to it.
fn files(root: &Path) -> Result<Vec<String>> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(root)?.to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}
