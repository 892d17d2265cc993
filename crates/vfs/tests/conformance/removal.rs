//! REMOVE, RMDIR and RENAME.

use lockkeeper_vfs::Error;

use crate::fixture::*;

on_every_file_system! {
    only_empty_directories_are_removed
    remove_and_rmdir_want_the_right_kind
    a_removed_file_is_stale
    a_removed_directory_is_stale
    rename_replaces_a_file
    rename_keeps_the_object
    rename_of_two_names_of_one_file_does_nothing
    rename_into_itself_is_invalid
    rename_over_something_of_another_kind_is_refused
    rename_over_a_full_directory_is_refused
    a_moved_directory_has_another_parent
    rename_of_what_is_not_there_fails
}

fn only_empty_directories_are_removed(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    by.create(&dir, "f", 0o644).unwrap();
    assert_eq!(by.rmdir(&fixture.root(), "d"), Err(Error::NotEmpty));
    by.remove(&dir, "f").unwrap();
    assert_eq!(by.rmdir(&fixture.root(), "d"), Ok(()));
    assert_eq!(by.rmdir(&fixture.root(), "d"), Err(Error::NotFound));
}

fn remove_and_rmdir_want_the_right_kind(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    by.create(&fixture.root(), "f", 0o644).unwrap();
    by.symlink(&fixture.root(), "l", "d").unwrap();
    assert_eq!(by.remove(&fixture.root(), "d"), Err(Error::IsADirectory));
    assert_eq!(by.rmdir(&fixture.root(), "f"), Err(Error::NotADirectory));
    assert_eq!(by.rmdir(&fixture.root(), "l"), Err(Error::NotADirectory));
    assert_eq!(by.remove(&fixture.root(), "l"), Ok(()));
    assert!(by.lookup(&fixture.root(), "d").is_ok());
}

fn a_removed_file_is_stale(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    by.write(&file, 0, b"data").unwrap();
    by.remove(&fixture.root(), "f").unwrap();
    assert_eq!(by.attributes(&file), Err(Error::Stale));
    assert_eq!(by.read(&file, 0, 1), Err(Error::Stale));
    assert_eq!(by.write(&file, 0, b"x"), Err(Error::Stale));
    assert_eq!(by.link(&file, &fixture.root(), "g"), Err(Error::Stale));
    let again = by.create(&fixture.root(), "f", 0o644).unwrap();
    assert_ne!(again, file, "an object is never named again");
    assert_eq!(by.attributes(&file), Err(Error::Stale));
}

fn a_removed_directory_is_stale(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    by.rmdir(&fixture.root(), "d").unwrap();
    assert_eq!(by.attributes(&dir), Err(Error::Stale));
    assert_eq!(by.create(&dir, "f", 0o644), Err(Error::Stale));
    assert_eq!(by.names(&dir, 1), Err(Error::Stale));
}

fn rename_replaces_a_file(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let old = by.create(&dir, "f", 0o644).unwrap();
    let new = by.create(&fixture.root(), "new", 0o644).unwrap();
    by.rename((&fixture.root(), "new"), (&dir, "f")).unwrap();
    assert_eq!(by.lookup(&dir, "f"), Ok(new));
    assert_eq!(by.lookup(&fixture.root(), "new"), Err(Error::NotFound));
    assert_eq!(by.attributes(&old), Err(Error::Stale));
    let empty = by.mkdir(&fixture.root(), "empty", 0o755).unwrap();
    let over = by.mkdir(&fixture.root(), "over", 0o755).unwrap();
    by.rename((&fixture.root(), "over"), (&fixture.root(), "empty")).unwrap();
    assert_eq!(by.lookup(&fixture.root(), "empty"), Ok(over));
    assert_eq!(by.attributes(&empty), Err(Error::Stale));
}

fn rename_keeps_the_object(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let file = by.create(&dir, "f", 0o644).unwrap();
    by.rename((&dir, "f"), (&fixture.root(), "g")).unwrap();
    assert_eq!(by.lookup(&fixture.root(), "g"), Ok(file));
    by.rename((&fixture.root(), "g"), (&fixture.root(), "h")).unwrap();
    assert_eq!(by.lookup(&fixture.root(), "h"), Ok(file));
    assert!(by.attributes(&file).is_ok());
}

fn rename_of_two_names_of_one_file_does_nothing(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    by.link(&file, &fixture.root(), "g").unwrap();
    assert_eq!(by.rename((&fixture.root(), "f"), (&fixture.root(), "g")), Ok(()));
    assert_eq!(by.rename((&fixture.root(), "f"), (&fixture.root(), "f")), Ok(()));
    assert_eq!(by.names(&fixture.root(), 9).unwrap(), [b"f", b"g"]);
    assert_eq!(by.attributes(&file).unwrap().links, 2);
}

fn rename_into_itself_is_invalid(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let below = by.mkdir(&dir, "below", 0o755).unwrap();
    assert_eq!(by.rename((&fixture.root(), "d"), (&dir, "x")), Err(Error::Invalid));
    assert_eq!(by.rename((&fixture.root(), "d"), (&below, "x")), Err(Error::Invalid));
    assert_eq!(by.rename((&dir, "below"), (&fixture.root(), "d")), Err(Error::NotEmpty));
}

fn rename_over_something_of_another_kind_is_refused(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    by.create(&fixture.root(), "f", 0o644).unwrap();
    let root = fixture.root();
    assert_eq!(by.rename((&root, "f"), (&root, "d")), Err(Error::IsADirectory));
    assert_eq!(by.rename((&root, "d"), (&root, "f")), Err(Error::NotADirectory));
}

fn rename_over_a_full_directory_is_refused(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let full = by.mkdir(&fixture.root(), "full", 0o755).unwrap();
    by.create(&full, "f", 0o644).unwrap();
    by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let root = fixture.root();
    assert_eq!(by.rename((&root, "d"), (&root, "full")), Err(Error::NotEmpty));
}

fn a_moved_directory_has_another_parent(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let from = by.mkdir(&fixture.root(), "from", 0o755).unwrap();
    let to = by.mkdir(&fixture.root(), "to", 0o755).unwrap();
    let dir = by.mkdir(&from, "d", 0o755).unwrap();
    let file = by.create(&dir, "f", 0o644).unwrap();
    by.rename((&from, "d"), (&to, "e")).unwrap();
    assert_eq!(by.lookup(&dir, ".."), Ok(to));
    assert_eq!(by.lookup(&to, "e"), Ok(dir));
    assert_eq!(by.lookup(&dir, "f"), Ok(file));
}

fn rename_of_what_is_not_there_fails(fixture: &Fixture) {
    let alice = alice();
    let root = fixture.root();
    assert_eq!(fixture.by(&alice).rename((&root, "no"), (&root, "yes")), Err(Error::NotFound));
    assert_eq!(fixture.by(&alice).remove(&root, "no"), Err(Error::NotFound));
}
