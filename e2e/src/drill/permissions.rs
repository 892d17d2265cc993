//! Permissions: the rules of a local disk, as seen over NFS by two users and root.

use std::os::unix::fs::MetadataExt;

use anyhow::{Result, ensure};

use super::Step;
use super::context::{Drill, as_user};

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

fn umask(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "umask")?;
    let script = "umask 027; echo x > file; mkdir dir; mkfifo pipe; umask 077; echo x > private";
    drill.alice()?.succeed(&as_user(ANN, &dir.guest, script))?;
    dir.expect_mode("file", 0o640)?;
    dir.expect_mode("dir", 0o750)?;
    dir.expect_mode("pipe", 0o640)?;
    dir.expect_mode("private", 0o600)?;
    dir.expect_owner("file", 1001, 1001)
}

/// NFSv3 has no open: what a file descriptor allows on a local disk, the server must allow its owner.
fn owner_override(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "owner")?;
    let (alice, at) = (drill.alice()?, &dir.guest);
    alice.succeed(&as_user(ANN, at, "umask 0333; echo created > readonly"))?;
    dir.expect_text("readonly", "created\n")?;
    dir.expect_mode("readonly", 0o444)?;
    let script = "echo mine > source; chmod 400 source; cp -p source copy; \
                  exec 3> late; chmod 000 late; echo later >&3; exec 3>&-; \
                  mkdir out; tar -cf - source | tar -xpf - -C out; \
                  umask 0777; dd if=/dev/zero of=big bs=64k count=20 2>/dev/null";
    alice.succeed(&as_user(ANN, at, script))?;
    dir.expect_text("copy", "mine\n")?;
    dir.expect_mode("copy", 0o400)?;
    dir.expect_text("out/source", "mine\n")?;
    dir.expect_mode("out/source", 0o400)?;
    dir.expect_text("late", "later\n")?;
    ensure!(dir.metadata("big")?.len() == 20 * 65536, "big has {:?}", dir.metadata("big")?);
    alice.fail(&as_user(BEN, at, "echo theirs > readonly"))?;
    alice.fail(&as_user(BEN, at, "cat copy"))?;
    alice.fail(&as_user(ANN, at, "echo again > readonly"))?;
    dir.expect_text("readonly", "created\n")
}

fn chmod_chown(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "chmod")?;
    let (alice, bob, at) = (drill.alice()?, drill.bob()?, &dir.guest);
    alice.succeed(&as_user(ANN, at, "echo x > file; chmod 640 file"))?;
    dir.expect_mode("file", 0o640)?;
    for attempt in ["chmod 666 file", "chown 1002 file", "chgrp 1002 file", "echo y > file"] {
        bob.fail(&as_user(BEN, at, attempt))?;
    }
    for attempt in ["chown 1002 file", "chgrp 1002 file"] {
        alice.fail(&as_user(ANN, at, attempt))?;
    }
    dir.expect_owner("file", 1001, 1001)?;
    alice.succeed(&as_user(ANN_IN_CREW, at, "chgrp 2000 file"))?;
    dir.expect_owner("file", 1001, 2000)?;
    alice.succeed(&format!("cd {at} && chown 1002:1002 file && chmod 600 file"))?;
    dir.expect_owner("file", 1002, 1002)?;
    bob.succeed(&as_user(BEN, at, "echo y > file"))?;
    dir.expect_text("file", "y\n")
}

fn times(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "times")?;
    let (alice, at) = (drill.alice()?, &dir.guest);
    let script = "umask 0; echo x > file; touch -d '2001-02-03 04:05:06' file";
    alice.succeed(&as_user(ANN, at, script))?;
    let metadata = dir.metadata("file")?;
    ensure!(metadata.mtime() == 981_173_106, "mtime {}", metadata.mtime());
    ensure!(metadata.atime() == 981_173_106, "atime {}", metadata.atime());
    let seen = drill.bob()?.succeed(&format!("stat -c %Y {at}/file"))?;
    ensure!(seen == "981173106", "the other guest sees {seen}");
    // Write permission suffices to set a time to now, but to no other value.
    alice.fail(&as_user(BEN, at, "touch -d '2002-02-03 04:05:06' file"))?;
    alice.succeed(&as_user(BEN, at, "touch -c file"))?;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_secs() as i64;
    let found = dir.metadata("file")?.mtime();
    ensure!((now - found).abs() < 60, "touch set {found}, now is {now}");
    Ok(())
}

