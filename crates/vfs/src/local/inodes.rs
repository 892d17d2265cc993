//! The inode map: finds objects where kernel file handles are unavailable.
//!
//! An object is identified by inode number and birth time; the map holds the names under which it
//! was last found. This is weaker than a kernel handle: a file renamed on the host becomes `Stale`.
//!
//! The map is in memory and in an append-only file, `inodes-<file system>-<root inode>`:
//! ```text
//! record   length of body u32, SipHash-2-4 of body u64, body
//! body     1 = name added | 2 = name removed, u8; inode u64; generation u64; parent inode u64; name
//! ```
//! All numbers are little-endian. A torn record at the end is truncated. Two exports of one
//! directory share the file: each reads the other's records when a lookup misses. It is rewritten
//! only under an exclusive `flock`.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    hash::Hasher,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Mutex,
};

use rustix::fs::{FlockOperation, flock};
use siphasher::sip::SipHasher24;

use super::{
    node::lock,
    state,
    status::{Status, status},
    sys,
};
use crate::{Error, ObjectId, Result, Time};

/// The first byte of an object id; a handle type that the kernel defines as invalid.
const TYPE: u8 = 0xff;

/// Beyond this, the least recently seen inodes are dropped.
const INODES_MAX: usize = 1_000_000;

/// Names kept per inode.
const NAMES_MAX: usize = 4;

/// A smaller file is not worth rewriting.
const REWRITE_FROM: u64 = 1 << 20;

const DEPTH_MAX: usize = 4096;
const HEAD: usize = 12;
const BODY_MIN: usize = 25;

pub(super) struct InodeMap {
    root: u64,
    path: PathBuf,
    table: Mutex<InodeTable>,
}

struct InodeTable {
    inodes: HashMap<u64, Inode>,
    /// Counts records, as the time of `Inode::seen`.
    clock: u64,
    file: File,
    /// The end of the part of the file that was read. Records that this process appends are read
    /// again later, which has no effect.
    read_to: u64,
    unsaved: bool,
}

struct Inode {
    generation: u64,
    seen: u64,
    /// The latest first.
    names: Vec<PathComponent>,
}

