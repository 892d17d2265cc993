//! Embedded stores with one byte changed. `flips.txt` beside each fixture says what the version that
//! wrote it made of every such store on another machine: refused; taken for a torn end, which makes the
//! locks a roster; or whole, if the byte carries no data.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use keeper::change::Exactness;
use lockkeeper_store::{Embedded, EmbeddedSettings, Store, StoreError};
use tempfile::TempDir;
use testbed::fixtures::{Fixture, files};

use super::embedded::{RUN, scratch, settings};
use super::listing::Listing;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    Torn,
    Whole,
}

/// A line of `flips.txt`: the outcome of every byte from `first` to `last`.
struct Run {
    file: String,
    first: usize,
    last: usize,
    outcome: Outcome,
}

impl Run {
    fn parse(line: &str) -> Self {
        let [file, bytes, outcome] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let (first, last) = bytes.split_once('-').unwrap();
        let outcome = match outcome {
            "refused" => Outcome::Refused,
            "torn" => Outcome::Torn,
            "whole" => Outcome::Whole,
            other => panic!("{other}"),
        };
        Self {
            file: file.to_owned(),
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
            outcome,
        }
    }
}

/// A copy of a fixture in which one byte at a time is changed.
struct Unpacked {
    fixture: Fixture,
    listing: Listing,
    place: TempDir,
    files: BTreeMap<String, Vec<u8>>,
}

impl Unpacked {
    fn of(fixture: Fixture) -> Self {
        let cut = fixture.text("lengths.txt").unwrap();
        let mut kept = BTreeMap::new();
        for path in files(&fixture.path.join("state/store")).unwrap() {
            let (name, mut bytes) = (name(&path), fs::read(&path).unwrap());
            if cut.contains(&format!("/{name} ")) {
                // Some of the preallocated zeros; all of them would only take time.
                bytes.resize(bytes.len() + 64, 0);
            }
            kept.insert(name, bytes);
        }
        let listing = Listing::of(&fixture);
        let copy = Self { fixture, listing, place: scratch(), files: kept };
        copy.restore();
        copy
    }

    /// The store and its mark, as the server left them.
    fn restore(&self) {
        self.fixture.unpack(self.place.path()).unwrap();
        let store = self.place.path().join("state/store");
        fs::remove_dir_all(&store).unwrap();
        fs::create_dir(&store).unwrap();
        for (name, bytes) in &self.files {
            fs::write(store.join(name), bytes).unwrap();
        }
        let elsewhere = self.place.path().join(RUN[1]);
        let _ = fs::remove_dir_all(&elsewhere);
        fs::create_dir(&elsewhere).unwrap();
    }

    fn settings(&self, run: &str) -> EmbeddedSettings {
        settings(&self.fixture, self.place.path(), run)
    }

    /// Opens the store with one bit of this byte flipped.
    fn open_flipped(
        &self,
        file: &str,
        at: usize,
        settings: &EmbeddedSettings,
    ) -> (Outcome, Exactness) {
        let path = self.place.path().join("state/store").join(file);
        let mut bytes = self.files[file].clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, bytes).unwrap();
        let what = || format!("{} {}: {file} at {at}", self.fixture.version, self.fixture.name);
        match Embedded::open(settings.clone()) {
            Err(error @ StoreError::Damaged { .. }) => {
                let text = error.to_string();
                assert!(text.contains("Restore the store from a backup"), "{}: {text}", what());
                // A refused store is not written to.
                fs::write(&path, &self.files[file]).unwrap();
                (Outcome::Refused, Exactness::Roster)
            }
            Err(error) => panic!("{}: {error}", what()),
            Ok(mut store) => {
                let saved = store.load().unwrap();
                drop(store);
                self.restore();
                let whole = self.listing.is(&saved);
                (if whole { Outcome::Whole } else { Outcome::Torn }, saved.exactness)
            }
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// One thread for each fixture.
fn each_fixture(work: impl Fn(&Unpacked, &Run) + Sync) {
    thread::scope(|scope| {
        for fixture in Fixture::embedded().unwrap() {
            scope.spawn(|| {
                let copy = Unpacked::of(fixture);
                let flips = copy.fixture.text("flips.txt").unwrap();
                flips.lines().map(Run::parse).for_each(|run| work(&copy, &run));
            });
        }
    });
}

#[test]
fn every_byte_of_a_store_has_a_listed_outcome() {
    for fixture in Fixture::embedded().unwrap() {
        let flips = fixture.text("flips.txt").unwrap();
        let mut listed: BTreeMap<String, usize> = BTreeMap::new();
        for run in flips.lines().map(Run::parse) {
            let next = listed.entry(run.file).or_default();
            assert_eq!(run.first, *next, "{fixture:?}");
            *next = run.last + 1;
        }
        let store = files(&fixture.path.join("state/store")).unwrap().into_iter();
        let lengths = store.map(|path| (name(&path), fs::metadata(&path).unwrap().len() as usize));
        assert_eq!(listed, lengths.collect(), "{fixture:?}");
    }
}

#[test]
fn a_flipped_byte_has_the_outcome_of_the_version_that_wrote_it() {
    each_fixture(|copy, run| {
        let settings = copy.settings(RUN[1]);
        for at in run.first..=run.last {
            let (outcome, exactness) = copy.open_flipped(&run.file, at, &settings);
            let what = format!("{} {} at {at}", copy.fixture.name, run.file);
            assert_eq!(outcome, run.outcome, "{what}");
            let trusted = match outcome {
                Outcome::Whole => copy.listing.exactness("exactness without mark"),
                _ => Exactness::Roster,
            };
            assert_eq!(exactness, trusted, "{what}");
        }
    });
}

/// With the mark a missing batch is noticed: the store is refused, or a roster.
#[test]
fn a_flipped_byte_never_makes_an_incomplete_store_exact() {
    each_fixture(|copy, run| {
        let settings = copy.settings(RUN[0]);
        // What is refused without the mark is refused before the mark is read.
        let stride = if run.outcome == Outcome::Refused { 37 } else { 1 };
        for at in (run.first..=run.last).step_by(stride) {
            let (outcome, exactness) = copy.open_flipped(&run.file, at, &settings);
            let what = format!("{} {} at {at}", copy.fixture.name, run.file);
            assert!(outcome != Outcome::Torn || exactness == Exactness::Roster, "{what}");
            assert!(run.outcome != Outcome::Refused || outcome == Outcome::Refused, "{what}");
        }
    });
}
