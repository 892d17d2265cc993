//! The last things that happened, kept in memory for whoever reads the event stream. A reader asks
//! for what came after the entry it has; one that has fallen behind is told so, and starts anew.
//!
//! What peers can cause in any number must not push out what operators did: each kind has a shelf
//! of its own, and all are numbered together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keeper::identity::Epoch;
use tokio::sync::watch;

use crate::news::{Level, News};

/// So many are kept of what operators did, and of starts and grace periods.
const RECORDS_MAX: usize = 2_000;
/// So many of other warnings.
const WARNINGS_MAX: usize = 2_000;
/// So many are kept of all kinds.
pub const KEPT_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// From 1 in each epoch.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub news: News,
}

pub struct Chronicle {
    epoch: Epoch,
    kept: Mutex<Kept>,
    /// The number of the last entry.
    last: watch::Sender<u64>,
}

struct Kept {
    last: u64,
    records: Shelf,
    warnings: Shelf,
    rest: Shelf,
}

struct Shelf {
    entries: VecDeque<Arc<Entry>>,
    max: usize,
    /// The number of the last one that had to go; 0 if none had.
    dropped: u64,
}

impl Shelf {
    fn new(max: usize) -> Self {
        Self { entries: VecDeque::new(), max, dropped: 0 }
    }

    fn push(&mut self, entry: Arc<Entry>) {
        if self.entries.len() == self.max
            && let Some(oldest) = self.entries.pop_front()
        {
            self.dropped = oldest.number;
        }
        self.entries.push_back(entry);
    }

    fn after(&self, number: u64, max: usize) -> impl Iterator<Item = Arc<Entry>> + '_ {
        let first = self.entries.partition_point(|entry| entry.number <= number);
        self.entries.iter().skip(first).take(max).cloned()
    }

    fn last(&self, count: usize) -> impl Iterator<Item = Arc<Entry>> + '_ {
        let first = self.entries.len().saturating_sub(count);
        self.entries.iter().skip(first).cloned()
    }
}

impl Kept {
    fn shelves(&self) -> [&Shelf; 3] {
        [&self.records, &self.warnings, &self.rest]
    }

    fn shelf_of(&mut self, news: &News) -> &mut Shelf {
        let of_the_server = news.kind == "started" || news.kind.starts_with("grace-");
        if news.by.is_some() || of_the_server {
            &mut self.records
        } else if news.level == Level::Warn {
            &mut self.warnings
        } else {
            &mut self.rest
        }
    }
}

/// The reader asked for entries that are not kept any more, or names one that never was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed;

