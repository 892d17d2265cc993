//! Who may do what: owner, group, others, root.

use lockkeeper_vfs::{Caller, Device, Error, FileKind, NewAttributes, NodeKind};

use crate::world::*;

on_every_file_system! {
    a_new_file_belongs_to_its_caller_and_has_exactly_the_mode_asked_for
    the_owner_writes_and_reads_whatever_the_mode_says
    others_are_held_to_the_mode
    who_may_execute_may_read_but_access_tells_the_truth
    supplementary_groups_count
    access_is_exact
    root_may_do_everything
    a_foreign_write_takes_set_user_id_away
    a_set_group_directory_hands_its_group_down
    in_a_sticky_directory_only_owners_remove
    a_directory_that_cannot_be_searched_hides_its_files
    a_directory_that_cannot_be_written_stays_as_it_is
    a_directory_that_cannot_be_read_is_not_listed
    devices_are_for_root
}

fn a_new_file_belongs_to_its_caller_and_has_exactly_the_mode_asked_for(world: &World) {
    for mode in [0o644, 0o666, 0o777, 0o400, 0o4755] {
        let name = format!("{mode:o}");
        let file = world.by(&alice()).create(&world.root(), &name, mode).unwrap();
        let found = world.by(&alice()).attributes(&file).unwrap();
        assert_eq!((found.uid, found.gid, found.mode), (1000, 1000, mode));
        assert_eq!((found.kind, found.links, found.size), (FileKind::Regular, 1, 0));
    }
    let dir = world.by(&alice()).mkdir(&world.root(), "dir", 0o777).unwrap();
    let found = world.by(&alice()).attributes(&dir).unwrap();
    assert_eq!((found.uid, found.mode, found.kind), (1000, 0o777, FileKind::Directory));
}

fn the_owner_writes_and_reads_whatever_the_mode_says(world: &World) {
    let alice = alice();
    let by = world.by(&alice);
    for mode in [0o444, 0o000] {
        let file = by.create(&world.root(), &format!("{mode}"), mode).unwrap();
        assert_eq!(by.write(&file, 0, b"mine"), Ok(4));
        assert_eq!(by.read(&file, 0, 9).unwrap().0, b"mine");
        assert_eq!(by.set(&file, with_size(2)), Ok(()));
        assert_eq!(by.mode(&file), mode);
    }
}

fn others_are_held_to_the_mode(world: &World) {
    let (alice, bob, carol) = (alice(), bob(), carol());
    let file = world.by(&alice).create(&world.root(), "f", 0o640).unwrap();
    world.by(&alice).write(&file, 0, b"data").unwrap();
    assert_eq!(world.by(&bob).read(&file, 0, 9).unwrap().0, b"data");
    assert_eq!(world.by(&bob).write(&file, 0, b"x"), Err(Error::Denied));
    assert_eq!(world.by(&bob).set(&file, with_size(0)), DENIED);
    assert_eq!(world.by(&carol).read(&file, 0, 9), Err(Error::Denied));
    world.by(&alice).set(&file, with_mode(0o660)).unwrap();
    assert_eq!(world.by(&bob).write(&file, 0, b"D"), Ok(1));
    assert_eq!(world.by(&bob).set(&file, with_size(1)), Ok(()));
    assert_eq!(world.by(&carol).read(&file, 0, 9), Err(Error::Denied));
    world.by(&alice).set(&file, with_mode(0o606)).unwrap();
    assert_eq!(world.by(&bob).read(&file, 0, 9), Err(Error::Denied), "the group is not other");
    assert_eq!(world.by(&carol).write(&file, 1, b"ata"), Ok(3));
}

fn who_may_execute_may_read_but_access_tells_the_truth(world: &World) {
    let (alice, carol) = (alice(), carol());
    let file = world.by(&alice).create(&world.root(), "program", 0o711).unwrap();
    world.by(&alice).write(&file, 0, b"ELF").unwrap();
    assert_eq!(world.by(&carol).read(&file, 0, 9).unwrap().0, b"ELF");
    assert_eq!(world.by(&carol).access(&file), "--x");
}

