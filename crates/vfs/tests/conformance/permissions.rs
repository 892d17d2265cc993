//! Permissions of owner, group, others and root.

use lockkeeper_vfs::{
    BlockingMode, Caller, Context, Device, Error, FileKind, NewAttributes, NodeKind,
};

use crate::fixture::*;

on_every_file_system! {
    a_new_file_belongs_to_its_caller_and_has_exactly_the_mode_asked_for
    the_owner_writes_and_reads_whatever_the_mode_says
    others_are_held_to_the_mode
    execute_permission_allows_reading_but_access_reports_the_mode
    supplementary_groups_count
    access_is_exact
    before_a_lock_changes_by_clients_count_at_once
    root_may_do_everything
    a_foreign_write_takes_set_user_id_away
    a_set_group_directory_hands_its_group_down
    in_a_sticky_directory_only_owners_remove
    a_directory_that_cannot_be_searched_hides_its_files
    a_directory_that_cannot_be_written_stays_as_it_is
    a_directory_that_cannot_be_read_is_not_listed
    devices_are_for_root
}

fn a_new_file_belongs_to_its_caller_and_has_exactly_the_mode_asked_for(fixture: &Fixture) {
    for mode in [0o644, 0o666, 0o777, 0o400, 0o4755] {
        let name = format!("{mode:o}");
        let file = fixture.by(&alice()).create(&fixture.root(), &name, mode).unwrap();
        let found = fixture.by(&alice()).attributes(&file).unwrap();
        assert_eq!((found.uid, found.gid, found.mode), (1000, 1000, mode));
        assert_eq!((found.kind, found.links, found.size), (FileKind::Regular, 1, 0));
    }
    let dir = fixture.by(&alice()).mkdir(&fixture.root(), "dir", 0o777).unwrap();
    let found = fixture.by(&alice()).attributes(&dir).unwrap();
    assert_eq!((found.uid, found.mode, found.kind), (1000, 0o777, FileKind::Directory));
}

fn the_owner_writes_and_reads_whatever_the_mode_says(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    for mode in [0o444, 0o000] {
        let file = by.create(&fixture.root(), &format!("{mode}"), mode).unwrap();
        assert_eq!(by.write(&file, 0, b"mine"), Ok(4));
        assert_eq!(by.read(&file, 0, 9).unwrap().0, b"mine");
        assert_eq!(by.set(&file, with_size(2)), Ok(()));
        assert_eq!(by.mode(&file), mode);
    }
}

fn others_are_held_to_the_mode(fixture: &Fixture) {
    let (alice, bob, carol) = (alice(), bob(), carol());
    let file = fixture.by(&alice).create(&fixture.root(), "f", 0o640).unwrap();
    fixture.by(&alice).write(&file, 0, b"data").unwrap();
    assert_eq!(fixture.by(&bob).read(&file, 0, 9).unwrap().0, b"data");
    assert_eq!(fixture.by(&bob).write(&file, 0, b"x"), Err(Error::Denied));
    assert_eq!(fixture.by(&bob).set(&file, with_size(0)), DENIED);
    assert_eq!(fixture.by(&carol).read(&file, 0, 9), Err(Error::Denied));
    fixture.by(&alice).set(&file, with_mode(0o660)).unwrap();
    assert_eq!(fixture.by(&bob).write(&file, 0, b"D"), Ok(1));
    assert_eq!(fixture.by(&bob).set(&file, with_size(1)), Ok(()));
    assert_eq!(fixture.by(&carol).read(&file, 0, 9), Err(Error::Denied));
    fixture.by(&alice).set(&file, with_mode(0o606)).unwrap();
    assert_eq!(fixture.by(&bob).read(&file, 0, 9), Err(Error::Denied), "the group is not other");
    assert_eq!(fixture.by(&carol).write(&file, 1, b"ata"), Ok(3));
}

fn execute_permission_allows_reading_but_access_reports_the_mode(fixture: &Fixture) {
    let (alice, carol) = (alice(), carol());
    let file = fixture.by(&alice).create(&fixture.root(), "program", 0o711).unwrap();
    fixture.by(&alice).write(&file, 0, b"ELF").unwrap();
    assert_eq!(fixture.by(&carol).read(&file, 0, 9).unwrap().0, b"ELF");
    assert_eq!(fixture.by(&carol).access(&file), "--x");
}

