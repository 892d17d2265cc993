//! Names: renaming, linking, special files, names that are not text, and races to create a file.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use anyhow::{Context, Result, bail, ensure};

use super::Step;
use super::context::{Drill, as_user};
use crate::guest::TIMEOUT;

pub(super) const STEPS: &[Step] = &[
    Step::new("rename", rename),
    Step::new("links", links),
    Step::new("special-files", special),
    Step::new("strange-names", strange),
    Step::new("deleted-by-the-other", deleted_by_the_other),
    Step::new("exclusive-create-race", race),
];

fn rename(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "rename")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let at = &dir.guest;
    alice.succeed(&format!(
        "cd {at} && echo old > target && echo new > source && mv source target && \
         mkdir empty full moved && echo x > full/x && echo y > moved/y"
    ))?;
    dir.expect_text("target", "new\n")?;
    ensure!(!dir.file("source").exists(), "the old name is still there");
    let seen = bob.succeed(&format!("cat {at}/target; ls {at}"))?;
    ensure!(seen == "new\nempty\nfull\nmoved\ntarget", "the other guest sees {seen:?}");
    // -T: onto the name, not into the directory.
    bob.succeed(&format!("cd {at} && mv -T moved empty"))?;
    dir.expect_text("empty/y", "y\n")?;
    for (attempt, complaint) in [
        ("mv -T empty full", "not empty"),
        ("mv -T full target", "Not a directory"),
        ("mv full full/inside", "Invalid argument"),
        ("mv missing else", "No such file"),
    ] {
        let said = bob.fail(&format!("cd {at} && {attempt}"))?;
        ensure!(said.contains(complaint), "{attempt}: {said}");
    }
    alice.succeed(&format!("cd {at} && mv target full/ && mv full/target back && cat back"))?;
    dir.expect_text("back", "new\n")
}

fn links(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "links")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let at = &dir.guest;
    let long = "x/".repeat(500);
    alice.succeed(&format!(
        "cd {at} && echo shared > one && ln one two && echo more >> two && \
         ln -s one soft && ln -s nowhere dangling && ln -s {long} long"
    ))?;
    let (one, two) = (dir.metadata("one")?, dir.metadata("two")?);
    ensure!(one.ino() == two.ino() && one.nlink() == 2, "not a hard link");
    dir.expect_text("one", "shared\nmore\n")?;
    let seen = bob.succeed(&format!(
        "cd {at} && stat -c %h one && cat soft && readlink dangling && readlink long && rm one && cat two"
    ))?;
    let expected = format!("2\nshared\nmore\nnowhere\n{long}\nshared\nmore");
    ensure!(seen == expected, "the other guest sees {seen:?}");
    bob.fail(&format!("cat {at}/dangling"))?;
    ensure!(dir.metadata("two")?.nlink() == 1, "the link count did not go down");
    let said = alice.fail(&format!("cd {at} && ln two dangling"))?;
    ensure!(said.contains("File exists"), "link over a name: {said}");
    Ok(())
}

fn special(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "special")?;
    let alice = drill.alice()?;
    let at = &dir.guest;
    let through = alice.succeed(&format!(
        "cd {at} && mkfifo -m 622 pipe && mknod null c 1 3 && mknod disk b 7 5 && \
         {{ echo through > pipe & cat pipe; wait; }} && echo gone > null && cat null"
    ))?;
    ensure!(through == "through", "the pipe gave {through:?}");
    dir.expect_mode("pipe", 0o622)?;
    ensure!(dir.metadata("pipe")?.file_type().is_fifo(), "no FIFO on the server's disk");
    let (null, disk) = (dir.metadata("null")?, dir.metadata("disk")?);
    let number = |major, minor| libc::makedev(major, minor);
    let right = null.file_type().is_char_device() && null.rdev() == number(1, 3);
    ensure!(right, "the character device is {null:?}");
    let right = disk.file_type().is_block_device() && disk.rdev() == number(7, 5);
    ensure!(right, "the block device is {disk:?}");
    let seen = drill.bob()?.succeed(&format!("cd {at} && stat -c '%F %t:%T' pipe null disk"))?;
    let expected = "fifo 0:0\ncharacter special file 1:3\nblock special file 7:5";
    ensure!(seen == expected, "the other guest sees {seen:?}");
    alice.fail(&as_user("1001:1001", at, "mknod mine c 1 3"))?;
    ensure!(!dir.file("mine").exists(), "a user made a device");
    Ok(())
}

