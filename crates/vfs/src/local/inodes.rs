//! The inode map: how objects are found again where the kernel's handles cannot be had.
//!
//! An object is its inode number and its birth time; the map knows under which names it was last
//! seen. That promises less than a handle: a file renamed behind the server's back is `Stale`.
//!
//! The map is kept in memory and in an append-only file, `inodes-<file system>-<root inode>`:
//! ```text
//! record   length of body u32, SipHash-2-4 of body u64, body
//! body     1 = is named | 2 = no longer, u8; inode u64; generation u64; parent inode u64; name
//! ```
//! All numbers are little-endian. A torn record at the end is cut off. Two exports of one
//! directory share the file: each reads what the other appended when it misses something. Only
//! who is alone with it (`flock`) may rewrite it.

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

/// The first byte of an object id; the kernel calls this type of handle invalid.
const MARK: u8 = 0xff;

/// Beyond this, what was seen longest ago is forgotten.
const INODES_MAX: usize = 1_000_000;

/// Names kept of one file.
const PLACES_MAX: usize = 4;

/// A file of less than this is not worth rewriting.
const REWRITE_FROM: u64 = 1 << 20;

const DEPTH_MAX: usize = 4096;
const HEAD: usize = 12;
const BODY_MIN: usize = 25;

pub(super) struct InodeMap {
    root: u64,
    path: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    inodes: HashMap<u64, Inode>,
    /// Counts sightings; the highest is the latest.
    clock: u64,
    file: File,
    /// Up to here the file was read. What this process appends is read again on the way; that
    /// changes nothing.
    read_to: u64,
    unsaved: bool,
}

struct Inode {
    generation: u64,
    seen: u64,
    places: Vec<Place>,
}

#[derive(Clone, PartialEq, Eq)]
struct Place {
    parent: u64,
    name: Box<[u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Named = 1,
    Unnamed = 2,
}

impl InodeMap {
    pub(super) fn open(state: &Path, filesystem: u64, root: u64) -> io::Result<Self> {
        let path = state.join(format!("inodes-{filesystem:016x}-{root}"));
        let (file, alone) = open_file(&path)?;
        let mut known =
            Known { inodes: HashMap::new(), clock: 0, file, read_to: 0, unsaved: false };
        known.catch_up()?;
        if alone {
            // A torn end would hide what is appended behind it.
            known.file.set_len(known.read_to)?;
        }
        Ok(Self { root, path, known: Mutex::new(known) })
    }

