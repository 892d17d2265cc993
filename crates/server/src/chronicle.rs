//! The last things that happened, kept in memory for whoever reads the event stream. A reader asks
//! for what came after the entry it has; one that has fallen behind is told so, and starts anew.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keeper::identity::Epoch;
use tokio::sync::watch;

use crate::news::News;

/// So many are kept.
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
    kept: Mutex<VecDeque<Arc<Entry>>>,
    /// The number of the last entry.
    last: watch::Sender<u64>,
}

/// The reader asked for entries that are not kept any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed;

impl Chronicle {
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, kept: Mutex::default(), last: watch::channel(0).0 }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn write(&self, at_ms: u64, news: News) {
        let mut kept = self.lock();
        let number = kept.back().map_or(1, |entry| entry.number + 1);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Arc::new(Entry { number, at_ms, news }));
        drop(kept);
        self.last.send_replace(number);
    }

    /// At most `max` entries after that number, oldest first.
    pub fn after(&self, number: u64, max: usize) -> Result<Vec<Arc<Entry>>, Missed> {
        let kept = self.lock();
        let Some(first) = kept.front().map(|entry| entry.number) else {
            return if number == 0 { Ok(Vec::new()) } else { Err(Missed) };
        };
        let last = first + kept.len() as u64 - 1;
        if number + 1 < first || number > last {
            return Err(Missed);
        }
        let skipped = (number + 1 - first) as usize;
        Ok(kept.iter().skip(skipped).take(max).cloned().collect())
    }

    /// What to ask [`after`](Self::after) for to get the last so many.
    pub fn before_last(&self, count: usize) -> u64 {
        let kept = self.lock();
        let last = kept.back().map_or(0, |entry| entry.number);
        last - (count.min(kept.len()) as u64)
    }

    /// Changes with every entry.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Entry>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeper::bytes::Name;

    fn write(chronicle: &Chronicle, count: usize) {
        for _ in 0..count {
            let by = Name::from("root");
            chronicle.write(0, News::of_operator("reloaded", "read again".into(), by));
        }
    }

    fn numbers(chronicle: &Chronicle, after: u64, max: usize) -> Result<Vec<u64>, Missed> {
        Ok(chronicle.after(after, max)?.iter().map(|entry| entry.number).collect())
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let chronicle = Chronicle::new(Epoch(7));
        assert_eq!(numbers(&chronicle, 0, 10), Ok(vec![]));
        write(&chronicle, 3);
        assert_eq!(numbers(&chronicle, 0, 2), Ok(vec![1, 2]));
        assert_eq!(numbers(&chronicle, 2, 10), Ok(vec![3]));
        assert_eq!(numbers(&chronicle, 3, 10), Ok(vec![]));
        assert_eq!(numbers(&chronicle, chronicle.before_last(2), 10), Ok(vec![2, 3]));
    }

    #[test]
    fn who_falls_behind_or_knows_the_future_is_told_so() {
        let chronicle = Chronicle::new(Epoch(7));
        assert_eq!(numbers(&chronicle, 5, 10), Err(Missed));
        write(&chronicle, KEPT_MAX + 5);
        assert_eq!(numbers(&chronicle, 4, 10), Err(Missed));
        assert_eq!(numbers(&chronicle, 5, 1), Ok(vec![6]));
        assert_eq!(numbers(&chronicle, KEPT_MAX as u64 + 6, 1), Err(Missed));
    }
}
