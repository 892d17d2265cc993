//! Object ids where there are no kernel handles: one for each file, whatever happens at the same time.
//! Locks are kept by them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod fixture;

use std::{
    collections::HashSet,
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use fixture::*;
use lockkeeper_vfs::{
    Error, FileSystem, NewAttributes, ObjectId,
    local::{HandleChoice, HandleKind, LocalFs, MetadataMode},
};
use testbed::mounts::{self, Fuse, Mount};

/// An overlayfs of directories below `dir`, with `files` in `d` of its lower layer.
fn overlay(dir: &Path, files: usize) -> Mount {
    let path = |name: &str| dir.join(name);
    for made in ["lower/d", "upper", "state"] {
        fs::create_dir_all(path(made)).unwrap();
    }
    for number in 0..files {
        fs::write(path(&format!("lower/d/f{number}")), "text").unwrap();
    }
    Mount::overlay(&path("lower"), &path("upper"), &path("at")).unwrap()
}

fn serve(mount: &Mount, dir: &Path) -> LocalFs {
    open(mount.at(), &dir.join("state"), HandleChoice::Auto)
}

#[test]
fn a_file_that_is_looked_up_during_its_creation_has_one_id() {
    let host = Host::new().unwrap();
    let (served, root) = (host.open(HandleChoice::InodeMap), root());
    let dir = served.root();
    const FILES: usize = 3_000;
    let looked_up = std::thread::scope(|scope| {
        let found = scope.spawn(|| {
            let (by, begin) = (CallerView::new(&served, &root), Instant::now());
            let find = |number: usize| loop {
                if let Ok(id) = by.lookup(&dir, &format!("f{number}")) {
                    return id;
                }
                assert!(begin.elapsed() < Duration::from_secs(120), "no f{number}");
            };
            (0..FILES).map(find).collect::<Vec<ObjectId>>()
        });
        let by = CallerView::new(&served, &root);
        let create = |number| by.create(&dir, &format!("f{number}"), 0o644).unwrap();
        let made: Vec<ObjectId> = (0..FILES).map(create).collect();
        (made, found.join().unwrap())
    });
    let doubled = looked_up.0.iter().zip(&looked_up.1).filter(|(made, found)| made != found);
    assert_eq!(doubled.count(), 0);
}

#[test]
fn a_file_that_is_looked_up_while_it_is_copied_up_has_one_id() {
    if !mounts::in_own_namespace("a_file_that_is_looked_up_while_it_is_copied_up_has_one_id")
        .unwrap()
    {
        return;
    }
    const FILES: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let mount = overlay(dir.path(), FILES);
    let (served, root) = (serve(&mount, dir.path()), root());
    let by = CallerView::new(&served, &root);
    let parent = by.lookup(&served.root(), "d").unwrap();
    let data = vec![1; 1 << 20];
    for number in 0..FILES {
        let name = format!("f{number}");
        let id = by.lookup(&parent, &name).unwrap();
        let is_over = AtomicBool::new(false);
        let ids = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let by = CallerView::new(&served, &root);
                let mut ids = HashSet::from([id]);
                while !is_over.load(SeqCst) {
                    ids.insert(by.lookup(&parent, &name).unwrap());
                }
                ids
            });
            by.write(&id, 0, &data).unwrap();
            is_over.store(true, SeqCst);
            looking.join().unwrap()
        });
        assert_eq!(ids, HashSet::from([id]), "{name}");
    }
}

#[test]
fn a_file_that_a_client_uses_keeps_its_id_when_the_host_copies_it_up() {
    if !mounts::in_own_namespace(
        "a_file_that_a_client_uses_keeps_its_id_when_the_host_copies_it_up",
    )
    .unwrap()
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = overlay(dir.path(), 1);
    let (served, root) = (serve(&mount, dir.path()), root());
    let by = CallerView::new(&served, &root);
    let parent = by.lookup(&served.root(), "d").unwrap();
    let id = by.lookup(&parent, "f0").unwrap();
    fs::OpenOptions::new().append(true).open(mount.at().join("d/f0")).unwrap();
    assert_eq!(by.lookup(&parent, "f0"), Ok(id));
    drop(served);
    let served = serve(&mount, dir.path());
    let by = CallerView::new(&served, &root);
    assert!(by.attributes(&id).is_ok());
}