fn supplementary_groups_count(world: &World) {
    let dir = world.by(&root()).mkdir(&world.root(), "d", 0o770).unwrap();
    let owner = NewAttributes { uid: Some(0), gid: Some(7777), ..NewAttributes::default() };
    world.by(&root()).set(&dir, owner).unwrap();
    let member = Caller::new(1000, 1000, &[3, 7777, 9]);
    let stranger = Caller::new(1000, 1000, &[3, 7778, 9]);
    assert_eq!(world.by(&stranger).create(&dir, "f", 0o644), Err(Error::Denied));
    let file = world.by(&member).create(&dir, "f", 0o644).unwrap();
    assert_eq!(world.by(&stranger).lookup(&dir, "f"), Err(Error::Denied));
    assert_eq!(world.by(&member).lookup(&dir, "f"), Ok(file));
    assert_eq!(world.by(&member).attributes(&file).unwrap().gid, 1000);
    let many: Vec<u32> = (100..400).chain([7777]).collect();
    assert!(world.by(&Caller::new(1001, 1001, &many)).lookup(&dir, "f").is_ok());
    let primary = Caller::new(1001, 7777, &[]);
    assert!(world.by(&primary).lookup(&dir, "f").is_ok());
}

fn access_is_exact(world: &World) {
    let file = world.by(&alice()).create(&world.root(), "f", 0o640).unwrap();
    assert_eq!(world.by(&alice()).access(&file), "rw-");
    assert_eq!(world.by(&bob()).access(&file), "r--");
    assert_eq!(world.by(&carol()).access(&file), "---");
    assert_eq!(world.by(&root()).access(&file), "rw-");
    world.by(&alice()).set(&file, with_mode(0o070)).unwrap();
    assert_eq!(world.by(&alice()).access(&file), "---", "no override of the owner here");
    assert_eq!(world.by(&bob()).access(&file), "rwx");
    assert_eq!(world.by(&root()).access(&file), "rwx");
    let dir = world.by(&alice()).mkdir(&world.root(), "d", 0o751).unwrap();
    assert_eq!(world.by(&bob()).access(&dir), "r-x");
    assert_eq!(world.by(&carol()).access(&dir), "--x");
}

fn root_may_do_everything(world: &World) {
    let dir = world.by(&alice()).mkdir(&world.root(), "d", 0o000).unwrap();
    let root = root();
    let by = world.by(&root);
    let file = by.create(&dir, "f", 0o000).unwrap();
    assert_eq!(by.write(&file, 0, b"x"), Ok(1));
    assert_eq!(by.read(&file, 0, 1).unwrap().0, b"x");
    assert_eq!(by.names(&dir, 10).unwrap(), [b"f"]);
    assert_eq!(by.remove(&dir, "f"), Ok(()));
}

fn a_foreign_write_takes_set_user_id_away(world: &World) {
    let file = world.by(&alice()).create(&world.root(), "f", 0o666).unwrap();
    world.by(&root()).set(&file, with_mode(0o6777)).unwrap();
    world.by(&root()).write(&file, 0, b"root").unwrap();
    assert_eq!(world.by(&root()).mode(&file), 0o6777, "root keeps it");
    world.by(&carol()).write(&file, 0, b"x").unwrap();
    assert_eq!(world.by(&root()).mode(&file), 0o777);
    world.by(&root()).set(&file, with_mode(0o4777)).unwrap();
    world.by(&carol()).set(&file, with_size(0)).unwrap();
    assert_eq!(world.by(&root()).mode(&file), 0o777);
}

fn a_set_group_directory_hands_its_group_down(world: &World) {
    let dir = world.by(&root()).mkdir(&world.root(), "d", 0o777).unwrap();
    let new = NewAttributes { gid: Some(5000), ..with_mode(0o2777) };
    world.by(&root()).set(&dir, new).unwrap();
    let (file, below) = {
        let alice = alice();
        let by = world.by(&alice);
        (by.create(&dir, "f", 0o644).unwrap(), by.mkdir(&dir, "below", 0o755).unwrap())
    };
    let found = world.by(&alice()).attributes(&file).unwrap();
    assert_eq!((found.uid, found.gid, found.mode), (1000, 5000, 0o644));
    let found = world.by(&alice()).attributes(&below).unwrap();
    assert_eq!((found.gid, found.mode), (5000, 0o2755));
    let open = world.by(&alice()).mkdir(&dir, "open", 0o777).unwrap();
    assert_eq!(world.by(&alice()).mode(&open), 0o2777);
    let plain = world.by(&alice()).mkdir(&world.root(), "plain", 0o2755).unwrap();
    assert_eq!(world.by(&alice()).mode(&plain), 0o755, "mkdir does not set it");
}

