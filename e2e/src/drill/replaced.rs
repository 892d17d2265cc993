//! What is served is replaced under guests that hold handles: a FUSE daemon dies and numbers its nodes
//! anew, or another disk is mounted at the same path. A handle then leads to its own file or is stale.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testbed::mounts::{self, Fuse, Mount};
use testbed::process::run;

use super::Step;
use super::context::Drill;
use super::site::{Kind, Plan, Site};
use crate::agent::Task;
use crate::guest::Guest;

pub(super) const STEPS: &[Step] = &[
    Step::new("fuse-daemon-restarted-under-a-mount", |drill| {
        daemon(drill, Fuse::Bindfs, None, Then::Restart)
    }),
    Step::new("fuse-daemon-restarted-and-a-reload", |drill| {
        daemon(drill, Fuse::Bindfs, None, Then::Reload)
    }),
    Step::new("fuse-daemon-restarted-under-a-user", |drill| {
        daemon(drill, Fuse::Unionfs, USER, Then::Restart)
    }),
    Step::long("fuse-daemon-restarted-and-a-reload-by-a-user", |drill| {
        daemon(drill, Fuse::Unionfs, USER, Then::Reload)
    }),
    Step::long("fuse-daemon-restarted-unnoticed", |drill| {
        daemon(drill, Fuse::Bindfs, None, Then::Nothing)
    }),
    Step::new("disks-swapped-under-one-path", |drill| disks(drill, Then::Restart)),
    Step::new("disks-swapped-and-a-reload", |drill| disks(drill, Then::Reload)),
];

const FILES: usize = 9;
const USER: Option<u32> = Some(1001);
const TIMEOUT: Duration = Duration::from_secs(90);

/// How the server learns of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Restart,
    Reload,
    /// It still serves what was mounted before.
    Nothing,
}

fn tell(site: &mut Site, then: Then) -> Result<()> {
    match then {
        Then::Restart => site.server.stop().and_then(|()| site.server.start()),
        Then::Reload => site.server.reload(),
        Then::Nothing => Ok(()),
    }
    .with_context(|| site.server.said())
}

fn name(number: usize) -> String {
    format!("file-{number}")
}

