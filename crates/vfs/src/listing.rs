//! [`Listing`]: directory cookies for file systems that have none. The cookie of an entry depends on
//! its name alone, so a listing finds its place whatever was created or removed meanwhile, also after a
//! restart.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::{DirEntry, LookupReply};

/// A cookie is a hash with the entry's number among those of the same hash in the low bits. Hashes
/// begin at 1, so that the cookies of `.` and `..` are smaller.
pub(crate) const NUMBER_BITS: u32 = 4;
const HASH_BITS: u32 = 63 - NUMBER_BITS;
/// The cookies of `.` and `..`.
const OWN_COOKIES: [u64; 2] = [1, 2];

/// The entries of a directory, for [`read_dir`](crate::FileSystem::read_dir) of a file system that can
/// only enumerate names: it collects all of them on each call.
///
/// ```
/// # use lockkeeper_vfs::{DirEntry, Listing, ReadDirReply};
/// # fn read_dir(cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> ReadDirReply {
/// let mut listing = Listing::new(1, 1);
/// for (name, fileid) in [("b", 3), ("a", 2)] {
///     listing.push(name.as_bytes(), fileid);
/// }
/// let eof = listing.send(cookie, |_, _| None, sink);
/// ReadDirReply { verifier: [0; 8], eof, attributes: None }
/// # }
/// # let mut names = Vec::new();
/// # assert!(read_dir(0, &mut |entry| { names.push(entry.name.to_vec()); true }).eof);
/// # assert_eq!(names.len(), 4);
/// ```
#[derive(Debug, Clone)]
pub struct Listing {
    /// The inode numbers of `.` and `..`.
    own: [u64; 2],
    entries: SortedEntries,
}

impl Listing {
    /// A directory without entries, by its inode number and that of its parent, which for the root is
    /// its own.
    pub fn new(fileid: u64, parent: u64) -> Self {
        Self { own: [fileid, parent], entries: SortedEntries::default() }
    }

    /// Adds an entry, in any order; names are unique. `.` and `..` are there already.
    pub fn push(&mut self, name: &[u8], fileid: u64) {
        self.entries.push(hash(name), name, fileid);
    }

    /// Passes the entries after `cookie` to `sink` until it refuses one; returns whether the end was
    /// reached. `lookup` yields the object of a name and inode number for READDIRPLUS; `|_, _| None`
    /// without it.
    pub fn send(
        mut self,
        cookie: u64,
        mut lookup: impl FnMut(&[u8], u64) -> Option<LookupReply>,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> bool {
        self.entries.sort();
        let own = [b".".as_slice(), b".."].into_iter().zip(self.own).zip(OWN_COOKIES);
        let own = own.map(|((name, fileid), cookie)| Entry { name, fileid, cookie });
        let own = own.filter(|entry| entry.cookie > cookie);
        own.chain(self.entries.after(cookie)).all(|Entry { name, fileid, cookie }| {
            sink(DirEntry { name, fileid, cookie, lookup: lookup(name, fileid) })
        })
    }
}

/// One entry with its cookie.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) fileid: u64,
    pub(crate) cookie: u64,
}

/// Entries by cookie, their names in one allocation.
#[derive(Debug, Clone, Default)]
pub(crate) struct SortedEntries {
    /// The cookies are bare hashes until [`SortedEntries::sort`].
    entries: Vec<StoredEntry>,
    names: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct StoredEntry {
    cookie: u64,
    fileid: u64,
    name_at: u32,
    name_length: u16,
}

impl SortedEntries {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A name has 255 bytes at most; a longer one is cut.
    pub(crate) fn push(&mut self, hash: u64, name: &[u8], fileid: u64) {
        let (name_at, name_length) = (self.names.len() as u32, name.len() as u16);
        self.names.extend(&name[..usize::from(name_length)]);
        self.entries.push(StoredEntry { cookie: hash, fileid, name_at, name_length });
    }

