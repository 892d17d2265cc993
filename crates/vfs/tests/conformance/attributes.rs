//! Changes of attributes.

use bytes::Bytes;
use lockkeeper_vfs::{CreateMode, Error, NewAttributes, SetTime, Stability, Time};

use crate::fixture::*;

on_every_file_system! {
    only_the_owner_changes_the_mode
    only_root_gives_files_away
    the_owner_gives_a_file_to_one_of_its_groups
    a_creation_with_a_foreign_group_is_not_refused
    a_change_of_owner_keeps_the_mode_that_came_with_it
    size_changes_cut_and_extend
    only_regular_files_change_size
    times_are_set_as_given
    write_permission_allows_touch
    a_guard_detects_another_change
    directories_count_their_links
    changes_report_attributes_before_and_after
}

fn only_the_owner_changes_the_mode(fixture: &Fixture) {
    let file = fixture.by(&alice()).create(&fixture.root(), "f", 0o666).unwrap();
    assert_eq!(fixture.by(&carol()).set(&file, with_mode(0o777)), Err(Error::NotOwner));
    assert_eq!(fixture.by(&alice()).set(&file, with_mode(0o4755)), Ok(()));
    assert_eq!(fixture.by(&alice()).mode(&file), 0o4755);
    assert_eq!(fixture.by(&root()).set(&file, with_mode(0o600)), Ok(()));
    assert_eq!(fixture.by(&alice()).mode(&file), 0o600);
}

fn only_root_gives_files_away(fixture: &Fixture) {
    let file = fixture.by(&alice()).create(&fixture.root(), "f", 0o666).unwrap();
    let to_bob = NewAttributes { uid: Some(1001), ..NewAttributes::default() };
    assert_eq!(fixture.by(&alice()).set(&file, to_bob), Err(Error::NotOwner));
    assert_eq!(fixture.by(&bob()).set(&file, to_bob), Err(Error::NotOwner));
    assert_eq!(fixture.by(&root()).set(&file, to_bob), Ok(()));
    assert_eq!(fixture.by(&alice()).attributes(&file).unwrap().uid, 1001);
}

fn the_owner_gives_a_file_to_one_of_its_groups(fixture: &Fixture) {
    let file = fixture.by(&alice()).create(&fixture.root(), "f", 0o666).unwrap();
    let to = |gid| NewAttributes { gid: Some(gid), ..NewAttributes::default() };
    assert_eq!(fixture.by(&alice()).set(&file, to(5000)), Ok(()));
    assert_eq!(fixture.by(&alice()).attributes(&file).unwrap().gid, 5000);
    assert_eq!(fixture.by(&alice()).set(&file, to(6000)), Err(Error::NotOwner));
    assert_eq!(fixture.by(&bob()).set(&file, to(1001)), Err(Error::NotOwner));
}

fn a_creation_with_a_foreign_group_is_not_refused(fixture: &Fixture) {
    let new = NewAttributes { gid: Some(6000), ..with_mode(0o640) };
    let made = fixture.by(&alice()).make(&fixture.root(), "f", &CreateMode::Guarded(new)).unwrap();
    assert_eq!((made.attributes.gid, made.attributes.mode), (1000, 0o640));
    let new = NewAttributes { gid: Some(5000), ..with_mode(0o640) };
    let made = fixture.by(&alice()).make(&fixture.root(), "g", &CreateMode::Guarded(new)).unwrap();
    assert_eq!(made.attributes.gid, 5000);
    let new = NewAttributes { uid: Some(1000), gid: Some(6000), ..with_mode(0o4755) };
    let made = fixture.by(&root()).make(&fixture.root(), "h", &CreateMode::Guarded(new)).unwrap();
    let found = made.attributes;
    assert_eq!((found.uid, found.gid, found.mode), (1000, 6000, 0o4755));
}

fn a_change_of_owner_keeps_the_mode_that_came_with_it(fixture: &Fixture) {
    let file = fixture.by(&root()).create(&fixture.root(), "f", 0o755).unwrap();
    let new = NewAttributes { uid: Some(1000), gid: Some(1000), ..with_mode(0o6755) };
    fixture.by(&root()).set(&file, new).unwrap();
    assert_eq!(fixture.by(&root()).mode(&file), 0o6755);
    let owner = NewAttributes { uid: Some(1001), ..NewAttributes::default() };
    fixture.by(&root()).set(&file, owner).unwrap();
    assert_eq!(fixture.by(&root()).mode(&file), 0o755, "without one, the special bits go");
}

fn size_changes_cut_and_extend(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    by.write(&file, 0, b"0123456789").unwrap();
    by.set(&file, with_size(4)).unwrap();
    assert_eq!(by.read(&file, 0, 99).unwrap().0, b"0123");
    by.set(&file, with_size(6)).unwrap();
    assert_eq!(by.read(&file, 0, 99).unwrap().0, b"0123\0\0");
    assert_eq!(by.set(&file, with_size(u64::MAX)), Err(Error::TooLarge));
}

