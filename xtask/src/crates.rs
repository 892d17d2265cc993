//! The crates that the library consists of, as they would be published. Nothing is published.

use anyhow::{Result, ensure};

use crate::shell::{output, run};

/// The library and what it is made of. All others have `publish = false`.
const PUBLIC: [&str; 8] = [
    "lockkeeper-wire",
    "lockkeeper-client",
    "lockkeeper-keeper",
    "lockkeeper-store",
    "lockkeeper-vfs",
    "lockkeeper-server",
    "lockkeeper-admin",
    "lockkeeper",
];

/// The most crates that the library is built from without its features.
const CRATES_MAX: usize = 41;

/// Packages them; with `verify`, builds each from its package.
pub(crate) fn package(verify: bool) -> Result<()> {
    let tree = ["tree", "--package", "lockkeeper", "--no-default-features"];
    let flat = ["--edges", "normal", "--prefix", "none", "--no-dedupe", "--format", "{p}"];
    let listed = output("cargo", &[&tree[..], &flat].concat());
    let mut crates: Vec<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    crates.sort_unstable();
    crates.dedup();
    println!("lockkeeper without features: {} crates", crates.len());
    ensure!(
        (PUBLIC.len()..=CRATES_MAX).contains(&crates.len()),
        "{} crates, {CRATES_MAX} are allowed: see docs/decisions.md on dependencies",
        crates.len()
    );
    let chosen = PUBLIC.iter().flat_map(|name| ["--package", name]);
    let quick: &[&str] = if verify { &[] } else { &["--no-verify", "--quiet"] };
    let arguments = ["package", "--allow-dirty"].into_iter().chain(quick.iter().copied());
    run("cargo", &arguments.chain(chosen).collect::<Vec<_>>())
}
