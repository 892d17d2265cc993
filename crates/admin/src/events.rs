//! What happens, streamed as it happens. A reader that comes back names the last event it has; one
//! that fell behind, or has an event of another epoch, is told to look at everything anew.

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
use crate::problem::Problems;
use crate::{ids, shown};

/// Events that wait for a reader that is slow; the chronicle keeps the rest.
const WAITING_MAX: usize = 64;
/// Events that are taken from the chronicle at once.
const TAKEN: usize = 256;
/// How often it is looked whether locks came or went, while somebody reads.
const LOOK_EVERY: Duration = Duration::from_millis(250);

type Stream = Sse<axum::response::sse::KeepAliveStream<ReceiverStream<Result<Sent, Infallible>>>>;

/// What happens, as server-sent events: `news` (an Event), `locks` (a Tally), `resync`
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventQuery, ("Last-Event-ID" = Option<String>, Header, description = "Go on after this one")),
    responses((status = 200, body = Event, content_type = "text/event-stream"), Problems))]
pub async fn stream(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Stream, Problem> {
    let control = shared.control()?;
    let replay = last_of(&query, 0)?;
    let Ok(place) = shared.readers.clone().try_acquire_owned() else {
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
            _ = control.driver().ended() => None,
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
) -> Result<axum::Json<Vec<Event>>, Problem> {
    let control = shared.control()?;
    let chronicle = control.chronicle();
    let count = last_of(&query, 100)?;
    let entries = chronicle.after(chronicle.before_last(count), count).unwrap_or_default();
    Ok(axum::Json(entries.iter().map(|entry| tell_entry(chronicle, entry)).collect()))
}

fn last_of(query: &EventQuery, default: usize) -> Result<usize, Problem> {
    match query.last.map_or(default, |last| last as usize) {
        last if last <= KEPT_MAX => Ok(last),
        _ => Err(Problem::bad_request(format!("last is at most {KEPT_MAX}"))),
    }
}

/// Where a reader begins.
struct Start {
    after: u64,
    resync: bool,
}

impl Start {
    fn of(chronicle: &Chronicle, last: Option<&str>, replay: usize) -> Self {
        let Some(last) = last.filter(|id| !id.is_empty()) else {
            return Self { after: chronicle.before_last(replay), resync: false };
        };
        let known = last.split_once('-').and_then(|(epoch, number)| {
            let (epoch, number): (u64, u64) = (epoch.parse().ok()?, number.parse().ok()?);
            let ours = epoch == chronicle.epoch().0 && chronicle.after(number, 0).is_ok();
            ours.then_some(number)
        });
        match known {
            Some(after) => Self { after, resync: false },
            None => Self { after: chronicle.before_last(replay), resync: true },
        }
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
    if start.resync {
        to.send(Ok(resync("the server restarted"))).await.ok()?;
    }
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
                    after = chronicle.before_last(0);
                    to.send(Ok(resync("more happened than is kept"))).await.ok()?;
                }
            }
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

fn resync(why: &str) -> Sent {
    Sent::default().event("resync").data(why)
}

fn tell_entry(chronicle: &Chronicle, entry: &Entry) -> Event {
    let news = &entry.news;
    Event {
        id: format!("{}-{}", chronicle.epoch().0, entry.number),
        at: shown::time(entry.at_ms),
        level: match news.level {
            news::Level::Debug => Level::Debug,
            news::Level::Info => Level::Info,
            news::Level::Warn => Level::Warn,
        },
        kind: news.kind.into(),
        text: news.text.clone(),
        client: news.client.as_ref().map(|who| ClientName {
            id: ids::client(who.id),
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
            _ = control.driver().ended() => return,
        }
        if tally.receiver_count() == 0 {
            continue;
        }
        let Some(now) = control.driver().read(|keeper| (keeper.next_id(), count(keeper))).await
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