#[test]
fn the_root_of_an_export_in_a_lower_layer_keeps_its_id() {
    if !mounts::in_own_namespace("the_root_of_an_export_in_a_lower_layer_keeps_its_id").unwrap() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = overlay(dir.path(), 1);
    let root = root();
    let serve = || open(&mount.at().join("d"), &dir.path().join("state"), HandleChoice::Auto);
    let served = serve();
    let (id, top) = (served.id(), served.root());
    CallerView::new(&served, &root).create(&top, "new", 0o644).unwrap();
    drop(served);
    let served = serve();
    assert_eq!((served.id(), served.root()), (id, top));
}

/// Without birth times, an inode number that is used again is recognised by the name.
#[test]
fn a_file_that_got_the_inode_of_another_one_is_not_taken_for_it() {
    if !mounts::in_own_namespace("a_file_that_got_the_inode_of_another_one_is_not_taken_for_it")
        .unwrap()
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    mounts::make_ext4(&path("image"), 64).unwrap();
    let _disk = Mount::image(&path("image"), &path("disk")).unwrap();
    fs::create_dir_all(path("state")).unwrap();
    let mount = Mount::fuse(Fuse::Bindfs, &path("disk"), &path("at")).unwrap();
    let (served, root) = (serve(&mount, dir.path()), root());
    let by = CallerView::new(&served, &root);
    fs::write(mount.at().join("victim"), "victim").unwrap();
    let victim = by.lookup(&served.root(), "victim").unwrap();
    let inode = by.attributes(&victim).unwrap().fileid;
    // While the server has it open, its inode number is not used again.
    let is_open = || {
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| target.ends_with("victim"))
    };
    let begin = Instant::now();
    while is_open() {
        assert!(begin.elapsed() < Duration::from_secs(60), "still open");
        std::thread::sleep(Duration::from_millis(200));
    }
    fs::remove_file(mount.at().join("victim")).unwrap();
    fs::write(mount.at().join("other"), "other").unwrap();
    let other = by.lookup(&served.root(), "other").unwrap();
    assert_eq!(
        by.attributes(&other).unwrap().fileid,
        inode,
        "the test needs the same inode number"
    );
    assert_eq!(by.write(&victim, 0, b"XXXXX"), Err(Error::Stale));
    assert_eq!(fs::read(mount.at().join("other")).unwrap(), b"other");
}

#[test]
fn two_mounts_of_one_fuse_file_system_agree_on_ids() {
    if !mounts::in_own_namespace("two_mounts_of_one_fuse_file_system_agree_on_ids").unwrap() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    ["source", "state", "bound"].iter().for_each(|made| fs::create_dir_all(path(made)).unwrap());
    fs::write(path("source/f"), "text").unwrap();
    let mount = Mount::fuse(Fuse::Bindfs, &path("source"), &path("at")).unwrap();
    let bind = Command::new("mount").arg("--bind").args([mount.at(), &path("bound")]).status();
    assert!(bind.unwrap().success());
    let one = serve(&mount, dir.path());
    let two = open(&path("bound"), &path("state"), HandleChoice::Auto);
    assert_eq!(one.handle_kind(), HandleKind::Mount);
    let root = root();
    let id = |served: &LocalFs| CallerView::new(served, &root).lookup(&served.root(), "f").unwrap();
    assert_eq!((one.id(), id(&one)), (two.id(), id(&two)));
    drop((one, two));
    assert!(Command::new("umount").arg("-l").arg(path("bound")).status().unwrap().success());
}

