//! The corpus of every fuzz target, run through the target's own check without a fuzzer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::path::PathBuf;

use judge::check::{self, TARGETS};

fn corpus(target: &str) -> Vec<PathBuf> {
    let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus")).join(target);
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

#[test]
fn the_corpus_of_every_target_passes_its_check() {
    for target in TARGETS {
        let files = corpus(target.name);
        assert!(files.len() >= 5, "{} has {} seeds", target.name, files.len());
        for file in files {
            println!("{}", file.display());
            (target.check)(&std::fs::read(file).unwrap());
        }
    }
}

/// Seeds that no longer decode would still pass, and teach a fuzzer nothing.
#[test]
fn every_seed_is_what_the_generator_writes() {
    for (target, seeds) in judge::seeds::all() {
        for (name, bytes) in seeds {
            let file = format!("{}/../../fuzz/corpus/{target}/{name}", env!("CARGO_MANIFEST_DIR"));
            let found = std::fs::read(&file).unwrap_or_default();
            assert!(
                found == bytes,
                "{file} is out of date: cargo run -p lockkeeper-judge --bin seeds"
            );
        }
    }
    assert_eq!(judge::seeds::all().len(), check::TARGETS.len());
}
