//! Debian's unstable suite in a directory of its own, for a server newer than this machine's.
//!
//! debootstrap makes it once, from the mirror that apt uses here and with apt's own settings for
//! proxies and the like; it is kept until it is removed by hand. Everything is mounted in a private
//! namespace: that of the installation, then that of the comparison.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use testbed::process::run;

const SUITE: &str = "sid";
/// Where the directory for data and state is mounted.
const SCRATCH: &str = "/mnt";

/// What nfs-ganesha and rpc.statd expect below /var/lib/nfs.
const STATE_DIRECTORIES: [&str; 3] =
    ["var/lib/nfs/ganesha", "var/lib/nfs/sm", "var/lib/nfs/sm.bak"];

#[derive(Debug, Clone)]
pub(crate) struct Chroot {
    root: PathBuf,
}

impl Chroot {
    /// In `cache`, made there with these packages if it is missing. debootstrap must be installed.
    pub(crate) fn make(cache: &Path, packages: &[&str]) -> Result<Self> {
        let cache = std::path::absolute(cache)?;
        let root = cache.join(SUITE);
        if !root.is_dir() {
            fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
            // Renamed when it is complete, so that a half-made one is never used.
            let partial = tempfile::Builder::new().prefix("partial-").tempdir_in(&cache)?;
            fs::set_permissions(partial.path(), fs::Permissions::from_mode(0o755))?;
            install(partial.path(), packages).with_context(|| format!("the suite {SUITE}"))?;
            fs::rename(partial.keep(), &root)?;
        }
        Ok(Self { root })
    }

    /// Mounts in it what programs need, and `scratch`. Only in a mount namespace of our own.
    pub(crate) fn mount(&self, scratch: &Path) -> Result<()> {
        let at = |path: &str| self.root.join(path);
        let mount = |options: &[&str], on: PathBuf| {
            run(Command::new("mount").args(options).arg(on)).map(drop)
        };
        mount(&["-t", "proc", "proc"], at("proc"))?;
        mount(&["--rbind", "/dev"], at("dev"))?;
        mount(&["--rbind", "/sys"], at("sys"))?;
        for state in ["run", "var/lib/nfs"] {
            mount(&["-t", "tmpfs", "tmpfs"], at(state))?;
        }
        let empty = ["run/rpcbind", "run/ganesha"];
        for dir in STATE_DIRECTORIES.iter().chain(&empty) {
            fs::create_dir_all(at(dir))?;
        }
        run(Command::new("mount").arg("--bind").arg(scratch).arg(at(&SCRATCH[1..]))).map(drop)
    }

    /// A program in it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.root).arg(program).env_remove("TMPDIR");
        command
    }

    /// How programs in it name a path below `scratch`.
    pub(crate) fn path(&self, path: &Path, scratch: &Path) -> Result<PathBuf> {
        Ok(Path::new(SCRATCH).join(path.strip_prefix(scratch)?))
    }
}

fn install(root: &Path, packages: &[&str]) -> Result<()> {
    let targets = ["indextargets", "--format", "$(REPO_URI)"];
    let debian = ["Created-By: Packages", "Label: Debian"];
    let mirrors = run(Command::new("apt-get").args(targets).args(debian))?;
    let mirror = mirrors.lines().next().context("apt has no lists of Debian's packages")?;
    let apart = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--"]).arg(program).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apart("debootstrap").args(["--variant=minbase", SUITE]).arg(root).arg(mirror))?;
    let policy = root.join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
    fs::set_permissions(&policy, fs::Permissions::from_mode(0o755))?;
    let settings = run(Command::new("apt-config").args(["dump", "Acquire"]))?;
    fs::write(root.join("etc/apt/apt.conf.d/00machine"), settings)?;
    run(apart("chroot").arg(root).args(["apt-get", "-q", "update"]))?;
    let install = ["apt-get", "-q", "install", "--yes", "--no-install-recommends"];
    run(apart("chroot").arg(root).args(install).args(packages))?;
    // nfs-ganesha finds the file system of an export there.
    symlink("/proc/self/mounts", root.join("etc/mtab")).context("etc/mtab")?;
    // Names resolve from /etc/hosts or not at all: in the comparison nothing else can be reached.
    fs::write(root.join("etc/resolv.conf"), "").context("etc/resolv.conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_comparison_has_a_name_inside() {
        let chroot = Chroot { root: "/cache/sid".into() };
        let scratch = Path::new("/tmp/bench-1");
        let inside = chroot.path(&scratch.join("veth/data"), scratch).unwrap();
        assert_eq!(inside, Path::new("/mnt/veth/data"));
        assert!(chroot.path(Path::new("/etc"), scratch).is_err());
    }
}
