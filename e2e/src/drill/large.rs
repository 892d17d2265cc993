//! Large things: a directory, a sparse file, a disk.

use std::ffi::CString;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Step;
use super::context::Drill;

pub(super) const STEPS: &[Step] = &[
    Step::new("disk-free", disk_free),
    Step::new("sparse-file-over-4-gib", sparse),
    Step::new("list-a-large-directory", large_directory),
];

fn disk_free(drill: &Drill) -> Result<()> {
    let alice = drill.alice()?;
    let point = drill.mount(alice, "open")?;
    let line = alice.succeed(&format!("df -P -k {point} | tail -n 1"))?;
    let mut words = line.split_whitespace().skip(1);
    let total: u64 = words.next().context("df said nothing")?.parse()?;
    let free: u64 = words.nth(1).context("df said too little")?.parse()?;
    let (disk_total, disk_free) = free_space(&drill.export("open"))?;
    ensure!(total.abs_diff(disk_total) <= disk_total / 1000, "total {total}, disk {disk_total}");
    // Others write to the same disk meanwhile.
    ensure!(free.abs_diff(disk_free) <= disk_total / 20, "free {free}, disk {disk_free}");
    Ok(())
}

/// Total and available KiB of the file system that holds a path.
#[allow(unsafe_code)]
fn free_space(path: &Path) -> Result<(u64, u64)> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut space = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a terminated string, and space for the answer, which is read only after success.
    let space = unsafe {
        if libc::statvfs(name.as_ptr(), space.as_mut_ptr()) != 0 {
            bail!("{}: {}", path.display(), std::io::Error::last_os_error());
        }
        space.assume_init()
    };
    Ok((space.f_blocks * space.f_frsize / 1024, space.f_bavail * space.f_frsize / 1024))
}

fn sparse(drill: &Drill) -> Result<()> {
    const OFFSET: u64 = 5 << 30;
    let dir = drill.step_dir("open", "sparse")?;
    let (alice, bob, at) = (drill.alice()?, drill.bob()?, &dir.guest);
    alice.succeed(&format!(
        "cd {at} && printf head > file && \
         printf tail | dd of=file bs=4 seek={} conv=notrunc 2>/dev/null",
        OFFSET / 4
    ))?;
    let metadata = dir.metadata("file")?;
    ensure!(metadata.len() == OFFSET + 4, "length {}", metadata.len());
    ensure!(metadata.blocks() * 512 < 1 << 20, "{} blocks: not sparse", metadata.blocks());
    let mut found = [0; 8];
    File::open(dir.file("file"))?.read_exact_at(&mut found, OFFSET - 4)?;
    ensure!(&found == b"\0\0\0\0tail", "the server's disk has {found:?}");
    let seen = bob.succeed(&format!(
        "cd {at} && stat -c %s file && dd if=file bs=4 skip={} count=2 2>/dev/null | hexdump -C | head -n 1 && \
         dd if=file bs=64k skip=65536 count=16 2>/dev/null | tr -d '\\0' | wc -c",
        OFFSET / 4 - 1
    ))?;
    ensure!(seen.starts_with(&format!("{}\n", OFFSET + 4)), "the other guest sees {seen}");
    ensure!(seen.contains("00 00 00 00 74 61 69 6c"), "the other guest reads {seen}");
    ensure!(seen.ends_with("\n0"), "the hole is not empty: {seen}");
    alice.succeed(&format!("truncate -s 9G {at}/file && truncate -s 4294967297 {at}/file"))?;
    let length = dir.metadata("file")?.len();
    ensure!(length == (1 << 32) + 1, "truncated to {length}");
    Ok(())
}

fn large_directory(drill: &Drill) -> Result<()> {
    let count = drill.size.listed_entries;
    let dir = drill.step_dir("open", "large")?;
    for number in 0..count {
        File::create(dir.file(&format!("entry-{number:06}"))).context("cannot fill")?;
    }
    let timeout = Duration::from_secs(240);
    let script = format!(
        "ls -la {} | awk 'NR>1 {{ seen[$NF]++ }} END {{ for (n in seen) if (seen[n] > 1) d++; \
         print NR - 1, length(seen), d + 0 }}'",
        dir.guest
    );
    let seen = drill.bob()?.succeed_for(&script, timeout)?;
    // Those and . and ..
    let expected = format!("{0} {0} 0", count + 2);
    ensure!(seen == expected, "lines, names, doubled: {seen} instead of {expected}");
    std::fs::remove_dir_all(&dir.host).context("cannot remove the large directory")
}
