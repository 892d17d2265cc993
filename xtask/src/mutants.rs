//! `cargo xtask mutants`: deliberate mistakes that a story, a judge of the simulator or a unit test
//! must catch.
//!
//! Semantic mutants are files in `sim/mutants` ([`mutant`]). Each is applied to a copy of the tree
//! ([`tree`]), built incrementally in one target directory, and run against the story, judge or test
//! that it names: one that only another test catches counts as missed. Random mutants come from
//! cargo-mutants ([`random`]).

mod mutant;
pub(crate) mod random;
mod tree;

use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::shell::output;
use mutant::{Judge, Mutant};
use tree::Tree;

const DIR: &str = "sim/mutants";
/// The number checked in each run of CI; which ones depends on the commit.
const SAMPLE: usize = 8;

/// Checks the named mutants, or all.
pub(crate) fn check(names: &[&str]) -> Result<()> {
    let mut mutants = applicable()?;
    if let Some(unknown) = names.iter().find(|name| !mutants.iter().any(|m| m.name == **name)) {
        bail!("{DIR}/{unknown}.toml does not exist");
    }
    mutants.retain(|mutant| names.is_empty() || names.contains(&mutant.name.as_str()));
    judge_all(&mutants)
}

/// Checks a sample, chosen by the commit and spread over all mutants.
pub(crate) fn check_sample() -> Result<()> {
    let mutants = applicable()?;
    let chosen = sample(mutants.len(), commit_number());
    let mutants: Vec<Mutant> = mutants
        .into_iter()
        .enumerate()
        .filter_map(|(at, mutant)| chosen.contains(&at).then_some(mutant))
        .collect();
    judge_all(&mutants)
}

/// Lists the mutants that no longer apply to the tree.
pub(crate) fn refresh() -> Result<()> {
    let count = applicable()?.len();
    println!("{count} mutants apply");
    Ok(())
}

/// All mutants; an error lists those whose text is no longer in the named function.
fn applicable() -> Result<Vec<Mutant>> {
    let mutants = Mutant::all(DIR)?;
    ensure!(!mutants.is_empty(), "{DIR} is empty");
    let stale: Vec<String> = mutants
        .iter()
        .filter_map(|mutant| {
            let why = mutant.files().err()?;
            Some(format!("  {DIR}/{}.toml: {why:#}", mutant.name))
        })
        .collect();
    ensure!(stale.is_empty(), "mutants that no longer apply:\n{}", stale.join("\n"));
    Ok(mutants)
}

/// A number that differs between commits, so that the samples cover all mutants over time.
fn commit_number() -> usize {
    let commit = output("git", &["rev-parse", "--short=8", "HEAD"]);
    u64::from_str_radix(commit.trim(), 16).unwrap_or(0) as usize
}

/// The indices of `SAMPLE` out of `count` mutants.
fn sample(count: usize, number: usize) -> Vec<usize> {
    let size = SAMPLE.min(count);
    (0..size).map(|at| (number + at * count / size) % count).collect()
}

fn judge_all(mutants: &[Mutant]) -> Result<()> {
    let tree = Tree::copy()?;
    let mut missed = Vec::new();
    println!("{:<28} {:<76} {:>4}  mistake", "mutant", "caught by", "s");
    for mutant in mutants {
        let start = Instant::now();
        let result = judge(&tree, mutant);
        let shown = match &result {
            Ok(Some(caught_by)) => caught_by.clone(),
            Ok(None) => "MISSED".to_owned(),
            Err(error) => format!("NOT JUDGED: {error:#}"),
        };
        let seconds = start.elapsed().as_secs_f64();
        println!("{:<28} {shown:<76} {seconds:>4.0}  {}", mutant.name, mutant.what);
        if !matches!(result, Ok(Some(_))) {
            missed.push(mutant.name.as_str());
        }
    }
    println!("{} mutants, {} missed", mutants.len(), missed.len());
    ensure!(missed.is_empty(), "not caught: {}", missed.join(" "));
    Ok(())
}

/// What catches a mutant, or `None`. For a file that names nothing, lists the candidates.
fn judge(tree: &Tree, mutant: &Mutant) -> Result<Option<String>> {
    let trial = tree.apply(mutant)?;
    match mutant.judge()? {
        Judge::Story(story) => Ok(trial.story_fails(&story)?.then(|| format!("story {story}"))),
        Judge::Rule(rule) => match trial.violation()? {
            Some((seed, found)) if rule.split(" or ").any(|rule| rule == found) => {
                Ok(Some(format!("{found}, seed {seed}")))
            }
            Some((seed, found)) => bail!("seed {seed} breaks {found}, not {rule}"),
            None => Ok(None),
        },
        Judge::Test { package, part } => {
            Ok(trial.test_fails(&package, &part)?.then(|| format!("test {part}")))
        }
        Judge::Unnamed => {
            println!("{} names no judge; it could be", mutant.name);
            for story in trial.failing_stories()? {
                println!("  story = \"{story}\"");
            }
            if let Some((seed, rule)) = trial.violation()? {
                println!("  judge = \"{rule}\" (seed {seed})");
            }
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_and_moves_with_the_commit() {
        assert_eq!(sample(64, 0), [0, 8, 16, 24, 32, 40, 48, 56]);
        assert_eq!(sample(64, 63), [63, 7, 15, 23, 31, 39, 47, 55]);
        assert_eq!(sample(3, 1), [1, 2, 0]);
        let mut all: Vec<usize> = (0..8).flat_map(|number| sample(63, number)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 63);
    }
}
