//! The server dies by SIGKILL and comes back; what clients had open goes on as if nothing happened.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use guest::open;

use super::Step;
use super::world::{Room, World};
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

/// A client that found the server gone tries again after up to a minute.
const PATIENCE: Duration = Duration::from_secs(120);

fn order(task: &mut Task, order: &str) -> Result<String> {
    let answer = task.ask(order, PATIENCE)?;
    match answer.strip_prefix("ok ") {
        Some(answer) => Ok(answer.to_owned()),
        None => bail!("{order}: {answer}"),
    }
}

fn forget_cached_pages(guest: &Guest) -> Result<()> {
    guest.succeed("sync; echo 3 > /proc/sys/vm/drop_caches").map(drop)
}

fn hold_open(guest: &Guest, room: &Room, name: &str) -> Result<Task> {
    let mut task = guest.spawn(&format!("lockkeeper-guest open {}/{name} create", room.guest))?;
    let line = task.line(PATIENCE)?;
    ensure!(line == "open", "it said {line:?}");
    Ok(task)
}

fn finish(task: Task) -> Result<()> {
    task.close()?;
    let output = task.wait(PATIENCE)?;
    ensure!(output.status == 0, "status {}: {}", output.status, output.errors());
    Ok(())
}

fn open_file_crash(world: &World) -> Result<()> {
    open_file(world, "crash-open", || world.server.restart().map(drop))
}

fn open_file_restart(world: &World) -> Result<()> {
    open_file(world, "restart-open", || {
        world.server.stop()?;
        world.server.start().map(drop)
    })
}

fn open_file(world: &World, name: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
    let room = world.room("open", name)?;
    let alice = world.alice()?;
    let mut file = hold_open(alice, &room, "file")?;
    order(&mut file, "write before-")?;
    order(&mut file, "sync")?;
    restart()?;
    forget_cached_pages(alice)?;
    let found = order(&mut file, "read")?;
    ensure!(found == "before-", "after the restart it reads {found:?}");
    order(&mut file, "write after")?;
    order(&mut file, "sync")?;
    room.expect_text("file", "before-after")?;
    finish(file)?;
    let seen = world.bob()?.succeed_for(&format!("cat {}/file", room.guest), PATIENCE)?;
    ensure!(seen == "before-after", "the other guest reads {seen:?}");
    Ok(())
}

/// A handle is of the file, not of its name: the other guest moves it, and the server that comes
/// back has never seen it under the old one.
fn renamed_file(world: &World) -> Result<()> {
    let room = world.room("open", "crash-renamed")?;
    let alice = world.alice()?;
    let mut file = hold_open(alice, &room, "file")?;
    order(&mut file, "write before-")?;
    order(&mut file, "sync")?;
    let rename = format!("cd {} && mkdir dir && mv file dir/moved", room.guest);
    world.bob()?.succeed_for(&rename, PATIENCE)?;
    world.server.restart()?;
    forget_cached_pages(alice)?;
    order(&mut file, "write after")?;
    order(&mut file, "sync")?;
    room.expect_text("dir/moved", "before-after")?;
    finish(file)
}

