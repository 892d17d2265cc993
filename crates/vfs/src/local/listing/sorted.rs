//! Listings in the order of the hashes of names, for directories whose offsets do not last.
//!
//! The cookie of an entry depends on its name alone, so a continuation finds its place whatever was
//! created or removed meanwhile, also after a restart. A directory is read as a whole and its entries
//! are kept for a while in pages, so that a reply does not read it again. A page must be at least as
//! new as the beginning of the listing that it serves: the beginning of any listing of a directory
//! drops the directory's pages.

use std::{
    collections::VecDeque,
    hash::Hasher,
    mem::MaybeUninit,
    os::fd::AsFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::fs::RawDir;
use siphasher::sip::SipHasher24;

use super::super::node::lock;
use crate::{ObjectId, Result};

/// Entries of a page. A larger directory is read once for each page.
const PAGE_ENTRIES: usize = 65_536;

/// Entries of all pages together that are kept.
const KEPT_ENTRIES: usize = 4 * PAGE_ENTRIES;

/// How long an unused page is kept.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// A cookie is a hash with the entry's number among those of the same hash in the low bits. Hashes
/// begin at 1, so that the cookies of `.` and `..` are smaller.
const NUMBER_BITS: u32 = 4;
const HASH_BITS: u32 = 63 - NUMBER_BITS;

/// Where a listing continues: with the entries whose cookies are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position(u64);

impl Position {
    pub(super) fn after(cookie: u64) -> Self {
        Self(cookie)
    }

    fn hash(self) -> u64 {
        self.0 >> NUMBER_BITS
    }
}

pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    pub(super) fileid: u64,
    pub(super) cookie: u64,
}

/// The entries of a directory in a range of hashes, as they were when it was read.
pub(super) struct Page {
    /// By cookie.
    entries: Vec<StoredEntry>,
    names: Vec<u8>,
    /// The first hash.
    from: u64,
    /// The hash after the last; `None` for the last page.
    to: Option<u64>,
}

#[derive(Clone, Copy)]
struct StoredEntry {
    cookie: u64,
    fileid: u64,
    name_at: u32,
    name_length: u16,
}

impl Page {
    /// Sorts and numbers entries whose cookies are still bare hashes.
    fn new(mut entries: Vec<StoredEntry>, names: Vec<u8>, from: u64, to: Option<u64>) -> Self {
        entries.sort_unstable_by(|a, b| {
            let names = || name_of(&names, a).cmp(name_of(&names, b));
            a.cookie.cmp(&b.cookie).then_with(names)
        });
        let (mut last, mut number) = (0, 0);
        for entry in &mut entries {
            number = if entry.cookie == last { number + 1 } else { 0 };
            last = entry.cookie;
            entry.cookie = last << NUMBER_BITS | number.min((1 << NUMBER_BITS) - 1);
        }
        Self { entries, names, from, to }
    }

    pub(super) fn entries_after(&self, position: Position) -> impl Iterator<Item = Entry<'_>> {
        let first = self.entries.partition_point(|entry| entry.cookie <= position.0);
        self.entries[first..].iter().map(|entry| Entry {
            name: name_of(&self.names, entry),
            fileid: entry.fileid,
            cookie: entry.cookie,
        })
    }

    /// Where the next page begins; `None` if this is the last.
    pub(super) fn next(&self) -> Option<Position> {
        Some(Position((self.to? << NUMBER_BITS) - 1))
    }

    fn covers(&self, position: Position) -> bool {
        // The position may be the last cookie before the page.
        let first = Position(position.0.saturating_add(1)).hash();
        self.from <= first && self.to.is_none_or(|to| first < to)
    }
}

fn name_of<'a>(names: &'a [u8], entry: &StoredEntry) -> &'a [u8] {
    &names[entry.name_at as usize..][..usize::from(entry.name_length)]
}

