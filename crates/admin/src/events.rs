//! What happens, streamed as it happens. A reader that comes back names the last event it has; one
//! that fell behind, or has an event of another epoch, is told to look at everything anew. Every
//! reader has an id from its beginning on (`live`), so that it can come back before anything happens.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use keeper::Keeper;
use server::Control;
use server::chronicle::{Chronicle, Entry, KEPT_MAX, Missed};
use server::news;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;

use crate::Shared;
use crate::api::{ClientName, Event, EventQuery, Level, Problem, Tally};
use crate::ask::Query;
use crate::json::Json;
use crate::places::Who;
use crate::problem::Problems;
use crate::shown;

/// Events that wait for a reader that is slow; the chronicle keeps the rest.
const WAITING_MAX: usize = 64;
/// Events that are taken from the chronicle at once.
const TAKEN: usize = 256;
/// How often it is looked whether locks came or went, while somebody reads.
const LOOK_EVERY: Duration = Duration::from_millis(250);

type Stream = Sse<axum::response::sse::KeepAliveStream<ReceiverStream<Result<Sent, Infallible>>>>;

/// What happens, as server-sent events: `news` (an Event), `locks` (a Tally), `live`, `resync`
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventQuery, ("Last-Event-ID" = Option<String>, Header, description = "Go on after this one")),
    responses((status = 200, body = Event, content_type = "text/event-stream"), Problems))]
pub async fn stream(
    State(shared): State<Arc<Shared>>,
    who: Who,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Stream, Problem> {
    let control = shared.control()?;
    let replay = last_of(&query, 0)?;
    let Some(place) = shared.readers.take(who) else {
        let detail = "too many read events already";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail));
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let start = Start::of(control.chronicle(), last, replay);
    let (to, events) = mpsc::channel(WAITING_MAX);
    let tally = shared.tally.subscribe();
    tokio::spawn(async move {
        // It ends when the reader is gone, or the server.
        let _ = tokio::select! {
            told = tell(&control, start, tally, &to) => told,
            _ = control.engine().ended() => None,
            () = to.closed() => None,
        };
        drop(place);
    });
    Ok(Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::default()))
}

/// The last things that happened, oldest first
#[utoipa::path(get, path = "/v1/events/recent", tag = "events", params(EventQuery),
    responses((status = 200, body = Vec<Event>), Problems))]
pub async fn recent(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<EventQuery>,
) -> Result<Json<Vec<Event>>, Problem> {
    let control = shared.control()?;
    let chronicle = control.chronicle();
    let count = last_of(&query, 100)?;
    let entries = chronicle.recent(count);
    Ok(Json(entries.iter().map(|entry| tell_entry(chronicle, entry)).collect()))
}

fn last_of(query: &EventQuery, default: usize) -> Result<usize, Problem> {
    match query.last.map_or(default, |last| last as usize) {
        last if last <= KEPT_MAX => Ok(last),
        _ => Err(Problem::bad_request(format!("last is at most {KEPT_MAX}"))),
    }
}

const RESTARTED: &str = "the server restarted";
const OVERRUN: &str = "more happened than is kept";
const UNKNOWN: &str = "the last event id is none of this server";

/// Where a reader begins.
struct Start {
    /// Why it must look at everything anew.
    resync: Option<&'static str>,
    replay: Vec<Arc<Entry>>,
    after: u64,
}

impl Start {
    fn of(chronicle: &Chronicle, last: Option<&str>, replay: usize) -> Self {
        let Some(last) = last.filter(|id| !id.is_empty()) else {
            return Self::anew(chronicle, None, replay, 0);
        };
        let ids = last.split_once('-').and_then(|(epoch, number)| {
            Some((epoch.parse::<u64>().ok()?, number.parse::<u64>().ok()?))
        });
        match ids {
            Some((epoch, number)) if epoch == chronicle.epoch().0 => {
                match chronicle.after(number, 0) {
                    Ok(_) => Self { resync: None, replay: Vec::new(), after: number },
                    Err(Missed) if number > chronicle.last() => {
                        Self::anew(chronicle, Some(UNKNOWN), replay, 0)
                    }
                    Err(Missed) => Self::anew(chronicle, Some(OVERRUN), replay, number),
                }
            }
            Some(_) => Self::anew(chronicle, Some(RESTARTED), replay, 0),
            None => Self::anew(chronicle, Some(UNKNOWN), replay, 0),
        }
    }

    /// With the last so many of those after the number `seen`.
    fn anew(chronicle: &Chronicle, resync: Option<&'static str>, replay: usize, seen: u64) -> Self {
        let last = chronicle.last();
        let mut replay = chronicle.recent(replay);
        replay.retain(|entry| entry.number > seen);
        let after = replay.last().map_or(last, |entry| entry.number);
        Self { resync, replay, after }
    }
}

