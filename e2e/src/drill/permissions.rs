//! Who may do what: the rules of a local disk, seen through the wire by two users and root.

use std::os::unix::fs::MetadataExt;

use anyhow::{Result, ensure};

use super::Step;
use super::world::{World, as_user};

pub(super) const STEPS: &[Step] = &[
    Step::new("umask", umask),
    Step::new("owner-writes-what-it-may-not-open", owner_override),
    Step::new("chmod-chown", chmod_chown),
    Step::new("times", times),
    Step::new("groups-and-setgid", setgid),
    Step::new("setuid-is-cleared", setuid),
    Step::new("sticky-directory", sticky),
    Step::new("execute-only", execute_only),
    Step::new("root-squash", root_squash),
    Step::new("all-squash", all_squash),
];

const ANN: &str = "1001:1001";
const BEN: &str = "1002:1002";
const ANN_IN_CREW: &str = "1001:1001:2000";
const BEN_IN_CREW: &str = "1002:1002:2000";
const NOBODY: u32 = 65534;

fn umask(world: &World) -> Result<()> {
    let room = world.room("open", "umask")?;
    let script = "umask 027; echo x > file; mkdir dir; mkfifo pipe; umask 077; echo x > private";
    world.alice()?.succeed(&as_user(ANN, &room.guest, script))?;
    room.expect_mode("file", 0o640)?;
    room.expect_mode("dir", 0o750)?;
    room.expect_mode("pipe", 0o640)?;
    room.expect_mode("private", 0o600)?;
    room.expect_owner("file", 1001, 1001)
}

/// NFSv3 has no open: what a file descriptor allows on a local disk, the server must allow its owner.
fn owner_override(world: &World) -> Result<()> {
    let room = world.room("open", "owner")?;
    let (alice, at) = (world.alice()?, &room.guest);
    alice.succeed(&as_user(ANN, at, "umask 0333; echo created > readonly"))?;
    room.expect_text("readonly", "created\n")?;
    room.expect_mode("readonly", 0o444)?;
    let script = "echo mine > source; chmod 400 source; cp -p source copy; \
                  exec 3> late; chmod 000 late; echo later >&3; exec 3>&-; \
                  mkdir out; tar -cf - source | tar -xpf - -C out; \
                  umask 0777; dd if=/dev/zero of=big bs=64k count=20 2>/dev/null";
    alice.succeed(&as_user(ANN, at, script))?;
    room.expect_text("copy", "mine\n")?;
    room.expect_mode("copy", 0o400)?;
    room.expect_text("out/source", "mine\n")?;
    room.expect_mode("out/source", 0o400)?;
    room.expect_text("late", "later\n")?;
    ensure!(room.metadata("big")?.len() == 20 * 65536, "big has {:?}", room.metadata("big")?);
    alice.fail(&as_user(BEN, at, "echo theirs > readonly"))?;
    alice.fail(&as_user(BEN, at, "cat copy"))?;
    alice.fail(&as_user(ANN, at, "echo again > readonly"))?;
    room.expect_text("readonly", "created\n")
}

fn chmod_chown(world: &World) -> Result<()> {
    let room = world.room("open", "chmod")?;
    let (alice, bob, at) = (world.alice()?, world.bob()?, &room.guest);
    alice.succeed(&as_user(ANN, at, "echo x > file; chmod 640 file"))?;
    room.expect_mode("file", 0o640)?;
    for attempt in ["chmod 666 file", "chown 1002 file", "chgrp 1002 file", "echo y > file"] {
        bob.fail(&as_user(BEN, at, attempt))?;
    }
    for attempt in ["chown 1002 file", "chgrp 1002 file"] {
        alice.fail(&as_user(ANN, at, attempt))?;
    }
    room.expect_owner("file", 1001, 1001)?;
    alice.succeed(&as_user(ANN_IN_CREW, at, "chgrp 2000 file"))?;
    room.expect_owner("file", 1001, 2000)?;
    alice.succeed(&format!("cd {at} && chown 1002:1002 file && chmod 600 file"))?;
    room.expect_owner("file", 1002, 1002)?;
    bob.succeed(&as_user(BEN, at, "echo y > file"))?;
    room.expect_text("file", "y\n")
}

fn times(world: &World) -> Result<()> {
    let room = world.room("open", "times")?;
    let (alice, at) = (world.alice()?, &room.guest);
    let script = "umask 0; echo x > file; touch -d '2001-02-03 04:05:06' file";
    alice.succeed(&as_user(ANN, at, script))?;
    let metadata = room.metadata("file")?;
    ensure!(metadata.mtime() == 981_173_106, "mtime {}", metadata.mtime());
    ensure!(metadata.atime() == 981_173_106, "atime {}", metadata.atime());
    let seen = world.bob()?.succeed(&format!("stat -c %Y {at}/file"))?;
    ensure!(seen == "981173106", "the other guest sees {seen}");
    // Whoever may write may set the time to now, but to no other.
    alice.fail(&as_user(BEN, at, "touch -d '2002-02-03 04:05:06' file"))?;
    alice.succeed(&as_user(BEN, at, "touch -c file"))?;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_secs() as i64;
    let found = room.metadata("file")?.mtime();
    ensure!((now - found).abs() < 60, "touch set {found}, now is {now}");
    Ok(())
}

