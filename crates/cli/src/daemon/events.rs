//! The event stream of the API (server-sent events).

use std::time::Duration;

use admin::api::{Event, LockCounts};
use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{CommandError, Daemon};

/// The server's keep-alive comments come far more often than this.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const ITEM_MAX: usize = 1 << 20;

/// One item of the stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StreamItem {
    /// An event; its id is the position to resume from.
    Event(Event),
    /// Lock counts changed.
    Locks(LockCounts),
    /// The replay is over; the id to resume from.
    Live(String),
    /// Events may have been missed; the reason.
    Resync(String),
    /// Unknown, from a newer server.
    Other(String),
}

/// Items until the server closes the stream or falls silent.
pub(crate) struct Events {
    body: Incoming,
    unread: BytesMut,
    item: RawItem,
    daemon: Daemon,
}

#[derive(Default)]
struct RawItem {
    event: String,
    data: String,
}

impl Events {
    pub(super) fn new(body: Incoming, daemon: Daemon) -> Self {
        Self { body, unread: BytesMut::new(), item: RawItem::default(), daemon }
    }

    /// The next item; `None` at the end of the stream. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<StreamItem>, CommandError> {
        loop {
            while let Some(line) = self.line() {
                if let Some(raw) = self.item.take(&line) {
                    return raw.parse(&self.daemon).map(Some);
                }
            }
            if self.unread.len() + self.item.data.len() > ITEM_MAX {
                return Err(self.daemon.not_understood("event too long"));
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

    /// A complete line without its terminator.
    fn line(&mut self) -> Option<String> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let line = self.unread.split_to(end);
        self.unread.advance(1);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        Some(String::from_utf8_lossy(line).into_owned())
    }
}

impl RawItem {
    /// Adds a line; an empty line completes the item.
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

    fn parse(self, daemon: &Daemon) -> Result<StreamItem, CommandError> {
        let wrong = |error: serde_json::Error| daemon.not_understood(&error.to_string());
        match self.event.as_str() {
            "news" => serde_json::from_str(&self.data).map(StreamItem::Event).map_err(wrong),
            "locks" => serde_json::from_str(&self.data).map(StreamItem::Locks).map_err(wrong),
            "live" => Ok(StreamItem::Live(self.data.trim_end().to_owned())),
            "resync" => Ok(StreamItem::Resync(self.data.trim_end().to_owned())),
            _ => Ok(StreamItem::Other(self.event)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_ends_with_an_empty_line() {
        let mut raw = RawItem::default();
        assert!(raw.take("").is_none());
        for line in [": still here", "id: 1-2", "event: locks", "data: {\"a\":", "data: 1}"] {
            assert!(raw.take(line).is_none());
        }
        let item = raw.take("").unwrap();
        assert_eq!((item.event.as_str(), item.data.as_str()), ("locks", "{\"a\":\n1}\n"));
        assert!(raw.event.is_empty() && raw.data.is_empty());
    }
}
