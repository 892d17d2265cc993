//! The server dies by SIGKILL and comes back; open files of clients keep working.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use guest::open;

use super::Step;
use super::context::{Drill, StepDir};
use crate::agent::Task;
use crate::guest::Guest;

pub(super) const STEPS: &[Step] = &[
    Step::new("open-file-survives-a-server-crash", open_file_crash),
    Step::new("open-file-survives-a-clean-restart", open_file_restart),
    Step::new("renamed-open-file-survives-a-server-crash", renamed_file),
    Step::new("deleted-open-file-survives-a-server-crash", deleted_file),
    Step::new("writes-not-committed-are-sent-again", uncommitted),
    Step::new("copy-goes-on-through-a-server-crash", copy_without_server),
    Step::new("copy-goes-on-through-a-cut-cable", copy_without_cable),
    Step::new("client-crash", client_crash),
];

/// A client that finds the server down retries after up to a minute.
const TIMEOUT: Duration = Duration::from_secs(120);

fn order(task: &mut Task, order: &str) -> Result<String> {
    let answer = task.ask(order, TIMEOUT)?;
    match answer.strip_prefix("ok ") {
        Some(answer) => Ok(answer.to_owned()),
        None => bail!("{order}: {answer}"),
    }
}

fn forget_cached_pages(guest: &Guest) -> Result<()> {
    guest.succeed("sync; echo 3 > /proc/sys/vm/drop_caches").map(drop)
}

fn hold_open(guest: &Guest, dir: &StepDir, name: &str) -> Result<Task> {
    let mut task = guest.spawn(&format!("lockkeeper-guest open {}/{name} create", dir.guest))?;
    let line = task.line(TIMEOUT)?;
    ensure!(line == "open", "it said {line:?}");
    Ok(task)
}

fn finish(task: Task) -> Result<()> {
    task.close()?;
    let output = task.wait(TIMEOUT)?;
    ensure!(output.status == 0, "status {}: {}", output.status, output.errors());
    Ok(())
}

fn open_file_crash(drill: &Drill) -> Result<()> {
    open_file(drill, "crash-open", || drill.server.restart().map(drop))
}

fn open_file_restart(drill: &Drill) -> Result<()> {
    open_file(drill, "restart-open", || {
        drill.server.stop()?;
        drill.server.start().map(drop)
    })
}

fn open_file(drill: &Drill, name: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
    let dir = drill.step_dir("open", name)?;
    let alice = drill.alice()?;
    let mut file = hold_open(alice, &dir, "file")?;
    order(&mut file, "write before-")?;
    order(&mut file, "sync")?;
    restart()?;
    forget_cached_pages(alice)?;
    let found = order(&mut file, "read")?;
    ensure!(found == "before-", "after the restart it reads {found:?}");
    order(&mut file, "write after")?;
    order(&mut file, "sync")?;
    dir.expect_text("file", "before-after")?;
    finish(file)?;
    let seen = drill.bob()?.succeed_for(&format!("cat {}/file", dir.guest), TIMEOUT)?;
    ensure!(seen == "before-after", "the other guest reads {seen:?}");
    Ok(())
}

/// A handle names the file, not its path: the other guest renames it, and the restarted server has
/// never seen it under the old name.
fn renamed_file(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "crash-renamed")?;
    let alice = drill.alice()?;
    let mut file = hold_open(alice, &dir, "file")?;
    order(&mut file, "write before-")?;
    order(&mut file, "sync")?;
    let rename = format!("cd {} && mkdir dir && mv file dir/moved", dir.guest);
    drill.bob()?.succeed_for(&rename, TIMEOUT)?;
    drill.server.restart()?;
    forget_cached_pages(alice)?;
    order(&mut file, "write after")?;
    order(&mut file, "sync")?;
    dir.expect_text("dir/moved", "before-after")?;
    finish(file)
}

/// The client renames what it deletes while it is open, and deletes it when it is closed.
fn deleted_file(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "crash-deleted")?;
    let alice = drill.alice()?;
    let mut file = hold_open(alice, &dir, "file")?;
    order(&mut file, "write before-")?;
    order(&mut file, "unlink")?;
    order(&mut file, "sync")?;
    let names = names(&dir)?;
    ensure!(names.len() == 1 && names[0].starts_with(".nfs"), "the directory has {names:?}");
    drill.server.restart()?;
    forget_cached_pages(alice)?;
    order(&mut file, "write after")?;
    order(&mut file, "sync")?;
    dir.expect_text(&names[0], "before-after")?;
    forget_cached_pages(alice)?;
    let found = order(&mut file, "read")?;
    ensure!(found == "before-after", "after the restart it reads {found:?}");
    finish(file)?;
    // The client does not wait for this REMOVE.
    for _ in 0..100 {
        if self::names(&dir)?.is_empty() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("still there after the close: {:?}", self::names(&dir)?)
}

