//! What is specific to a directory of the host: handles, identity, descriptors, and changes made on
//! the host itself.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use fixture::*;
use lockkeeper_vfs::{
    BlockingMode, Caller, Context, CreateMode, Error, FileSystem, FileSystemId, NewAttributes,
    ObjectId,
    local::{HandleChoice, HandleKind, LocalFs, MetadataMode, Options, prepare_worker_thread},
};

/// The targets of this process's descriptors below `path`.
fn descriptors_below(path: &Path) -> Vec<String> {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    let targets = targets.map(|target| target.to_string_lossy().into_owned());
    targets.filter(|target| target.starts_with(&*path.to_string_lossy())).collect()
}

#[test]
fn a_kernel_handle_survives_restart_and_any_rename() {
    let Some(host) = Host::new() else { return };
    let alice = alice();
    let (dir, file) = {
        let fs = host.open(HandleChoice::Auto);
        assert_eq!(fs.handle_kind(), HandleKind::Kernel);
        let by = CallerView::new(&fs, &alice);
        let dir = by.mkdir(&fs.root(), "d", 0o755).unwrap();
        let file = by.create(&dir, "f", 0o644).unwrap();
        by.write(&file, 0, b"data").unwrap();
        (dir, file)
    };
    fs::rename(host.path("d/f"), host.path("behind our back")).unwrap();
    let fs = host.open(HandleChoice::Auto);
    let by = CallerView::new(&fs, &alice);
    assert_eq!(by.read(&file, 0, 9).unwrap().0, b"data");
    // By the handle alone: the kernel has no dentry for it yet.
    by.write(&file, 4, b"more").unwrap();
    by.set(&file, with_mode(0o600)).unwrap();
    assert_eq!(by.link(&file, &dir, "linked"), Ok(2));
    assert_eq!(by.lookup(&fs.root(), "d"), Ok(dir));
    assert_eq!(by.lookup(&fs.root(), "behind our back"), Ok(file));
}

#[test]
fn the_inode_map_survives_restart_and_renames_by_clients() {
    let Some(host) = Host::new() else { return };
    let alice = alice();
    let (dir, file, linked, lost) = {
        let fs = host.open(HandleChoice::InodeMap);
        assert_eq!(fs.handle_kind(), HandleKind::InodeMap);
        let by = CallerView::new(&fs, &alice);
        let dir = by.mkdir(&fs.root(), "d", 0o755).unwrap();
        let file = by.create(&dir, "f", 0o644).unwrap();
        let linked = by.create(&dir, "one", 0o644).unwrap();
        by.link(&linked, &fs.root(), "two").unwrap();
        by.remove(&dir, "one").unwrap();
        let lost = by.create(&dir, "lost", 0o644).unwrap();
        by.rename((&dir, "f"), (&dir, "g")).unwrap();
        by.rename((&fs.root(), "d"), (&fs.root(), "e")).unwrap();
        (dir, file, linked, lost)
    };
    fs::rename(host.path("e/lost"), host.path("behind our back")).unwrap();
    let fs = host.open(HandleChoice::InodeMap);
    let by = CallerView::new(&fs, &alice);
    assert!(by.attributes(&file).is_ok());
    assert!(by.attributes(&dir).is_ok());
    assert!(by.attributes(&linked).is_ok());
    assert_eq!(by.attributes(&lost), Err(Error::Stale), "it promises no more");
    assert_eq!(by.lookup(&fs.root(), "behind our back"), Ok(lost));
    assert!(by.attributes(&lost).is_ok(), "seen again, it is found again");
}

#[test]
fn a_file_that_took_anothers_name_is_not_taken_for_it() {
    let Some(host) = Host::new() else { return };
    let alice = alice();
    let file = CallerView::new(&host.open(HandleChoice::InodeMap), &alice)
        .create(&host.open(HandleChoice::InodeMap).root(), "f", 0o644)
        .unwrap();
    fs::remove_file(host.path("f")).unwrap();
    fs::write(host.path("f"), "another, perhaps with the same inode number").unwrap();
    let fs = host.open(HandleChoice::InodeMap);
    assert_eq!(CallerView::new(&fs, &alice).attributes(&file), Err(Error::Stale));
}

