//! The kernel of the guests: Debian's cloud kernel, fetched and unpacked but never installed, and
//! kept under its version so that it is fetched once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testbed::process::run;

use crate::apt::{Apt, Suite};

const META_PACKAGE: &str = "linux-image-cloud-amd64";
/// Into which Debian has split `linux-image-*` since Linux 7: lists of modules, image and modules.
const PARTS: [&str; 3] = ["linux-base-", "linux-binary-", "linux-modules-"];

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
    /// The newest kernel of a suite, or of the machine's own package lists; from the cache or the
    /// archive.
    pub fn fetch(suite: Option<Suite>, cache: &Path) -> Result<Self> {
        let apt = match suite {
            Some(suite) => Apt::of_suite(suite, cache)?,
            None => Apt::of_machine(),
        };
        let release = release_of(&apt.dependencies(META_PACKAGE)?)
            .with_context(|| format!("{META_PACKAGE} names no kernel: are there package lists?"))?;
        let package = format!("linux-image-{release}");
        let version = apt.version(&package)?.replace(':', "_");
        let root = cache.join(format!("{package}_{version}"));
        if !root.exists() {
            unpack(&apt, &package, &release, &root)?;
        }
        Ok(Self { root, release })
    }

    pub fn release(&self) -> &str {
        &self.release
    }

    pub fn image(&self) -> PathBuf {
        let beside_modules = self.root.join(format!("lib/modules/{}/vmlinuz", self.release));
        match beside_modules.exists() {
            true => beside_modules,
            false => self.root.join(format!("boot/vmlinuz-{}", self.release)),
        }
    }

    /// The modules that a guest needs, each a file name and its content, in an order in which each
    /// finds what it depends on.
    pub fn modules(&self) -> Result<Vec<(String, Vec<u8>)>> {
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
        paths.iter().map(|path| read_module(path)).collect()
    }
}

/// The name and content of a module, which may be compressed: a guest cannot unpack it.
fn read_module(path: &Path) -> Result<(String, Vec<u8>)> {
    let shown = path.display();
    let name = path.file_name().with_context(|| format!("{shown} has no name"))?.to_string_lossy();
    let Some(name) = name.strip_suffix(".xz") else {
        let content = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        return Ok((name.into_owned(), content));
    };
    let output = Command::new("xz").args(["--decompress", "--stdout"]).arg(path).output();
    let output = output.context("xz, of package xz-utils")?;
    ensure!(output.status.success(), "cannot decompress {shown}");
    Ok((name.to_owned(), output.stdout))
}

/// The release of the kernel among the packages that the meta package depends on.
fn release_of(dependencies: &[String]) -> Option<String> {
    let mut releases = dependencies.iter().filter_map(|name| name.strip_prefix("linux-image-"));
    releases.find(|release| release.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
}

/// Unpacks beside the final place and renames, so that a half-made cache is never used.
fn unpack(apt: &Apt, package: &str, release: &str, root: &Path) -> Result<()> {
    println!("fetching {package}");
    let partial = root.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).context("cannot remove what an earlier run left")?;
    }
    let tree = partial.join("tree");
    fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let mut packages = vec![package.to_owned()];
    let parts = PARTS.map(|part| format!("{part}{release}"));
    packages.extend(apt.dependencies(package)?.into_iter().filter(|name| parts.contains(name)));
    let mut download = apt.command("apt-get");
    run(download.args(["-q", "download"]).args(&packages).current_dir(&partial))?;
    for entry in fs::read_dir(&partial)? {
        let archive = entry?.path();
        if archive.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").args([Path::new("-x"), &archive, &tree]))?;
        }
    }
    // Newer packages have everything below /usr, where modprobe of this suite does not look.
    if !tree.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", tree.join("lib")).context("cannot link lib")?;
    }
    run(Command::new("depmod").arg("-b").arg(&tree).arg(release))?;
    fs::rename(&tree, root).with_context(|| format!("cannot make {}", root.display()))?;
    fs::remove_dir_all(&partial).context("cannot remove the downloaded package")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_that_of_the_image_among_other_packages() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let one = names(&["linux-image-6.1.0-1-cloud-amd64"]);
        assert_eq!(release_of(&one).unwrap(), "6.1.0-1-cloud-amd64");
        let split = names(&["linux-base-cloud-amd64", "linux-image-7.2.13+deb14-cloud-amd64"]);
        assert_eq!(release_of(&split).unwrap(), "7.2.13+deb14-cloud-amd64");
        assert_eq!(release_of(&names(&["linux-image-cloud-amd64"])), None);
    }
}