fn setgid(world: &World) -> Result<()> {
    let room = world.room("open", "setgid")?;
    let (alice, at) = (world.alice()?, &room.guest);
    alice.succeed(&format!("cd {at} && mkdir crew && chgrp 2000 crew && chmod 2775 crew"))?;
    let script = "umask 002; echo x > crew/file; mkdir crew/dir; echo x > own; chmod 2755 own";
    alice.succeed(&as_user(ANN_IN_CREW, at, script))?;
    room.expect_owner("crew/file", 1001, 2000)?;
    room.expect_mode("crew/file", 0o664)?;
    room.expect_owner("crew/dir", 1001, 2000)?;
    room.expect_mode("crew/dir", 0o2775)?;
    room.expect_mode("own", 0o2755)?;
    alice.succeed(&as_user(BEN_IN_CREW, at, "echo y >> crew/file"))?;
    alice.fail(&as_user(BEN, at, "echo z >> crew/file"))?;
    room.expect_text("crew/file", "x\ny\n")?;
    // An owner who is not of the group cannot set its bit.
    alice.succeed(&as_user(ANN, at, "chmod 2755 crew/file"))?;
    room.expect_mode("crew/file", 0o755)
}

fn setuid(world: &World) -> Result<()> {
    let room = world.room("open", "setuid")?;
    let (alice, at) = (world.alice()?, &room.guest);
    let script = "for f in written given kept; do echo x > $f; chmod 4777 $f; done";
    alice.succeed(&as_user(ANN, at, script))?;
    room.expect_mode("written", 0o4777)?;
    alice.succeed(&as_user(BEN, at, "echo y >> written"))?;
    room.expect_text("written", "x\ny\n")?;
    room.expect_mode("written", 0o777)?;
    alice.succeed(&format!("chown 1002:1002 {at}/given"))?;
    room.expect_mode("given", 0o777)?;
    room.expect_mode("kept", 0o4777)
}

fn sticky(world: &World) -> Result<()> {
    let room = world.room("open", "sticky")?;
    let (alice, bob, at) = (world.alice()?, world.bob()?, &room.guest);
    alice.succeed(&format!("mkdir {at}/tmp && chmod 1777 {at}/tmp"))?;
    room.expect_mode("tmp", 0o1777)?;
    alice.succeed(&as_user(ANN, at, "umask 0; echo x > tmp/file; echo x > tmp/other"))?;
    for attempt in ["rm -f tmp/file", "mv tmp/file tmp/stolen", "mv tmp/file ."] {
        bob.fail(&as_user(BEN, at, attempt))?;
    }
    room.expect_text("tmp/file", "x\n")?;
    bob.succeed(&as_user(BEN, at, "echo y > tmp/bens; rm tmp/bens"))?;
    alice.succeed(&as_user(ANN, at, "rm tmp/file; mv tmp/other tmp/renamed"))?;
    ensure!(!room.file("tmp/file").exists(), "its owner could not delete it");
    Ok(())
}

/// A program that may be run but not read: the client's kernel must read it all the same.
fn execute_only(world: &World) -> Result<()> {
    let room = world.room("open", "execute")?;
    let (alice, bob, at) = (world.alice()?, world.bob()?, &room.guest);
    alice.succeed(&format!("cp /bin/busybox {at}/busybox && chmod 711 {at}/busybox"))?;
    let said = bob.succeed(&as_user(BEN, at, "./busybox echo ran"))?;
    ensure!(said == "ran", "it said {said:?}");
    bob.fail(&as_user(BEN, at, "cat busybox > /dev/null"))?;
    Ok(())
}

fn root_squash(world: &World) -> Result<()> {
    let room = world.room("home", "squash")?;
    let (alice, at) = (world.alice()?, &room.guest);
    alice.succeed(&as_user(ANN, at, "umask 077; echo secret > private; mkdir mine"))?;
    room.expect_owner("private", 1001, 1001)?;
    alice.succeed(&format!("echo x > {at}/roots"))?;
    room.expect_owner("roots", NOBODY, NOBODY)?;
    for attempt in ["cat private", "touch mine/file", "chown 1002 private", "chmod 644 private"] {
        alice.fail(&format!("cd {at} && {attempt}"))?;
    }
    alice.fail(&format!("mknod {at}/null c 1 3"))?;
    room.expect_mode("private", 0o600)?;
    // The export's own directory belongs to root and is closed to others.
    alice.fail("touch /mnt/home/file")?;
    Ok(())
}

/// Everybody is nobody.
fn all_squash(world: &World) -> Result<()> {
    let room = world.room("public", "squash")?;
    let (alice, at) = (world.alice()?, &room.guest);
    alice.succeed(&as_user(ANN, at, "umask 022; echo ann > anns; mkdir dir"))?;
    alice.succeed(&format!("echo root > {at}/roots"))?;
    for name in ["anns", "dir", "roots"] {
        room.expect_owner(name, NOBODY, NOBODY)?;
    }
    world.bob()?.succeed(&as_user(BEN, at, "echo ben >> anns"))?;
    room.expect_text("anns", "ann\nben\n")
}