fn in_a_sticky_directory_only_owners_remove(world: &World) {
    let root_dir = world.root();
    let file = world.by(&alice()).create(&root_dir, "f", 0o666).unwrap();
    world.by(&carol()).create(&root_dir, "mine", 0o666).unwrap();
    assert_eq!(world.by(&carol()).remove(&root_dir, "f"), Err(Error::NotOwner));
    let rename = world.by(&carol()).rename((&root_dir, "f"), (&root_dir, "g"));
    assert_eq!(rename, Err(Error::NotOwner));
    let over = world.by(&carol()).rename((&root_dir, "mine"), (&root_dir, "f"));
    assert_eq!(over, Err(Error::NotOwner));
    assert_eq!(world.by(&alice()).lookup(&root_dir, "f"), Ok(file));
    assert_eq!(world.by(&alice()).remove(&root_dir, "f"), Ok(()));
}

fn a_directory_that_cannot_be_searched_hides_its_files(world: &World) {
    let dir = world.by(&alice()).mkdir(&world.root(), "d", 0o744).unwrap();
    let file = world.by(&alice()).create(&dir, "f", 0o666).unwrap();
    assert_eq!(world.by(&carol()).lookup(&dir, "f"), Err(Error::Denied));
    assert_eq!(world.by(&carol()).lookup(&dir, "."), Err(Error::Denied));
    assert_eq!(world.by(&carol()).names(&dir, 10).unwrap(), [b"f"], "it can be read, though");
    assert!(world.by(&carol()).read(&file, 0, 1).is_ok(), "a handle needs no path");
}

fn a_directory_that_cannot_be_written_stays_as_it_is(world: &World) {
    let dir = world.by(&alice()).mkdir(&world.root(), "d", 0o755).unwrap();
    let file = world.by(&alice()).create(&dir, "f", 0o666).unwrap();
    let carol = carol();
    let by = world.by(&carol);
    by.create(&world.root(), "mine", 0o666).unwrap();
    assert_eq!(by.create(&dir, "g", 0o644), Err(Error::Denied));
    assert_eq!(by.mkdir(&dir, "g", 0o755), Err(Error::Denied));
    assert_eq!(by.symlink(&dir, "g", "x"), Err(Error::Denied));
    assert_eq!(by.remove(&dir, "f"), DENIED);
    assert_eq!(by.rename((&dir, "f"), (&world.root(), "g")), DENIED);
    assert_eq!(by.rename((&world.root(), "mine"), (&dir, "g")), DENIED);
    assert_eq!(by.link(&file, &dir, "g"), Err(Error::Denied));
    assert_eq!(by.create(&dir, "f", 0o644), Err(Error::Exists));
}

fn a_directory_that_cannot_be_read_is_not_listed(world: &World) {
    let dir = world.by(&alice()).mkdir(&world.root(), "d", 0o711).unwrap();
    let file = world.by(&alice()).create(&dir, "f", 0o644).unwrap();
    assert_eq!(world.by(&carol()).names(&dir, 10), Err(Error::Denied));
    assert_eq!(world.by(&carol()).lookup(&dir, "f"), Ok(file));
    world.by(&alice()).set(&dir, with_mode(0o300)).unwrap();
    assert_eq!(world.by(&alice()).names(&dir, 10), Err(Error::Denied), "nor by its owner");
}

fn devices_are_for_root(world: &World) {
    let device = Device { major: 1, minor: 3 };
    let kind = NodeKind::Character(device);
    let make = |caller: &Caller| {
        let by = world.by(caller);
        by.fs.make_node(&by.context(), &world.root(), b"null", kind, &with_mode(0o600))
    };
    assert_eq!(make(&alice()).unwrap_err(), Error::NotOwner);
    let made = make(&root()).unwrap();
    assert_eq!((made.attributes.kind, made.attributes.device), (FileKind::Character, device));
    assert_eq!(world.by(&root()).read(&made.object, 0, 1), Err(Error::Invalid));
}