#[test]
fn a_torn_inode_map_is_read_up_to_the_tear() {
    let Some(host) = Host::new() else { return };
    let alice = alice();
    let (first, second) = {
        let fs = host.open(HandleChoice::InodeMap);
        let by = CallerView::new(&fs, &alice);
        let first = by.create(&fs.root(), "first", 0o644).unwrap();
        (first, by.create(&fs.root(), "second", 0o644).unwrap())
    };
    let mut files = fs::read_dir(host.state.path()).unwrap().flatten().map(|entry| entry.path());
    let map = files.find(|path| path.to_string_lossy().contains("inodes-")).unwrap();
    assert_eq!(fs::metadata(&map).unwrap().mode() & 0o777, 0o600);
    let length = fs::metadata(&map).unwrap().len();
    fs::OpenOptions::new().write(true).open(&map).unwrap().set_len(length - 3).unwrap();
    for _ in 0..2 {
        let fs = host.open(HandleChoice::InodeMap);
        let by = CallerView::new(&fs, &alice);
        assert!(by.attributes(&first).is_ok());
        // Lost with the torn record; then looked up again and recorded behind the tear.
        let looked = by.lookup(&fs.root(), "second");
        assert_eq!(looked, Ok(second));
    }
    let fs = host.open(HandleChoice::InodeMap);
    assert!(CallerView::new(&fs, &alice).attributes(&second).is_ok());
}

#[test]
fn two_exports_of_one_directory_share_the_inode_map() {
    let Some(host) = Host::new() else { return };
    let alice = alice();
    let (one, other) = (host.open(HandleChoice::InodeMap), host.open(HandleChoice::InodeMap));
    let file = CallerView::new(&one, &alice).create(&one.root(), "f", 0o644).unwrap();
    assert!(CallerView::new(&other, &alice).attributes(&file).is_ok());
}

#[test]
fn a_removed_file_is_not_kept_alive() {
    let Some(host) = Host::new() else { return };
    prepare_worker_thread();
    let alice = alice();
    let fs = host.open(HandleChoice::Auto);
    let by = CallerView::new(&fs, &alice);
    for name in ["removed", "replaced", "behind our back"] {
        let file = by.create(&fs.root(), name, 0o644).unwrap();
        by.write(&file, 0, &[7; 100_000]).unwrap();
        by.read(&file, 0, 10).unwrap();
        match name {
            "removed" => by.remove(&fs.root(), name).unwrap(),
            "replaced" => {
                by.create(&fs.root(), "new", 0o644).unwrap();
                by.rename((&fs.root(), "new"), (&fs.root(), name)).unwrap();
            }
            _ => {
                fs::remove_file(host.path(name)).unwrap();
                assert_eq!(by.attributes(&file), Err(Error::Stale));
            }
        }
        let open = descriptors_below(host.root.path());
        assert!(!open.iter().any(|path| path.ends_with("(deleted)")), "{name}: {open:?}");
    }
}

