//! Mounted file systems of the kinds that are served: disks in files, tmpfs, overlayfs, FUSE. They need
//! root, loop devices and `/dev/fuse`.
//!
//! A mount ends with the value that owns it, and so does its daemon, also by a panic. A test without
//! other programs runs [`in_own_namespace`]; one whose server has a mount namespace of its own mounts
//! below [`MountPoints`], from where mounts reach that namespace.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::process::{Process, run};
use crate::wait;

/// The Debian packages of the programs that are run here.
pub const PACKAGES: &[&str] =
    &["bindfs", "e2fsprogs", "fuse3", "unionfs-fuse", "util-linux", "xfsprogs"];

const INSIDE: &str = "LOCKKEEPER_MOUNT_NAMESPACE";

/// Runs the test `name` of this test program again in a mount namespace of its own, which takes its
/// mounts with it. `true` if this is already that run.
pub fn in_own_namespace(name: &str) -> Result<bool> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe()?);
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    let output = command.output().context("cannot run unshare, of util-linux")?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    print!("{text}");
    ensure!(output.status.success(), "{name} failed in its mount namespace; it needs root");
    ensure!(text.contains("1 passed"), "there is no test {name}");
    Ok(false)
}

/// Makes an ext4 file system in a new file, without checksums: a test may set the generation of its
/// inodes.
pub fn make_ext4(image: &Path, megabytes: u64) -> Result<()> {
    fs::File::create(image)?.set_len(megabytes << 20)?;
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-O", "^metadata_csum"]).arg(image)).map(drop)
}

/// Makes an XFS file system in a new, sparse file of the smallest size that mkfs.xfs accepts.
pub fn make_xfs(image: &Path) -> Result<()> {
    fs::File::create(image)?.set_len(300 << 20)?;
    run(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(image)).map(drop)
}

/// A program that serves a directory as a FUSE file system. Both number nodes anew after each start,
/// with generation 0, and list from a position in what they read when a directory was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fuse {
    /// Reports the inode numbers of the source.
    Bindfs,
    /// Reports its node numbers as inode numbers.
    Unionfs,
}

/// A mounted file system; unmounted when dropped, lazily if it is in use.
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
    daemon: Option<Process>,
    mounted: bool,
}

impl Mount {
    /// The file system in `image`.
    pub fn image(image: &Path, at: &Path) -> Result<Self> {
        Self::new(at, |command| command.args(["-o", "loop"]).arg(image))
    }

    pub fn tmpfs(at: &Path) -> Result<Self> {
        Self::new(at, |command| command.args(["-t", "tmpfs", "-o", "size=256m", "none"]))
    }

    /// An overlayfs whose changes go to `upper`; its work directory is beside that. Inode numbers are
    /// unique even if the layers are on different file systems.
    pub fn overlay(lower: &Path, upper: &Path, at: &Path) -> Result<Self> {
        Self::overlay_with("xino=on", lower, upper, at)
    }

    pub fn overlay_with(option: &str, lower: &Path, upper: &Path, at: &Path) -> Result<Self> {
        let work = upper.with_extension("work");
        fs::create_dir_all(upper)?;
        fs::create_dir_all(&work)?;
        let [lower, upper, work] = [lower, upper, &work].map(|path| path.display().to_string());
        let layers = format!("lowerdir={lower},upperdir={upper},workdir={work},{option}");
        Self::new(at, |command| command.args(["-t", "overlay", "-o", &layers, "none"]))
    }

    /// `source`, passed through by a daemon. It dies with the thread that calls this.
    pub fn fuse(program: Fuse, source: &Path, at: &Path) -> Result<Self> {
        fs::create_dir_all(at)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        match program {
            Fuse::Bindfs => command.args(["bindfs", "-f"]).arg(source),
            Fuse::Unionfs => {
                let branch = format!("{}=RW", source.display());
                command.args(["unionfs", "-f", "-o", "allow_other,default_permissions"]).arg(branch)
            }
        };
        let before = device(at)?;
        let daemon = Process::start(command.arg(at), &at.with_extension("daemon.log"))?;
        let mut mount = Self { at: at.to_path_buf(), daemon: Some(daemon), mounted: true };
        wait::try_until("a FUSE mount", || {
            mount.daemon.as_mut().map_or(Ok(()), Process::check)?;
            Ok((device(at)? != before).then_some(()))
        })?;
        Ok(mount)
    }

    fn new(at: &Path, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<Self> {
        fs::create_dir_all(at)?;
        let mut command = Command::new("mount");
        run(arguments(&mut command).arg(at)).context("this needs root")?;
        Ok(Self { at: at.to_path_buf(), daemon: None, mounted: true })
    }

    pub fn at(&self) -> &Path {
        &self.at
    }

    /// SIGKILL to the FUSE daemon; what is mounted fails from now on.
    pub fn kill_daemon(&mut self) {
        self.daemon = None;
    }

    /// Hangs every write to the file system until the value is dropped. Nothing that this process or
    /// its drops must write may be on it.
    pub fn freeze(&self) -> Result<Frozen> {
        let frozen = Frozen(self.at.clone());
        run(Command::new("fsfreeze").arg("-f").arg(&self.at))?;
        Ok(frozen)
    }

    /// Takes it out of the tree; who uses it keeps it.
    pub fn detach(mut self) -> Result<()> {
        self.mounted = false;
        run(Command::new("umount").arg("-l").arg(&self.at)).map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.mounted {
            return;
        }
        if run(Command::new("umount").arg(&self.at)).is_err()
            && let Err(error) = run(Command::new("umount").arg("-l").arg(&self.at))
        {
            eprintln!("{} is still mounted: {error:#}", self.at.display());
        }
    }
}

fn device(path: &Path) -> Result<u64> {
    Ok(fs::symlink_metadata(path).with_context(|| path.display().to_string())?.dev())
}

/// A frozen file system; thawed when dropped.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        thaw(&self.0);
    }
}

