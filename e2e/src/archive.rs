//! A cpio archive in the "newc" form, the one that a Linux kernel unpacks as its first root
//! (Documentation/driver-api/early-userspace/buffer-format). Not compressed: an emulated
//! processor copies faster than it inflates.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    pub fn new() -> Self {
        Self::default()
    }

    /// A directory and all above it. Names are absolute, as the guest will see them.
    pub fn directory(&mut self, name: &str) {
        let name = name.trim_matches('/');
        if name.is_empty() || self.directories.contains(name) {
            return;
        }
        if let Some((above, _)) = name.rsplit_once('/') {
            self.directory(above);
        }
        self.directories.insert(name.to_owned());
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[]);
    }

    pub fn file(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.place(name);
        self.entry(name.trim_start_matches('/'), FILE | mode, (0, 0), contents);
    }

    /// A file of the host under another name; links are followed.
    pub fn copy(&mut self, from: &Path, name: &str, mode: u32) -> Result<()> {
        let contents = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.file(name, mode, &contents);
        Ok(())
    }

    pub fn link(&mut self, name: &str, target: &str) {
        self.place(name);
        self.entry(name.trim_start_matches('/'), LINK | 0o777, (0, 0), target.as_bytes());
    }

    pub fn character_device(&mut self, name: &str, major: u32, minor: u32) {
        self.place(name);
        self.entry(name.trim_start_matches('/'), CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn place(&mut self, name: &str) {
        if let Some((above, _)) = name.trim_start_matches('/').rsplit_once('/') {
            self.directory(above);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let name_size = name.len() as u32 + 1;
        let (inode, owner, group, time, checksum) = (self.entries, 0, 0, 0, 0);
        let fields = [
            inode,
            mode,
            owner,
            group,
            links,
            time,
            contents.len() as u32,
            0,
            0,
            device.0,
            device.1,
            name_size,
            checksum,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_once_and_before_what_is_in_them() {
        let mut archive = Archive::new();
        archive.file("/a/b/one", 0o644, b"1");
        archive.file("/a/b/two", 0o644, b"22");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(text.matches("070701").count(), 5);
        assert!(text.find("a/b\0").unwrap() < text.find("a/b/one\0").unwrap());
        assert_eq!(bytes.len() % 4, 0);
    }
}
