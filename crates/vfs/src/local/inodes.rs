//! The inode map: finds objects where kernel file handles are unavailable or do not last.
//!
//! An object is identified by inode number and birth time; the map holds the names under which it
//! was last found. This is weaker than a kernel handle: a file renamed on the host becomes `Stale`.
//!
//! The map is in memory (`table.rs`) and in an append-only file (`file.rs`). Look-ups change the
//! memory and never wait for the file: a thread of the map writes it (`InodeMap::write`). All exports
//! of a file system share one map, so that they agree on the ids of its files.

mod file;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod record;
mod table;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, TryLockError, Weak},
    time::{Duration, Instant},
};

use super::{
    background::{Background, Wake},
    node::lock,
    status::{Status, status},
    sys,
};
use crate::{Error, FileKind, ObjectId, Result, Time};
use file::MapFile;
use record::{Record, RecordKind};
use table::Table;

/// The first byte of an object id; a handle type that the kernel defines as invalid.
const TYPE: u8 = 0xff;

/// Names whose handle no client has presented since it was given out. Beyond this the longest unseen go.
const UNUSED_MAX: usize = 1_000_000;

/// Names whose handle clients have presented. Those of files that the host has removed would stay for ever.
const USED_MAX: usize = 2 * UNUSED_MAX;

const RECORDING: usize = 64;

/// Records that wait to be written. Beyond this the file is written anew when it can be.
const PENDING_MAX: usize = 64 << 20;

const TIDY_EVERY: Duration = Duration::from_secs(1);

/// How often it is tried to write a file anew that could not be written.
const RETRY_EVERY: Duration = Duration::from_secs(30);

/// How long a look-up waits for the file when it wants to know what other processes appended.
const FILE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The maps of this process: two file systems of one directory share theirs.
static OPEN: Mutex<Vec<(PathBuf, Weak<SharedMap>)>> = Mutex::new(Vec::new());

pub(super) struct InodeMap {
    table: Table,
    /// Held, by inode, from identifying an object to recording it.
    recording: [Mutex<()>; RECORDING],
    pending: Mutex<Pending>,
    file: Mutex<MapFile>,
    path: PathBuf,
    writer: Wake,
    upkeep: Mutex<Upkeep>,
}

/// A map and the thread that writes it.
pub(super) struct SharedMap {
    pub(super) map: Arc<InodeMap>,
    _writer: Background,
}

/// Records that are not written yet.
#[derive(Default)]
struct Pending {
    records: Vec<u8>,
    /// Some were discarded.
    has_gap: bool,
}

/// What the writing thread does now and then.
struct Upkeep {
    tidied: Instant,
    is_unsynced: bool,
    /// The number of names after the last removal of unused ones.
    names: usize,
    has_failed: bool,
}

impl InodeMap {
    /// The map with this name in the state directory; in memory only unless `is_kept`.
    pub(super) fn open(state: &Path, name: &str, is_kept: bool) -> io::Result<Arc<SharedMap>> {
        let path = state.join(name);
        let mut open = lock(&OPEN);
        open.retain(|(_, map)| map.strong_count() > 0);
        let known = open.iter().find(|(known, _)| *known == path);
        if let Some(shared) = known.and_then(|(_, map)| map.upgrade()) {
            return Ok(shared);
        }
        let table = Table::new();
        let file = match is_kept {
            true => MapFile::open(&path, older_files(state, name)?, &table)?,
            false => MapFile::none(),
        };
        let writer = Wake::default();
        let names = table.len();
        let upkeep =
            Upkeep { tidied: Instant::now(), is_unsynced: false, names, has_failed: false };
        let map = Arc::new(Self {
            table,
            recording: std::array::from_fn(|_| Mutex::default()),
            pending: Mutex::default(),
            file: Mutex::new(file),
            path: path.clone(),
            writer: writer.clone(),
            upkeep: Mutex::new(upkeep),
        });
        let written = map.clone();
        let thread = Background::start("inode-map", writer, move |last| written.write(last))?;
        let shared = Arc::new(SharedMap { map, _writer: thread });
        open.push((path, Arc::downgrade(&shared)));
        Ok(shared)
    }