    /// Opens an object under one of the names it was seen by. `enter` opens one entry.
    pub(super) fn find(
        &self,
        root: &OwnedFd,
        id: &ObjectId,
        enter: impl Fn(&OwnedFd, &[u8]) -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        let (inode, generation) = parse(id).ok_or(Error::Stale)?;
        for again in [false, true] {
            if again {
                lock(&self.known).catch_up().map_err(|_| Error::Io)?;
            }
            let paths = lock(&self.known).paths(self.root, inode, generation);
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

    /// The id of what was found as `name` in `dir`, which can be found there from now on.
    pub(super) fn record(&self, dir: &ObjectId, name: &[u8], found: &Status) -> ObjectId {
        let mut known = lock(&self.known);
        let inode = found.attributes.fileid;
        let generation = known.generation(found).unwrap_or_else(|| {
            // Without birth times: when it was first seen, and something that does not repeat.
            let Time { seconds, nanoseconds } = found.attributes.changed;
            sys::random().unwrap_or(seconds as u64 ^ (u64::from(nanoseconds) << 32))
        });
        if let Some((parent, _)) = parse(dir) {
            known.note(Event::Named, inode, generation, parent, name);
        }
        compose(inode, generation)
    }

    /// The id of what was found, without making it findable.
    pub(super) fn identify(&self, found: &Status) -> ObjectId {
        let generation = lock(&self.known).generation(found).unwrap_or(0);
        compose(found.attributes.fileid, generation)
    }

    pub(super) fn linked(&self, dir: &ObjectId, name: &[u8], object: &ObjectId) {
        self.note(Event::Named, dir, name, object);
    }

    pub(super) fn removed(&self, dir: &ObjectId, name: &[u8], object: &ObjectId) {
        self.note(Event::Unnamed, dir, name, object);
    }

    pub(super) fn moved(
        &self,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
        object: &ObjectId,
    ) {
        self.note(Event::Named, to.0, to.1, object);
        self.note(Event::Unnamed, from.0, from.1, object);
    }

    fn note(&self, event: Event, dir: &ObjectId, name: &[u8], object: &ObjectId) {
        if let (Some((parent, _)), Some((inode, generation))) = (parse(dir), parse(object)) {
            lock(&self.known).note(event, inode, generation, parent, name);
        }
    }

    /// Makes the file durable and, when most of it is outdated, writes it anew.
    pub(super) fn save(&self) {
        let mut known = lock(&self.known);
        if !std::mem::take(&mut known.unsaved) {
            return;
        }
        if let Err(error) = known.file.sync_data().and_then(|()| known.rewrite(&self.path)) {
            tracing::warn!(%error, path = %self.path.display(), "the inode map cannot be saved");
        }
    }
}

impl Drop for InodeMap {
    fn drop(&mut self) {
        self.save();
    }
}

impl Known {
    fn generation(&self, found: &Status) -> Option<u64> {
        let known = || self.inodes.get(&found.attributes.fileid).map(|inode| inode.generation);
        found.born.or_else(known)
    }

    fn note(&mut self, event: Event, inode: u64, generation: u64, parent: u64, name: &[u8]) {
        let place = Place { parent, name: name.into() };
        if !self.apply(event, inode, generation, place) {
            return;
        }
        let record = encode(event, inode, generation, parent, name);
        if let Err(error) = self.file.write_all(&record) {
            tracing::warn!(%error, "the inode map cannot be written: handles may not survive");
        }
        self.unsaved = true;
        if self.inodes.len() > INODES_MAX {
            self.prune();
        }
    }

    /// `true` if that was news.
    fn apply(&mut self, event: Event, inode: u64, generation: u64, place: Place) -> bool {
        self.clock += 1;
        let fresh = || Inode { generation, seen: 0, places: Vec::new() };
        let known = self.inodes.entry(inode).or_insert_with(fresh);
        if known.generation != generation {
            if event == Event::Unnamed {
                return false;
            }
            *known = fresh();
        }
        known.seen = self.clock;
        let there = known.places.iter().position(|p| *p == place);
        match (event, there) {
            (Event::Named, Some(_)) => return false,
            (Event::Named, None) => {
                known.places.insert(0, place);
                known.places.truncate(PLACES_MAX);
            }
            (Event::Unnamed, Some(at)) => drop(known.places.remove(at)),
            (Event::Unnamed, None) => {}
        }
        if known.places.is_empty() {
            self.inodes.remove(&inode);
        }
        there.is_some() || event == Event::Named
    }

    /// The ways down to an object, as names from the root.
    fn paths(&self, root: u64, inode: u64, generation: u64) -> Vec<Vec<Box<[u8]>>> {
        let Some(known) = self.inodes.get(&inode) else { return Vec::new() };
        if known.generation != generation {
            return Vec::new();
        }
        known.places.iter().filter_map(|place| self.path(root, place)).collect()
    }

    fn path(&self, root: u64, last: &Place) -> Option<Vec<Box<[u8]>>> {
        let mut place = last;
        let mut names = vec![place.name.clone()];
        while place.parent != root {
            place = self.inodes.get(&place.parent)?.places.first()?;
            names.push(place.name.clone());
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some(names)
    }

    /// Reads what is in the file beyond `read_to`, up to the first record that is not whole.
    fn catch_up(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() <= self.read_to {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(self.read_to))?;
        self.file.read_to_end(&mut bytes)?;
        let mut rest = &bytes[..];
        while let Some((event, inode, generation, place, length)) = decode(rest) {
            self.apply(event, inode, generation, place);
            self.read_to += length as u64;
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Forgets a quarter, what was seen longest ago, except directories on the way to the rest.
    fn prune(&mut self) {
        let mut ages: Vec<u64> = self.inodes.values().map(|inode| inode.seen).collect();
        ages.sort_unstable();
        let limit = ages.get(ages.len() / 4).copied().unwrap_or(0);
        let mut needed: Vec<u64> = Vec::new();
        let mut kept = HashMap::new();
        for (number, inode) in std::mem::take(&mut self.inodes) {
            if inode.seen >= limit {
                needed.extend(inode.places.iter().map(|place| place.parent));
                kept.insert(number, inode);
            } else {
                self.inodes.insert(number, inode);
            }
        }
        while let Some(number) = needed.pop() {
            if let Some(inode) = self.inodes.remove(&number) {
                needed.extend(inode.places.iter().map(|place| place.parent));
                kept.insert(number, inode);
            }
        }
        self.inodes = kept;
    }

    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        // About what the live records take; names are short.
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
            for place in inode.places.iter().rev() {
                let (parent, name) = (place.parent, &place.name);
                content.extend(encode(Event::Named, *number, inode.generation, parent, name));
            }
        }
        state::replace(path, &content)?;
        self.file = open_file(path)?.0;
        self.read_to = content.len() as u64;
        Ok(())
    }
}

/// The file, locked as one of possibly many readers, and whether nobody else has it.
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
    bytes[0] = MARK;
    bytes[1..9].copy_from_slice(&inode.to_le_bytes());
    bytes[9..].copy_from_slice(&generation.to_le_bytes());
    // 17 bytes always fit; the number alone is what is left if they did not.
    ObjectId::new(&bytes).unwrap_or_else(|| ObjectId::from(inode))
}

fn parse(id: &ObjectId) -> Option<(u64, u64)> {
    let (&MARK, rest) = id.as_bytes().split_first()? else { return None };
    let (inode, generation) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*inode), u64::from_le_bytes(generation.try_into().ok()?)))
}

