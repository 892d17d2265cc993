//! Reads a story, runs it, and writes it with its actual outcomes.
//!
//! A story opens with its subject (`#`), followed by blocks separated by blank lines: one or more
//! commands, a line `----`, the outcome. The commands of one block enter the keeper together and
//! yield one step, as when they wait in the driver's queue at the same time.

mod language;
mod notation;
mod questions;
mod words;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use world::World;

pub struct Story {
    pub name: String,
    pub path: PathBuf,
    pub text: String,
}

/// All stories, by name.
pub fn all() -> Vec<Story> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut stories: Vec<_> = paths
        .map(|path| Story {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            text: std::fs::read_to_string(&path).unwrap(),
            path,
        })
        .collect();
    stories.sort_by(|one, other| one.name.cmp(&other.name));
    stories
}

impl Story {
    /// The same story with its actual outcomes, or the line that could not be run.
    pub fn tell(&self) -> Result<String, String> {
        let told = catch_unwind(AssertUnwindSafe(|| tell(&self.text)));
        told.unwrap_or(Err("the keeper panicked, or the world fell apart (see above)".into()))
    }
}

fn tell(text: &str) -> Result<String, String> {
    let mut world = World::new();
    let mut told = String::new();
    let mut commands: Vec<&str> = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    assert!(text.starts_with('#'), "a story opens with what it is about");
    while let Some((number, line)) = lines.next() {
        if line != "----" {
            told += line;
            told += "\n";
            if !line.starts_with('#') && !line.is_empty() {
                commands.push(line);
            }
            continue;
        }
        told += "----\n";
        let outcome = world
            .play(&std::mem::take(&mut commands))
            .map_err(|trouble| format!("before line {}: {trouble}", number + 1))?;
        for line in outcome {
            told += &line;
            told += "\n";
        }
        while lines.next_if(|(_, line)| !line.is_empty()).is_some() {}
    }
    match commands.first() {
        Some(left) => Err(format!("no outcome follows {left:?}")),
        None => Ok(told),
    }
}

/// The differences, each with its surrounding lines.
pub fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<_>, Vec<_>) =
        (expected.lines().collect(), actual.lines().collect());
    // Length of the longest common subsequence of the remainders from (i, j).
    let mut common = vec![vec![0u32; actual.len() + 1]; expected.len() + 1];
    for i in (0..expected.len()).rev() {
        for j in (0..actual.len()).rev() {
            common[i][j] = if expected[i] == actual[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines: Vec<(char, &str)> = Vec::new();
    while i < expected.len() || j < actual.len() {
        if i < expected.len() && j < actual.len() && expected[i] == actual[j] {
            lines.push((' ', expected[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == actual.len() || (i < expected.len() && common[i + 1][j] >= common[i][j + 1])
        {
            lines.push(('-', expected[i]));
            i += 1;
        } else {
            lines.push(('+', actual[j]));
            j += 1;
        }
    }
    let near =
        |at: usize| lines.iter().skip(at.saturating_sub(4)).take(7).any(|(sign, _)| *sign != ' ');
    let shown = lines.iter().enumerate().filter(|(at, _)| near(*at));
    shown.map(|(_, (sign, line))| format!("  {sign} {line}\n")).collect()
}
