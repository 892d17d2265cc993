//! Valid and invalid names, and directory listings.

use lockkeeper_vfs::{CreateMode, Error, FileKind, WccAttributes};

use crate::fixture::*;

on_every_file_system! {
    dot_names_are_neither_created_nor_removed
    bad_names_are_refused
    a_name_can_have_any_bytes
    a_name_too_long_is_refused
    directory_operations_want_a_directory
    a_listing_has_every_entry_once_however_it_is_cut
    a_listing_goes_on_while_entries_come_and_go
    a_listing_with_attributes_names_the_same_objects_as_lookup
    the_parent_of_the_root_is_the_root
}

fn dot_names_are_neither_created_nor_removed(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    by.create(&dir, "f", 0o644).unwrap();
    for name in [".", ".."] {
        assert_eq!(by.create(&dir, name, 0o644), Err(Error::Exists));
        assert_eq!(
            by.make(&dir, name, &CreateMode::Unchecked(with_mode(0o644))).unwrap_err(),
            Error::Exists
        );
        assert_eq!(by.mkdir(&dir, name, 0o755), Err(Error::Exists));
        assert_eq!(by.symlink(&dir, name, "x"), Err(Error::Exists));
        assert_eq!(by.remove(&dir, name), Err(Error::Invalid));
        assert_eq!(by.rename((&dir, name), (&dir, "g")), Err(Error::Invalid));
        assert_eq!(by.rename((&dir, "f"), (&dir, name)), Err(Error::Invalid));
    }
    assert_eq!(by.rmdir(&dir, "."), Err(Error::Invalid));
    assert_eq!(by.rmdir(&dir, ".."), Err(Error::Exists));
}

fn bad_names_are_refused(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    for name in ["", "a/b", "/", "../f", "f\0g", "./f"] {
        assert_eq!(by.lookup(&fixture.root(), name), Err(Error::Invalid), "{name:?}");
        assert_eq!(by.create(&fixture.root(), name, 0o644), Err(Error::Invalid));
        assert_eq!(by.mkdir(&fixture.root(), name, 0o755), Err(Error::Invalid));
        assert_eq!(by.symlink(&fixture.root(), name, "x"), Err(Error::Invalid));
        assert_eq!(by.link(&file, &fixture.root(), name), Err(Error::Invalid));
        assert_eq!(by.remove(&fixture.root(), name), Err(Error::Invalid));
        assert_eq!(by.rmdir(&fixture.root(), name), Err(Error::Invalid));
        assert_eq!(by.rename((&fixture.root(), "f"), (&fixture.root(), name)), Err(Error::Invalid));
        assert_eq!(by.rename((&fixture.root(), name), (&fixture.root(), "g")), Err(Error::Invalid));
    }
    assert_eq!(by.symlink(&fixture.root(), "l", ""), Err(Error::Invalid));
}

fn a_name_can_have_any_bytes(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let root = fixture.root();
    let names: [&[u8]; 5] = [b"\xff\xfe", b"new\nline", b" ", b"...", "\u{fc}".as_bytes()];
    for name in names {
        let mode = CreateMode::Guarded(with_mode(0o644));
        let made = by.fs.create(&by.context(), &root, name, &mode).unwrap();
        let looked = by.fs.lookup(&by.context(), &root, name).unwrap();
        assert_eq!(looked.object, made.object);
    }
    let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(by.names(&root, 2).unwrap(), expected);
    for name in names {
        by.fs.remove(&by.context(), &root, name).unwrap();
    }
    assert!(by.names(&root, 2).unwrap().is_empty());
}

fn a_name_too_long_is_refused(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let (fits, long) = ("n".repeat(255), "n".repeat(256));
    assert!(by.create(&fixture.root(), &fits, 0o644).is_ok());
    assert_eq!(by.create(&fixture.root(), &long, 0o644), Err(Error::NameTooLong));
    assert_eq!(by.lookup(&fixture.root(), &long), Err(Error::NameTooLong));
    assert_eq!(
        by.rename((&fixture.root(), &fits), (&fixture.root(), &long)),
        Err(Error::NameTooLong)
    );
}

fn directory_operations_want_a_directory(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    let no = Error::NotADirectory;
    assert_eq!(by.lookup(&file, "x"), Err(no));
    assert_eq!(by.create(&file, "x", 0o644), Err(no));
    assert_eq!(by.mkdir(&file, "x", 0o755), Err(no));
    assert_eq!(by.remove(&file, "x"), Err(no));
    assert_eq!(by.names(&file, 1), Err(no));
    assert_eq!(by.rename((&fixture.root(), "f"), (&file, "x")), Err(no));
    assert_eq!(by.link(&file, &file, "x"), Err(no));
}