/// The client renames what it deletes while it is open, and deletes it when it is closed.
fn deleted_file(world: &World) -> Result<()> {
    let room = world.room("open", "crash-deleted")?;
    let alice = world.alice()?;
    let mut file = hold_open(alice, &room, "file")?;
    order(&mut file, "write before-")?;
    order(&mut file, "unlink")?;
    order(&mut file, "sync")?;
    let names = names(&room)?;
    ensure!(names.len() == 1 && names[0].starts_with(".nfs"), "the directory has {names:?}");
    world.server.restart()?;
    forget_cached_pages(alice)?;
    order(&mut file, "write after")?;
    order(&mut file, "sync")?;
    room.expect_text(&names[0], "before-after")?;
    forget_cached_pages(alice)?;
    let found = order(&mut file, "read")?;
    ensure!(found == "before-after", "after the restart it reads {found:?}");
    finish(file)?;
    // The client does not wait for this REMOVE.
    for _ in 0..100 {
        if self::names(&room)?.is_empty() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("still there after the close: {:?}", self::names(&room)?)
}

/// What was written UNSTABLE may be lost in a crash; the verifier tells the client to send it
/// again. Killing a process loses nothing from the page cache, so the step loses it: it blanks the
/// file while the server is down.
fn uncommitted(world: &World) -> Result<()> {
    const BYTES: usize = 6 << 20;
    const POINT: &str = "/mnt/wait";
    let alice = world.alice()?;
    // Without write=wait the client sends a COMMIT right behind the WRITEs.
    let (source, options) = (world.source("open"), "vers=3,nosharecache,write=wait");
    alice.succeed(&format!("mkdir -p {POINT} && mount -t nfs -o {options} {source} {POINT}"))?;
    for attempt in 0..4_u64 {
        let name = format!("crash-uncommitted-{attempt}");
        let mut room = world.room("open", &name)?;
        room.guest = format!("{POINT}/{name}");
        let mut file = hold_open(alice, &room, "file")?;
        let before = calls(alice, POINT)?;
        order(&mut file, &format!("fill {BYTES} {attempt}"))?;
        order(&mut file, "send")?;
        let after = calls(alice, POINT)?;
        world.server.kill();
        if after.commits != before.commits || after.writes == before.writes {
            // The client's own write-back was faster: what is committed must not be blanked.
            world.server.start()?;
            finish(file)?;
            continue;
        }
        let written = room.metadata("file")?.len();
        ensure!(written > 0, "the client sent nothing");
        fs::write(room.file("file"), vec![0; written as usize]).context("cannot blank the file")?;
        world.server.start()?;
        order(&mut file, "sync")?;
        let found = fs::read(room.file("file"))?;
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
fn copy_without_server(world: &World) -> Result<()> {
    copy_through(world, "crash-copy", |copy| {
        world.server.kill();
        thread::sleep(Duration::from_secs(2));
        ensure!(copy.is_running(), "the copy ended without a server");
        world.server.start().map(drop)
    })
}

fn copy_without_cable(world: &World) -> Result<()> {
    let alice = world.alice()?;
    copy_through(world, "cut-copy", |copy| {
        alice.unplug()?;
        thread::sleep(Duration::from_secs(3));
        let cut_off = copy.is_running();
        alice.plug()?;
        ensure!(cut_off, "the copy ended without a cable");
        Ok(())
    })
}

/// Lets trouble happen as soon as the first bytes of a copy have arrived.
fn copy_through(
    world: &World,
    name: &str,
    trouble: impl FnOnce(&Task) -> Result<()>,
) -> Result<()> {
    let room = world.room("open", name)?;
    let alice = world.alice()?;
    let digest = alice.succeed(
        "dd if=/dev/urandom of=/tmp/source bs=1M count=40 2>/dev/null && md5sum < /tmp/source",
    )?;
    let copy = alice.spawn(&format!("cp /tmp/source {}/copy && rm /tmp/source", room.guest))?;
    let begun = || room.metadata("copy").is_ok_and(|metadata| metadata.len() > 0);
    for _ in 0..2_000 {
        if begun() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    ensure!(begun() && copy.is_running(), "the copy was not under way");
    trouble(&copy)?;
    let output = copy.wait(PATIENCE)?;
    ensure!(output.status == 0, "{}", output.errors());
    let command = format!("md5sum < {}/copy", room.guest);
    let seen = world.bob()?.succeed_for(&command, PATIENCE)?;
    ensure!(seen == digest, "the other guest reads {seen} instead of {digest}");
    Ok(())
}

/// A client dies in the middle of its work: what it had synced is there, the other client does not
/// notice, and after a boot it comes back.
fn client_crash(world: &World) -> Result<()> {
    let room = world.room("open", "client-crash")?;
    let (alice, bob, at) = (world.alice()?, world.bob()?, &room.guest);
    alice.succeed(&format!("echo synced > {at}/file && echo mark > /var/lib/nfs/mark && sync"))?;
    let mut file = hold_open(alice, &room, "unfinished")?;
    order(&mut file, "write lost?")?;
    alice.crash();
    bob.succeed(&format!("cat {at}/file && echo here > {at}/bob"))?;
    alice.boot()?;
    world.mount(alice, "open")?;
    let found = alice.succeed(&format!("cat {at}/file {at}/bob /var/lib/nfs/mark"))?;
    ensure!(found == "synced\nhere\nmark", "after the boot it reads {found:?}");
    Ok(())
}

fn names(room: &Room) -> Result<Vec<String>> {
    let entries = fs::read_dir(&room.host)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    writes: u64,
    commits: u64,
}

/// How often a guest has called WRITE and COMMIT for one mount, by its own account.
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
