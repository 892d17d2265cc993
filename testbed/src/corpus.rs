//! The corpora of the fuzz targets, so that ordinary tests run them too. A corpus is `seed-*` files in
//! `fuzz/corpus/TARGET`: valid inputs, which a test of the target's crate writes, and inputs of
//! findings.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::path::PathBuf;

/// A corpus with fewer seeds than this teaches a fuzzer little.
const SEEDS_MIN: usize = 4;

fn directory(target: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus")).join(target)
}

/// Runs the check of a target on every seed of its corpus.
pub fn each(target: &str, check: impl Fn(&[u8])) {
    let directory = directory(target);
    let entries =
        fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-"))
    });
    files.sort();
    assert!(files.len() >= SEEDS_MIN, "{target} has {} seeds", files.len());
    for file in files {
        println!("{}", file.display());
        check(&fs::read(file).unwrap());
    }
}

/// Asserts that the seed with this name has these bytes; with `LOCKKEEPER_UPDATE` set, writes it.
pub fn is_seed(target: &str, name: &str, bytes: &[u8]) {
    let file = directory(target).join(format!("seed-{name}"));
    if std::env::var_os("LOCKKEEPER_UPDATE").is_some() {
        fs::create_dir_all(directory(target)).unwrap();
        fs::write(&file, bytes).unwrap();
    }
    let found = fs::read(&file).unwrap_or_default();
    assert!(
        found == bytes,
        "{} is out of date: run this test with LOCKKEEPER_UPDATE=1",
        file.display()
    );
}