fn a_listing_has_every_entry_once_however_it_is_cut(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let mut expected: Vec<Vec<u8>> = (0..300).map(|n| format!("{n:03}").into_bytes()).collect();
    for name in &expected {
        by.create(&dir, std::str::from_utf8(name).unwrap(), 0o644).unwrap();
    }
    expected.sort();
    for at_once in [1, 2, 7, 100, 1000] {
        assert_eq!(by.names(&dir, at_once).unwrap(), expected, "{at_once} at once");
    }
    let mut dots = 0;
    let listed = by.fs.read_dir(&by.context(), &dir, 0, [0; 8], false, &mut |entry| {
        assert_ne!(entry.cookie, 0);
        dots += usize::from(entry.name == b"." || entry.name == b"..");
        true
    });
    assert!(listed.unwrap().eof);
    assert_eq!(dots, 2);
}

fn a_listing_goes_on_while_entries_come_and_go(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    for number in 0..200 {
        by.create(&dir, &format!("stays{number}"), 0o644).unwrap();
        by.create(&dir, &format!("goes{number}"), 0o644).unwrap();
    }
    let mut names = Vec::new();
    let (mut cookie, mut step) = (0, 0);
    loop {
        let (more, next, eof) = by.list(&dir, cookie, 5).unwrap();
        names.extend(more);
        cookie = next;
        if eof {
            break;
        }
        for number in [2 * step, 2 * step + 1] {
            if number < 200 {
                by.remove(&dir, &format!("goes{number}")).unwrap();
            }
            if number < 120 {
                by.create(&dir, &format!("comes{number}"), 0o644).unwrap();
            }
        }
        step += 1;
    }
    let mut stays: Vec<_> = names.iter().filter(|name| name.starts_with(b"stays")).collect();
    stays.sort();
    let count = stays.len();
    stays.dedup();
    assert_eq!((count, stays.len()), (200, 200));
}

fn a_listing_with_attributes_names_the_same_objects_as_lookup(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    by.create(&dir, "file", 0o600).unwrap();
    by.mkdir(&dir, "below", 0o755).unwrap();
    by.symlink(&dir, "link", "nowhere").unwrap();
    let mut found = Vec::new();
    let listed = by.fs.read_dir(&by.context(), &dir, 0, [0; 8], true, &mut |entry| {
        found.push((entry.name.to_vec(), entry.fileid, entry.lookup));
        true
    });
    assert_eq!(listed.unwrap().attributes.unwrap().kind, FileKind::Directory);
    assert_eq!(found.len(), 5);
    for (name, fileid, looked) in found {
        let expected = by.fs.lookup(&by.context(), &dir, &name).unwrap();
        assert_eq!(fileid, expected.attributes.fileid);
        match looked {
            Some(looked) => {
                assert_eq!(looked.object, expected.object);
                // Except for the access time, which the listing updates.
                let (one, other) = (looked.attributes, expected.attributes);
                assert_eq!(WccAttributes::from(&one), WccAttributes::from(&other));
                assert_eq!((one.kind, one.mode, one.links), (other.kind, other.mode, other.links));
            }
            None => assert_eq!(name, b"..", "only this one may be left out"),
        }
    }
    // With read but without search permission: names, but no attributes.
    fixture.by(&alice).set(&dir, with_mode(0o744)).unwrap();
    let carol = carol();
    let by = fixture.by(&carol);
    let mut entries = 0;
    by.fs
        .read_dir(&by.context(), &dir, 0, [0; 8], true, &mut |entry| {
            assert!(entry.lookup.is_none());
            entries += 1;
            true
        })
        .unwrap();
    assert_eq!(entries, 5);
}

fn the_parent_of_the_root_is_the_root(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let root = fixture.root();
    assert_eq!(by.lookup(&root, ".."), Ok(root));
    let fileid = by.attributes(&root).unwrap().fileid;
    by.fs
        .read_dir(&by.context(), &root, 0, [0; 8], false, &mut |entry| {
            if entry.name == b".." || entry.name == b"." {
                assert_eq!(entry.fileid, fileid);
            }
            true
        })
        .unwrap();
}
