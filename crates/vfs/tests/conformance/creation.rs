//! Creation of files, directories, links and special files.

use lockkeeper_vfs::{CreateMode, Error, FileKind, NewAttributes, NodeKind, SetTime};

use crate::fixture::*;

on_every_file_system! {
    a_file_is_found_by_name_and_by_object
    guarded_creation_refuses_a_name_that_is_taken
    unchecked_creation_takes_the_file_that_is_there
    unchecked_creation_cuts_only_what_the_caller_may_write
    exclusive_creation_can_be_repeated_with_the_same_verifier_only
    hard_links_share_a_file
    directories_are_not_linked
    symbolic_links_keep_their_text_and_are_not_followed
    special_files_are_made
}

fn a_file_is_found_by_name_and_by_object(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "dir", 0o755).unwrap();
    let file = by.create(&dir, "file", 0o644).unwrap();
    assert_eq!(by.lookup(&fixture.root(), "dir"), Ok(dir));
    assert_eq!(by.lookup(&dir, "file"), Ok(file));
    assert_eq!(by.lookup(&dir, "other"), Err(Error::NotFound));
    assert_eq!(by.lookup(&dir, "."), Ok(dir));
    assert_eq!(by.lookup(&dir, ".."), Ok(fixture.root()));
    let deep = by.mkdir(&dir, "deep", 0o755).unwrap();
    assert_eq!(by.lookup(&deep, ".."), Ok(dir));
}

fn guarded_creation_refuses_a_name_that_is_taken(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    by.create(&fixture.root(), "f", 0o644).unwrap();
    by.symlink(&fixture.root(), "dangling", "nowhere").unwrap();
    assert_eq!(by.create(&fixture.root(), "f", 0o644), Err(Error::Exists));
    assert_eq!(by.create(&fixture.root(), "dangling", 0o644), Err(Error::Exists));
    assert_eq!(by.mkdir(&fixture.root(), "f", 0o755), Err(Error::Exists));
    assert_eq!(by.symlink(&fixture.root(), "f", "x"), Err(Error::Exists));
    assert_eq!(by.lookup(&fixture.root(), "nowhere"), Err(Error::NotFound));
}

fn unchecked_creation_takes_the_file_that_is_there(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o444).unwrap();
    by.write(&file, 0, b"data").unwrap();
    let make = |name, new| by.make(&fixture.root(), name, &CreateMode::Unchecked(new));
    let made = make("f", with_mode(0o777)).unwrap();
    assert_eq!((made.object, made.attributes.size, made.attributes.mode), (file, 4, 0o444));
    let made = make("f", with_size(0)).unwrap();
    assert_eq!((made.object, made.attributes.size), (file, 0));
    assert_eq!(make("new", with_mode(0o640)).unwrap().attributes.mode, 0o640);
    by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    by.symlink(&fixture.root(), "l", "f").unwrap();
    assert_eq!(make("d", with_mode(0o640)).unwrap_err(), Error::Exists);
    assert_eq!(make("l", with_mode(0o640)).unwrap_err(), Error::Exists);
}

fn unchecked_creation_cuts_only_what_the_caller_may_write(fixture: &Fixture) {
    let file = fixture.by(&alice()).create(&fixture.root(), "f", 0o644).unwrap();
    fixture.by(&alice()).write(&file, 0, b"data").unwrap();
    let cut = CreateMode::Unchecked(with_size(0));
    assert_eq!(fixture.by(&carol()).make(&fixture.root(), "f", &cut).unwrap_err(), Error::Denied);
    let open = CreateMode::Unchecked(with_mode(0o644));
    assert_eq!(fixture.by(&carol()).make(&fixture.root(), "f", &open).unwrap().object, file);
    assert_eq!(fixture.by(&alice()).attributes(&file).unwrap().size, 4);
}