/// `None` when the reader is gone.
async fn tell(
    control: &Control,
    start: Start,
    mut tally: watch::Receiver<Option<Tally>>,
    to: &mpsc::Sender<Result<Sent, Infallible>>,
) -> Option<()> {
    let chronicle = control.chronicle();
    let mut news = chronicle.watch();
    let mut after = start.after;
    if let Some(why) = start.resync {
        // Who is lost in the middle of the replay comes back to all of it.
        let before = start.replay.first().map_or(after, |entry| entry.number - 1);
        to.send(Ok(resync(chronicle, before, why))).await.ok()?;
    }
    for entry in start.replay {
        to.send(Ok(sent(chronicle, &entry))).await.ok()?;
    }
    let mut told_live = false;
    loop {
        news.borrow_and_update();
        loop {
            match chronicle.after(after, TAKEN) {
                Ok(entries) if entries.is_empty() => break,
                Ok(entries) => {
                    for entry in entries {
                        after = entry.number;
                        to.send(Ok(sent(chronicle, &entry))).await.ok()?;
                    }
                }
                Err(Missed) => {
                    after = chronicle.last();
                    to.send(Ok(resync(chronicle, after, OVERRUN))).await.ok()?;
                }
            }
        }
        if !told_live {
            told_live = true;
            let id = id_of(chronicle, after);
            to.send(Ok(Sent::default().event("live").id(&id).data(&id))).await.ok()?;
        }
        tokio::select! {
            changed = news.changed() => changed.ok()?,
            changed = tally.changed() => {
                changed.ok()?;
                let now = tally.borrow_and_update().clone();
                if let Some(now) = now {
                    let event = Sent::default().event("locks").json_data(now).ok()?;
                    to.send(Ok(event)).await.ok()?;
                }
            }
        }
    }
}

fn sent(chronicle: &Chronicle, entry: &Entry) -> Sent {
    let event = tell_entry(chronicle, entry);
    let sent = Sent::default().event("news").id(&event.id);
    // What is made of text and numbers can always be written.
    sent.json_data(event).unwrap_or_default()
}

fn resync(chronicle: &Chronicle, after: u64, why: &str) -> Sent {
    Sent::default().event("resync").id(id_of(chronicle, after)).data(why)
}

/// What a reader that has everything up to this number comes back with.
fn id_of(chronicle: &Chronicle, number: u64) -> String {
    format!("{}-{number}", chronicle.epoch().0)
}

fn tell_entry(chronicle: &Chronicle, entry: &Entry) -> Event {
    let news = &entry.news;
    Event {
        id: id_of(chronicle, entry.number),
        at: shown::time(entry.at_ms),
        level: match news.level {
            news::Level::Debug => Level::Debug,
            news::Level::Info => Level::Info,
            news::Level::Warn => Level::Warn,
        },
        kind: news.kind.into(),
        text: news.text.clone(),
        client: news.client.as_ref().map(|who| ClientName {
            id: who.id.to_string(),
            name: shown::bytes(who.name.bytes()),
            address: who.address.to_string(),
        }),
        by: news.by.as_ref().map(|by| shown::bytes(by.bytes())),
        locks: news.locks,
    }
}

/// Looks whether locks came or went, while anybody reads.
pub async fn keep_tally(control: Control, tally: watch::Sender<Option<Tally>>) {
    let mut every = interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = control.engine().ended() => return,
        }
        if tally.receiver_count() == 0 {
            continue;
        }
        let Some(now) = control.engine().read(|keeper| (keeper.next_id(), count(keeper))).await
        else {
            return;
        };
        if before.as_ref() != Some(&now) {
            tally.send_replace(Some(now.1.clone()));
            before = Some(now);
        }
    }
}

fn count(keeper: &Keeper) -> Tally {
    let counts = keeper.counts();
    Tally {
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
    use server::news::News;

    use super::*;

    fn by_operator() -> News {
        News::of_operator("reloaded", "read again".into(), Name::from("root"))
    }

    fn start(chronicle: &Chronicle, last: Option<&str>, replay: usize) -> (Vec<u64>, u64) {
        let start = Start::of(chronicle, last, replay);
        (start.replay.iter().map(|entry| entry.number).collect(), start.after)
    }

    #[test]
    fn a_reader_begins_where_it_was_or_is_told_the_true_reason() {
        let chronicle = Chronicle::new(Epoch(7));
        let why = |last| Start::of(&chronicle, Some(last), 0).resync;
        assert_eq!(start(&chronicle, None, 5), (vec![], 0));
        assert_eq!(why("7-0"), None, "nothing happened, nothing is lost");
        chronicle.write(0, by_operator());
        assert_eq!(start(&chronicle, None, 5), (vec![1], 1));
        assert_eq!(start(&chronicle, None, 0), (vec![], 1));
        assert_eq!((why("7-0"), start(&chronicle, Some("7-0"), 5)), (None, (vec![], 0)));
        assert_eq!(why("6-1"), Some(RESTARTED));
        for odd in ["7-2", "7-18446744073709551615", "7-99999999999999999999", "x", "7-", "-1"] {
            assert_eq!(why(odd), Some(UNKNOWN), "{odd}");
        }
        let by_peer =
            News { by: None, kind: "registered", level: news::Level::Debug, ..by_operator() };
        (0..KEPT_MAX).for_each(|_| chronicle.write(0, by_peer.clone()));
        assert_eq!(why("7-1"), Some(OVERRUN));
        // What it has is not told again.
        let (replay, after) = start(&chronicle, Some("7-1"), KEPT_MAX);
        assert!(replay[0] > 1 && replay.last() == Some(&after) && after == chronicle.last());
        assert_eq!(start(&chronicle, None, KEPT_MAX).0[0], 1, "the record is still there");
    }
}