/// UNSTABLE writes may be lost in a crash; the verifier tells the client to send them again.
/// Killing a process loses nothing from the page cache, so the step blanks the file while the
/// server is down.
fn uncommitted(drill: &Drill) -> Result<()> {
    const BYTES: usize = 6 << 20;
    const POINT: &str = "/mnt/wait";
    let alice = drill.alice()?;
    // Without write=wait the client sends a COMMIT right behind the WRITEs.
    let (source, options) = (drill.source("open"), "vers=3,nosharecache,write=wait");
    alice.succeed(&format!("mkdir -p {POINT} && mount -t nfs -o {options} {source} {POINT}"))?;
    for attempt in 0..4_u64 {
        let name = format!("crash-uncommitted-{attempt}");
        let mut dir = drill.step_dir("open", &name)?;
        dir.guest = format!("{POINT}/{name}");
        let mut file = hold_open(alice, &dir, "file")?;
        let before = calls(alice, POINT)?;
        order(&mut file, &format!("fill {BYTES} {attempt}"))?;
        order(&mut file, "send")?;
        let after = calls(alice, POINT)?;
        drill.server.kill();
        if after.commits != before.commits || after.writes == before.writes {
            // The client's own write-back was faster: committed data must not be blanked.
            drill.server.start()?;
            finish(file)?;
            continue;
        }
        let written = dir.metadata("file")?.len();
        ensure!(written > 0, "the client sent nothing");
        fs::write(dir.file("file"), vec![0; written as usize]).context("cannot blank the file")?;
        drill.server.start()?;
        order(&mut file, "sync")?;
        let found = fs::read(dir.file("file"))?;
        ensure!(
            found == open::contents(BYTES, attempt),
            "the client did not send again what it had not been told was committed"
        );
        finish(file)?;
        return alice.succeed(&format!("umount {POINT}")).map(drop);
    }
    bail!("the client committed before the server could be killed, every time")
}

/// A kill in the middle of a copy, and some seconds without a server.
fn copy_without_server(drill: &Drill) -> Result<()> {
    copy_through(drill, "crash-copy", |copy| {
        drill.server.kill();
        thread::sleep(Duration::from_secs(2));
        ensure!(copy.is_running(), "the copy ended without a server");
        drill.server.start().map(drop)
    })
}

fn copy_without_cable(drill: &Drill) -> Result<()> {
    let alice = drill.alice()?;
    copy_through(drill, "cut-copy", |copy| {
        alice.unplug()?;
        thread::sleep(Duration::from_secs(3));
        let cut_off = copy.is_running();
        alice.plug()?;
        ensure!(cut_off, "the copy ended without a cable");
        Ok(())
    })
}

/// Causes a fault as soon as the first bytes of a copy have arrived.
fn copy_through(
    drill: &Drill,
    name: &str,
    trouble: impl FnOnce(&Task) -> Result<()>,
) -> Result<()> {
    let dir = drill.step_dir("open", name)?;
    let alice = drill.alice()?;
    let digest = alice.succeed(
        "dd if=/dev/urandom of=/tmp/source bs=1M count=40 2>/dev/null && md5sum < /tmp/source",
    )?;
    let copy = alice.spawn(&format!("cp /tmp/source {}/copy && rm /tmp/source", dir.guest))?;
    let begun = || dir.metadata("copy").is_ok_and(|metadata| metadata.len() > 0);
    for _ in 0..2_000 {
        if begun() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    ensure!(begun() && copy.is_running(), "the copy was not under way");
    trouble(&copy)?;
    let output = copy.wait(TIMEOUT)?;
    ensure!(output.status == 0, "{}", output.errors());
    let command = format!("md5sum < {}/copy", dir.guest);
    let seen = drill.bob()?.succeed_for(&command, TIMEOUT)?;
    ensure!(seen == digest, "the other guest reads {seen} instead of {digest}");
    Ok(())
}

/// A client dies in the middle of its work: what it had synced is intact, the other client is not
/// affected, and the first can mount again after a boot.
fn client_crash(drill: &Drill) -> Result<()> {
    let dir = drill.step_dir("open", "client-crash")?;
    let (alice, bob, at) = (drill.alice()?, drill.bob()?, &dir.guest);
    alice.succeed(&format!("echo synced > {at}/file && echo mark > /var/lib/nfs/mark && sync"))?;
    let mut file = hold_open(alice, &dir, "unfinished")?;
    order(&mut file, "write lost?")?;
    alice.crash();
    bob.succeed(&format!("cat {at}/file && echo here > {at}/bob"))?;
    alice.boot()?;
    drill.mount(alice, "open")?;
    let found = alice.succeed(&format!("cat {at}/file {at}/bob /var/lib/nfs/mark"))?;
    ensure!(found == "synced\nhere\nmark", "after the boot it reads {found:?}");
    Ok(())
}

fn names(dir: &StepDir) -> Result<Vec<String>> {
    let entries = fs::read_dir(&dir.host)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    writes: u64,
    commits: u64,
}

/// How often a guest has called WRITE and COMMIT for one mount, from its own statistics.
fn calls(guest: &Guest, point: &str) -> Result<Calls> {
    parse_calls(&guest.succeed("cat /proc/self/mountstats")?, point)
}

fn parse_calls(text: &str, point: &str) -> Result<Calls> {
    let start = text.find(&format!(" mounted on {point} ")).context("not mounted")?;
    let section = text[start..].split("\ndevice ").next().unwrap_or_default();
    let count = |name: &str| -> Result<u64> {
        let prefix = format!("{name}: ");
        let line = section.lines().find_map(|line| line.trim().strip_prefix(&prefix));
        let count = line.and_then(|line| line.split(' ').next()).context("no count of calls")?;
        Ok(count.parse()?)
    };
    Ok(Calls { writes: count("WRITE")?, commits: count("COMMIT")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_those_of_one_mount() {
        let text = "device a:/x mounted on /mnt/x with fstype nfs\n\t WRITE: 3 3 0 1\n\t COMMIT: 1 1 0\n\
                    device a:/y mounted on /mnt/y with fstype nfs\n\t WRITE: 4 4\n\t COMMIT: 0 0\n";
        assert_eq!(parse_calls(text, "/mnt/x").unwrap(), Calls { writes: 3, commits: 1 });
        assert_eq!(parse_calls(text, "/mnt/y").unwrap(), Calls { writes: 4, commits: 0 });
        assert!(parse_calls(text, "/mnt").is_err());
    }
}
