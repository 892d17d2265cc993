//! The events of a running server, for an embedding program.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use crate::control::Control;
use crate::engine::Engine;
use crate::event_log::{EventGap, EventLog, LoggedEvent};

/// Events that are taken from the event log at once.
const PAGE: usize = 100;

/// Reads events one after the other, see [`Control::events`].
pub struct Events {
    engine: Engine,
    log: Arc<EventLog>,
    /// The number of the last event that was taken.
    last: u64,
    taken: VecDeque<Arc<LoggedEvent>>,
    news: watch::Receiver<u64>,
}

impl Control {
    /// Events after that number, and those to come; 0 is before the first of this start. The server
    /// keeps the last ten thousand.
    pub fn events(&self, after: u64) -> Events {
        Events {
            engine: self.engine.clone(),
            log: self.event_log.clone(),
            last: after,
            taken: VecDeque::new(),
            news: self.event_log.watch(),
        }
    }

    /// The number of the last event.
    pub fn last_event(&self) -> u64 {
        self.event_log.last()
    }
}

impl Events {
    /// The next event; `None` when the server has ended. After an [`EventGap`] the reader goes on with
    /// the next event that comes: what it knew of the server may be out of date.
    pub async fn next(&mut self) -> Option<Result<Arc<LoggedEvent>, EventGap>> {
        loop {
            self.news.mark_unchanged();
            if self.taken.is_empty() {
                match self.log.after(self.last, PAGE) {
                    Ok(events) => self.taken = events.into(),
                    Err(gap) => {
                        self.last = self.log.last();
                        return Some(Err(gap));
                    }
                }
            }
            if let Some(event) = self.taken.pop_front() {
                self.last = event.number;
                return Some(Ok(event));
            }
            if self.engine.has_ended() {
                return None;
            }
            tokio::select! {
                changed = self.news.changed() => changed.ok()?,
                _ = self.engine.ended() => {}
            }
        }
    }
}