fn exclusive_creation_can_be_repeated_with_the_same_verifier_only(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let first = CreateMode::Exclusive(*b"\xff\xfe\xfd\xfc1234");
    let other = CreateMode::Exclusive(*b"\xff\xfe\xfd\xfc1235");
    let made = by.make(&fixture.root(), "f", &first).unwrap();
    assert_eq!(by.make(&fixture.root(), "f", &first).unwrap().object, made.object);
    assert_eq!(by.make(&fixture.root(), "f", &other).unwrap_err(), Error::Exists);
    let used = NewAttributes { modified: SetTime::Now, ..with_mode(0o644) };
    by.set(&made.object, used).unwrap();
    assert_eq!(by.make(&fixture.root(), "f", &first).unwrap_err(), Error::Exists);
}

fn hard_links_share_a_file(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    assert_eq!(by.link(&file, &dir, "g"), Ok(2));
    assert_eq!(by.link(&file, &dir, "g"), Err(Error::Exists));
    assert_eq!(by.lookup(&dir, "g"), Ok(file));
    by.write(&file, 0, b"shared").unwrap();
    by.remove(&fixture.root(), "f").unwrap();
    assert_eq!(by.attributes(&file).unwrap().links, 1);
    assert_eq!(by.read(&file, 0, 9).unwrap().0, b"shared");
    by.remove(&dir, "g").unwrap();
    assert_eq!(by.attributes(&file), Err(Error::Stale));
}

fn directories_are_not_linked(fixture: &Fixture) {
    let root = root();
    let by = fixture.by(&root);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    assert_eq!(by.link(&dir, &fixture.root(), "e"), Err(Error::IsADirectory));
    let link = by.symlink(&fixture.root(), "l", "d").unwrap();
    assert_eq!(by.link(&link, &fixture.root(), "m"), Ok(2));
    assert_eq!(
        by.attributes(&by.lookup(&fixture.root(), "m").unwrap()).unwrap().kind,
        FileKind::Symlink
    );
}

fn symbolic_links_keep_their_text_and_are_not_followed(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let texts = ["/etc/passwd".into(), "..".into(), "\u{fc}/x".into(), "t".repeat(3000)];
    for (number, text) in texts.iter().enumerate() {
        let link = by.symlink(&fixture.root(), &format!("l{number}"), text).unwrap();
        let (found, attributes) = by.fs.read_link(&by.context(), &link).unwrap();
        assert_eq!(found, text.as_bytes());
        assert_eq!((attributes.kind, attributes.uid), (FileKind::Symlink, 1000));
        assert_eq!(attributes.size, text.len() as u64);
        assert_eq!(by.lookup(&fixture.root(), &format!("l{number}")), Ok(link));
        assert_eq!(by.lookup(&link, "passwd"), Err(Error::NotADirectory));
        assert_eq!(by.set(&link, with_mode(0o600)), Ok(()), "quietly ignored");
        let chown = NewAttributes { uid: Some(1001), ..NewAttributes::default() };
        fixture.by(&root()).set(&link, chown).unwrap();
        assert_eq!(by.attributes(&link).unwrap().uid, 1001);
    }
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    assert_eq!(by.fs.read_link(&by.context(), &file).unwrap_err(), Error::Invalid);
}

fn special_files_are_made(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let kinds = [(NodeKind::Fifo, FileKind::Fifo), (NodeKind::Socket, FileKind::Socket)];
    for (kind, expected) in kinds {
        let name = format!("{kind:?}");
        let new = with_mode(0o622);
        let made =
            by.fs.make_node(&by.context(), &fixture.root(), name.as_bytes(), kind, &new).unwrap();
        let found = made.attributes;
        assert_eq!((found.kind, found.mode, found.uid), (expected, 0o622, 1000));
        assert_eq!(by.set(&made.object, with_mode(0o600)), Ok(()));
        assert_eq!(by.mode(&made.object), 0o600);
        let again = by.fs.make_node(&by.context(), &fixture.root(), name.as_bytes(), kind, &new);
        assert_eq!(again.unwrap_err(), Error::Exists);
    }
}