/// Of the first three files the names are exchanged, the next three are replaced by new files, the last
/// three stay. All are then looked up in the same order as before, or in the other one.
fn daemon(drill: &Drill, program: Fuse, user: Option<u32>, then: Then) -> Result<()> {
    for reversed in [true, false] {
        let mut plan = Plan::new(drill, user)?;
        plan.add("files", Kind::Fuse(program), |source| {
            for number in 0..FILES {
                write(&source.join(name(number)), &name(number), user)?;
            }
            Ok(())
        })?;
        let mut site = plan.serve("vers=3")?;
        let alice = drill.alice()?;
        let mut files = hold_open(alice, &site, "")?;
        site.mounts.iter_mut().for_each(Mount::kill_daemon);
        let (source, at) = (site.source("files"), site.point("files"));
        site.replace(|| {
            exchange(&source, user)?;
            Mount::fuse(program, &source, &at)
        })?;
        let numbers: Vec<usize> =
            if reversed { (0..FILES).rev().collect() } else { (0..FILES).collect() };
        for number in numbers {
            fs::metadata(at.join(name(number)))?;
        }
        tell(&mut site, then)?;
        let read = use_handles(alice, &mut files, "")?;
        let mut wrong = read.wrong;
        // Where each file went, and what was new there.
        for number in 0..FILES {
            let (place, own) = match number {
                0..3 => ((number + 1) % 3, name(number)),
                3..6 => (number, format!("new-{number}")),
                _ => (number, name(number)),
            };
            let found = fs::read_to_string(source.join(name(place)))?;
            let is_new = own.starts_with("new");
            if found != own && (is_new || found != format!("{own}+{number}")) {
                wrong.push(format!("the file of {own} contains {found:?} on the disk"));
            }
            let by_path = format!("cat {}", site.dir("files").file_in_guest(&name(place)));
            let seen = alice.run_for(&by_path, TIMEOUT)?;
            if seen.status == 0 && seen.text() != found {
                wrong.push(format!("{} reads {:?} by its path", name(place), seen.text()));
            }
        }
        let order = if reversed { "other" } else { "same" };
        drill.note(format!("{order} order: {} of {FILES} right, {} stale", read.right, read.stale));
        ensure!(wrong.is_empty(), "{order} order: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
        if then != Then::Nothing {
            let last = FILES - 1;
            let (seen, own) = (read_anew(drill, &site, &name(last))?, name(last));
            // Its own descriptor may have been right, and have written to it.
            let right = [own.clone(), format!("{own}+{last}")].contains(&seen);
            ensure!(right, "a new mount reads {seen:?}");
        }
        drop(files);
        site.leave(drill)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str, user: Option<u32>) -> Result<()> {
    fs::write(path, text)?;
    Ok(std::os::unix::fs::chown(path, user, user)?)
}

fn exchange(source: &Path, user: Option<u32>) -> Result<()> {
    let path = |number: usize| source.join(name(number));
    fs::rename(path(2), source.join("aside"))?;
    fs::rename(path(1), path(2))?;
    fs::rename(path(0), path(1))?;
    fs::rename(source.join("aside"), path(0))?;
    for number in 3..6 {
        let new = source.join("aside");
        // Before the old one is gone, so that it does not get its inode number.
        write(&new, &format!("new-{number}"), user)?;
        fs::rename(new, path(number))?;
    }
    Ok(())
}

/// Two disks with the same names, inode numbers and generations: their kernel handles are equal.
fn disks(drill: &Drill, then: Then) -> Result<()> {
    let mut plan = Plan::new(drill, None)?;
    let [one, two] = ["one", "two"].map(|disk| plan.source(disk));
    let at = plan.point("files");
    for (image, tag) in [(&one, "one"), (&two, "two")] {
        mounts::make_ext4(image, 16)?;
        let disk = Mount::image(image, &at)?;
        for number in 0..FILES {
            fs::write(at.join(name(number)), format!("{tag}-{number}"))?;
            run(Command::new("chattr").args(["-v", "77"]).arg(at.join(name(number))))?;
        }
        drop(disk);
    }
    let listed = |at: &Path| run(Command::new("ls").arg("-i").arg(at));
    plan.add_mount("files", Mount::image(&one, &at)?)?;
    let numbers = listed(&at)?;
    let mut site = plan.serve("vers=3")?;
    let alice = drill.alice()?;
    let mut files = hold_open(alice, &site, "one")?;
    site.replace(|| Mount::image(&two, &at))?;
    ensure!(listed(&at)? == numbers, "the disks differ in their inode numbers");
    tell(&mut site, then)?;
    let read = use_handles(alice, &mut files, "one")?;
    let mut wrong = read.wrong;
    for number in 0..FILES {
        let found = fs::read_to_string(at.join(name(number)))?;
        if found != format!("two-{number}") {
            wrong.push(format!("{} of the new disk contains {found:?}", name(number)));
        }
    }
    drill.note(format!("{} of {FILES} right, {} stale", read.right, read.stale));
    ensure!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let seen = read_anew(drill, &site, &name(0))?;
    ensure!(seen == "two-0", "a new mount reads {seen:?}");
    drop(files);
    site.leave(drill)
}

/// What a file contains in a mount that knows no old handle.
fn read_anew(drill: &Drill, site: &Site, name: &str) -> Result<String> {
    const POINT: &str = "/mnt/anew";
    let source = format!("{}:{}", site.server.address(), site.point("files").display());
    let alice = drill.alice()?;
    drill.mount_at(alice, &source, "vers=3,nosharecache", POINT)?;
    let read = alice.succeed(&format!("cat {POINT}/{name}"));
    alice.succeed(&format!("umount {POINT}"))?;
    read
}

/// Opens every file in a guest, and reads it: it begins with its name, or with `tag-NUMBER`.
fn hold_open(guest: &Guest, site: &Site, tag: &str) -> Result<Vec<Task>> {
    let open = |number: usize| {
        let path = site.dir("files").file_in_guest(&name(number));
        let mut task = guest.spawn(&format!("lockkeeper-guest open {path}"))?;
        let line = task.line(TIMEOUT)?;
        ensure!(line == "open", "it said {line:?}");
        let found = task.ask("read", TIMEOUT)?;
        ensure!(found == format!("ok {}", own(tag, number)), "{path}: {found}");
        Ok(task)
    };
    (0..FILES).map(open).collect()
}

fn own(tag: &str, number: usize) -> String {
    if tag.is_empty() { name(number) } else { format!("{tag}-{number}") }
}

#[derive(Debug, Default)]
struct Used {
    right: usize,
    stale: usize,
    wrong: Vec<String>,
}

/// Reads by every descriptor, without what the guest has cached, and writes by it: of every other file
/// first, while the guest still knows its attributes and need not ask for them.
fn use_handles(guest: &Guest, files: &mut [Task], tag: &str) -> Result<Used> {
    let mut used = Used::default();
    for (number, file) in files.iter_mut().enumerate().filter(|(number, _)| number % 2 == 0) {
        append(file, number, &own(tag, number), &mut used)?;
    }
    guest.succeed_for("echo 3 > /proc/sys/vm/drop_caches", TIMEOUT)?;
    for (number, file) in files.iter_mut().enumerate() {
        let own = own(tag, number);
        let found = file.ask("read", TIMEOUT)?;
        match found.strip_prefix("ok ") {
            Some(text) if text == own || text == format!("{own}+{number}") => used.right += 1,
            Some(text) => used.wrong.push(format!("the descriptor of {own} reads {text:?}")),
            None if is_stale(&found) => used.stale += 1,
            None => used.wrong.push(format!("the descriptor of {own}: {found}")),
        }
        if number % 2 == 1 {
            append(file, number, &own, &mut used)?;
        }
    }
    Ok(used)
}

fn append(file: &mut Task, number: usize, own: &str, used: &mut Used) -> Result<()> {
    for order in [format!("write +{number}"), "sync".to_owned()] {
        let answer = file.ask(&order, TIMEOUT)?;
        if !answer.starts_with("ok") && !is_stale(&answer) {
            used.wrong.push(format!("the descriptor of {own}: {order}: {answer}"));
        }
    }
    Ok(())
}

/// ESTALE or EIO, as the C library words them.
fn is_stale(answer: &str) -> bool {
    answer.contains("os error 116") || answer.contains("os error 5)")
}
