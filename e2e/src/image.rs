//! What a guest boots from: the kernel, and an initramfs with busybox, the NFS client programs and
//! their libraries, the kernel modules and the guest tool.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use testbed::process::run;

use crate::apt::Suite;
use crate::archive::Archive;
use crate::kernel::Kernel;

/// Programs of the host that run in the guest with the libraries they are linked to.
const PROGRAMS: &[&str] = &[
    "/bin/mount",
    "/bin/umount",
    "/sbin/mount.nfs",
    "/sbin/umount.nfs",
    "/sbin/rpcbind",
    "/sbin/rpc.statd",
    "/sbin/sm-notify",
    "/sbin/showmount",
    "/usr/sbin/rpcinfo",
    "/sbin/ip",
    "/usr/bin/git",
    "/usr/bin/sqlite3",
    "/usr/bin/tcc",
];

const TABLES: &[&str] = &["/etc/netconfig", "/etc/protocols", "/etc/rpc", "/etc/services"];

const ACCOUNTS: &str = "root:x:0:0:root:/:/bin/sh
_rpc:x:101:65534::/run/rpcbind:/bin/false
statd:x:102:65534::/var/lib/nfs:/bin/false
ann:x:1001:1001::/:/bin/sh
ben:x:1002:1002::/:/bin/sh
nobody:x:65534:65534::/:/bin/false
";

const GROUPS: &str = "root:x:0:
ann:x:1001:
ben:x:1002:
crew:x:2000:ann,ben
nogroup:x:65534:
";

#[derive(Debug, Clone)]
pub struct Image {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
}

impl Image {
    /// Fetches the kernel (once), builds the guest tool unless one is given, and packs the root.
    /// `hosts` becomes the guests' /etc/hosts.
    pub fn prepare(
        cache: &Path,
        suite: Option<Suite>,
        tool: Option<&Path>,
        hosts: &str,
    ) -> Result<Self> {
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let kernel = Kernel::fetch(suite, cache)?;
        println!("kernel {}", kernel.release());
        let tool = match tool {
            Some(tool) => tool.to_path_buf(),
            None => build_tool(&cache.join("tool"))?,
        };
        let initramfs = cache.join(format!("initramfs-{}.cpio", kernel.release()));
        // Several labs may start at once; each must read a complete file.
        let partial = cache.join(format!("initramfs.{}", std::process::id()));
        fs::write(&partial, root(&kernel, &tool, hosts)?)
            .and_then(|()| fs::rename(&partial, &initramfs))
            .with_context(|| format!("cannot write {}", initramfs.display()))?;
        Ok(Self { kernel: kernel.image(), initramfs })
    }
}

/// Builds the guest tool without shared libraries.
fn build_tool(target: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["rustc", "--quiet", "--release", "--package", "lockkeeper-guest"])
        .args(["--bin", "lockkeeper-guest", "--target-dir"])
        .arg(target)
        .args(["--", "-C", "target-feature=+crt-static"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("RUSTFLAGS");
    run(&mut build).context("cannot build the guest tool")?;
    Ok(target.join("release/lockkeeper-guest"))
}

fn root(kernel: &Kernel, tool: &Path, hosts: &str) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    archive.character_device("/dev/console", 5, 1);
    archive.file("/init", 0o755, include_bytes!("init.sh"));
    archive.copy(Path::new("/bin/busybox"), "/bin/busybox", 0o755)?;
    archive.link("/bin/sh", "busybox");
    archive.copy(tool, "/bin/lockkeeper-guest", 0o755)?;
    archive.file("/etc/hosts", 0o644, hosts.as_bytes());
    archive.file("/etc/nsswitch.conf", 0o644, b"passwd: files\ngroup: files\nhosts: files\n");
    archive.file("/etc/passwd", 0o644, ACCOUNTS.as_bytes());
    archive.file("/etc/group", 0o644, GROUPS.as_bytes());
    for table in TABLES {
        archive.copy(Path::new(table), table, 0o644)?;
    }
    let mut libraries = BTreeSet::new();
    for program in PROGRAMS {
        archive.copy(Path::new(program), program, 0o755)?;
        libraries.extend(libraries_of(program)?);
    }
    for library in libraries {
        archive.copy(Path::new(&library), &library, 0o755)?;
    }
    let mut order = String::new();
    for (name, module) in kernel.modules()? {
        archive.file(&format!("/modules/{name}"), 0o644, &module);
        order.push_str(&format!("{name}\n"));
    }
    archive.file("/modules/order", 0o644, order.as_bytes());
    Ok(archive.finish())
}

fn libraries_of(program: &str) -> Result<Vec<String>> {
    Ok(parse_ldd(&run(Command::new("ldd").args([program]))?))
}

/// The absolute path in each line: `libc.so.6 => /lib/libc.so.6 (0x...)` or `/lib/ld.so (0x...)`.
fn parse_ldd(text: &str) -> Vec<String> {
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    text.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_names_libraries_and_the_loader() {
        let text =
            "\tlinux-vdso.so.1 (0x0)\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\t/lib64/ld.so (0x2)\n";
        assert_eq!(parse_ldd(text), ["/lib/libc.so.6", "/lib64/ld.so"]);
    }
}
