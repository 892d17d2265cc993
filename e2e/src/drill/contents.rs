//! File contents: a tree copied in and out, and files that two guests change in turn.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::model::Model;
use guest::tree;

use super::Step;
use super::context::{Drill, StepDir, as_user};
use crate::guest::Guest;

pub(super) const STEPS: &[Step] =
    &[Step::new("copy-a-tree", copy_tree), Step::new("exercise-from-two-guests", exercise)];

const TIMEOUT: Duration = Duration::from_secs(400);
const SEED: u64 = 20_260;
const FILES: u64 = 4;

fn copy_tree(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "tree")?;
    copy_tree_in(drill, &dir, None, drill.size.tree_files)
}

/// Copies a tree into `dir` and out of it, and removes it; as this user, if not as root.
pub(super) fn copy_tree_in(
    drill: &Drill,
    dir: &StepDir,
    user: Option<u32>,
    count: u64,
) -> Result<()> {
    let (alice, bob, at) = (drill.alice()?, drill.bob()?, &dir.guest);
    let tool = "lockkeeper-guest";
    let run = |guest: &Guest, script: &str| guest.succeed_for(&by(user, script), TIMEOUT);
    let original = run(
        alice,
        &format!(
            "rm -rf /tmp/tree && {tool} maketree /tmp/tree {count} {SEED} && {tool} checksum /tmp/tree"
        ),
    )?;
    run(alice, &format!("cp -a /tmp/tree {at}/ && rm -rf /tmp/tree"))?;
    let stored = tree::checksum(&dir.file("tree"))?;
    ensure!(stored == original, "the server's disk has {stored} instead of {original}");
    let copied = run(
        bob,
        &format!("cp -a {at}/tree /tmp/copy && {tool} checksum /tmp/copy && rm -rf /tmp/copy"),
    )?;
    ensure!(copied == original, "the other guest copied {copied} instead of {original}");
    run(alice, &format!("rm -r {at}/tree"))?;
    ensure!(!dir.file("tree").exists(), "the tree could not be removed");
    Ok(())
}

fn exercise(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "exercise")?;
    exercise_in(drill, &dir, None, drill.size.exercise_rounds)
}

/// Both guests work at the same time, each on two of four files, and swap them after every round.
pub(super) fn exercise_in(
    drill: &Drill,
    dir: &StepDir,
    user: Option<u32>,
    rounds: u64,
) -> Result<()> {
    let guests = [drill.alice()?, drill.bob()?];
    let operations = drill.size.exercise_operations;
    for turn in 0..rounds {
        let mut runs = Vec::new();
        for (number, guest) in guests.iter().enumerate() {
            let mine = (0..FILES).filter(|file| (file + turn) % 2 == number as u64);
            let commands: Vec<String> = mine
                .map(|file| {
                    let path = format!("{}/file-{file}", dir.guest);
                    format!("lockkeeper-guest exercise {SEED} {file} {turn} {operations} {path}")
                })
                .collect();
            runs.push((guest.name(), guest.spawn(&by(user, &commands.join(" && ")))?));
        }
        for (name, run) in runs {
            let output = run.wait(TIMEOUT)?;
            ensure!(output.status == 0, "{name}: {}", output.errors());
        }
    }
    for file in 0..FILES {
        let model = Model::before(SEED, file, rounds, operations);
        let found = std::fs::read(dir.file(&format!("file-{file}")))?;
        model.check_all(&found).with_context(|| format!("file-{file} on the server's disk"))?;
    }
    Ok(())
}

fn by(user: Option<u32>, script: &str) -> String {
    user.map_or_else(|| script.to_owned(), |id| as_user(&format!("{id}:{id}"), "/", script))
}