fn encode(event: Event, inode: u64, generation: u64, parent: u64, name: &[u8]) -> Vec<u8> {
    let mut body = vec![event as u8];
    [inode, generation, parent].iter().for_each(|number| body.extend(number.to_le_bytes()));
    body.extend(name);
    let mut record = (body.len() as u32).to_le_bytes().to_vec();
    record.extend(checksum(&body).to_le_bytes());
    record.extend(body);
    record
}

/// The first record and its length; `None` if it is torn.
fn decode(bytes: &[u8]) -> Option<(Event, u64, u64, Place, usize)> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let body = rest.get(..u32::from_le_bytes(*length) as usize)?;
    if checksum(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (event, numbers) = body.split_first()?;
    let event = match event {
        1 => Event::Named,
        2 => Event::Unnamed,
        _ => return None,
    };
    let (inode, numbers) = numbers.split_first_chunk()?;
    let (generation, numbers) = numbers.split_first_chunk()?;
    let (parent, name) = numbers.split_first_chunk()?;
    let place = Place { parent: u64::from_le_bytes(*parent), name: name.into() };
    let (inode, generation) = (u64::from_le_bytes(*inode), u64::from_le_bytes(*generation));
    Some((event, inode, generation, place, HEAD + body.len()))
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
        let paths = lock(&map.known).paths(1, inode, 0);
        let names = paths.first()?.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        Some(names.collect::<Vec<_>>().join("/"))
    }

    #[test]
    fn a_map_that_is_mostly_outdated_is_written_anew() {
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
    fn what_was_seen_last_and_the_way_to_it_are_kept() {
        let state = tempfile::tempdir().unwrap();
        let map = InodeMap::open(state.path(), 7, 1).unwrap();
        entry(&map, 2, 1, "old directory");
        for inode in 10..20 {
            entry(&map, inode, 1, &inode.to_string());
        }
        entry(&map, 30, 2, "new");
        lock(&map.known).prune();
        assert_eq!(path(&map, 30).as_deref(), Some("old directory/new"));
        assert_eq!(path(&map, 10), None);
        assert_eq!(path(&map, 19).as_deref(), Some("19"));
    }

    #[test]
    fn a_loop_in_the_map_is_not_followed_for_ever() {
        let state = tempfile::tempdir().unwrap();
        let map = InodeMap::open(state.path(), 7, 1).unwrap();
        entry(&map, 2, 3, "a");
        entry(&map, 3, 2, "b");
        assert_eq!(path(&map, 2), None);
    }
}