impl Chronicle {
    pub fn new(epoch: Epoch) -> Self {
        let kept = Kept {
            last: 0,
            records: Shelf::new(RECORDS_MAX),
            warnings: Shelf::new(WARNINGS_MAX),
            rest: Shelf::new(KEPT_MAX - RECORDS_MAX - WARNINGS_MAX),
        };
        Self { epoch, kept: Mutex::new(kept), last: watch::channel(0).0 }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn write(&self, at_ms: u64, news: News) {
        let mut kept = self.lock();
        kept.last += 1;
        let number = kept.last;
        kept.shelf_of(&news).push(Arc::new(Entry { number, at_ms, news }));
        drop(kept);
        self.last.send_replace(number);
    }

    /// At most `max` entries after that number, oldest first.
    pub fn after(&self, number: u64, max: usize) -> Result<Vec<Arc<Entry>>, Missed> {
        let kept = self.lock();
        let shelves = kept.shelves();
        if number > kept.last || shelves.iter().any(|shelf| number < shelf.dropped) {
            return Err(Missed);
        }
        let mut found: Vec<_> = shelves.iter().flat_map(|shelf| shelf.after(number, max)).collect();
        found.sort_unstable_by_key(|entry| entry.number);
        found.truncate(max);
        Ok(found)
    }

    /// The last so many that are kept, oldest first; others may have happened between them.
    pub fn recent(&self, count: usize) -> Vec<Arc<Entry>> {
        let kept = self.lock();
        let shelves = kept.shelves();
        let mut found: Vec<_> = shelves.iter().flat_map(|shelf| shelf.last(count)).collect();
        drop(kept);
        found.sort_unstable_by_key(|entry| entry.number);
        let more = found.len().saturating_sub(count);
        found.split_off(more)
    }

    /// The number of the last entry; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// Changes with every entry.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeper::bytes::Name;

    const REST_MAX: usize = KEPT_MAX - RECORDS_MAX - WARNINGS_MAX;

    fn by_operator() -> News {
        News::of_operator("reloaded", "read again".into(), Name::from("root"))
    }

    fn by_peer(level: Level) -> News {
        News { by: None, level, kind: "registered", ..by_operator() }
    }

    fn write(chronicle: &Chronicle, count: usize, news: &News) {
        (0..count).for_each(|_| chronicle.write(0, news.clone()));
    }

    fn numbers(chronicle: &Chronicle, after: u64, max: usize) -> Result<Vec<u64>, Missed> {
        Ok(chronicle.after(after, max)?.iter().map(|entry| entry.number).collect())
    }

    fn recent(chronicle: &Chronicle, count: usize) -> Vec<u64> {
        chronicle.recent(count).iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let chronicle = Chronicle::new(Epoch(7));
        assert_eq!(numbers(&chronicle, 0, 10), Ok(vec![]));
        assert!(recent(&chronicle, 5).is_empty());
        for news in [by_operator(), by_peer(Level::Debug), by_peer(Level::Warn)] {
            chronicle.write(0, news);
        }
        assert_eq!(numbers(&chronicle, 0, 2), Ok(vec![1, 2]));
        assert_eq!(numbers(&chronicle, 2, 10), Ok(vec![3]));
        assert_eq!(numbers(&chronicle, 3, 10), Ok(vec![]));
        assert_eq!(recent(&chronicle, 2), [2, 3]);
        assert_eq!(chronicle.last(), 3);
    }

    #[test]
    fn who_falls_behind_or_knows_the_future_is_told_so() {
        let chronicle = Chronicle::new(Epoch(7));
        assert_eq!(numbers(&chronicle, 5, 10), Err(Missed));
        write(&chronicle, REST_MAX + 5, &by_peer(Level::Debug));
        assert_eq!(numbers(&chronicle, 4, 10), Err(Missed));
        assert_eq!(numbers(&chronicle, 5, 1), Ok(vec![6]));
        assert_eq!(numbers(&chronicle, REST_MAX as u64 + 6, 1), Err(Missed));
        assert_eq!(numbers(&chronicle, u64::MAX, 1), Err(Missed));
    }

    #[test]
    fn peers_push_out_nothing_that_operators_did() {
        let chronicle = Chronicle::new(Epoch(7));
        chronicle.write(0, News { kind: "started", ..by_peer(Level::Info) });
        chronicle.write(0, News { kind: "grace-ended", ..by_peer(Level::Info) });
        chronicle.write(0, by_operator());
        chronicle.write(0, by_peer(Level::Warn));
        write(&chronicle, KEPT_MAX, &by_peer(Level::Debug));
        assert_eq!(recent(&chronicle, KEPT_MAX)[..4], [1, 2, 3, 4], "debug events are cheap");
        write(&chronicle, KEPT_MAX, &by_peer(Level::Warn));
        let kept = recent(&chronicle, KEPT_MAX);
        assert_eq!(kept[..3], [1, 2, 3]);
        assert!(kept.is_sorted() && kept.len() == 3 + WARNINGS_MAX + REST_MAX);
        // A reader is told of the gap, wherever it is.
        assert_eq!(numbers(&chronicle, 3, 1), Err(Missed));
        let last = chronicle.last();
        assert_eq!(numbers(&chronicle, last - 1, 9), Ok(vec![last]));
    }
}