#[test]
fn idle_files_are_closed_except_those_with_unstable_writes() {
    let Some(host) = Host::new() else { return };
    let alice = alice();
    let fs = host.open(HandleChoice::Auto);
    let by = CallerView::new(&fs, &alice);
    by.create(&fs.root(), "idle", 0o644).unwrap();
    let written = by.create(&fs.root(), "written", 0o644).unwrap();
    by.write(&written, 0, b"x").unwrap();
    let open =
        |name: &str| descriptors_below(host.root.path()).iter().any(|path| path.ends_with(name));
    assert!(open("idle") && open("written"));
    let begin = Instant::now();
    while open("idle") {
        assert!(begin.elapsed() < Duration::from_secs(30), "still open");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(open("written"));
    by.fs.commit(&by.context(), &written, 0, 0).unwrap();
    let begin = Instant::now();
    while open("written") {
        assert!(begin.elapsed() < Duration::from_secs(30), "still open");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_program_can_be_executed_on_the_host_soon_after_it_was_written() {
    let Some(host) = Host::new() else { return };
    let alice = alice();
    let fs = host.open(HandleChoice::Auto);
    let by = CallerView::new(&fs, &alice);
    let program = by.create(&fs.root(), "program", 0o755).unwrap();
    by.write(&program, 0, b"#!/bin/true\n").unwrap();
    let execute = || std::process::Command::new(host.path("program")).status();
    assert_eq!(execute().unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
    by.fs.commit(&by.context(), &program, 0, 0).unwrap();
    let begin = Instant::now();
    while execute().is_err() {
        // Clients that look at it do not keep it from being executed.
        by.read(&program, 0, 100).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(8), "still busy");
        std::thread::sleep(Duration::from_millis(100));
    }
    by.write(&program, 0, b"#!/bin/false\n").unwrap();
    assert!(execute().is_err());
}

#[test]
fn descriptors_are_bounded() {
    let Some(host) = Host::new() else { return };
    prepare_worker_thread();
    let root = root();
    let options = options(host.root.path(), host.state.path(), HandleChoice::Auto);
    let fs = LocalFs::open(options.with_descriptors_max(64)).unwrap();
    let by = CallerView::new(&fs, &root);
    let files: Vec<ObjectId> = (0..500)
        .map(|number| {
            let file = by.create(&fs.root(), &number.to_string(), 0o644).unwrap();
            by.write(&file, 0, b"unstable").unwrap();
            file
        })
        .collect();
    assert!(files.iter().all(|file| by.read(file, 0, 9).unwrap().0 == b"unstable"));
    let open = descriptors_below(host.root.path()).len();
    assert!(open < 80, "{open}");
}

#[test]
fn running_out_of_descriptors_empties_the_cache_instead_of_failing() {
    let name = "running_out_of_descriptors_makes_room_instead_of_failing";
    if std::env::var_os("FEW_DESCRIPTORS").is_none() {
        if is_root() {
            let status = Command::new("prlimit")
                .args(["--nofile=100:100"])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env("FEW_DESCRIPTORS", "1")
                .status();
            assert!(status.is_ok_and(|status| status.success()), "run by prlimit, of util-linux");
        }
        return;
    }
    let host = Host::new().unwrap();
    let fs = host.open(HandleChoice::Auto);
    let alice = alice();
    let by = CallerView::new(&fs, &alice);
    let files: Vec<ObjectId> =
        (0..300).map(|n| by.create(&fs.root(), &n.to_string(), 0o644).unwrap()).collect();
    for (number, file) in files.iter().enumerate() {
        assert_eq!(by.lookup(&fs.root(), &number.to_string()), Ok(*file));
        assert_eq!(by.read(file, 0, 1).unwrap(), (vec![], true));
        by.names(&fs.root(), 1000).unwrap();
    }
}

#[test]
fn the_servers_identity_is_back_after_each_operation() {
    let Some(host) = Host::new() else { return };
    prepare_worker_thread();
    let fs = host.open(HandleChoice::Auto);
    assert!(fs.acts_as_caller());
    let identity = || {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = |key| status.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        (line("Uid:"), line("Gid:"), line("CapEff:"))
    };
    let before = identity();
    assert!(before.0.ends_with("\t0"));
    let alice = alice();
    let carol = Caller::new(1002, 1002, &[7, 8, 9]);
    let by = CallerView::new(&fs, &alice);
    let file = by.create(&fs.root(), "f", 0o600).unwrap();
    assert_eq!(identity(), before);
    by.write(&file, 0, b"x").unwrap();
    assert_eq!(identity(), before);
    for caller in [&alice, &carol] {
        let by = CallerView::new(&fs, caller);
        let _ = by.read(&file, 0, 1);
        let _ = by.write(&file, 0, b"y");
        let _ = by.set(&file, with_mode(0o600));
        let _ = by.remove(&fs.root(), "f");
        let _ = by.mkdir(&fs.root(), "d", 0o755);
        let _ = by.names(&fs.root(), 10);
        assert_eq!(identity(), before);
    }
    let nobody = Caller::new(u32::MAX, 0, &[]);
    assert_eq!(CallerView::new(&fs, &nobody).create(&fs.root(), "g", 0o644), Err(Error::Invalid));
    assert_eq!(identity(), before);
}

#[test]
fn callers_on_many_threads_do_not_mix() {
    let Some(host) = Host::new() else { return };
    let fs = host.open(HandleChoice::Auto);
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let fs = &fs;
            scope.spawn(move || {
                prepare_worker_thread();
                for number in 0..100_u32 {
                    let uid = 2000 + (thread + number) % 5;
                    let caller = Caller::new(uid, uid + 100, &[uid + 200]);
                    let by = CallerView::new(fs, &caller);
                    let name = format!("{thread}-{number}");
                    let file = by.create(&fs.root(), &name, 0o600).unwrap();
                    by.write(&file, 0, name.as_bytes()).unwrap();
                    let found = by.attributes(&file).unwrap();
                    assert_eq!((found.uid, found.gid), (uid, uid + 100));
                    let other = Caller::new(uid + 1, uid + 1, &[]);
                    assert_eq!(CallerView::new(fs, &other).read(&file, 0, 1), Err(Error::Denied));
                }
            });
        }
    });
    assert_eq!(CallerView::new(&fs, &root()).names(&fs.root(), 1000).unwrap().len(), 800);
}