/// Nothing if it is not frozen.
fn thaw(at: &Path) {
    let _ = Command::new("fsfreeze").arg("-u").arg(at).output();
}

const PREFIX: &str = "lockkeeper-mounts-";

static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static SWEEP: Once = Once::new();
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A directory for mount points that every user may enter. What is mounted below appears in mount
/// namespaces that were made from this one after it, as `ip netns exec` does, and nowhere else.
///
/// Its name contains the process id. When it is dropped, everything below is unmounted; what a killed
/// test left behind, the next one that makes such a directory removes.
#[derive(Debug)]
pub struct MountPoints(PathBuf);

impl MountPoints {
    pub fn new() -> Result<Self> {
        SWEEP.call_once(sweep);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let path = std::env::temp_dir().canonicalize()?.join(name);
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        live().push(path.clone());
        let points = Self(path);
        run(Command::new("mount").arg("--bind").arg(&points.0).arg(&points.0))?;
        // Private first, to leave the peers of the mount that it was bound from.
        run(Command::new("mount").arg("--make-private").arg(&points.0))?;
        run(Command::new("mount").arg("--make-shared").arg(&points.0))?;
        Ok(points)
    }

    /// The mount point of this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for MountPoints {
    fn drop(&mut self) {
        live().retain(|path| *path != self.0);
        remove(&self.0);
    }
}

/// Unmounts everything that this process has mounted below [`MountPoints`]: for the thread that
/// handles signals, before it exits.
pub fn remove_all() {
    for path in live().iter() {
        remove(path);
    }
}

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(path: &Path) {
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounted.lines().filter_map(|line| line.split(' ').nth(4));
    let mut points: Vec<&Path> = points.map(Path::new).filter(|at| at.starts_with(path)).collect();
    points.sort_by_key(|at| std::cmp::Reverse(at.components().count()));
    for at in points {
        // Even when unmounted, a frozen file system stays frozen.
        thaw(at);
        let _ = Command::new("umount").arg("-l").arg(at).output();
    }
    // Directories and logs of daemons: never what is mounted.
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let _ = fs::remove_dir(entry.path()).or_else(|_| fs::remove_file(entry.path()));
    }
    if let Err(error) = fs::remove_dir(path) {
        eprintln!("cannot remove {}: {error}", path.display());
    }
}

/// Removes the directories of processes that are gone.
fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| Some(rest.split_once('-')?.0));
        if owner.is_some_and(|owner| !fs::exists(format!("/proc/{owner}")).unwrap_or(true)) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn mounts_end_when_they_are_dropped() {
        if !in_own_namespace("mounts::tests::mounts_end_when_they_are_dropped").unwrap() {
            return;
        }
        crate::packages::install(PACKAGES).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("source")).unwrap();
        fs::write(path("source/file"), "text").unwrap();
        make_ext4(&path("ext4"), 8).unwrap();
        make_xfs(&path("xfs")).unwrap();
        let points = MountPoints::new().unwrap();
        let at = points.path("at");
        let mounts: [(&str, &dyn Fn() -> Result<Mount>); 6] = [
            ("ext4", &|| Mount::image(&path("ext4"), &at)),
            ("xfs", &|| Mount::image(&path("xfs"), &at)),
            ("tmpfs", &|| Mount::tmpfs(&at)),
            ("overlay", &|| Mount::overlay(&path("source"), &path("upper"), &at)),
            ("fuse", &|| Mount::fuse(Fuse::Bindfs, &path("source"), &at)),
            ("fuse", &|| Mount::fuse(Fuse::Unionfs, &path("source"), &at)),
        ];
        let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap();
        let at_point = format!(" {} ", at.display());
        for (kind, make) in mounts {
            let mount = make().unwrap();
            let line = mounted().lines().find(|line| line.contains(&at_point)).unwrap().to_owned();
            assert!(line.contains(kind), "{kind}: {line}");
            let daemon = mount.daemon.as_ref().map(Process::id);
            let in_use = fs::File::open(&at).unwrap();
            drop(mount);
            assert!(!mounted().contains(&at_point), "{kind} is still mounted");
            let runs = |id: u32| fs::exists(format!("/proc/{id}")).unwrap();
            assert!(!daemon.is_some_and(runs), "the daemon of {kind} runs on");
            drop(in_use);
        }
        let kept = Mount::tmpfs(&at).unwrap();
        drop(points);
        assert!(!mounted().contains("lockkeeper-mounts-"));
        kept.detach().unwrap_err();
    }

    #[test]
    fn a_frozen_disk_is_thawed_when_the_value_is_dropped() {
        if !in_own_namespace("mounts::tests::a_frozen_disk_is_thawed_when_the_value_is_dropped")
            .unwrap()
        {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        make_ext4(&dir.path().join("disk"), 8).unwrap();
        let mount = Mount::image(&dir.path().join("disk"), &dir.path().join("at")).unwrap();
        let file = mount.at().join("file");
        let frozen = mount.freeze().unwrap();
        let writer = std::thread::spawn(move || fs::write(file, "text"));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!writer.is_finished());
        drop(frozen);
        writer.join().unwrap().unwrap();
    }
}
