//! The event stream: server-sent events, one after another.

use std::time::Duration;

use admin::api::{Event, Tally};
use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{Daemon, Failed};

/// The server sends something, if only a comment, far more often than this.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const ITEM_MAX: usize = 1 << 20;

/// What one item of the stream says.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Something that happened; its id is what to resume from.
    News(Event),
    /// Locks came or went.
    Locks(Tally),
    /// From here on it is told as it happens; what to resume from if nothing comes.
    Live(String),
    /// Some events may be lost to us, and why.
    Resync(String),
    /// Of a newer server.
    Other(String),
}

/// A stream of items, until the daemon ends it or falls silent.
pub struct Events {
    body: Incoming,
    unread: BytesMut,
    item: Raw,
    daemon: Daemon,
}

#[derive(Default)]
struct Raw {
    event: String,
    data: String,
}

impl Events {
    pub(super) fn new(body: Incoming, daemon: Daemon) -> Self {
        Self { body, unread: BytesMut::new(), item: Raw::default(), daemon }
    }

    /// The next item; none when the daemon has ended the stream. Nothing is lost if it is dropped
    /// before it is done.
    pub async fn next(&mut self) -> Result<Option<Item>, Failed> {
        loop {
            while let Some(line) = self.line() {
                if let Some(raw) = self.item.take(&line) {
                    return raw.understood(&self.daemon).map(Some);
                }
            }
            if self.unread.len() + self.item.data.len() > ITEM_MAX {
                return Err(self.daemon.not_understood("an endless event"));
            }
            let frame = timeout(SILENCE_MAX, self.body.frame()).await;
            match frame.map_err(|_| self.daemon.silent())? {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.daemon.broke_off(&error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.unread.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// A whole line without its end.
    fn line(&mut self) -> Option<String> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let line = self.unread.split_to(end);
        self.unread.advance(1);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        Some(String::from_utf8_lossy(line).into_owned())
    }
}

impl Raw {
    /// Takes in a line; an empty one completes the item.
    fn take(&mut self, line: &str) -> Option<Self> {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event = value.to_owned(),
            "data" => {
                self.data += value;
                self.data.push('\n');
            }
            _ => {}
        }
        let whole = line.is_empty() && !(self.event.is_empty() && self.data.is_empty());
        whole.then(|| std::mem::take(self))
    }

    fn understood(self, daemon: &Daemon) -> Result<Item, Failed> {
        let wrong = |error: serde_json::Error| daemon.not_understood(&error.to_string());
        match self.event.as_str() {
            "news" => serde_json::from_str(&self.data).map(Item::News).map_err(wrong),
            "locks" => serde_json::from_str(&self.data).map(Item::Locks).map_err(wrong),
            "live" => Ok(Item::Live(self.data.trim_end().to_owned())),
            "resync" => Ok(Item::Resync(self.data.trim_end().to_owned())),
            _ => Ok(Item::Other(self.event)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_ends_with_an_empty_line() {
        let mut raw = Raw::default();
        assert!(raw.take("").is_none());
        for line in [": still here", "id: 1-2", "event: locks", "data: {\"a\":", "data: 1}"] {
            assert!(raw.take(line).is_none());
        }
        let item = raw.take("").unwrap();
        assert_eq!((item.event.as_str(), item.data.as_str()), ("locks", "{\"a\":\n1}\n"));
        assert!(raw.event.is_empty() && raw.data.is_empty());
    }
}