#[test]
fn renames_in_opposite_directions_do_not_block_each_other() {
    let Some(host) = Host::new() else { return };
    let fs = host.open(HandleChoice::Auto);
    let root = root();
    let by = CallerView::new(&fs, &root);
    let one = by.mkdir(&fs.root(), "one", 0o777).unwrap();
    let two = by.mkdir(&fs.root(), "two", 0o777).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fs, root) = (&fs, &root);
            scope.spawn(move || {
                let by = CallerView::new(fs, root);
                let (from, to) = if thread % 2 == 0 { (&one, &two) } else { (&two, &one) };
                let name = thread.to_string();
                by.create(from, &name, 0o644).unwrap();
                for _ in 0..300 {
                    by.rename((from, &name), (to, &name)).unwrap();
                    by.rename((to, &name), (from, &name)).unwrap();
                }
            });
        }
    });
    assert_eq!(by.names(&one, 9).unwrap(), [b"0", b"2"]);
}

#[test]
fn nothing_is_lost_when_many_files_are_written_with_few_descriptors() {
    let Some(host) = Host::new() else { return };
    prepare_worker_thread();
    let options = options(host.root.path(), host.state.path(), HandleChoice::Auto);
    let fs = LocalFs::open(options.with_descriptors_max(64)).unwrap();
    let root = root();
    let files: Vec<ObjectId> = (0..100)
        .map(|number| {
            CallerView::new(&fs, &root).create(&fs.root(), &number.to_string(), 0o600).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fs, root, files) = (&fs, &root, &files);
            scope.spawn(move || {
                prepare_worker_thread();
                let by = CallerView::new(fs, root);
                for round in 0..10 {
                    for (number, file) in files.iter().enumerate() {
                        let at = thread * 100 + round * 10;
                        by.write(file, at, format!("{thread:03}.{number:05}.").as_bytes()).unwrap();
                        if (number as u64 + round) % 7 == thread {
                            by.fs.commit(&by.context(), file, 0, 0).unwrap();
                        }
                    }
                }
            });
        }
    });
    for (number, file) in files.iter().enumerate() {
        let content = CallerView::new(&fs, &root).read(file, 0, 1000).unwrap().0;
        for thread in 0..4 {
            for round in 0..10 {
                let at = thread * 100 + round * 10;
                let written = format!("{thread:03}.{number:05}.");
                assert_eq!(&content[at..at + 10], written.as_bytes());
            }
        }
    }
    let open = descriptors_below(host.root.path()).len();
    assert!(open < 80, "{open}");
}

#[test]
fn no_lookup_leaves_the_export() {
    let Some(host) = Host::new() else { return };
    let served = host.path("served");
    fs::create_dir_all(served.join("d")).unwrap();
    fs::write(host.path("secret"), "secret").unwrap();
    symlink("../secret", served.join("file")).unwrap();
    symlink("..", served.join("dir")).unwrap();
    symlink("/", served.join("absolute")).unwrap();
    let fs = open(&served, host.state.path(), HandleChoice::Auto);
    let root = root();
    let by = CallerView::new(&fs, &root);
    for name in ["file", "dir", "absolute"] {
        let link = by.lookup(&fs.root(), name).unwrap();
        assert_eq!(by.read(&link, 0, 9), Err(Error::Invalid));
        assert_eq!(by.lookup(&link, "secret"), Err(Error::NotADirectory));
        assert_eq!(by.create(&link, "new", 0o644), Err(Error::NotADirectory));
        assert_eq!(by.names(&link, 9), Err(Error::NotADirectory));
    }
    let unchecked = CreateMode::Unchecked(with_size(0));
    assert_eq!(by.make(&fs.root(), "file", &unchecked).unwrap_err(), Error::Exists);
    assert_eq!(fs::read(host.path("secret")).unwrap(), b"secret");
    let dir = by.lookup(&fs.root(), "d").unwrap();
    assert_eq!(by.lookup(&dir, ".."), Ok(fs.root()));
    fs::rename(served.join("d"), host.path("d")).unwrap();
    assert_eq!(by.lookup(&dir, ".."), Err(Error::Denied), "moved out, it leads nowhere");
}

