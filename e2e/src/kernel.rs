//! The kernel of the guests: Debian's cloud kernel, fetched and unpacked but never installed, and
//! kept under its version so that it is fetched once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use testbed::process::run;

const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// What a guest loads, without what these depend on.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "virtio_net",
    "ext4",
    "nfs",
    "nfsv3",
    "lockd",
    "macvlan",
];

#[derive(Debug, Clone)]
pub struct Kernel {
    /// Where the package was unpacked.
    root: PathBuf,
    release: String,
}

impl Kernel {
    /// The newest kernel that the package lists know, from the cache or the archive.
    pub fn fetch(cache: &Path) -> Result<Self> {
        let package = package()?;
        let shown = run(Command::new("apt-cache").args(["show", "--no-all-versions", &package]))?;
        let version = field(&shown, "Version: ").context("a package without a version")?;
        let root = cache.join(format!("{package}_{}", version.replace(':', "_")));
        if !root.exists() {
            unpack(&package, &root)?;
        }
        let release = package.strip_prefix("linux-image-").unwrap_or(&package).to_owned();
        Ok(Self { root, release })
    }

    pub fn image(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.release))
    }

    /// The modules that a guest needs, in an order in which each finds what it depends on.
    pub fn modules(&self) -> Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> = Vec::new();
        for module in MODULES {
            let mut modprobe = Command::new("modprobe");
            modprobe.arg("--show-depends").arg("-d").arg(&self.root);
            modprobe.args(["-S", &self.release, module]);
            for line in run(&mut modprobe)?.lines() {
                // The other lines are "builtin NAME".
                if let Some(path) = line.strip_prefix("insmod ") {
                    let path = PathBuf::from(path.trim());
                    if !paths.contains(&path) {
                        paths.push(path);
                    }
                }
            }
        }
        Ok(paths)
    }
}

fn package() -> Result<String> {
    let depends = run(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
    let package = field(&depends, "Depends: ");
    package.with_context(|| format!("{META_PACKAGE} depends on nothing: are there package lists?"))
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::to_owned)
}

/// Unpacks beside the final place and renames, so that a half-made cache is never used.
fn unpack(package: &str, root: &Path) -> Result<()> {
    println!("fetching {package}");
    let partial = root.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).context("cannot remove what an earlier run left")?;
    }
    let tree = partial.join("tree");
    fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let mut download = Command::new("apt-get");
    run(download.args(["-q", "download", package]).current_dir(&partial))?;
    let archive = fs::read_dir(&partial)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get download left no package")?;
    let arguments = [Path::new("-x"), &archive, &tree];
    run(Command::new("dpkg-deb").args(arguments))?;
    let release = package.strip_prefix("linux-image-").unwrap_or(package);
    run(Command::new("depmod").arg("-b").arg(&tree).arg(release))?;
    fs::rename(&tree, root).with_context(|| format!("cannot make {}", root.display()))?;
    fs::remove_dir_all(&partial).context("cannot remove the downloaded package")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_with_or_without_indent() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-1-cloud-amd64\n";
        assert_eq!(field(depends, "Depends: ").unwrap(), "linux-image-6.1.0-1-cloud-amd64");
        assert_eq!(field("Package: a\nVersion: 6.1\n", "Version: ").unwrap(), "6.1");
        assert_eq!(field(depends, "Version: "), None);
    }
}
