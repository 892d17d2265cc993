//! File systems to try things on, and callers to try them as.
#![allow(dead_code)]

use std::path::Path;

use bytes::Bytes;
use lockkeeper_vfs::{
    Attributes, Caller, Context, CreateMode, Error, FileSystem, FileSystemId, Made, NewAttributes,
    ObjectId, Patience, Permissions, Result, Stability,
    local::{self, Handles, LocalFs, Metadata, prepare_worker_thread},
    memory::MemoryFs,
};
use tempfile::TempDir;

pub struct World {
    pub fs: Box<dyn FileSystem>,
    dirs: Option<(TempDir, TempDir)>,
}

impl World {
    pub fn memory() -> Option<Self> {
        Some(Self { fs: Box::new(MemoryFs::new(FileSystemId(1))), dirs: None })
    }

    /// As the server uses it.
    pub fn local() -> Option<Self> {
        prepare_worker_thread();
        let world = Self::on_host(Handles::Auto)?;
        Some(world)
    }

    /// Without handles of the kernel, and on a thread that was not prepared.
    pub fn local_by_inode_map() -> Option<Self> {
        Self::on_host(Handles::InodeMap)
    }

    fn on_host(handles: Handles) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        chmod(root.path(), 0o1777);
        let fs = open(root.path(), state.path(), handles);
        Some(Self { fs: Box::new(fs), dirs: Some((root, state)) })
    }

    pub fn root(&self) -> ObjectId {
        self.fs.root()
    }

    pub fn by<'a>(&'a self, caller: &'a Caller) -> By<'a> {
        By { fs: &*self.fs, caller }
    }
}

/// A directory to serve, and one for the server's state.
pub struct Host {
    pub root: TempDir,
    pub state: TempDir,
}

impl Host {
    /// `None`, said loudly, if the test cannot be done here.
    pub fn new() -> Option<Self> {
        let host = Self { root: tempfile::tempdir().unwrap(), state: tempfile::tempdir().unwrap() };
        chmod(host.root.path(), 0o1777);
        is_root().then_some(host)
    }

    pub fn open(&self, handles: Handles) -> LocalFs {
        open(self.root.path(), self.state.path(), handles)
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }
}

/// A test that needs root and has not got it fails: nothing is left out in silence.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test changes identities and must be run as root");
    root
}

pub fn options(root: &Path, state: &Path, handles: Handles) -> local::Options {
    // The tests are about what is done, not about the disk.
    local::Options { handles, metadata: Metadata::Async, ..local::Options::new(root, state) }
}

pub fn open(root: &Path, state: &Path, handles: Handles) -> LocalFs {
    LocalFs::open(options(root, state, handles)).unwrap()
}

pub fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

pub fn root() -> Caller {
    Caller::new(0, 0, &[])
}

pub fn alice() -> Caller {
    Caller::new(1000, 1000, &[5000])
}

/// Is in alice's group.
pub fn bob() -> Caller {
    Caller::new(1001, 1001, &[1000])
}

pub fn carol() -> Caller {
    Caller::new(1002, 1002, &[])
}

pub fn with_mode(mode: u32) -> NewAttributes {
    NewAttributes { mode: Some(mode), ..NewAttributes::default() }
}

pub fn with_size(size: u64) -> NewAttributes {
    NewAttributes { size: Some(size), ..NewAttributes::default() }
}

/// A file system as one caller sees it.
#[derive(Clone, Copy)]
pub struct By<'a> {
    pub fs: &'a dyn FileSystem,
    pub caller: &'a Caller,
}

impl<'a> By<'a> {
    pub fn new(fs: &'a dyn FileSystem, caller: &'a Caller) -> Self {
        Self { fs, caller }
    }

