//! A copy of the working tree in which mutants are built and tested, one at a time. The copy and its
//! target directory stay between runs, so that only changed crates are rebuilt.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};

use super::mutant::Mutant;
use crate::sources;

const COPY: &str = "target/mutants/tree";
const TARGET: &str = "target/mutants/build";
/// See the profile's comment in `Cargo.toml`.
const PROFILE: &str = "quick";
/// Seeds to run before a mutant counts as missed.
const SEEDS: &str = "10000";
/// A mutant may not terminate.
const SECONDS_MAX: &str = "600";

pub(super) struct Tree {
    root: PathBuf,
    target: PathBuf,
}

impl Tree {
    /// Copies the files that git tracks or would add. Unchanged files keep their modification time.
    pub(super) fn copy() -> Result<Self> {
        let here = std::env::current_dir()?;
        let (root, target) = (here.join(COPY), here.join(TARGET));
        sources::copy(&root)?;
        Ok(Self { root, target })
    }

    /// Applies a mutant until the trial is dropped.
    pub(super) fn apply(&self, mutant: &Mutant) -> Result<Trial<'_>> {
        let mut trial = Trial { tree: self, original: BTreeMap::new() };
        for (name, text) in mutant.files()? {
            let path = self.root.join(&name);
            trial.original.insert(path.clone(), fs::read(&name)?);
            fs::write(&path, text)?;
        }
        Ok(trial)
    }

    /// Runs cargo in the copy.
    fn cargo(&self, arguments: &[&str], story: Option<&str>) -> Result<Output> {
        let mut command = Command::new("timeout");
        command.args([SECONDS_MAX, "cargo"]).args(arguments).current_dir(&self.root);
        command.env("CARGO_TARGET_DIR", &self.target).env("RUSTFLAGS", "--cap-lints allow");
        if let Some(story) = story {
            command.env("STORY", story);
        }
        command.output().context("cannot run cargo")
    }

    fn build(&self, arguments: &[&str]) -> Result<()> {
        let built = self.cargo(arguments, None)?;
        if !built.status.success() {
            bail!("it does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
        }
        Ok(())
    }
}

/// The tree with one mutant applied.
pub(super) struct Trial<'a> {
    tree: &'a Tree,
    original: BTreeMap<PathBuf, Vec<u8>>,
}

impl Trial<'_> {
    pub(super) fn story_fails(&self, story: &str) -> Result<bool> {
        ensure!(
            Path::new(&format!("crates/keeper/tests/stories/{story}.txt")).is_file(),
            "there is no story {story}"
        );
        Ok(self.stories(story)?.is_some())
    }

    /// Every story that fails.
    pub(super) fn failing_stories(&self) -> Result<Vec<String>> {
        let Some(printed) = self.stories("")? else { return Ok(Vec::new()) };
        let named = |line: &str| {
            let (name, rest) = line.split_once(".txt")?;
            (rest.is_empty() || rest.starts_with(':')).then(|| name.to_owned())
        };
        Ok(printed.lines().filter_map(named).collect())
    }

    /// The output of the stories whose names contain `part` if one of them fails.
    fn stories(&self, part: &str) -> Result<Option<String>> {
        let stories =
            ["test", "--profile", PROFILE, "--package", "lockkeeper-keeper", "--test", "stories"];
        self.tree.build(&[&stories[..], &["--no-run"]].concat())?;
        let ran = self.tree.cargo(&stories, Some(part))?;
        let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
        match ran.status.code() {
            Some(0) => Ok(None),
            Some(101) => Ok(Some(printed)),
            _ => bail!("the stories ended with {}:\n{printed}", ran.status),
        }
    }

    /// Whether a unit test whose name contains `part` fails.
    pub(super) fn test_fails(&self, package: &str, part: &str) -> Result<bool> {
        let tests = ["test", "--profile", PROFILE, "--package", package, "--lib"];
        self.tree.build(&[&tests[..], &["--no-run"]].concat())?;
        let ran = self.tree.cargo(&[&tests[..], &[part]].concat(), None)?;
        let printed = String::from_utf8_lossy(&ran.stdout);
        ensure!(!printed.contains("running 0 tests"), "{package} has no unit test {part}");
        match ran.status.code() {
            Some(0) => Ok(false),
            Some(101) => Ok(true),
            _ => bail!("the tests ended with {}:\n{printed}", ran.status),
        }
    }

    /// The first seed that violates a rule, and the rule.
    pub(super) fn violation(&self) -> Result<Option<(String, String)>> {
        let simulator = ["--profile", PROFILE, "--package", "lockkeeper-sim"];
        self.tree.build(&[&["build"], &simulator[..]].concat())?;
        let run = ["--", "--seeds", SEEDS, "--violations", "1"];
        let ran = self.tree.cargo(&[&["run"], &simulator[..], &run].concat(), None)?;
        let printed = String::from_utf8_lossy(&ran.stdout);
        if ran.status.success() {
            return Ok(None);
        }
        // `seed SEED: RULE: what happened`
        let mut lines = printed.lines().filter_map(|line| line.strip_prefix("seed "));
        let found = lines.find_map(|line| {
            let mut parts = line.splitn(3, ": ");
            Some((parts.next()?.to_owned(), parts.next()?.to_owned(), parts.next()?))
        });
        match found {
            Some((seed, rule, _)) => Ok(Some((seed, rule))),
            None => bail!("the simulator ended with {}:\n{printed}", ran.status),
        }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        for (path, text) in &self.original {
            if let Err(error) = fs::write(path, text) {
                eprintln!("cannot restore {}: {error}", path.display());
            }
        }
    }
}