/// As under the systemd unit, which gives each start a mount namespace of its own.
#[test]
fn a_fuse_file_system_keeps_its_id_in_another_mount_namespace() {
    const NAME: &str = "a_fuse_file_system_keeps_its_id_in_another_mount_namespace";
    const DIRECTORY: &str = "LOCKKEEPER_SERVED_DIRECTORY";
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        let dir = Path::new(&dir);
        let served = open(&dir.join("at"), &dir.join("state"), HandleChoice::Auto);
        let root = root();
        let id = CallerView::new(&served, &root).lookup(&served.root(), "f").unwrap();
        println!("found {:?} {id:?}", served.id());
        return;
    }
    if !mounts::in_own_namespace(NAME).unwrap() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    ["source", "state"].iter().for_each(|made| fs::create_dir_all(path(made)).unwrap());
    fs::write(path("source/f"), "text").unwrap();
    let connections = Path::new("/sys/fs/fuse/connections");
    let mounted = Command::new("mount").args(["-t", "fusectl", "none"]).arg(connections).status();
    assert!(mounted.unwrap().success());
    let _mount = Mount::fuse(Fuse::Bindfs, &path("source"), &path("at")).unwrap();
    let found = || {
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "slave"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(DIRECTORY, dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .find(|line| line.starts_with("found"))
            .unwrap_or_else(|| panic!("{text}"))
            .to_owned()
    };
    assert_eq!(found(), found());
}

#[test]
fn names_that_change_while_they_are_looked_up_are_right_after_a_restart() {
    let host = Host::new().unwrap();
    const FILES: usize = 64;
    let (served, root) = (host.open(HandleChoice::InodeMap), root());
    let (dir, is_over) = (served.root(), AtomicBool::new(false));
    let by = CallerView::new(&served, &root);
    let names = |number: usize| (format!("a{number}"), format!("b{number}"));
    let ids: Vec<ObjectId> =
        (0..FILES).map(|number| by.create(&dir, &names(number).0, 0o644).unwrap()).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let by = CallerView::new(&served, &root);
                while !is_over.load(SeqCst) {
                    for (a, b) in (0..FILES).map(names) {
                        let _ = (by.lookup(&dir, &a), by.lookup(&dir, &b));
                    }
                }
            });
        }
        for _ in 0..100 {
            for (a, b) in (0..FILES).map(names) {
                by.rename((&dir, &a), (&dir, &b)).unwrap();
                by.rename((&dir, &b), (&dir, &a)).unwrap();
            }
        }
        is_over.store(true, SeqCst);
    });
    drop(served);
    let served = host.open(HandleChoice::InodeMap);
    let by = CallerView::new(&served, &root);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(by.lookup(&dir, &names(number).0), Ok(*id));
        assert!(by.attributes(id).is_ok(), "{number}");
    }
}

#[test]
fn attributes_of_a_link_are_durable_without_a_journal() {
    if !mounts::in_own_namespace("attributes_of_a_link_are_durable_without_a_journal").unwrap() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::File::create(path("image")).unwrap().set_len(64 << 20).unwrap();
    let mut make = Command::new("mkfs.ext4");
    let made = make.args(["-q", "-F", "-O", "^has_journal"]).arg(path("image")).status();
    assert!(made.unwrap().success());
    let disk = Mount::image(&path("image"), &path("disk")).unwrap();
    fs::create_dir_all(path("state")).unwrap();
    std::os::unix::fs::symlink("text", disk.at().join("link")).unwrap();
    rustix::fs::sync();
    let mut options = options(disk.at(), &path("state"), HandleChoice::Auto);
    options.metadata = MetadataMode::Sync;
    let (served, root) = (LocalFs::open(options).unwrap(), root());
    let by = CallerView::new(&served, &root);
    let link = by.lookup(&served.root(), "link").unwrap();
    by.set(&link, NewAttributes { uid: Some(1234), ..NewAttributes::default() }).unwrap();
    let debugged = Command::new("debugfs").args(["-R", "stat link"]).arg(path("image")).output();
    let on_disk = String::from_utf8(debugged.unwrap().stdout).unwrap();
    assert!(on_disk.lines().any(|line| line.contains("User:  1234")), "{on_disk}");
}