    /// Sorts and numbers the entries.
    pub(crate) fn sort(&mut self) {
        let names = &self.names;
        self.entries.sort_unstable_by(|a, b| {
            let names = || name_of(names, a).cmp(name_of(names, b));
            a.cookie.cmp(&b.cookie).then_with(names)
        });
        let (mut last, mut number) = (0, 0);
        for entry in &mut self.entries {
            number = if entry.cookie == last { number + 1 } else { 0 };
            last = entry.cookie;
            entry.cookie = last << NUMBER_BITS | number.min((1 << NUMBER_BITS) - 1);
        }
    }

    /// The entries with greater cookies, in their order.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = Entry<'_>> {
        let first = self.entries.partition_point(|entry| entry.cookie <= cookie);
        self.entries[first..].iter().map(|entry| Entry {
            name: name_of(&self.names, entry),
            fileid: entry.fileid,
            cookie: entry.cookie,
        })
    }

    /// Keeps about `count` entries with the lowest hashes, of more, before they are sorted; returns
    /// the hash at which they end.
    pub(crate) fn keep_lowest(&mut self, count: usize) -> u64 {
        let end = self.entries.select_nth_unstable_by_key(count, |entry| entry.cookie).1.cookie;
        self.entries.retain(|entry| entry.cookie < end);
        let mut kept = Vec::with_capacity(self.names.len() / 2);
        for entry in &mut self.entries {
            let name = name_of(&self.names, entry);
            entry.name_at = kept.len() as u32;
            kept.extend(name);
        }
        self.names = kept;
        end
    }
}

fn name_of<'a>(names: &'a [u8], entry: &StoredEntry) -> &'a [u8] {
    &names[entry.name_at as usize..][..usize::from(entry.name_length)]
}

/// The same in every version of the server: a listing may continue after a restart.
pub(crate) fn hash(name: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(name);
    (hasher.finish() >> (64 - HASH_BITS)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_one_hash_are_told_apart() {
        let mut entries = SortedEntries::default();
        for (hash, name) in [(9, "z"), (5, "b"), (5, "c"), (5, "a")] {
            entries.push(hash, name.as_bytes(), 0);
        }
        entries.sort();
        let after = |cookie| -> Vec<&[u8]> { entries.after(cookie).map(|it| it.name).collect() };
        assert_eq!(after(0), [b"a", b"b", b"c", b"z"]);
        let cookies: Vec<u64> = entries.after(0).map(|entry| entry.cookie).collect();
        assert_eq!(cookies, [80, 81, 82, 144]);
        assert_eq!(after(80), [b"b", b"c", b"z"]);
        assert!(after(144).is_empty());
    }

    #[test]
    fn cookies_are_positive_and_above_those_of_the_directory_itself() {
        for name in ["a", "b", "", "name"] {
            let cookie = hash(name.as_bytes()) << NUMBER_BITS;
            assert!(cookie > 2 && cookie <= i64::MAX as u64);
        }
    }

    /// One entry at a time, while others come and go between the calls.
    #[test]
    fn an_entry_that_stays_is_listed_once_whatever_comes_and_goes() {
        let (mut seen, mut cookie) = (Vec::new(), 0);
        for call in 0..1_000_u64 {
            let mut listing = Listing::new(1, 1);
            (0..100).for_each(|stays| listing.push(format!("stays {stays}").as_bytes(), 2));
            (0..call % 50).for_each(|goes| listing.push(format!("{call} {goes}").as_bytes(), 3));
            let (mut taken, from) = (0, cookie);
            let mut sink = |entry: DirEntry<'_>| {
                taken += 1;
                if taken == 1 {
                    cookie = entry.cookie;
                    seen.push((entry.name.to_vec(), entry.fileid));
                }
                taken == 1
            };
            if listing.send(from, |_, _| None, &mut sink) {
                break;
            }
        }
        let mut names: Vec<_> = seen.iter().filter(|(_, file)| *file != 3).collect();
        assert_eq!(names.len(), 102, "and . and ..");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 102);
        assert_eq!(seen[..2], [(b".".to_vec(), 1), (b"..".to_vec(), 1)]);
    }
}
