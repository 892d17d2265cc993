//! Lists a directory while another client creates and deletes entries. Names that start with `stay-`
//! exist throughout: every listing must contain each of them exactly once.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::random::Random;

pub const STAYS: &str = "stay-";

/// The errors of a listing.
#[derive(Debug, PartialEq, Eq)]
pub struct Flaws {
    missed: Vec<String>,
    doubled: Vec<String>,
    strange: Vec<String>,
}

impl fmt::Display for Flaws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, names) in
            [("missed", &self.missed), ("doubled", &self.doubled), ("strange", &self.strange)]
        {
            if let Some(first) = names.first() {
                write!(f, "{} {what}, such as {first:?}; ", names.len())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Flaws {}

/// Checks that `stay-00000` to `stay-{count-1}` are all present, and no name occurs twice.
pub fn check(names: &[String], count: u64) -> Result<(), Flaws> {
    let mut seen: HashMap<&str, u32> = HashMap::with_capacity(names.len());
    for name in names {
        *seen.entry(name).or_default() += 1;
    }
    let doubled = seen.iter().filter(|(_, times)| **times > 1);
    let doubled: Vec<String> = doubled.map(|(name, _)| (*name).to_owned()).collect();
    let expected: Vec<String> = (0..count).map(stay).collect();
    let missed = expected.iter().filter(|name| !seen.contains_key(name.as_str()));
    let missed: Vec<String> = missed.cloned().collect();
    let stayers = seen.keys().filter(|name| name.starts_with(STAYS));
    let strange = stayers.filter(|name| expected.binary_search(&(**name).to_owned()).is_err());
    let strange: Vec<String> = strange.map(|name| (*name).to_owned()).collect();
    if missed.is_empty() && doubled.is_empty() && strange.is_empty() {
        Ok(())
    } else {
        Err(Flaws { missed, doubled, strange })
    }
}

pub fn stay(number: u64) -> String {
    format!("{STAYS}{number:05}")
}

/// Lists until the time is over; the first wrong listing is an error.
pub fn census(dir: &Path, count: u64, seconds: u64) -> Result<String> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut listings, mut sizes) = (0_u64, std::collections::HashSet::new());
    while listings == 0 || Instant::now() < end {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
            let name = entry.context("the listing was interrupted")?.file_name();
            names.push(name.to_string_lossy().into_owned());
        }
        check(&names, count).with_context(|| format!("listing {listings}"))?;
        sizes.insert(names.len());
        listings += 1;
    }
    Ok(format!("{listings} listings, {} different sizes", sizes.len()))
}

/// Creates and deletes other names until the time is over.
pub fn churn(dir: &Path, seconds: u64, seed: u64) -> Result<String> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random::new(seed);
    let mut alive: Vec<String> = Vec::new();
    let (mut created, mut deleted) = (0_u64, 0_u64);
    while Instant::now() < end {
        if alive.len() < 20 || (alive.len() < 300 && random.below(2) == 0) {
            let name = format!("go-{:016x}", random.next());
            File::create_new(dir.join(&name)).with_context(|| format!("cannot create {name}"))?;
            alive.push(name);
            created += 1;
        } else {
            let name = alive.swap_remove(random.below(alive.len() as u64) as usize);
            fs::remove_file(dir.join(&name)).with_context(|| format!("cannot delete {name}"))?;
            deleted += 1;
        }
    }
    if created == 0 || deleted == 0 {
        bail!("only {created} created, {deleted} deleted");
    }
    Ok(format!("{created} created, {deleted} deleted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Vec<String> {
        (0..100).map(stay).chain(["go-1".to_owned()]).collect()
    }

    #[test]
    fn a_whole_listing_passes() {
        assert_eq!(check(&full(), 100), Ok(()));
    }

    #[test]
    fn a_missed_name_is_noticed() {
        let mut names = full();
        names.remove(40);
        assert_eq!(check(&names, 100).unwrap_err().missed, ["stay-00040"]);
    }

    #[test]
    fn a_doubled_name_is_noticed() {
        let mut names = full();
        names.push(stay(3));
        assert_eq!(check(&names, 100).unwrap_err().doubled, ["stay-00003"]);
    }

    #[test]
    fn an_unexpected_name_is_noticed() {
        let mut names = full();
        names.push("stay-0004".to_owned());
        assert_eq!(check(&names, 100).unwrap_err().strange, ["stay-0004"]);
    }

    #[test]
    fn a_census_of_a_real_directory_notices_a_hole() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..10 {
            File::create(dir.path().join(stay(number))).unwrap();
        }
        census(dir.path(), 10, 0).unwrap();
        fs::remove_file(dir.path().join(stay(5))).unwrap();
        assert!(census(dir.path(), 10, 0).is_err());
    }
}