/// The pages that are kept.
#[derive(Default)]
pub(in super::super) struct SortedListings(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// The latest used last.
    kept: VecDeque<KeptPage>,
    /// Pages that are being read: directory and number, unless a listing of the directory has begun
    /// since.
    current: Vec<(ObjectId, u64)>,
    /// The number of the next page.
    next: u64,
}

struct KeptPage {
    dir: ObjectId,
    page: Arc<Page>,
    used: Instant,
}

impl SortedListings {
    /// A listing of the directory begins: older pages do not show what was created since.
    pub(super) fn begin(&self, dir: &ObjectId) {
        let mut pages = lock(&self.0);
        pages.kept.retain(|kept| kept.dir != *dir);
        pages.current.retain(|(reading, _)| reading != dir);
    }

    /// The kept page that continues a listing.
    pub(super) fn find(&self, dir: &ObjectId, position: Position) -> Option<Arc<Page>> {
        let kept = &mut lock(&self.0).kept;
        let at = kept.iter().position(|kept| kept.dir == *dir && kept.page.covers(position))?;
        let mut found = kept.remove(at)?;
        found.used = Instant::now();
        let page = found.page.clone();
        kept.push_back(found);
        Some(page)
    }

    /// Reads the page that continues a listing from the open directory, and keeps it unless another
    /// listing begins meanwhile.
    pub(super) fn read(
        &self,
        dir: &ObjectId,
        fd: impl AsFd,
        position: Position,
    ) -> Result<Arc<Page>> {
        let number = lock(&self.0).start_reading(dir);
        let read = read_page(fd, Position(position.0.saturating_add(1)).hash()).map(Arc::new);
        lock(&self.0).end_reading(dir, number, read.as_ref().ok());
        read
    }

    /// Drops pages that no listing has used for a while.
    pub(in super::super) fn sweep(&self) {
        lock(&self.0).kept.retain(|kept| kept.used.elapsed() < KEPT_FOR);
    }
}

impl Pages {
    fn start_reading(&mut self, dir: &ObjectId) -> u64 {
        self.next += 1;
        self.current.push((*dir, self.next));
        self.next
    }

    fn end_reading(&mut self, dir: &ObjectId, number: u64, page: Option<&Arc<Page>>) {
        let Some(at) = self.current.iter().position(|current| *current == (*dir, number)) else {
            return;
        };
        self.current.swap_remove(at);
        let Some(page) = page else { return };
        self.kept.push_back(KeptPage { dir: *dir, page: page.clone(), used: Instant::now() });
        let mut entries: usize = self.kept.iter().map(|kept| kept.page.entries.len()).sum();
        while entries > KEPT_ENTRIES
            && let Some(oldest) = self.kept.pop_front()
        {
            entries -= oldest.page.entries.len();
        }
    }
}

/// Reads the entries with the lowest hashes from `from` on.
fn read_page(fd: impl AsFd, from: u64) -> Result<Page> {
    let mut buffer = vec![MaybeUninit::uninit(); super::BUFFER];
    let mut listed = RawDir::new(fd, &mut buffer);
    let (mut entries, mut names, mut to) = (Vec::new(), Vec::new(), None);
    while let Some(entry) = listed.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let hash = hash(name);
        if matches!(name, b"." | b"..") || hash < from || to.is_some_and(|to| hash >= to) {
            continue;
        }
        let (name_at, name_length) = (names.len() as u32, name.len() as u16);
        names.extend(name);
        entries.push(StoredEntry { cookie: hash, fileid: entry.ino(), name_at, name_length });
        if entries.len() > 2 * PAGE_ENTRIES {
            to = Some(keep_lowest(&mut entries, &mut names));
        }
    }
    if entries.len() > PAGE_ENTRIES {
        to = Some(keep_lowest(&mut entries, &mut names));
    }
    Ok(Page::new(entries, names, from, to))
}

