//! A host directory on mounts that are full, read-only, failing, or mounted elsewhere.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::{fs, path::Path, process::Command, time::Duration};

use fixture::*;
use lockkeeper_vfs::{
    BlockingMode, Context, Error, FileSystem, NewAttributes, Stability,
    local::{HandleChoice, LocalFs, MetadataMode},
};

/// Runs the test `name` of this file again in a mount namespace of its own. `true` if this is
/// already that run.
fn in_own_mount_space(name: &str) -> bool {
    if std::env::var_os("OWN_MOUNT_SPACE").is_some() {
        return true;
    }
    if is_root() {
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("OWN_MOUNT_SPACE", "1")
            .output()
            .unwrap();
        let [said, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    }
    false
}

fn mount(arguments: &[&str], at: &Path) {
    let mounted = Command::new("mount").args(arguments).arg(at).status().unwrap().success();
    assert!(mounted, "cannot mount {arguments:?}: these tests need root and loop devices");
}

#[test]
fn a_full_file_system_takes_what_fits_and_says_so() {
    if !in_own_mount_space("a_full_file_system_takes_what_fits_and_says_so") {
        return;
    }
    let host = Host::new().unwrap();
    mount(&["-t", "tmpfs", "-o", "size=64k,mode=1777", "none"], host.root.path());
    let fs = host.open(HandleChoice::Auto);
    let alice = alice();
    let by = CallerView::new(&fs, &alice);
    let file = by.create(&fs.root(), "f", 0o644).unwrap();
    let written = by.write(&file, 0, &[7; 100_000]).unwrap();
    assert!((32_000..=65_536).contains(&written), "{written}");
    assert_eq!(by.write(&file, written.into(), b"more"), Err(Error::NoSpace));
    assert_eq!(by.attributes(&file).unwrap().size, u64::from(written));
    by.set(&file, with_size(0)).unwrap();
    assert_eq!(by.write(&file, 0, b"again"), Ok(5));
}

#[test]
fn a_mount_point_below_is_seen_but_not_entered() {
    if !in_own_mount_space("a_mount_point_below_is_seen_but_not_entered") {
        return;
    }
    let host = Host::new().unwrap();
    fs::create_dir(host.path("mounted")).unwrap();
    mount(&["-t", "tmpfs", "none"], &host.path("mounted"));
    fs::create_dir(host.path("bound")).unwrap();
    let own = host.root.path().to_string_lossy().into_owned();
    mount(&["--bind", &own], &host.path("bound"));
    for handles in [HandleChoice::Auto, HandleChoice::InodeMap] {
        let fs = host.open(handles);
        let root = root();
        let by = CallerView::new(&fs, &root);
        assert_eq!(by.lookup(&fs.root(), "mounted"), Err(Error::Denied));
        assert_eq!(by.lookup(&fs.root(), "bound"), Err(Error::Denied));
        assert_eq!(by.rmdir(&fs.root(), "mounted"), Err(Error::Denied));
        let mut seen = 0;
        by.fs
            .read_dir(&by.context(), &fs.root(), 0, [0; 8], true, &mut |entry| {
                if entry.name == b"mounted" {
                    assert!(entry.lookup.is_none());
                    seen += 1;
                }
                true
            })
            .unwrap();
        assert_eq!(seen, 1);
    }
}

#[test]
fn a_read_only_mount_is_reported_as_such() {
    if !in_own_mount_space("a_read_only_mount_is_reported_as_such") {
        return;
    }
    let host = Host::new().unwrap();
    fs::write(host.path("f"), "data").unwrap();
    chmod(&host.path("f"), 0o666);
    let own = host.root.path().to_string_lossy().into_owned();
    mount(&["--bind", &own], host.root.path());
    mount(&["-o", "remount,bind,ro", "none"], host.root.path());
    let fs = host.open(HandleChoice::Auto);
    for caller in [root(), alice()] {
        let by = CallerView::new(&fs, &caller);
        let file = by.lookup(&fs.root(), "f").unwrap();
        assert_eq!(by.read(&file, 0, 9).unwrap().0, b"data");
        assert_eq!(by.write(&file, 0, b"x"), Err(Error::ReadOnly));
        assert_eq!(by.create(&fs.root(), "g", 0o644), Err(Error::ReadOnly));
        assert_eq!(by.set(&file, with_mode(0o600)), Err(Error::ReadOnly));
    }
}

#[test]
fn a_failed_write_back_changes_the_verifier() {
    if !in_own_mount_space("a_failed_write_back_changes_the_verifier") {
        return;
    }
    let host = Host::new().unwrap();
    // A disk larger than its backing store: a sparse image on a small tmpfs.
    let disk = tempfile::tempdir().unwrap();
    mount(&["-t", "tmpfs", "-o", "size=4m", "none"], disk.path());
    let image = disk.path().join("image");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1", "-N", "64"])
        .arg(&image)
        .status();
    assert!(made.is_ok_and(|status| status.success()), "cannot run mkfs.ext4: install e2fsprogs");
    mount(&["-o", "loop,errors=continue", &image.to_string_lossy()], host.root.path());
    chmod(host.root.path(), 0o1777);
    let fs = host.open(HandleChoice::Auto);
    let alice = alice();
    let by = CallerView::new(&fs, &alice);
    let file = by.create(&fs.root(), "f", 0o644).unwrap();
    let verifier = fs.write_verifier();
    for megabyte in 0..16 {
        by.write(&file, megabyte << 20, &vec![7; 1 << 20]).unwrap();
    }
    assert_eq!(fs.write_verifier(), verifier);
    let failed = by.fs.commit(&by.context(), &file, 0, 0).unwrap_err();
    assert!(matches!(failed, Error::Io | Error::NoSpace), "{failed}");
    assert_ne!(fs.write_verifier(), verifier);
    let again = fs.write_verifier();
    let data = vec![7; 1 << 20].into();
    let written = by.fs.write(&by.context(), &file, 30 << 20, &data, Stability::File);
    if written.is_err() {
        assert_ne!(fs.write_verifier(), again);
    }
}

/// An ext4 file system in a file.
fn make_image(image: &Path) {
    fs::File::create(image).unwrap().set_len(4 << 20).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(image).status().is_ok_and(|s| s.success());
    assert!(made, "cannot run mkfs.ext4: install e2fsprogs");
}

fn unmount(at: &Path) {
    assert!(Command::new("umount").arg(at).status().unwrap().success());
}

#[test]
fn a_file_system_keeps_its_id_wherever_it_is_mounted() {
    if !in_own_mount_space("a_file_system_keeps_its_id_wherever_it_is_mounted") {
        return;
    }
    let host = Host::new().unwrap();
    let mut ids = Vec::new();
    for image in ["one", "two"] {
        let image = host.path(image);
        make_image(&image);
        for _ in 0..2 {
            let at = tempfile::tempdir().unwrap();
            mount(&["-o", "loop", &image.to_string_lossy()], at.path());
            ids.push(open(at.path(), host.state.path(), HandleChoice::Auto).id());
            unmount(at.path());
        }
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[2], ids[3]);
    assert_ne!(ids[0], ids[2]);
}

#[test]
fn handles_open_files_that_were_not_looked_up_since_the_mount() {
    if !in_own_mount_space("handles_open_files_that_were_not_looked_up_since_the_mount") {
        return;
    }
    for handles in [HandleChoice::Auto, HandleChoice::InodeMap] {
        let host = Host::new().unwrap();
        let image = host.state.path().join("image");
        make_image(&image);
        let image = image.to_string_lossy().into_owned();
        mount(&["-o", "loop", &image], host.root.path());
        chmod(host.root.path(), 0o1777);
        let alice = alice();
        let (dir, deep, file, link) = {
            let fs = host.open(handles);
            let by = CallerView::new(&fs, &alice);
            let dir = by.mkdir(&fs.root(), "d", 0o755).unwrap();
            let deep = by.mkdir(&dir, "deep", 0o755).unwrap();
            let file = by.create(&deep, "f", 0o444).unwrap();
            by.write(&file, 0, b"data").unwrap();
            (dir, deep, file, by.symlink(&deep, "l", "text").unwrap())
        };
        unmount(host.root.path());
        mount(&["-o", "loop", &image], host.root.path());
        let fs = host.open(handles);
        let by = CallerView::new(&fs, &alice);
        assert_eq!(by.link(&file, &fs.root(), "linked"), Ok(2));
        assert_eq!(by.set(&file, with_mode(0o400)), Ok(()));
        assert_eq!(by.write(&file, 4, b"more"), Ok(4));
        assert_eq!(by.read(&file, 0, 9).unwrap().0, b"datamore");
        assert_eq!(by.fs.read_link(&by.context(), &link).unwrap().0, b"text"[..]);
        assert_eq!(by.link(&link, &fs.root(), "link"), Ok(2));
        assert_eq!(by.lookup(&deep, ".."), Ok(dir));
        assert_eq!(by.lookup(&dir, ".."), Ok(fs.root()));
        assert_eq!(by.lookup(&deep, "f"), Ok(file));
        drop(fs);
        unmount(host.root.path());
    }
}

/// Where the disk hangs, it would wait, also in calls that must not.
#[test]
fn a_read_that_must_not_block_asks_nothing_of_the_disk() {
    const NAME: &str = "a_read_that_must_not_block_asks_nothing_of_the_disk";
    if !in_own_mount_space(NAME) {
        return;
    }
    let host = Host::new().unwrap();
    let image = host.state.path().join("image");
    make_image(&image);
    let image = image.to_string_lossy().into_owned();
    mount(&["-o", "loop", &image], host.root.path());
    fs::write(host.path("f"), vec![7; 1 << 20]).unwrap();
    unmount(host.root.path());
    mount(&["-o", "loop", &image], host.root.path());
    let (fs, root) = (host.open(HandleChoice::Auto), root());
    let by = CallerView::new(&fs, &root);
    let file = by.lookup(&fs.root(), "f").unwrap();
    let in_memory = || {
        let mut look = Command::new("fincore");
        let found = look.args(["-b", "-n", "-o", "RES"]).arg(host.path("f")).output().unwrap();
        String::from_utf8(found.stdout).unwrap().trim().parse::<u64>().unwrap()
    };
    // Opens the file.
    by.read(&file, 1 << 19, 1).unwrap();
    let before = in_memory();
    assert!(before < 1 << 20, "all of it is in memory");
    let nonblocking = Context { blocking: BlockingMode::Nonblocking, ..by.context() };
    let read = |at| fs.read(&nonblocking, &file, at, 4096).map(|reply| reply.data.len());
    assert_eq!(read(0), Err(Error::WouldBlock));
    // In memory, but reading on would ask the disk for more.
    assert_eq!(read(1 << 19), Err(Error::WouldBlock));
    assert_eq!(in_memory(), before);
    by.read(&file, 0, 1 << 20).unwrap();
    assert_eq!(read(0), Ok(4096));
}

/// B1.67. For that it would wait for the journal.
#[test]
fn a_call_that_must_not_block_writes_no_access_time() {
    const NAME: &str = "a_call_that_must_not_block_writes_no_access_time";
    if !in_own_mount_space(NAME) {
        return;
    }
    let host = Host::new().unwrap();
    let image = host.state.path().join("image");
    make_image(&image);
    mount(&["-o", "loop", &image.to_string_lossy()], host.root.path());
    std::os::unix::fs::symlink("text", host.path("link")).unwrap();
    // Times advance by ticks.
    std::thread::sleep(Duration::from_millis(20));
    let (fs, root) = (host.open(HandleChoice::Auto), root());
    let by = CallerView::new(&fs, &root);
    let link = by.lookup(&fs.root(), "link").unwrap();
    let accessed = || by.attributes(&link).unwrap().accessed;
    let read = |context| fs.read_link(&context, &link).map(|(text, _)| text);
    let before = accessed();
    assert_eq!(read(by.nonblocking()), Err(Error::WouldBlock));
    assert_eq!(accessed(), before);
    assert_eq!(read(by.context()).unwrap(), b"text"[..]);
    let after = accessed();
    assert!(after > before);
    // Not due any more.
    assert_eq!(read(by.nonblocking()).unwrap(), b"text"[..]);
    assert_eq!(accessed(), after);

    let file = by.create(&fs.root(), "f", 0o644).unwrap();
    by.write(&file, 0, b"data").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let accessed = || by.attributes(&file).unwrap().accessed;
    let read = |context| fs.read(&context, &file, 0, 4).map(|reply| reply.data);
    let before = accessed();
    assert_eq!(read(by.nonblocking()), Err(Error::WouldBlock));
    assert_eq!(accessed(), before);
    assert_eq!(read(by.context()).unwrap(), b"data"[..]);
    assert!(accessed() > before);
    assert_eq!(read(by.nonblocking()).unwrap(), b"data"[..]);
}

#[test]
fn attributes_of_a_link_become_durable_without_a_sync_of_the_whole_file_system() {
    if !in_own_mount_space(
        "attributes_of_a_link_become_durable_without_a_sync_of_the_whole_file_system",
    ) {
        return;
    }
    let host = Host::new().unwrap();
    let image = host.state.path().join("image");
    make_image(&image);
    mount(&["-o", "loop", &image.to_string_lossy()], host.root.path());
    let root = root();
    let options = options(host.root.path(), host.state.path(), HandleChoice::Auto);
    let fs = LocalFs::open(options.with_metadata(MetadataMode::Sync)).unwrap();
    let by = CallerView::new(&fs, &root);
    std::os::unix::fs::symlink("target", host.path("link")).unwrap();
    let link = by.lookup(&fs.root(), "link").unwrap();
    let trace = host.state.path().join("trace");
    let said = host.state.path().join("said");
    let mut strace = Command::new("strace")
        .args(["-f", "-e", "trace=fsync,syncfs", "-p", &std::process::id().to_string(), "-o"])
        .arg(&trace)
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    while !fs::read_to_string(&said).unwrap().contains("attached") {
        assert!(strace.try_wait().unwrap().is_none(), "{}", fs::read_to_string(&said).unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    by.set(&link, NewAttributes { uid: Some(1000), ..NewAttributes::default() }).unwrap();
    strace.kill().unwrap();
    strace.wait().unwrap();
    let trace = fs::read_to_string(trace).unwrap();
    assert!(trace.contains("fsync(") && !trace.contains("syncfs("), "{trace}");
}