fn supplementary_groups_count(fixture: &Fixture) {
    let dir = fixture.by(&root()).mkdir(&fixture.root(), "d", 0o770).unwrap();
    let owner = NewAttributes { uid: Some(0), gid: Some(7777), ..NewAttributes::default() };
    fixture.by(&root()).set(&dir, owner).unwrap();
    let member = Caller::new(1000, 1000, &[3, 7777, 9]);
    let stranger = Caller::new(1000, 1000, &[3, 7778, 9]);
    assert_eq!(fixture.by(&stranger).create(&dir, "f", 0o644), Err(Error::Denied));
    let file = fixture.by(&member).create(&dir, "f", 0o644).unwrap();
    assert_eq!(fixture.by(&stranger).lookup(&dir, "f"), Err(Error::Denied));
    assert_eq!(fixture.by(&member).lookup(&dir, "f"), Ok(file));
    assert_eq!(fixture.by(&member).attributes(&file).unwrap().gid, 1000);
    let many: Vec<u32> = (100..400).chain([7777]).collect();
    assert!(fixture.by(&Caller::new(1001, 1001, &many)).lookup(&dir, "f").is_ok());
    let primary = Caller::new(1001, 7777, &[]);
    assert!(fixture.by(&primary).lookup(&dir, "f").is_ok());
}

fn access_is_exact(fixture: &Fixture) {
    let file = fixture.by(&alice()).create(&fixture.root(), "f", 0o640).unwrap();
    assert_eq!(fixture.by(&alice()).access(&file), "rw-");
    assert_eq!(fixture.by(&bob()).access(&file), "r--");
    assert_eq!(fixture.by(&carol()).access(&file), "---");
    assert_eq!(fixture.by(&root()).access(&file), "rw-");
    fixture.by(&alice()).set(&file, with_mode(0o070)).unwrap();
    assert_eq!(fixture.by(&alice()).access(&file), "---", "no override of the owner here");
    assert_eq!(fixture.by(&bob()).access(&file), "rwx");
    assert_eq!(fixture.by(&root()).access(&file), "rwx");
    let dir = fixture.by(&alice()).mkdir(&fixture.root(), "d", 0o751).unwrap();
    assert_eq!(fixture.by(&bob()).access(&dir), "r-x");
    assert_eq!(fixture.by(&carol()).access(&dir), "--x");
}

fn before_a_lock_changes_by_clients_count_at_once(fixture: &Fixture) {
    let (alice, bob) = (alice(), bob());
    let file = fixture.by(&alice).create(&fixture.root(), "f", 0o600).unwrap();
    let context = Context { caller: &bob, blocking: BlockingMode::MayBlock };
    let access = || fixture.fs.lock_access(&context, &file);
    for _ in 0..50 {
        for (mode, may) in [(0o600, false), (0o640, true)] {
            fixture.by(&alice).set(&file, with_mode(mode)).unwrap();
            let (permissions, owner) = access().unwrap();
            assert_eq!((permissions.read, permissions.write, owner), (may, false, 1000));
            assert_eq!(access(), Ok((permissions, owner)));
        }
    }
    fixture.by(&alice).remove(&fixture.root(), "f").unwrap();
    assert_eq!(access(), Err(Error::Stale));
}

fn root_may_do_everything(fixture: &Fixture) {
    let dir = fixture.by(&alice()).mkdir(&fixture.root(), "d", 0o000).unwrap();
    let root = root();
    let by = fixture.by(&root);
    let file = by.create(&dir, "f", 0o000).unwrap();
    assert_eq!(by.write(&file, 0, b"x"), Ok(1));
    assert_eq!(by.read(&file, 0, 1).unwrap().0, b"x");
    assert_eq!(by.names(&dir, 10).unwrap(), [b"f"]);
    assert_eq!(by.remove(&dir, "f"), Ok(()));
}

fn a_foreign_write_takes_set_user_id_away(fixture: &Fixture) {
    let file = fixture.by(&alice()).create(&fixture.root(), "f", 0o666).unwrap();
    fixture.by(&root()).set(&file, with_mode(0o6777)).unwrap();
    fixture.by(&root()).write(&file, 0, b"root").unwrap();
    assert_eq!(fixture.by(&root()).mode(&file), 0o6777, "root keeps it");
    fixture.by(&carol()).write(&file, 0, b"x").unwrap();
    assert_eq!(fixture.by(&root()).mode(&file), 0o777);
    fixture.by(&root()).set(&file, with_mode(0o4777)).unwrap();
    fixture.by(&carol()).set(&file, with_size(0)).unwrap();
    assert_eq!(fixture.by(&root()).mode(&file), 0o777);
}

