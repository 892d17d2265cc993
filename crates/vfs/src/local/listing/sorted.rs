//! Listings in the order of the hashes of names, for directories whose offsets do not last.
//!
//! The cookie of an entry depends on its name alone (`listing.rs` of this crate). A directory is read as a whole and its entries
//! are kept for a while in pages, so that a reply does not read it again. A page must be at least as
//! new as the beginning of the listing that it serves: the beginning of any listing of a directory
//! drops the directory's pages.

use std::{
    collections::VecDeque,
    mem::MaybeUninit,
    os::fd::AsFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::fs::RawDir;

use super::super::node::lock;
use crate::listing::{Entry, NUMBER_BITS, SortedEntries, hash};
use crate::{ObjectId, Result};

/// Entries of a page. A larger directory is read once for each page.
const PAGE_ENTRIES: usize = 65_536;

/// Entries of all pages together that are kept.
const KEPT_ENTRIES: usize = 4 * PAGE_ENTRIES;

/// How long an unused page is kept.
const KEPT_FOR: Duration = Duration::from_secs(30);

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

/// The entries of a directory in a range of hashes, as they were when it was read.
pub(super) struct Page {
    entries: SortedEntries,
    /// The first hash.
    from: u64,
    /// The hash after the last; `None` for the last page.
    to: Option<u64>,
}

impl Page {
    pub(super) fn entries_after(&self, position: Position) -> impl Iterator<Item = Entry<'_>> {
        self.entries.after(position.0)
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
    let (mut entries, mut to) = (SortedEntries::default(), None);
    while let Some(entry) = listed.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let hash = hash(name);
        if matches!(name, b"." | b"..") || hash < from || to.is_some_and(|to| hash >= to) {
            continue;
        }
        entries.push(hash, name, entry.ino());
        if entries.len() > 2 * PAGE_ENTRIES {
            to = Some(entries.keep_lowest(PAGE_ENTRIES));
        }
    }
    if entries.len() > PAGE_ENTRIES {
        to = Some(entries.keep_lowest(PAGE_ENTRIES));
    }
    entries.sort();
    Ok(Page { entries, from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(page: &Page, after: u64) -> Vec<String> {
        let entries = page.entries_after(Position(after));
        entries.map(|entry| String::from_utf8_lossy(entry.name).into_owned()).collect()
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
}