fn strange(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "strange")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let at = &dir.guest;
    let names: [&[u8]; 5] =
        [b"caf\xe9\xff\x80", b" leading and  inner ", b"new\nline", b"back\\slash*?", b"\x01\x7f"];
    for (number, name) in names.iter().enumerate() {
        let octal: String = name.iter().map(|byte| format!("\\{byte:03o}")).collect();
        // The x keeps the shell from eating a line end.
        alice.succeed(&format!(
            "cd {at} && name=$(printf '{octal}x') && name=${{name%x}} && echo {number} > \"$name\""
        ))?;
        let path = dir.host.join(OsStr::from_bytes(name));
        let found = std::fs::read(&path).with_context(|| format!("{path:?}"))?;
        ensure!(found == format!("{number}\n").as_bytes(), "{path:?} contains {found:?}");
    }
    let listed = bob.run(&format!("cd {at} && for f in * .*; do printf '%s\\0' \"$f\"; done"))?;
    let listed: BTreeSet<&[u8]> = listed.stdout.split(|&byte| byte == 0).collect();
    for name in names {
        ensure!(listed.contains(name), "{:?} is not listed", OsStr::from_bytes(name));
    }
    let longest = "n".repeat(255);
    alice.succeed(&format!("echo long > {at}/{longest} && cat {at}/{longest}"))?;
    dir.expect_text(&longest, "long\n")?;
    let said = alice.fail(&format!("echo long > {at}/{longest}n"))?;
    ensure!(said.contains("too long"), "a name of 256 bytes: {said}");
    Ok(())
}

/// A file that another client deletes is gone, even for a client that has it open: stale, or still
/// readable if the server kept it; never a hang or an I/O error.
fn deleted_by_the_other(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "deleted")?;
    let (alice, at) = (drill.alice()?, &dir.guest);
    let mut file = alice.spawn(&format!("lockkeeper-guest open {at}/file create"))?;
    file.line(TIMEOUT)?;
    file.ask("write text", TIMEOUT)?;
    file.ask("sync", TIMEOUT)?;
    drill.bob()?.succeed(&format!("rm {at}/file"))?;
    alice.succeed("echo 3 > /proc/sys/vm/drop_caches")?;
    let answer = file.ask("read", TIMEOUT)?;
    let gone = answer.contains("Stale file handle") || answer == "ok text";
    ensure!(gone, "it reads {answer:?}");
    let said = alice.fail(&format!("sleep 1; cat {at}/file"))?;
    ensure!(said.contains("No such file") || said.contains("Stale"), "by name: {said}");
    Ok(())
}

fn race(drill: &Drill) -> Result<()> {
    for attempt in 0..3 {
        let dir = drill.step_dir("open", &format!("race-{attempt}"))?;
        let count = drill.size.races;
        let command = format!("lockkeeper-guest create-exclusive {} {count}", dir.guest);
        let runs = [drill.alice()?.spawn(&command)?, drill.bob()?.spawn(&command)?];
        let mut won: Vec<BTreeSet<u64>> = Vec::new();
        for run in runs {
            let output = run.wait(TIMEOUT)?;
            ensure!(output.status == 0, "{}", output.errors());
            won.push(output.text().lines().map(str::parse).collect::<Result<_, _>>()?);
        }
        check_race(&won[0], &won[1], count)?;
        if !won[0].is_empty() && !won[1].is_empty() {
            return Ok(());
        }
    }
    bail!("one guest won everything, three times: that was no race")
}

/// Exactly one winner for each name.
fn check_race(one: &BTreeSet<u64>, two: &BTreeSet<u64>, count: u64) -> Result<()> {
    let both: Vec<_> = one.intersection(two).collect();
    ensure!(both.is_empty(), "both guests created {both:?}");
    let none: Vec<_> =
        (0..count).filter(|name| !one.contains(name) && !two.contains(name)).collect();
    ensure!(none.is_empty(), "neither guest created {none:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_has_one_winner_for_each_name() {
        let set = |numbers: &[u64]| numbers.iter().copied().collect::<BTreeSet<_>>();
        assert!(check_race(&set(&[0, 2]), &set(&[1]), 3).is_ok());
        assert!(check_race(&set(&[0, 1]), &set(&[1, 2]), 3).is_err());
        assert!(check_race(&set(&[0]), &set(&[1]), 3).is_err());
    }
}
