//! Embedded stores, opened with the mark, as after a kill on the machine that wrote them, and without,
//! as on another machine.

use std::fs;
use std::path::Path;

use keeper::change::{Change, Snapshot};
use lockkeeper_store::BootId;
use lockkeeper_store::{
    CommitOutcome, Durability, Embedded, EmbeddedSettings, Store, StoreError, Token,
};
use tempfile::TempDir;
use testbed::fixtures::{Fixture, files};

use super::listing::Listing;

/// A directory in memory, where a sync is free.
pub fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// The run directory with the mark, and one without.
pub const RUN: [&str; 2] = ["run", "elsewhere"];

/// `state/store` below `place`, with the durability and the boot id of the fixture.
pub fn settings(fixture: &Fixture, place: &Path, run: &str) -> EmbeddedSettings {
    let durability = match fixture.name.split('-').next() {
        Some("power") => Durability::Power,
        Some("process") => Durability::Process,
        other => panic!("no durability: {other:?}"),
    };
    let mark = fs::read(files(&fixture.path.join("run")).unwrap().pop().unwrap()).unwrap();
    let boot = BootId(mark[24..40].try_into().unwrap());
    let settings =
        EmbeddedSettings::new(place.join("state/store"), place.join(run), durability).unwrap();
    EmbeddedSettings { boot, ..settings }
}

fn load(settings: &EmbeddedSettings) -> Result<Snapshot, StoreError> {
    Embedded::open(settings.clone())?.load()
}

#[test]
fn every_store_opens_completely() {
    for fixture in Fixture::embedded().unwrap() {
        let listing = Listing::of(&fixture);
        for (run, fact) in RUN.into_iter().zip(["with mark", "without mark"]) {
            let what = format!("{} {} {fact}", fixture.version, fixture.name);
            let place = scratch();
            fixture.unpack(place.path()).unwrap();
            let settings = settings(&fixture, place.path(), run);
            let mut store =
                Embedded::open(settings).unwrap_or_else(|error| panic!("{what}: {error}"));
            let saved = store.load().unwrap();
            listing.assert_is(&saved, &what);
            assert_eq!(saved.exactness, listing.exactness(&format!("exactness {fact}")), "{what}");
            assert_eq!(store.last_token().unwrap().0.to_string(), listing.fact("token"), "{what}");
        }
    }
}

/// What this version adds to the old files is read with them.
#[test]
fn every_store_can_be_written_and_opened_again() {
    for fixture in Fixture::embedded().unwrap() {
        for run in RUN {
            let place = scratch();
            fixture.unpack(place.path()).unwrap();
            let settings = settings(&fixture, place.path(), run);
            let mut store = Embedded::open(settings.clone()).unwrap();
            let mut expected = store.load().unwrap();
            let token = Token(store.last_token().unwrap().0 + 1);
            let gone = Change::LockGone(*expected.locks.keys().next().unwrap());
            let committed = store.commit(std::slice::from_ref(&gone), token);
            assert!(matches!(committed, CommitOutcome::Done), "{fixture:?}: {committed:?}");
            drop(store);
            expected.apply(gone);
            for _ in 0..2 {
                assert_eq!(load(&settings).unwrap(), expected, "{fixture:?}");
            }
        }
    }
}
