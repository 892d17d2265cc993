//! Every kind of file system, served by root and by an ordinary user: files and trees keep their
//! contents, and `rm -r` removes what it must.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testbed::mounts::Fuse;

use super::Step;
use super::contents::{copy_tree_in, exercise_in};
use super::context::Drill;
use super::site::{Kind, Plan};

pub(super) const STEPS: &[Step] = &[
    Step::new("exercise-on-ext4", |drill| exercise(drill, Kind::Ext4, None)),
    Step::new("exercise-on-xfs", |drill| exercise(drill, Kind::Xfs, None)),
    Step::new("exercise-on-tmpfs", |drill| exercise(drill, Kind::Tmpfs, None)),
    Step::new("exercise-on-overlayfs", |drill| exercise(drill, Kind::Overlay, None)),
    Step::long("exercise-on-overlayfs-across", |drill| exercise(drill, Kind::OverlayAcross, None)),
    Step::new("exercise-on-fuse", |drill| exercise(drill, BINDFS, None)),
    Step::long("exercise-on-fuse-unionfs", |drill| exercise(drill, UNIONFS, None)),
    Step::new("exercise-on-ext4-as-a-user", |drill| exercise(drill, Kind::Ext4, USER)),
    Step::new("exercise-on-xfs-as-a-user", |drill| exercise(drill, Kind::Xfs, USER)),
    Step::new("exercise-on-tmpfs-as-a-user", |drill| exercise(drill, Kind::Tmpfs, USER)),
    Step::new("exercise-on-overlayfs-as-a-user", |drill| exercise(drill, Kind::Overlay, USER)),
    Step::new("exercise-on-fuse-as-a-user", |drill| exercise(drill, BINDFS, USER)),
    Step::new("rm-r-leaves-nothing-on-overlayfs", |drill| remove(drill, Kind::Overlay)),
    Step::long("rm-r-leaves-nothing-on-overlayfs-across", |drill| {
        remove(drill, Kind::OverlayAcross)
    }),
    Step::new("rm-r-leaves-nothing-on-fuse", |drill| remove(drill, BINDFS)),
    Step::new("lock-holds-through-a-copy-up", copy_up),
];

const BINDFS: Kind = Kind::Fuse(Fuse::Bindfs);
const UNIONFS: Kind = Kind::Fuse(Fuse::Unionfs);
/// ann, in the guests.
const USER: Option<u32> = Some(1001);
const REMOVED: usize = 2_000;
const TIMEOUT: Duration = Duration::from_secs(300);

fn exercise(drill: &Drill, kind: Kind, user: Option<u32>) -> Result<()> {
    let mut plan = Plan::new(drill, user)?;
    // On overlayfs the first write to each file copies it up.
    plan.add("files", kind, |lower| {
        for file in 0..4 {
            let path = lower.join(format!("file-{file}"));
            fs::write(&path, "")?;
            std::os::unix::fs::chown(&path, user, user)?;
        }
        Ok(())
    })?;
    let site = plan.serve("vers=3")?;
    let dir = site.dir("files");
    let done = exercise_in(drill, &dir, user, drill.size.kind_rounds)
        .and_then(|()| copy_tree_in(drill, &dir, user, drill.size.kind_tree_files));
    done.with_context(|| site.server.said())?;
    site.leave(drill)
}

fn remove(drill: &Drill, kind: Kind) -> Result<()> {
    let mut plan = Plan::new(drill, None)?;
    plan.add("files", kind, fill)?;
    // Listed in small parts, of which most come after the first REMOVE.
    let site = plan.serve("vers=3,rsize=4096")?;
    let dir = site.dir("files");
    let removed = drill.alice()?.run_for(&format!("rm -r {}/many", dir.guest), TIMEOUT)?;
    let left = fs::read_dir(dir.file("many")).map_or(0, Iterator::count);
    ensure!(left == 0, "{left} of {REMOVED} files are left; rm said: {}", removed.errors());
    ensure!(removed.status == 0, "nothing is left, but rm failed: {}", removed.errors());
    let exists = dir.file("many").exists();
    ensure!(!exists, "the directory is left");
    site.leave(drill)
}

/// The first write to a file on overlayfs makes a copy of it: still the same file to who locks it.
fn copy_up(drill: &Drill) -> Result<()> {
    let mut plan = Plan::new(drill, None)?;
    plan.add("files", Kind::Overlay, |lower| Ok(fs::write(lower.join("file"), "below")?))?;
    let site = plan.serve("vers=3")?;
    let dir = site.dir("files");
    let mut holder = dir.locker(drill.alice()?, "file")?;
    holder.takes("write 0 10")?;
    drill.alice()?.succeed(&format!("echo above > {}/file", dir.guest))?;
    let mut thief = dir.locker(drill.bob()?, "file")?;
    thief.is_refused("write 0 10").context("what alice holds")?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10")?;
    drop((holder, thief));
    site.leave(drill)
}

fn fill(dir: &Path) -> Result<()> {
    fs::create_dir(dir.join("many"))?;
    for number in 0..REMOVED {
        fs::write(dir.join(format!("many/file-{number:04}")), "")?;
    }
    Ok(())
}
