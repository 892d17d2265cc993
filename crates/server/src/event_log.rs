//! The event log: the most recent events, in memory, for readers of the event stream. A reader asks
//! for the events after the last one it has; if some of those were dropped it is told so, and resyncs.
//!
//! Events that peers can cause in any number must not displace operators' commands: each class of
//! events has a ring of its own. All share one sequence of numbers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keeper::identity::Epoch;
use tokio::sync::watch;

use crate::event_text::{EventText, Level};

/// The most operators' commands, starts and grace periods that are kept.
const RECORDS_MAX: usize = 2_000;
/// The most other warnings that are kept.
const WARNINGS_MAX: usize = 2_000;
/// The most events that are kept in all.
pub const EVENTS_MAX: usize = 10_000;

/// An event with its number and time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedEvent {
    /// Consecutive, from 1 in each epoch.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub text: EventText,
}

/// See the [module](self).
pub struct EventLog {
    epoch: Epoch,
    rings: Mutex<Rings>,
    /// The number of the last event.
    last: watch::Sender<u64>,
}

struct Rings {
    last: u64,
    /// Operators' commands, starts and grace periods.
    records: Ring,
    warnings: Ring,
    others: Ring,
}

struct Ring {
    events: VecDeque<Arc<LoggedEvent>>,
    max: usize,
    /// The number of the last event that was dropped; 0 if none was.
    dropped: u64,
}

impl Ring {
    fn new(max: usize) -> Self {
        Self { events: VecDeque::new(), max, dropped: 0 }
    }

    fn push(&mut self, event: Arc<LoggedEvent>) {
        if self.events.len() == self.max
            && let Some(oldest) = self.events.pop_front()
        {
            self.dropped = oldest.number;
        }
        self.events.push_back(event);
    }

    fn after(&self, number: u64, max: usize) -> impl Iterator<Item = Arc<LoggedEvent>> + '_ {
        let first = self.events.partition_point(|event| event.number <= number);
        self.events.iter().skip(first).take(max).cloned()
    }

    fn last(&self, count: usize) -> impl Iterator<Item = Arc<LoggedEvent>> + '_ {
        let first = self.events.len().saturating_sub(count);
        self.events.iter().skip(first).cloned()
    }
}

impl Rings {
    fn all(&self) -> [&Ring; 3] {
        [&self.records, &self.warnings, &self.others]
    }

    fn ring_of(&mut self, text: &EventText) -> &mut Ring {
        let of_the_server = text.kind == "started" || text.kind.starts_with("grace-");
        if text.by.is_some() || of_the_server {
            &mut self.records
        } else if text.level == Level::Warn {
            &mut self.warnings
        } else {
            &mut self.others
        }
    }
}

/// Events after the given number have been dropped, or no event has that number yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventGap;