#[test]
fn a_hundred_thousand_entries_are_listed_in_reasonable_time() {
    let Some(host) = Host::new() else { return };
    fs::create_dir(host.path("d")).unwrap();
    for number in 0..100_000 {
        fs::File::create(host.path(&format!("d/{number}"))).unwrap();
    }
    let fs = host.open(HandleChoice::Auto);
    let root = root();
    let by = CallerView::new(&fs, &root);
    let dir = by.lookup(&fs.root(), "d").unwrap();
    for (plus, at_once, limit) in [(false, 1000, 20), (true, 100, 60)] {
        let begin = Instant::now();
        let (mut cookie, mut count) = (0, 0);
        loop {
            let mut part = 0;
            let listed = by.fs.read_dir(&by.context(), &dir, cookie, [0; 8], plus, &mut |entry| {
                if part == at_once {
                    return false;
                }
                part += 1;
                assert!(!plus || entry.lookup.is_some() || entry.name == b"..");
                cookie = entry.cookie;
                true
            });
            count += part;
            if listed.unwrap().eof {
                break;
            }
        }
        println!("plus: {plus}, {at_once} at once: {:?}", begin.elapsed());
        assert_eq!(count, 100_002);
        assert!(begin.elapsed() < Duration::from_secs(limit));
    }
}

#[test]
fn the_file_system_id_is_kept_and_shared() {
    let Some(host) = Host::new() else { return };
    let id = host.open(HandleChoice::Auto).id();
    // Without a visible UUID, another directory shares the id while this one is served.
    let root = host.open(HandleChoice::Auto);
    assert_eq!(root.id(), id);
    fs::create_dir(host.path("below")).unwrap();
    let below = open(&host.path("below"), host.state.path(), HandleChoice::Auto);
    assert_eq!(below.id(), id);
    let options = options(host.root.path(), host.state.path(), HandleChoice::Auto);
    let configured = options.with_id(FileSystemId(77));
    assert_eq!(LocalFs::open(configured).unwrap().id(), FileSystemId(77));
}

#[test]
fn two_exports_of_one_file_system_name_a_file_alike() {
    let Some(host) = Host::new() else { return };
    fs::create_dir(host.path("below")).unwrap();
    fs::write(host.path("below/f"), "").unwrap();
    for handles in [HandleChoice::Auto, HandleChoice::InodeMap] {
        let above = host.open(handles);
        let below = open(&host.path("below"), host.state.path(), handles);
        let root = root();
        let dir = CallerView::new(&above, &root).lookup(&above.root(), "below").unwrap();
        assert_eq!(dir, below.root());
        let one = CallerView::new(&above, &root).lookup(&dir, "f").unwrap();
        assert_eq!(CallerView::new(&below, &root).lookup(&below.root(), "f"), Ok(one));
    }
}