fn setgid(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "setgid")?;
    let (alice, at) = (drill.alice()?, &dir.guest);
    alice.succeed(&format!("cd {at} && mkdir crew && chgrp 2000 crew && chmod 2775 crew"))?;
    let script = "umask 002; echo x > crew/file; mkdir crew/dir; echo x > own; chmod 2755 own";
    alice.succeed(&as_user(ANN_IN_CREW, at, script))?;
    dir.expect_owner("crew/file", 1001, 2000)?;
    dir.expect_mode("crew/file", 0o664)?;
    dir.expect_owner("crew/dir", 1001, 2000)?;
    dir.expect_mode("crew/dir", 0o2775)?;
    dir.expect_mode("own", 0o2755)?;
    alice.succeed(&as_user(BEN_IN_CREW, at, "echo y >> crew/file"))?;
    alice.fail(&as_user(BEN, at, "echo z >> crew/file"))?;
    dir.expect_text("crew/file", "x\ny\n")?;
    // An owner that is not in the group cannot set the set-group-id bit.
    alice.succeed(&as_user(ANN, at, "chmod 2755 crew/file"))?;
    dir.expect_mode("crew/file", 0o755)
}

fn setuid(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "setuid")?;
    let (alice, at) = (drill.alice()?, &dir.guest);
    let script = "for f in written given kept; do echo x > $f; chmod 4777 $f; done";
    alice.succeed(&as_user(ANN, at, script))?;
    dir.expect_mode("written", 0o4777)?;
    alice.succeed(&as_user(BEN, at, "echo y >> written"))?;
    dir.expect_text("written", "x\ny\n")?;
    dir.expect_mode("written", 0o777)?;
    alice.succeed(&format!("chown 1002:1002 {at}/given"))?;
    dir.expect_mode("given", 0o777)?;
    dir.expect_mode("kept", 0o4777)
}

fn sticky(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "sticky")?;
    let (alice, bob, at) = (drill.alice()?, drill.bob()?, &dir.guest);
    alice.succeed(&format!("mkdir {at}/tmp && chmod 1777 {at}/tmp"))?;
    dir.expect_mode("tmp", 0o1777)?;
    alice.succeed(&as_user(ANN, at, "umask 0; echo x > tmp/file; echo x > tmp/other"))?;
    for attempt in ["rm -f tmp/file", "mv tmp/file tmp/stolen", "mv tmp/file ."] {
        bob.fail(&as_user(BEN, at, attempt))?;
    }
    dir.expect_text("tmp/file", "x\n")?;
    bob.succeed(&as_user(BEN, at, "echo y > tmp/bens; rm tmp/bens"))?;
    alice.succeed(&as_user(ANN, at, "rm tmp/file; mv tmp/other tmp/renamed"))?;
    ensure!(!dir.file("tmp/file").exists(), "its owner could not delete it");
    Ok(())
}

/// A program that may be run but not read: the client's kernel must read it all the same.
fn execute_only(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "execute")?;
    let (alice, bob, at) = (drill.alice()?, drill.bob()?, &dir.guest);
    alice.succeed(&format!("cp /bin/busybox {at}/busybox && chmod 711 {at}/busybox"))?;
    let said = bob.succeed(&as_user(BEN, at, "./busybox echo ran"))?;
    ensure!(said == "ran", "it said {said:?}");
    bob.fail(&as_user(BEN, at, "cat busybox > /dev/null"))?;
    Ok(())
}

fn root_squash(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("home", "squash")?;
    let (alice, at) = (drill.alice()?, &dir.guest);
    alice.succeed(&as_user(ANN, at, "umask 077; echo secret > private; mkdir mine"))?;
    dir.expect_owner("private", 1001, 1001)?;
    alice.succeed(&format!("echo x > {at}/roots"))?;
    dir.expect_owner("roots", NOBODY, NOBODY)?;
    for attempt in ["cat private", "touch mine/file", "chown 1002 private", "chmod 644 private"] {
        alice.fail(&format!("cd {at} && {attempt}"))?;
    }
    alice.fail(&format!("mknod {at}/null c 1 3"))?;
    dir.expect_mode("private", 0o600)?;
    // The export's own directory belongs to root and is closed to others.
    alice.fail("touch /mnt/home/file")?;
    Ok(())
}

/// All squash: every caller is anonymous.
fn all_squash(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("public", "squash")?;
    let (alice, at) = (drill.alice()?, &dir.guest);
    alice.succeed(&as_user(ANN, at, "umask 022; echo ann > anns; mkdir dir"))?;
    alice.succeed(&format!("echo root > {at}/roots"))?;
    for name in ["anns", "dir", "roots"] {
        dir.expect_owner(name, NOBODY, NOBODY)?;
    }
    drill.bob()?.succeed(&as_user(BEN, at, "echo ben >> anns"))?;
    dir.expect_text("anns", "ann\nben\n")
}