/// Keeps about [`PAGE_ENTRIES`] with the lowest hashes; returns the hash at which they end.
fn keep_lowest(entries: &mut Vec<StoredEntry>, names: &mut Vec<u8>) -> u64 {
    let end = entries.select_nth_unstable_by_key(PAGE_ENTRIES, |entry| entry.cookie).1.cookie;
    entries.retain(|entry| entry.cookie < end);
    let mut kept = Vec::with_capacity(names.len() / 2);
    for entry in entries {
        let name = name_of(names, entry);
        entry.name_at = kept.len() as u32;
        kept.extend(name);
    }
    *names = kept;
    end
}

/// The same in every version of the server: a listing may continue after a restart.
fn hash(name: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(name);
    (hasher.finish() >> (64 - HASH_BITS)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(names: &mut Vec<u8>, hash: u64, name: &str) -> StoredEntry {
        let name_at = names.len() as u32;
        names.extend(name.as_bytes());
        StoredEntry { cookie: hash, fileid: 0, name_at, name_length: name.len() as u16 }
    }

    fn listed(page: &Page, after: u64) -> Vec<String> {
        let entries = page.entries_after(Position(after));
        entries.map(|entry| String::from_utf8_lossy(entry.name).into_owned()).collect()
    }

    #[test]
    fn entries_of_one_hash_are_told_apart() {
        let mut names = Vec::new();
        let entries = [(9, "z"), (5, "b"), (5, "c"), (5, "a")];
        let entries = entries.map(|(hash, name)| entry(&mut names, hash, name)).to_vec();
        let page = Page::new(entries, names, 1, None);
        assert_eq!(listed(&page, 0), ["a", "b", "c", "z"]);
        let cookies: Vec<u64> = page.entries_after(Position(0)).map(|entry| entry.cookie).collect();
        assert_eq!(cookies, [80, 81, 82, 144]);
        assert_eq!(listed(&page, 80), ["b", "c", "z"]);
        assert_eq!(listed(&page, 144), [""; 0]);
    }

    #[test]
    fn a_page_of_an_earlier_listing_is_not_used_by_a_later_one() {
        let (listings, dir) = (SortedListings::default(), ObjectId::from(1));
        let directory = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(directory.path()).unwrap();
        listings.read(&dir, open(), Position(0)).unwrap();
        assert!(listings.find(&dir, Position(1 << 40)).is_some());
        listings.begin(&dir);
        assert!(listings.find(&dir, Position(1 << 40)).is_none());
        // Nor is one that was being read when the later one began.
        let number = lock(&listings.0).start_reading(&dir);
        let page = Arc::new(read_page(open(), 0).unwrap());
        listings.begin(&dir);
        lock(&listings.0).end_reading(&dir, number, Some(&page));
        assert!(listings.find(&dir, Position(1 << 40)).is_none());
    }

    #[test]
    fn a_large_directory_is_read_in_pages_that_follow_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let count = 2 * PAGE_ENTRIES + PAGE_ENTRIES / 2;
        let mut expected = Vec::new();
        for number in 0..count {
            let name = format!("{number}");
            std::fs::File::create(directory.path().join(&name)).unwrap();
            expected.push(name);
        }
        let (listings, dir) = (SortedListings::default(), ObjectId::from(1));
        let (mut found, mut position, mut pages) = (Vec::new(), Position(0), 0);
        loop {
            let fd = std::fs::File::open(directory.path()).unwrap();
            let page = listings.read(&dir, fd, position).unwrap();
            assert!(page.covers(position) && page.entries.len() <= PAGE_ENTRIES);
            found.extend(listed(&page, position.0));
            pages += 1;
            match page.next() {
                Some(next) => position = next,
                None => break,
            }
        }
        assert_eq!(pages, 3);
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(lock(&listings.0).kept.len(), 3);
    }

    #[test]
    fn cookies_are_positive_and_above_those_of_the_directory_itself() {
        for name in ["a", "b", "", "name"] {
            let cookie = hash(name.as_bytes()) << NUMBER_BITS;
            assert!(cookie > 2 && cookie <= i64::MAX as u64);
        }
    }
}