/// B2.8
#[test]
fn before_a_lock_changes_through_other_exports_count_at_once_and_those_of_the_host_soon() {
    let Some(host) = Host::new() else { return };
    fs::create_dir(host.path("below")).unwrap();
    fs::write(host.path("below/f"), "").unwrap();
    chmod(&host.path("below/f"), 0o644);
    let above = host.open(HandleChoice::Auto);
    let below = open(&host.path("below"), host.state.path(), HandleChoice::Auto);
    let (root, carol) = (root(), carol());
    let file = CallerView::new(&below, &root).lookup(&below.root(), "f").unwrap();
    let context = Context { caller: &carol, blocking: BlockingMode::MayBlock };
    let may_read = || above.lock_access(&context, &file).unwrap().0.read;
    assert!(may_read());
    CallerView::new(&below, &root).set(&file, with_mode(0o600)).unwrap();
    assert!(!may_read());
    chmod(&host.path("below/f"), 0o644);
    let since = Instant::now();
    while !may_read() {
        assert!(since.elapsed() < Duration::from_secs(5), "a second is promised");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn durable_metadata_changes_nothing_else() {
    let Some(host) = Host::new() else { return };
    let options = options(host.root.path(), host.state.path(), HandleChoice::Auto);
    let fs = LocalFs::open(options.with_metadata(MetadataMode::Sync)).unwrap();
    let alice = alice();
    let by = CallerView::new(&fs, &alice);
    let dir = by.mkdir(&fs.root(), "d", 0o755).unwrap();
    let file = by.create(&dir, "f", 0o000).unwrap();
    by.set(&file, with_mode(0o200)).unwrap();
    let link = by.symlink(&dir, "l", "f").unwrap();
    let times =
        NewAttributes { modified: lockkeeper_vfs::SetTime::Now, ..NewAttributes::default() };
    by.set(&link, times).unwrap();
    by.link(&file, &dir, "g").unwrap();
    by.rename((&dir, "g"), (&fs.root(), "h")).unwrap();
    by.remove(&dir, "f").unwrap();
    by.remove(&dir, "l").unwrap();
    by.rmdir(&fs.root(), "d").unwrap();
    assert_eq!(by.names(&fs.root(), 9).unwrap(), [b"h"]);
}

#[test]
fn errors_at_opening_say_what_to_do() {
    let state = tempfile::tempdir().unwrap();
    let text = |options| LocalFs::open(options).err().unwrap().to_string();
    let missing = text(Options::new("/no/such/directory", state.path()));
    assert!(missing.contains("Does the directory exist"), "{missing}");
    let few = text(Options::new("/", state.path()).with_descriptors_max(1));
    assert!(few.contains("at least 64"), "{few}");
    let no_state = text(Options::new(state.path(), "/no/such/directory"));
    assert!(no_state.contains("state directory"), "{no_state}");
}

#[test]
fn an_unprivileged_server_serves_as_itself() {
    if std::env::var_os("UNPRIVILEGED").is_none() {
        if !is_root() {
            return;
        }
        // A copy, because the build directory may be inaccessible to the other user.
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o755);
        let program = dir.path().join("test");
        // Copied by another process: children inherit a descriptor that this one writes to, and a
        // file open for writing cannot be executed.
        let mut copied = Command::new("install");
        copied.arg(std::env::current_exe().unwrap()).arg(&program);
        assert!(copied.status().unwrap().success());
        let status = Command::new("setpriv")
            .args(["--reuid=1000", "--regid=1000", "--clear-groups", "--inh-caps=-all"])
            .arg(&program)
            .args(["--exact", "an_unprivileged_server_serves_as_itself", "--nocapture"])
            .env("UNPRIVILEGED", "1")
            .env("TMPDIR", "/tmp")
            .status();
        assert!(status.is_ok_and(|status| status.success()), "run by setpriv, of util-linux");
        return;
    }
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fs = LocalFs::open(Options::new(root.path(), state.path())).unwrap();
    assert_eq!(fs.handle_kind(), HandleKind::InodeMap);
    assert!(!fs.acts_as_caller());
    let caller = Caller::new(1000, 1000, &[]);
    let by = CallerView::new(&fs, &caller);
    let file = by.create(&fs.root(), "f", 0o666).unwrap();
    assert_eq!(by.mode(&file), 0o666);
    assert_eq!(by.write(&file, 0, b"data"), Ok(4));
    assert_eq!(by.read(&file, 0, 9).unwrap().0, b"data");
    let dir = by.mkdir(&fs.root(), "d", 0o755).unwrap();
    by.rename((&fs.root(), "f"), (&dir, "g")).unwrap();
    by.link(&file, &fs.root(), "h").unwrap();
    assert_eq!(by.names(&fs.root(), 9).unwrap(), [b"d", b"h"]);
    let read_only = by.create(&fs.root(), "read only", 0o444).unwrap();
    assert_eq!(by.write(&read_only, 0, b"by its creator"), Ok(14));
    assert_eq!(
        by.set(&file, NewAttributes { uid: Some(0), ..Default::default() }),
        Err(Error::NotOwner)
    );
}