fn a_set_group_directory_hands_its_group_down(fixture: &Fixture) {
    let dir = fixture.by(&root()).mkdir(&fixture.root(), "d", 0o777).unwrap();
    let new = NewAttributes { gid: Some(5000), ..with_mode(0o2777) };
    fixture.by(&root()).set(&dir, new).unwrap();
    let (file, below) = {
        let alice = alice();
        let by = fixture.by(&alice);
        (by.create(&dir, "f", 0o644).unwrap(), by.mkdir(&dir, "below", 0o755).unwrap())
    };
    let found = fixture.by(&alice()).attributes(&file).unwrap();
    assert_eq!((found.uid, found.gid, found.mode), (1000, 5000, 0o644));
    let found = fixture.by(&alice()).attributes(&below).unwrap();
    assert_eq!((found.gid, found.mode), (5000, 0o2755));
    let open = fixture.by(&alice()).mkdir(&dir, "open", 0o777).unwrap();
    assert_eq!(fixture.by(&alice()).mode(&open), 0o2777);
    let plain = fixture.by(&alice()).mkdir(&fixture.root(), "plain", 0o2755).unwrap();
    assert_eq!(fixture.by(&alice()).mode(&plain), 0o755, "mkdir does not set it");
}

fn in_a_sticky_directory_only_owners_remove(fixture: &Fixture) {
    let root_dir = fixture.root();
    let file = fixture.by(&alice()).create(&root_dir, "f", 0o666).unwrap();
    fixture.by(&carol()).create(&root_dir, "mine", 0o666).unwrap();
    assert_eq!(fixture.by(&carol()).remove(&root_dir, "f"), Err(Error::NotOwner));
    let rename = fixture.by(&carol()).rename((&root_dir, "f"), (&root_dir, "g"));
    assert_eq!(rename, Err(Error::NotOwner));
    let over = fixture.by(&carol()).rename((&root_dir, "mine"), (&root_dir, "f"));
    assert_eq!(over, Err(Error::NotOwner));
    assert_eq!(fixture.by(&alice()).lookup(&root_dir, "f"), Ok(file));
    assert_eq!(fixture.by(&alice()).remove(&root_dir, "f"), Ok(()));
}

fn a_directory_that_cannot_be_searched_hides_its_files(fixture: &Fixture) {
    let dir = fixture.by(&alice()).mkdir(&fixture.root(), "d", 0o744).unwrap();
    let file = fixture.by(&alice()).create(&dir, "f", 0o666).unwrap();
    assert_eq!(fixture.by(&carol()).lookup(&dir, "f"), Err(Error::Denied));
    assert_eq!(fixture.by(&carol()).lookup(&dir, "."), Err(Error::Denied));
    assert_eq!(fixture.by(&carol()).names(&dir, 10).unwrap(), [b"f"], "it can be read, though");
    assert!(fixture.by(&carol()).read(&file, 0, 1).is_ok(), "a handle needs no path");
}

fn a_directory_that_cannot_be_written_stays_as_it_is(fixture: &Fixture) {
    let dir = fixture.by(&alice()).mkdir(&fixture.root(), "d", 0o755).unwrap();
    let file = fixture.by(&alice()).create(&dir, "f", 0o666).unwrap();
    let carol = carol();
    let by = fixture.by(&carol);
    by.create(&fixture.root(), "mine", 0o666).unwrap();
    assert_eq!(by.create(&dir, "g", 0o644), Err(Error::Denied));
    assert_eq!(by.mkdir(&dir, "g", 0o755), Err(Error::Denied));
    assert_eq!(by.symlink(&dir, "g", "x"), Err(Error::Denied));
    assert_eq!(by.remove(&dir, "f"), DENIED);
    assert_eq!(by.rename((&dir, "f"), (&fixture.root(), "g")), DENIED);
    assert_eq!(by.rename((&fixture.root(), "mine"), (&dir, "g")), DENIED);
    assert_eq!(by.link(&file, &dir, "g"), Err(Error::Denied));
    assert_eq!(by.create(&dir, "f", 0o644), Err(Error::Exists));
}

fn a_directory_that_cannot_be_read_is_not_listed(fixture: &Fixture) {
    let dir = fixture.by(&alice()).mkdir(&fixture.root(), "d", 0o711).unwrap();
    let file = fixture.by(&alice()).create(&dir, "f", 0o644).unwrap();
    assert_eq!(fixture.by(&carol()).names(&dir, 10), Err(Error::Denied));
    assert_eq!(fixture.by(&carol()).lookup(&dir, "f"), Ok(file));
    fixture.by(&alice()).set(&dir, with_mode(0o300)).unwrap();
    assert_eq!(fixture.by(&alice()).names(&dir, 10), Err(Error::Denied), "nor by its owner");
}

fn devices_are_for_root(fixture: &Fixture) {
    let device = Device { major: 1, minor: 3 };
    let kind = NodeKind::Character(device);
    let make = |caller: &Caller| {
        let by = fixture.by(caller);
        by.fs.make_node(&by.context(), &fixture.root(), b"null", kind, &with_mode(0o600))
    };
    assert_eq!(make(&alice()).unwrap_err(), Error::NotOwner);
    let made = make(&root()).unwrap();
    assert_eq!((made.attributes.kind, made.attributes.device), (FileKind::Character, device));
    assert_eq!(fixture.by(&root()).read(&made.object, 0, 1), Err(Error::Invalid));
}
