//! The event stream (`/v1/events`). A reader that reconnects sends its last event id; if the events
//! after it are no longer kept, or it is of another epoch, the reader gets `resync` and must reload
//! everything. `live` carries an id before the first event, so that every reader can resume.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use keeper::Keeper;
use server::Control;
use server::event_log::{EVENTS_MAX, EventGap, EventLog, LoggedEvent};
use server::event_text;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;

use crate::AdminState;
use crate::api::{ClientName, Event, EventQuery, Level, LockCounts, Problem};
use crate::display;
use crate::extract::Query;
use crate::json::Json;
use crate::problem::Problems;
use crate::quota::CallerClass;

/// Events queued for a slow reader; the event log keeps the rest.
const WAITING_MAX: usize = 64;
/// Events read from the event log at once.
const TAKEN: usize = 256;
/// Interval of the lock counts, while there are readers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

type Stream =
    Sse<axum::response::sse::KeepAliveStream<ReceiverStream<Result<SseEvent, Infallible>>>>;

/// Stream events: `news` (an Event), `locks` (LockCounts), `live` and `resync` (text)
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventQuery, ("Last-Event-ID" = Option<String>, Header, description = "Resume after this event")),
    responses((status = 200, body = Event, content_type = "text/event-stream"), Problems))]
pub(crate) async fn stream(
    State(admin): State<Arc<AdminState>>,
    class: CallerClass,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Stream, Problem> {
    let control = admin.control()?;
    let replay = last_of(&query, 0)?;
    let Some(permit) = admin.readers.take(class) else {
        let detail = "too many readers of events";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail));
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let start = ReplayStart::of(control.event_log(), last, replay);
    let (to, events) = mpsc::channel(WAITING_MAX);
    let counts = admin.counts.subscribe();
    tokio::spawn(async move {
        // Ends when the reader disconnects or the server stops.
        let _ = tokio::select! {
            ended = stream_events(&control, start, counts, &to) => ended,
            _ = control.engine().ended() => None,
            () = to.closed() => None,
        };
        drop(permit);
    });
    Ok(Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::default()))
}

/// List recent events, oldest first
#[utoipa::path(get, path = "/v1/events/recent", tag = "events", params(EventQuery),
    responses((status = 200, body = Vec<Event>), Problems))]
pub(crate) async fn recent(
    State(admin): State<Arc<AdminState>>,
    Query(query): Query<EventQuery>,
) -> Result<Json<Vec<Event>>, Problem> {
    let control = admin.control()?;
    let event_log = control.event_log();
    let count = last_of(&query, 100)?;
    let entries = event_log.recent(count);
    Ok(Json(entries.iter().map(|entry| event_of(event_log, entry)).collect()))
}

fn last_of(query: &EventQuery, default: usize) -> Result<usize, Problem> {
    match query.last.map_or(default, |last| last as usize) {
        last if last <= EVENTS_MAX => Ok(last),
        _ => Err(Problem::bad_request(format!("`last` must be at most {EVENTS_MAX}"))),
    }
}

const RESTARTED: &str = "the server restarted";
const OVERRUN: &str = "the missed events are no longer kept";
const UNKNOWN: &str = "unknown last event id";

/// Where a reader starts.
struct ReplayStart {
    /// Why it must reload everything.
    resync: Option<&'static str>,
    replay: Vec<Arc<LoggedEvent>>,
    after: u64,
}

impl ReplayStart {
    fn of(event_log: &EventLog, last: Option<&str>, replay: usize) -> Self {
        let Some(last) = last.filter(|id| !id.is_empty()) else {
            return Self::anew(event_log, None, replay, 0);
        };
        let ids = last.split_once('-').and_then(|(epoch, number)| {
            Some((epoch.parse::<u64>().ok()?, number.parse::<u64>().ok()?))
        });
        match ids {
            Some((epoch, number)) if epoch == event_log.epoch().0 => {
                match event_log.after(number, 0) {
                    Ok(_) => Self { resync: None, replay: Vec::new(), after: number },
                    Err(EventGap) if number > event_log.last() => {
                        Self::anew(event_log, Some(UNKNOWN), replay, 0)
                    }
                    Err(EventGap) => Self::anew(event_log, Some(OVERRUN), replay, number),
                }
            }
            Some(_) => Self::anew(event_log, Some(RESTARTED), replay, 0),
            None => Self::anew(event_log, Some(UNKNOWN), replay, 0),
        }
    }

    /// Starts with at most `replay` past events, all after the number `seen`.
    fn anew(event_log: &EventLog, resync: Option<&'static str>, replay: usize, seen: u64) -> Self {
        let last = event_log.last();
        let mut replay = event_log.recent(replay);
        replay.retain(|entry| entry.number > seen);
        let after = replay.last().map_or(last, |entry| entry.number);
        Self { resync, replay, after }
    }
}