fn only_regular_files_change_size(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let link = by.symlink(&fixture.root(), "l", "d").unwrap();
    assert_eq!(by.set(&dir, with_size(0)), Err(Error::IsADirectory));
    assert_eq!(by.set(&link, with_size(0)), Err(Error::Invalid));
}

fn times_are_set_as_given(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    let early = Time { seconds: 1, nanoseconds: 999_999_999 };
    let late = Time { seconds: 2_000_000_000, nanoseconds: 7 };
    let new = NewAttributes {
        accessed: SetTime::To(early),
        modified: SetTime::To(late),
        ..NewAttributes::default()
    };
    by.set(&file, new).unwrap();
    let found = by.attributes(&file).unwrap();
    assert_eq!((found.accessed, found.modified), (early, late));
    by.set(&file, NewAttributes { accessed: SetTime::Now, ..NewAttributes::default() }).unwrap();
    let found = by.attributes(&file).unwrap();
    assert!(found.accessed > early);
    assert_eq!(found.modified, late);
    let bad = SetTime::To(Time { seconds: 0, nanoseconds: 1_000_000_000 });
    let bad = NewAttributes { accessed: bad, ..NewAttributes::default() };
    assert_eq!(by.set(&file, bad), Err(Error::Invalid));
}

fn write_permission_allows_touch(fixture: &Fixture) {
    let file = fixture.by(&alice()).create(&fixture.root(), "f", 0o620).unwrap();
    let none = NewAttributes::default();
    let both = NewAttributes { accessed: SetTime::Now, modified: SetTime::Now, ..none };
    let one = NewAttributes { modified: SetTime::Now, ..none };
    let to = SetTime::To(Time { seconds: 1, nanoseconds: 0 });
    let given = NewAttributes { modified: to, ..none };
    let (bob, carol) = (bob(), carol());
    assert_eq!(fixture.by(&bob).set(&file, both), Ok(()));
    assert_eq!(fixture.by(&bob).set(&file, one), Ok(()));
    assert_eq!(fixture.by(&bob).set(&file, given), Err(Error::NotOwner));
    assert_eq!(fixture.by(&carol).set(&file, both), DENIED);
    assert_eq!(fixture.by(&carol).set(&file, one), Err(Error::NotOwner));
    assert_eq!(fixture.by(&alice()).set(&file, given), Ok(()));
}

fn a_guard_detects_another_change(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    let seen = by.attributes(&file).unwrap().changed;
    let set = |mode, guard| {
        by.fs.set_attributes(&by.context(), &file, &with_mode(mode), Some(guard)).map(drop)
    };
    // The host's change time advances in steps of some milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(set(0o600, seen), Ok(()));
    assert_eq!(set(0o666, seen), Err(Error::NotSynchronised));
    assert_eq!(by.mode(&file), 0o600);
}

fn directories_count_their_links(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let links = |object| by.attributes(object).unwrap().links;
    assert_eq!(links(&dir), 2);
    let below = by.mkdir(&dir, "below", 0o755).unwrap();
    by.create(&dir, "file", 0o644).unwrap();
    assert_eq!((links(&dir), links(&below)), (3, 2));
    let other = by.mkdir(&fixture.root(), "other", 0o755).unwrap();
    by.rename((&dir, "below"), (&other, "below")).unwrap();
    assert_eq!((links(&dir), links(&other)), (2, 3));
    by.rmdir(&other, "below").unwrap();
    assert_eq!(links(&other), 2);
}

fn changes_report_attributes_before_and_after(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let seen = by.attributes(&fixture.root()).unwrap();
    let made = by.make(&fixture.root(), "f", &CreateMode::Guarded(with_mode(0o644))).unwrap();
    let before = made.dir.before.unwrap();
    assert_eq!((before.modified, before.changed), (seen.modified, seen.changed));
    assert_eq!(made.dir.after, by.attributes(&fixture.root()).ok());
    let seen = by.attributes(&made.object).unwrap();
    assert_eq!(seen, made.attributes);
    let data = Bytes::from_static(b"12345");
    let written = by.fs.write(&by.context(), &made.object, 0, &data, Stability::Unstable).unwrap();
    // Not known if writes run at the same time.
    let before = written.file.before.map(|before| (before.size, before.changed));
    assert!(before.is_none_or(|before| before == (0, seen.changed)), "{before:?}");
    assert_eq!(written.file.after, by.attributes(&made.object).ok());
    assert_eq!(written.file.after.unwrap().size, 5);
    let set = by.fs.set_attributes(&by.context(), &made.object, &with_size(3), None).unwrap();
    assert_eq!((set.before.unwrap().size, set.after.unwrap().size), (5, 3));
}