impl EventLog {
    pub fn new(epoch: Epoch) -> Self {
        let rings = Rings {
            last: 0,
            records: Ring::new(RECORDS_MAX),
            warnings: Ring::new(WARNINGS_MAX),
            others: Ring::new(EVENTS_MAX - RECORDS_MAX - WARNINGS_MAX),
        };
        Self { epoch, rings: Mutex::new(rings), last: watch::channel(0).0 }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn write(&self, at_ms: u64, text: EventText) {
        let mut rings = self.lock();
        rings.last += 1;
        let number = rings.last;
        rings.ring_of(&text).push(Arc::new(LoggedEvent { number, at_ms, text }));
        drop(rings);
        self.last.send_replace(number);
    }

    /// At most `max` events after that number, oldest first.
    pub fn after(&self, number: u64, max: usize) -> Result<Vec<Arc<LoggedEvent>>, EventGap> {
        let rings = self.lock();
        if number > rings.last || rings.all().iter().any(|ring| number < ring.dropped) {
            return Err(EventGap);
        }
        let mut events: Vec<_> =
            rings.all().iter().flat_map(|ring| ring.after(number, max)).collect();
        events.sort_unstable_by_key(|event| event.number);
        events.truncate(max);
        Ok(events)
    }

    /// The last `count` events that are kept, oldest first. Dropped events may lie between them.
    pub fn recent(&self, count: usize) -> Vec<Arc<LoggedEvent>> {
        let rings = self.lock();
        let mut events: Vec<_> = rings.all().iter().flat_map(|ring| ring.last(count)).collect();
        drop(rings);
        events.sort_unstable_by_key(|event| event.number);
        let more = events.len().saturating_sub(count);
        events.split_off(more)
    }

    /// The number of the last event; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// Changes with every event.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeper::bytes::Name;

    const OTHERS_MAX: usize = EVENTS_MAX - RECORDS_MAX - WARNINGS_MAX;

    fn by_operator() -> EventText {
        EventText::of_operator("reloaded", "read again".into(), Name::from("root"))
    }

    fn by_peer(level: Level) -> EventText {
        EventText { by: None, level, kind: "registered", ..by_operator() }
    }

    fn write(event_log: &EventLog, count: usize, text: &EventText) {
        (0..count).for_each(|_| event_log.write(0, text.clone()));
    }

    fn numbers(event_log: &EventLog, after: u64, max: usize) -> Result<Vec<u64>, EventGap> {
        Ok(event_log.after(after, max)?.iter().map(|event| event.number).collect())
    }

    fn recent(event_log: &EventLog, count: usize) -> Vec<u64> {
        event_log.recent(count).iter().map(|event| event.number).collect()
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let event_log = EventLog::new(Epoch(7));
        assert_eq!(numbers(&event_log, 0, 10), Ok(vec![]));
        assert!(recent(&event_log, 5).is_empty());
        for text in [by_operator(), by_peer(Level::Debug), by_peer(Level::Warn)] {
            event_log.write(0, text);
        }
        assert_eq!(numbers(&event_log, 0, 2), Ok(vec![1, 2]));
        assert_eq!(numbers(&event_log, 2, 10), Ok(vec![3]));
        assert_eq!(numbers(&event_log, 3, 10), Ok(vec![]));
        assert_eq!(recent(&event_log, 2), [2, 3]);
        assert_eq!(event_log.last(), 3);
    }

    #[test]
    fn a_reader_that_fell_behind_or_names_a_future_event_is_told_so() {
        let event_log = EventLog::new(Epoch(7));
        assert_eq!(numbers(&event_log, 5, 10), Err(EventGap));
        write(&event_log, OTHERS_MAX + 5, &by_peer(Level::Debug));
        assert_eq!(numbers(&event_log, 4, 10), Err(EventGap));
        assert_eq!(numbers(&event_log, 5, 1), Ok(vec![6]));
        assert_eq!(numbers(&event_log, OTHERS_MAX as u64 + 6, 1), Err(EventGap));
        assert_eq!(numbers(&event_log, u64::MAX, 1), Err(EventGap));
    }

    #[test]
    fn events_of_peers_do_not_displace_operators_commands() {
        let event_log = EventLog::new(Epoch(7));
        event_log.write(0, EventText { kind: "started", ..by_peer(Level::Info) });
        event_log.write(0, EventText { kind: "grace-ended", ..by_peer(Level::Info) });
        event_log.write(0, by_operator());
        event_log.write(0, by_peer(Level::Warn));
        write(&event_log, EVENTS_MAX, &by_peer(Level::Debug));
        assert_eq!(recent(&event_log, EVENTS_MAX)[..4], [1, 2, 3, 4], "debug events are cheap");
        write(&event_log, EVENTS_MAX, &by_peer(Level::Warn));
        let kept = recent(&event_log, EVENTS_MAX);
        assert_eq!(kept[..3], [1, 2, 3]);
        assert!(kept.is_sorted() && kept.len() == 3 + WARNINGS_MAX + OTHERS_MAX);
        // A gap in any ring is reported.
        assert_eq!(numbers(&event_log, 3, 1), Err(EventGap));
        let last = event_log.last();
        assert_eq!(numbers(&event_log, last - 1, 9), Ok(vec![last]));
    }
}