    /// Opens an object by one of its recorded names, and checks that it is the same object.
    /// `enter` opens one entry of a directory. Waits for a disk.
    pub(super) fn find(
        &self,
        (root, root_id): (BorrowedFd<'_>, &ObjectId),
        id: &ObjectId,
        enter: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        let (inode, generation) = parse(id).ok_or(Error::Stale)?;
        let (top, _) = parse(root_id).ok_or(Error::Stale)?;
        for again in [false, true] {
            if again {
                self.file()?.catch_up(&self.table).map_err(|_| Error::Io)?;
            }
            let Some(known) = self.table.candidates(top, inode, generation) else { continue };
            for path in known.paths {
                match walk(root, &path, &enter) {
                    Ok(fd) => {
                        let found = status(&fd)?;
                        let same = found.born.is_none_or(|born| born == known.born);
                        if found.attributes.fileid == inode && same {
                            self.used(id);
                            return Ok(fd);
                        }
                    }
                    // Not there any more; other errors say nothing about the object.
                    Err(Error::NotFound | Error::NotADirectory | Error::Denied | Error::Stale) => {}
                    Err(other) => return Err(other),
                }
            }
        }
        Err(Error::Stale)
    }

    /// The file of the map, unless its disk hangs.
    fn file(&self) -> Result<MutexGuard<'_, MapFile>> {
        let begun = Instant::now();
        loop {
            match self.file.try_lock() {
                Ok(file) => return Ok(file),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() > FILE_WAIT_MAX => {
                    return Err(Error::TryLater);
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// The id of the object that was found as the entry `name` of `dir`.
    ///
    /// `is_open` tells whether the server has an object open: its inode number cannot be used for
    /// another one meanwhile, so what is found with it is the same, also if overlayfs has given it
    /// another birth time. Without birth times, a single name that is not known shows another object.
    pub(super) fn identify(
        &self,
        dir: &ObjectId,
        name: &[u8],
        found: &Status,
        is_open: impl FnOnce(&ObjectId) -> bool,
    ) -> ObjectId {
        let inode = found.attributes.fileid;
        let parent = parse(dir).map_or(0, |(parent, _)| parent);
        if let Some(known) = self.table.known(inode, parent, name) {
            let id = compose(inode, known.generation);
            let has_one_name =
                found.attributes.links == 1 || found.attributes.kind == FileKind::Directory;
            let is_same = match found.born {
                Some(born) => born == known.born,
                None => known.has_name || !has_one_name,
            };
            if is_same || is_open(&id) {
                if let Some(born) = found.born.filter(|born| *born != known.born) {
                    self.born(inode, known.generation, born);
                }
                return id;
            }
        }
        let wanted = found.born.unwrap_or_else(|| random_generation(found));
        compose(inode, self.table.new_generation(inode, wanted))
    }

    /// The same, and records the name.
    pub(super) fn record(
        &self,
        dir: &ObjectId,
        name: &[u8],
        found: &Status,
        is_open: impl FnOnce(&ObjectId) -> bool,
    ) -> ObjectId {
        // Two calls that find a new file without a birth time must not give it an id each.
        let _recording = lock(&self.recording[found.attributes.fileid as usize % RECORDING]);
        let id = self.identify(dir, name, found, is_open);
        let ids = (parse(dir), parse(&id));
        if let (Some((parent, _)), Some((inode, generation))) = ids
            && !self.table.has_name(inode, generation, parent, name)
        {
            // A name that is known says nothing new: to apply it would mean that the handle is used.
            self.apply(&Record { kind: RecordKind::NameAdded, inode, generation, parent, name });
            if let Some(born) = found.born.filter(|born| *born != generation) {
                self.born(inode, generation, born);
            }
        }
        id
    }

    /// The id of a directory whose name is not known: the root, or a parent.
    pub(super) fn identify_directory(&self, found: &Status) -> ObjectId {
        let inode = found.attributes.fileid;
        let known = self.table.known(inode, 0, b"");
        let same = known.filter(|known| found.born.is_none_or(|born| born == known.born));
        compose(inode, same.map(|known| known.generation).or(found.born).unwrap_or(0))
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

    /// The object has lost its last name.
    pub(super) fn died(&self, object: &ObjectId) {
        if let Some((inode, generation)) = parse(object) {
            self.table.died(inode, generation);
        }
    }

    /// The object has another birth time since the server changed it, and is still the same.
    pub(super) fn reborn(&self, object: &ObjectId, found: &Status) {
        if let (Some((inode, generation)), Some(born)) = (parse(object), found.born) {
            self.born(inode, generation, born);
        }
    }

    /// A client has presented the handle of this object.
    pub(super) fn used(&self, object: &ObjectId) {
        let Some((inode, generation)) = parse(object) else { return };
        self.table.mark_used(inode, generation, |parent, name| {
            let kind = RecordKind::NameAdded;
            self.append(&Record { kind, inode, generation, parent, name });
        });
    }

    fn born(&self, inode: u64, generation: u64, born: u64) {
        let kind = RecordKind::Born;
        self.apply(&Record { kind, inode, generation, parent: born, name: b"" });
    }

    fn note(&self, kind: RecordKind, dir: &ObjectId, name: &[u8], object: &ObjectId) {
        if let (Some((parent, _)), Some((inode, generation))) = (parse(dir), parse(object)) {
            self.apply(&Record { kind, inode, generation, parent, name });
        }
    }

    fn apply(&self, record: &Record<'_>) {
        self.table.apply(record, || self.append(record));
    }

    /// Called while the inode is locked, so that records are in the order of the changes.
    fn append(&self, record: &Record<'_>) {
        let mut pending = lock(&self.pending);
        if pending.records.len() > PENDING_MAX {
            pending.records = Vec::new();
            pending.has_gap = true;
        }
        record.encode(&mut pending.records);
        drop(pending);
        self.writer.wake();
    }

    /// A round of the writing thread: appends what was recorded. At most once a second it makes the
    /// file durable, compacts it, and drops unused names.
    fn write(&self, last: bool) {
        let mut upkeep = lock(&self.upkeep);
        let every = if upkeep.has_failed { RETRY_EVERY } else { TIDY_EVERY };
        let is_due = last || upkeep.tidied.elapsed() >= every;
        let written = self.append_pending(&mut upkeep);
        let written = if is_due { written.and_then(|()| self.tidy(&mut upkeep)) } else { written };
        match written {
            Ok(()) if is_due => upkeep.has_failed = false,
            Ok(()) => {}
            // Once for each failure, not once a second.
            Err(error) if !std::mem::replace(&mut upkeep.has_failed, true) => tracing::warn!(
                %error, path = %self.path.display(),
                "cannot write the inode map; handles may not survive a restart"
            ),
            Err(_) => {}
        }
    }

    fn append_pending(&self, upkeep: &mut Upkeep) -> io::Result<()> {
        let mut file = lock(&self.file);
        let Pending { records, has_gap } = std::mem::take(&mut *lock(&self.pending));
        if has_gap {
            file.has_gap();
        }
        if !records.is_empty() {
            upkeep.is_unsynced = true;
            file.append(&records, &self.table)?;
        }
        Ok(())
    }

    fn tidy(&self, upkeep: &mut Upkeep) -> io::Result<()> {
        upkeep.tidied = Instant::now();
        let grown = upkeep.names + UNUSED_MAX / 100;
        if self.table.len() > UNUSED_MAX.max(grown) {
            self.table.prune(UNUSED_MAX, USED_MAX);
            upkeep.names = self.table.len();
        }
        if !std::mem::take(&mut upkeep.is_unsynced) && !lock(&self.file).is_incomplete() {
            return Ok(());
        }
        let durable = lock(&self.file).to_sync()?;
        durable.map_or(Ok(()), |file| file.sync_data())?;
        lock(&self.file).rewrite_if_due(&self.table)
    }
}

/// Files of version 0.1, which had one for each exported directory.
fn older_files(state: &Path, name: &str) -> io::Result<Vec<PathBuf>> {
    let prefix = format!("{name}-");
    let is_older = |file: &str| {
        let root = file.strip_prefix(&prefix).and_then(|rest| rest.split('.').next());
        root.is_some_and(|root| !root.is_empty() && root.bytes().all(|b| b.is_ascii_digit()))
    };
    let files = std::fs::read_dir(state)?.flatten();
    let files = files.filter(|file| file.file_name().to_str().is_some_and(is_older));
    Ok(files.map(|file| file.path()).collect())
}

fn random_generation(found: &Status) -> u64 {
    let Time { seconds, nanoseconds } = found.attributes.changed;
    sys::random().unwrap_or(seconds as u64 ^ (u64::from(nanoseconds) << 32))
}

fn walk(
    root: BorrowedFd<'_>,
    names: &[Box<[u8]>],
    enter: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<OwnedFd>,
) -> Result<OwnedFd> {
    let (first, rest) = names.split_first().ok_or(Error::Stale)?;
    rest.iter().try_fold(enter(root, first)?, |dir, name| enter(dir.as_fd(), name))
}

pub(super) fn compose(inode: u64, generation: u64) -> ObjectId {
    let mut bytes = [0; 17];
    bytes[0] = TYPE;
    bytes[1..9].copy_from_slice(&inode.to_le_bytes());
    bytes[9..].copy_from_slice(&generation.to_le_bytes());
    // 17 bytes always fit.
    ObjectId::new(&bytes).unwrap_or_else(|| ObjectId::from(inode))
}

/// What identifies the file of any object id among the exports of its file system: their maps may
/// give it different generations.
pub(super) fn order_key(id: &ObjectId) -> ObjectId {
    parse(id).map_or(*id, |(inode, _)| ObjectId::from(inode))
}

fn parse(id: &ObjectId) -> Option<(u64, u64)> {
    let (&TYPE, rest) = id.as_bytes().split_first()? else { return None };
    let (inode, generation) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*inode), u64::from_le_bytes(generation.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn open(state: &Path) -> Arc<SharedMap> {
        InodeMap::open(state, "inodes", true).unwrap()
    }

    fn name(shared: &SharedMap, inode: u64) -> Option<String> {
        let mut known = shared.map.table.candidates(1, inode, 0)?.paths.into_iter().next()?;
        Some(String::from_utf8_lossy(&known.pop()?).into_owned())
    }

    fn add(shared: &SharedMap, inode: u64, name: &str) {
        shared.map.linked(&compose(1, 0), name.as_bytes(), &compose(inode, 0));
    }

    #[test]
    fn calls_that_find_a_new_file_at_once_give_it_one_id() {
        let state = tempfile::tempdir().unwrap();
        let shared = InodeMap::open(state.path(), "inodes", false).unwrap();
        let start = std::sync::Barrier::new(4);
        let found = status(std::fs::File::open(state.path()).unwrap()).unwrap();
        let ids: Vec<Vec<ObjectId>> = std::thread::scope(|scope| {
            let find = || {
                let record = |inode| {
                    start.wait();
                    let mut found = Status { born: None, ..found };
                    found.attributes.fileid = inode;
                    shared.map.record(&compose(1, 0), b"name", &found, |_| false)
                };
                (10..2_000).map(record).collect()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(find)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|other| *other == ids[0]));
    }

    #[test]
    fn a_mostly_outdated_map_is_compacted() {
        let state = tempfile::tempdir().unwrap();
        let shared = open(state.path());
        add(&shared, 3, "f");
        let long = "n".repeat(200);
        for _ in 0..5_000 {
            add(&shared, 4, &long);
            shared.map.removed(&compose(1, 0), long.as_bytes(), &compose(4, 0));
        }
        let length = || std::fs::metadata(state.path().join("inodes")).unwrap().len();
        shared.map.write(true);
        assert!(length() < 1000, "{}", length());
        add(&shared, 5, "g");
        drop(shared);
        let shared = open(state.path());
        assert_eq!(name(&shared, 3).as_deref(), Some("f"));
        assert_eq!(name(&shared, 5).as_deref(), Some("g"));
        assert_eq!(name(&shared, 4), None);
    }

    /// B1.89
    #[test]
    fn a_map_of_long_names_is_not_written_anew_for_each_change() {
        let state = tempfile::tempdir().unwrap();
        let shared = open(state.path());
        let long = "n".repeat(250);
        for inode in 10..6_000 {
            add(&shared, inode, &format!("{long}{inode}"));
        }
        let number = || {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(state.path().join("inodes")).unwrap().ino()
        };
        let (mut rewrites, mut before) = (0, number());
        for inode in 10_000..10_020 {
            add(&shared, inode, "f");
            shared.map.write(true);
            rewrites += usize::from(std::mem::replace(&mut before, number()) != before);
        }
        println!("written anew {rewrites} times for 20 changes");
        assert!(rewrites <= 1, "{rewrites}");
        drop(shared);
        let shared = open(state.path());
        assert!(name(&shared, 10_019).is_some() && name(&shared, 10).is_some());
    }

    #[test]
    fn the_maps_of_0_1_become_one() {
        let state = tempfile::tempdir().unwrap();
        for (root, inode) in [(1, 3), (2, 4)] {
            let shared = InodeMap::open(state.path(), &format!("inodes-{root}"), true).unwrap();
            add(&shared, inode, "f");
        }
        for _ in 0..2 {
            let shared = open(state.path());
            assert_eq!(name(&shared, 3).as_deref(), Some("f"));
            assert_eq!(name(&shared, 4).as_deref(), Some("f"));
            shared.map.write(true);
            assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_map_that_is_not_kept_leaves_no_file() {
        let state = tempfile::tempdir().unwrap();
        let shared = InodeMap::open(state.path(), "inodes", false).unwrap();
        add(&shared, 3, "f");
        let other = InodeMap::open(state.path(), "inodes", false).unwrap();
        assert_eq!(name(&other, 3).as_deref(), Some("f"));
        shared.map.write(true);
        drop((shared, other));
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn nothing_waits_for_the_file_but_a_search_for_what_others_wrote() {
        let state = tempfile::tempdir().unwrap();
        let shared = open(state.path());
        let (map, (reached, is_reached)) = (shared.map.clone(), mpsc::channel());
        // As when the disk of the state directory hangs.
        let writing = lock(&map.file);
        let other = shared.map.clone();
        let thread = std::thread::spawn(move || {
            for inode in 10..1_000 {
                other.linked(&compose(1, 0), b"name", &compose(inode, 0));
                other.used(&compose(inode, 0));
            }
            reached.send(()).unwrap();
            let root = std::fs::File::open("/").unwrap();
            other
                .find((root.as_fd(), &compose(1, 0)), &compose(9, 9), |_, _| Err(Error::NotFound))
                .err()
        });
        is_reached.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(thread.join().unwrap(), Some(Error::TryLater));
        drop(writing);
        drop((map, shared));
        assert_eq!(name(&open(state.path()), 999).as_deref(), Some("name"));
    }

    #[test]
    fn records_that_could_not_wait_are_in_the_next_file() {
        let state = tempfile::tempdir().unwrap();
        let shared = open(state.path());
        lock(&shared.map.pending).has_gap = true;
        // Applied, but not to be appended.
        add(&shared, 7, "f");
        lock(&shared.map.pending).records.clear();
        add(&shared, 8, "g");
        drop(shared);
        let shared = open(state.path());
        assert_eq!(name(&shared, 7).as_deref(), Some("f"));
    }
}