/// Returns `None` when the reader is gone.
async fn stream_events(
    control: &Control,
    start: ReplayStart,
    mut counts: watch::Receiver<Option<LockCounts>>,
    to: &mpsc::Sender<Result<SseEvent, Infallible>>,
) -> Option<()> {
    let event_log = control.event_log();
    let mut changes = event_log.watch();
    let mut after = start.after;
    if let Some(why) = start.resync {
        // A reader that disconnects during the replay gets all of it again.
        let before = start.replay.first().map_or(after, |entry| entry.number - 1);
        to.send(Ok(resync(event_log, before, why))).await.ok()?;
    }
    for entry in start.replay {
        to.send(Ok(sent(event_log, &entry))).await.ok()?;
    }
    let mut sent_live = false;
    loop {
        changes.borrow_and_update();
        loop {
            match event_log.after(after, TAKEN) {
                Ok(entries) if entries.is_empty() => break,
                Ok(entries) => {
                    for entry in entries {
                        after = entry.number;
                        to.send(Ok(sent(event_log, &entry))).await.ok()?;
                    }
                }
                Err(EventGap) => {
                    after = event_log.last();
                    to.send(Ok(resync(event_log, after, OVERRUN))).await.ok()?;
                }
            }
        }
        if !sent_live {
            sent_live = true;
            let id = id_of(event_log, after);
            to.send(Ok(SseEvent::default().event("live").id(&id).data(&id))).await.ok()?;
        }
        tokio::select! {
            changed = changes.changed() => changed.ok()?,
            changed = counts.changed() => {
                changed.ok()?;
                let now = counts.borrow_and_update().clone();
                if let Some(now) = now {
                    let event = SseEvent::default().event("locks").json_data(now).ok()?;
                    to.send(Ok(event)).await.ok()?;
                }
            }
        }
    }
}

fn sent(event_log: &EventLog, entry: &LoggedEvent) -> SseEvent {
    let event = event_of(event_log, entry);
    let sent = SseEvent::default().event("news").id(&event.id);
    // Text and numbers always serialise.
    sent.json_data(event).unwrap_or_default()
}

fn resync(event_log: &EventLog, after: u64, why: &str) -> SseEvent {
    SseEvent::default().event("resync").id(id_of(event_log, after)).data(why)
}

/// The event id for resuming after this number.
fn id_of(event_log: &EventLog, number: u64) -> String {
    format!("{}-{number}", event_log.epoch().0)
}

fn event_of(event_log: &EventLog, entry: &LoggedEvent) -> Event {
    let text = &entry.text;
    Event {
        id: id_of(event_log, entry.number),
        at: display::time(entry.at_ms),
        level: match text.level {
            event_text::Level::Debug => Level::Debug,
            event_text::Level::Info => Level::Info,
            event_text::Level::Warn => Level::Warn,
        },
        kind: text.kind.into(),
        text: text.text.clone(),
        client: text.client.as_ref().map(|who| ClientName {
            id: who.id.to_string(),
            name: display::bytes(who.name.bytes()),
            address: who.address.to_string(),
        }),
        by: text.by.as_ref().map(|by| display::bytes(by.bytes())),
        locks: text.locks,
    }
}

/// Publishes the lock counts when they change, while there are readers.
pub(crate) async fn watch_counts(control: Control, counts: watch::Sender<Option<LockCounts>>) {
    let mut every = interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = control.engine().ended() => return,
        }
        if counts.receiver_count() == 0 {
            continue;
        }
        let Some(now) = control.engine().read(|keeper| (keeper.next_id(), counts_of(keeper))).await
        else {
            return;
        };
        if before.as_ref() != Some(&now) {
            counts.send_replace(Some(now.1.clone()));
            before = Some(now);
        }
    }
}

fn counts_of(keeper: &Keeper) -> LockCounts {
    let counts = keeper.counts();
    LockCounts {
        locks: counts.locks as u64,
        shares: counts.shares as u64,
        waiting: counts.waiters as u64,
        unconfirmed: counts.unconfirmed as u64,
        clients: counts.clients as u64,
    }
}

#[cfg(test)]
mod tests {
    use keeper::bytes::Name;
    use keeper::identity::Epoch;
    use server::event_text::EventText;

    use super::*;

    fn by_operator() -> EventText {
        EventText::of_operator("reloaded", "read again".into(), Name::from("root"))
    }

    fn start(event_log: &EventLog, last: Option<&str>, replay: usize) -> (Vec<u64>, u64) {
        let start = ReplayStart::of(event_log, last, replay);
        (start.replay.iter().map(|entry| entry.number).collect(), start.after)
    }

    #[test]
    fn a_reader_begins_where_it_was_or_is_told_the_true_reason() {
        let event_log = EventLog::new(Epoch(7));
        let why = |last| ReplayStart::of(&event_log, Some(last), 0).resync;
        assert_eq!(start(&event_log, None, 5), (vec![], 0));
        assert_eq!(why("7-0"), None, "nothing happened, nothing is lost");
        event_log.write(0, by_operator());
        assert_eq!(start(&event_log, None, 5), (vec![1], 1));
        assert_eq!(start(&event_log, None, 0), (vec![], 1));
        assert_eq!((why("7-0"), start(&event_log, Some("7-0"), 5)), (None, (vec![], 0)));
        assert_eq!(why("6-1"), Some(RESTARTED));
        for odd in ["7-2", "7-18446744073709551615", "7-99999999999999999999", "x", "7-", "-1"] {
            assert_eq!(why(odd), Some(UNKNOWN), "{odd}");
        }
        let mut by_peer = by_operator();
        (by_peer.by, by_peer.kind, by_peer.level) = (None, "registered", event_text::Level::Debug);
        (0..EVENTS_MAX).for_each(|_| event_log.write(0, by_peer.clone()));
        assert_eq!(why("7-1"), Some(OVERRUN));
        // What it has is not told again.
        let (replay, after) = start(&event_log, Some("7-1"), EVENTS_MAX);
        assert!(replay[0] > 1 && replay.last() == Some(&after) && after == event_log.last());
        assert_eq!(start(&event_log, None, EVENTS_MAX).0[0], 1, "the record is still there");
    }
}