    pub fn context(&self) -> Context<'a> {
        Context { caller: self.caller, patience: Patience::Wait }
    }

    pub fn now(&self) -> Context<'a> {
        Context { caller: self.caller, patience: Patience::Now }
    }

    pub fn create(&self, dir: &ObjectId, name: &str, mode: u32) -> Result<ObjectId> {
        self.make(dir, name, &CreateMode::Guarded(with_mode(mode))).map(|made| made.object)
    }

    pub fn make(&self, dir: &ObjectId, name: &str, mode: &CreateMode) -> Result<Made> {
        self.fs.create(&self.context(), dir, name.as_bytes(), mode)
    }

    pub fn mkdir(&self, dir: &ObjectId, name: &str, mode: u32) -> Result<ObjectId> {
        let made = self.fs.make_dir(&self.context(), dir, name.as_bytes(), &with_mode(mode));
        made.map(|made| made.object)
    }

    pub fn lookup(&self, dir: &ObjectId, name: &str) -> Result<ObjectId> {
        self.fs.lookup(&self.context(), dir, name.as_bytes()).map(|looked| looked.object)
    }

    pub fn attributes(&self, object: &ObjectId) -> Result<Attributes> {
        self.fs.attributes(&self.context(), object)
    }

    pub fn mode(&self, object: &ObjectId) -> u32 {
        self.attributes(object).unwrap().mode
    }

    pub fn set(&self, object: &ObjectId, new: NewAttributes) -> Result<()> {
        self.fs.set_attributes(&self.context(), object, &new, None).map(drop)
    }

    pub fn access(&self, object: &ObjectId) -> String {
        let (Permissions { read, write, execute }, _) =
            self.fs.access(&self.context(), object).unwrap();
        let letter = |granted, letter| if granted { letter } else { '-' };
        [letter(read, 'r'), letter(write, 'w'), letter(execute, 'x')].iter().collect()
    }

    pub fn write(&self, file: &ObjectId, offset: u64, data: &[u8]) -> Result<u32> {
        let data = Bytes::copy_from_slice(data);
        let done = self.fs.write(&self.context(), file, offset, &data, Stability::Unstable);
        done.map(|written| written.count)
    }

    pub fn read(&self, file: &ObjectId, offset: u64, count: u32) -> Result<(Vec<u8>, bool)> {
        let read = self.fs.read(&self.context(), file, offset, count)?;
        Ok((read.data.to_vec(), read.eof))
    }

    pub fn remove(&self, dir: &ObjectId, name: &str) -> Result<()> {
        self.fs.remove(&self.context(), dir, name.as_bytes()).map(drop)
    }

    pub fn rmdir(&self, dir: &ObjectId, name: &str) -> Result<()> {
        self.fs.remove_dir(&self.context(), dir, name.as_bytes()).map(drop)
    }

    pub fn rename(&self, from: (&ObjectId, &str), to: (&ObjectId, &str)) -> Result<()> {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        self.fs.rename(&self.context(), from, to).map(drop)
    }

    pub fn link(&self, file: &ObjectId, dir: &ObjectId, name: &str) -> Result<u32> {
        let linked = self.fs.link(&self.context(), file, dir, name.as_bytes());
        linked.map(|(attributes, _)| attributes.links)
    }

    pub fn symlink(&self, dir: &ObjectId, name: &str, text: &str) -> Result<ObjectId> {
        let new = NewAttributes::default();
        let made =
            self.fs.make_symlink(&self.context(), dir, name.as_bytes(), text.as_bytes(), &new);
        made.map(|made| made.object)
    }

    /// All names, asked for `at_once` at a time, without `.` and `..`; sorted.
    pub fn names(&self, dir: &ObjectId, at_once: usize) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let (more, next, eof) = self.list(dir, cookie, at_once)?;
            names.extend(more);
            cookie = next;
            if eof {
                names.retain(|name| name != b"." && name != b"..");
                names.sort();
                return Ok(names);
            }
        }
    }

    /// One part of a listing: names, the cookie to go on with, and whether it is the end.
    pub fn list(&self, dir: &ObjectId, cookie: u64, count: usize) -> Result<Part> {
        let mut names = Vec::new();
        let mut next = cookie;
        let listed =
            self.fs.read_dir(&self.context(), dir, cookie, [0; 8], false, &mut |entry| {
                if names.len() == count {
                    return false;
                }
                names.push(entry.name.to_vec());
                next = entry.cookie;
                true
            })?;
        Ok((names, next, listed.eof))
    }
}

pub type Part = (Vec<Vec<u8>>, u64, bool);

pub const DENIED: Result<()> = Err(Error::Denied);