/// A directory entry that refers to the inode.
#[derive(Clone, PartialEq, Eq)]
struct PathComponent {
    parent: u64,
    name: Box<[u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordKind {
    NameAdded = 1,
    NameRemoved = 2,
}

impl InodeMap {
    pub(super) fn open(state: &Path, filesystem: u64, root: u64) -> io::Result<Self> {
        let path = state.join(format!("inodes-{filesystem:016x}-{root}"));
        let (file, alone) = open_file(&path)?;
        let mut table =
            InodeTable { inodes: HashMap::new(), clock: 0, file, read_to: 0, unsaved: false };
        table.catch_up()?;
        if alone {
            // Records appended behind a torn one would be unreadable.
            table.file.set_len(table.read_to)?;
        }
        Ok(Self { root, path, table: Mutex::new(table) })
    }

    /// Opens an object by one of its recorded names, and checks that it is the same object.
    /// `enter` opens one entry of a directory.
    pub(super) fn find(
        &self,
        root: &OwnedFd,
        id: &ObjectId,
        enter: impl Fn(&OwnedFd, &[u8]) -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        let (inode, generation) = parse(id).ok_or(Error::Stale)?;
        for again in [false, true] {
            if again {
                lock(&self.table).catch_up().map_err(|_| Error::Io)?;
            }
            let paths = lock(&self.table).paths(self.root, inode, generation);
            for path in paths {
                let Ok(fd) = walk(root, &path, &enter) else { continue };
                let Ok(found) = status(&fd) else { continue };
                let same = found.born.is_none_or(|born| born == generation);
                if found.attributes.fileid == inode && same {
                    return Ok(fd);
                }
            }
        }
        Err(Error::Stale)
    }

    /// Records the entry `name` of `dir` and returns the id of its object.
    pub(super) fn record(&self, dir: &ObjectId, name: &[u8], found: &Status) -> ObjectId {
        let mut table = lock(&self.table);
        let inode = found.attributes.fileid;
        let generation = table.generation(found).unwrap_or_else(|| {
            // Without birth times, a random generation for the inode's time in the map.
            let Time { seconds, nanoseconds } = found.attributes.changed;
            sys::random().unwrap_or(seconds as u64 ^ (u64::from(nanoseconds) << 32))
        });
        if let Some((parent, _)) = parse(dir) {
            table.note(RecordKind::NameAdded, inode, generation, parent, name);
        }
        compose(inode, generation)
    }

    /// The id of an object, without recording a name.
    pub(super) fn identify(&self, found: &Status) -> ObjectId {
        let generation = lock(&self.table).generation(found).unwrap_or(0);
        compose(found.attributes.fileid, generation)
    }

    pub(super) fn linked(&self, dir: &ObjectId, name: &[u8], object: &ObjectId) {
        self.note(RecordKind::NameAdded, dir, name, object);
    }

    pub(super) fn removed(&self, dir: &ObjectId, name: &[u8], object: &ObjectId) {
        self.note(RecordKind::NameRemoved, dir, name, object);
    }

    pub(super) fn moved(
        &self,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
        object: &ObjectId,
    ) {
        self.note(RecordKind::NameAdded, to.0, to.1, object);
        self.note(RecordKind::NameRemoved, from.0, from.1, object);
    }

    fn note(&self, kind: RecordKind, dir: &ObjectId, name: &[u8], object: &ObjectId) {
        if let (Some((parent, _)), Some((inode, generation))) = (parse(dir), parse(object)) {
            lock(&self.table).note(kind, inode, generation, parent, name);
        }
    }

    /// Makes the file durable, and compacts it if most of it is outdated.
    pub(super) fn save(&self) {
        let mut table = lock(&self.table);
        if !std::mem::take(&mut table.unsaved) {
            return;
        }
        if let Err(error) = table.file.sync_data().and_then(|()| table.rewrite(&self.path)) {
            tracing::warn!(%error, path = %self.path.display(), "cannot save the inode map");
        }
    }
}

impl Drop for InodeMap {
    fn drop(&mut self) {
        self.save();
    }
}

impl InodeTable {
    fn generation(&self, found: &Status) -> Option<u64> {
        let known = || self.inodes.get(&found.attributes.fileid).map(|inode| inode.generation);
        found.born.or_else(known)
    }

    fn note(&mut self, kind: RecordKind, inode: u64, generation: u64, parent: u64, name: &[u8]) {
        let component = PathComponent { parent, name: name.into() };
        if !self.apply(kind, inode, generation, component) {
            return;
        }
        let record = encode(kind, inode, generation, parent, name);
        if let Err(error) = self.file.write_all(&record) {
            tracing::warn!(%error, "cannot write the inode map; handles may not survive a restart");
        }
        self.unsaved = true;
        if self.inodes.len() > INODES_MAX {
            self.prune();
        }
    }

    /// Returns whether the record changed anything.
    fn apply(
        &mut self,
        kind: RecordKind,
        inode: u64,
        generation: u64,
        component: PathComponent,
    ) -> bool {
        self.clock += 1;
        let fresh = || Inode { generation, seen: 0, names: Vec::new() };
        let known = self.inodes.entry(inode).or_insert_with(fresh);
        if known.generation != generation {
            if kind == RecordKind::NameRemoved {
                return false;
            }
            *known = fresh();
        }
        known.seen = self.clock;
        let there = known.names.iter().position(|p| *p == component);
        match (kind, there) {
            (RecordKind::NameAdded, Some(_)) => return false,
            (RecordKind::NameAdded, None) => {
                known.names.insert(0, component);
                known.names.truncate(NAMES_MAX);
            }
            (RecordKind::NameRemoved, Some(at)) => drop(known.names.remove(at)),
            (RecordKind::NameRemoved, None) => {}
        }
        if known.names.is_empty() {
            self.inodes.remove(&inode);
        }
        there.is_some() || kind == RecordKind::NameAdded
    }

    /// The known paths of an object, from the root.
    fn paths(&self, root: u64, inode: u64, generation: u64) -> Vec<Vec<Box<[u8]>>> {
        let Some(known) = self.inodes.get(&inode) else { return Vec::new() };
        if known.generation != generation {
            return Vec::new();
        }
        known.names.iter().filter_map(|component| self.path(root, component)).collect()
    }

    fn path(&self, root: u64, last: &PathComponent) -> Option<Vec<Box<[u8]>>> {
        let mut component = last;
        let mut names = vec![component.name.clone()];
        while component.parent != root {
            component = self.inodes.get(&component.parent)?.names.first()?;
            names.push(component.name.clone());
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some(names)
    }

    /// Applies the records beyond `read_to`, up to the first incomplete one.
    fn catch_up(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() <= self.read_to {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(self.read_to))?;
        self.file.read_to_end(&mut bytes)?;
        let mut rest = &bytes[..];
        while let Some((kind, inode, generation, component, length)) = decode(rest) {
            self.apply(kind, inode, generation, component);
            self.read_to += length as u64;
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Drops the least recently seen quarter, except directories on the path of the rest.
    fn prune(&mut self) {
        let mut ages: Vec<u64> = self.inodes.values().map(|inode| inode.seen).collect();
        ages.sort_unstable();
        let limit = ages.get(ages.len() / 4).copied().unwrap_or(0);
        let mut needed: Vec<u64> = Vec::new();
        let mut kept = HashMap::new();
        for (number, inode) in std::mem::take(&mut self.inodes) {
            if inode.seen >= limit {
                needed.extend(inode.names.iter().map(|component| component.parent));
                kept.insert(number, inode);
            } else {
                self.inodes.insert(number, inode);
            }
        }
        while let Some(number) = needed.pop() {
            if let Some(inode) = self.inodes.remove(&number) {
                needed.extend(inode.names.iter().map(|component| component.parent));
                kept.insert(number, inode);
            }
        }
        self.inodes = kept;
    }

    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        // An estimate, with an average name.
        let live = self.inodes.len() as u64 * (HEAD + BODY_MIN + 24) as u64;
        if length < REWRITE_FROM || length < 4 * live {
            return Ok(());
        }
        if flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
        self.catch_up()?;
        let mut content = Vec::new();
        for (number, inode) in &self.inodes {
            for component in inode.names.iter().rev() {
                let (parent, name) = (component.parent, &component.name);
                content.extend(encode(
                    RecordKind::NameAdded,
                    *number,
                    inode.generation,
                    parent,
                    name,
                ));
            }
        }
        state::replace(path, &content)?;
        self.file = open_file(path)?.0;
        self.read_to = content.len() as u64;
        Ok(())
    }
}

/// Opens the file under a shared `flock`; `true` if no other process had it locked.
fn open_file(path: &Path) -> io::Result<(File, bool)> {
    loop {
        let file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let alone = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        flock(&file, FlockOperation::LockShared)?;
        // Replaced between opening and locking?
        if std::fs::metadata(path)
            .is_ok_and(|now| file.metadata().is_ok_and(|f| f.ino() == now.ino()))
        {
            return Ok((file, alone));
        }
    }
}

fn walk(
    root: &OwnedFd,
    names: &[Box<[u8]>],
    enter: impl Fn(&OwnedFd, &[u8]) -> Result<OwnedFd>,
) -> Result<OwnedFd> {
    let (first, rest) = names.split_first().ok_or(Error::Stale)?;
    rest.iter().try_fold(enter(root, first)?, |dir, name| enter(&dir, name))
}

pub(super) fn compose(inode: u64, generation: u64) -> ObjectId {
    let mut bytes = [0; 17];
    bytes[0] = TYPE;
    bytes[1..9].copy_from_slice(&inode.to_le_bytes());
    bytes[9..].copy_from_slice(&generation.to_le_bytes());
    // 17 bytes always fit.
    ObjectId::new(&bytes).unwrap_or_else(|| ObjectId::from(inode))
}

fn parse(id: &ObjectId) -> Option<(u64, u64)> {
    let (&TYPE, rest) = id.as_bytes().split_first()? else { return None };
    let (inode, generation) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*inode), u64::from_le_bytes(generation.try_into().ok()?)))
}

fn encode(kind: RecordKind, inode: u64, generation: u64, parent: u64, name: &[u8]) -> Vec<u8> {
    let mut body = vec![kind as u8];
    [inode, generation, parent].iter().for_each(|number| body.extend(number.to_le_bytes()));
    body.extend(name);
    let mut record = (body.len() as u32).to_le_bytes().to_vec();
    record.extend(checksum(&body).to_le_bytes());
    record.extend(body);
    record
}

/// The first record and its length; `None` if it is torn.
fn decode(bytes: &[u8]) -> Option<(RecordKind, u64, u64, PathComponent, usize)> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let body = rest.get(..u32::from_le_bytes(*length) as usize)?;
    if checksum(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (kind, numbers) = body.split_first()?;
    let kind = match kind {
        1 => RecordKind::NameAdded,
        2 => RecordKind::NameRemoved,
        _ => return None,
    };
    let (inode, numbers) = numbers.split_first_chunk()?;
    let (generation, numbers) = numbers.split_first_chunk()?;
    let (parent, name) = numbers.split_first_chunk()?;
    let component = PathComponent { parent: u64::from_le_bytes(*parent), name: name.into() };
    let (inode, generation) = (u64::from_le_bytes(*inode), u64::from_le_bytes(*generation));
    Some((kind, inode, generation, component, HEAD + body.len()))
}

fn checksum(body: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(body);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(map: &InodeMap, inode: u64, parent: u64, name: &str) {
        map.linked(&compose(parent, 0), name.as_bytes(), &compose(inode, 0));
    }

    fn path(map: &InodeMap, inode: u64) -> Option<String> {
        let paths = lock(&map.table).paths(1, inode, 0);
        let names = paths.first()?.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        Some(names.collect::<Vec<_>>().join("/"))
    }

    #[test]
    fn a_mostly_outdated_map_is_compacted() {
        let state = tempfile::tempdir().unwrap();
        let map = InodeMap::open(state.path(), 7, 1).unwrap();
        entry(&map, 2, 1, "d");
        entry(&map, 3, 2, "f");
        let long = "n".repeat(200);
        for _ in 0..5_000 {
            entry(&map, 4, 2, &long);
            map.removed(&compose(2, 0), long.as_bytes(), &compose(4, 0));
        }
        let length = || std::fs::metadata(&map.path).unwrap().len();
        assert!(length() > REWRITE_FROM);
        map.save();
        assert!(length() < 1000);
        entry(&map, 5, 2, "g");
        drop(map);
        let map = InodeMap::open(state.path(), 7, 1).unwrap();
        assert_eq!(path(&map, 3).as_deref(), Some("d/f"));
        assert_eq!(path(&map, 5).as_deref(), Some("d/g"));
        assert_eq!(path(&map, 4), None);
    }

    #[test]
    fn pruning_keeps_recent_inodes_and_their_directories() {
        let state = tempfile::tempdir().unwrap();
        let map = InodeMap::open(state.path(), 7, 1).unwrap();
        entry(&map, 2, 1, "old directory");
        for inode in 10..20 {
            entry(&map, inode, 1, &inode.to_string());
        }
        entry(&map, 30, 2, "new");
        lock(&map.table).prune();
        assert_eq!(path(&map, 30).as_deref(), Some("old directory/new"));
        assert_eq!(path(&map, 10), None);
        assert_eq!(path(&map, 19).as_deref(), Some("19"));
    }

    #[test]
    fn a_loop_in_the_map_ends() {
        let state = tempfile::tempdir().unwrap();
        let map = InodeMap::open(state.path(), 7, 1).unwrap();
        entry(&map, 2, 3, "a");
        entry(&map, 3, 2, "b");
        assert_eq!(path(&map, 2), None);
    }
}
