//! Every planted bug must be caught, by a story or by the simulator within 10,000 seeds: a judge that
//! never convicts proves nothing.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

const SEEDS: &str = "10000";
/// Built apart from the product, with its own flag.
const TARGET: &str = "target/planted";

/// Looks for a story for each bug, and for a seed where there is no story (or for all of them).
pub fn check(seeds_for_all: bool) -> Result<()> {
    let (told, _) = cargo(&[
        "test",
        "--package",
        "lockkeeper-keeper",
        "--test",
        "planted",
        "--",
        "--nocapture",
    ])?;
    let stories: BTreeMap<&str, &str> =
        told.lines().filter_map(|line| verdict(line, "story")).collect();
    let simulator = ["run", "--release", "--package", "lockkeeper-sim", "--"];
    let (listed, ok) = cargo(&[&simulator[..], &["--plants"]].concat())?;
    ensure!(ok && !listed.is_empty(), "the simulator lists no planted bugs");
    let mut missed = Vec::new();
    println!("{:<28} {:<72} {:<6} what goes wrong", "planted bug", "story", "seed");
    for (name, does) in listed.lines().filter_map(|line| line.split_once('\t')) {
        let story = stories.get(name).copied().filter(|story| *story != "none");
        let mut seed = None;
        if story.is_none() || seeds_for_all {
            let (told, _) =
                cargo(&[&simulator[..], &["--plant", name, "--seeds", SEEDS]].concat())?;
            let found = told.lines().find_map(|line| verdict(line, "seed"));
            seed = found.map(|(_, seed)| seed.to_string()).filter(|seed| seed != "none");
        }
        println!(
            "{name:<28} {:<72} {:<6} {does}",
            story.unwrap_or("-"),
            seed.as_deref().unwrap_or("-")
        );
        if story.is_none() && seed.is_none() {
            missed.push(name);
        }
    }
    println!("{} planted bugs, {} missed", listed.lines().count(), missed.len());
    ensure!(missed.is_empty(), "not caught: {}", missed.join(" "));
    Ok(())
}

/// `planted NAME story|seed WHAT ...`
fn verdict<'a>(line: &'a str, by: &str) -> Option<(&'a str, &'a str)> {
    let mut words = line.split_whitespace();
    let found = words.find(|word| *word == "planted");
    let (name, kind, what) = (words.next()?, words.next()?, words.next()?);
    (found.is_some() && kind == by).then_some((name, what))
}

/// What cargo's program printed, and whether it ended well.
fn cargo(arguments: &[&str]) -> Result<(String, bool)> {
    let output = Command::new("cargo")
        .args(arguments)
        .env("RUSTFLAGS", "--cfg planted")
        .env("CARGO_TARGET_DIR", TARGET)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}
