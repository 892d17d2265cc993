//! `lockkeeper events`: recent events, and new ones as they happen.

use std::time::Duration;

use admin::api::{Event, Level};
use clap::Args;
use tokio::time::sleep;

use super::terminal::{self, Paint, clean};
use super::watch::StopSignals;
use super::{Session, name_of};
use crate::daemon::{self, CommandError, events::StreamItem, query};

/// Capacity of the server's event log.
const KEPT_MAX: u32 = 10_000;
const BEFORE_NEXT_TRY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Number of past events to show
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(..=i64::from(KEPT_MAX)))]
    last: u32,
    /// Keep printing new events until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print JSON: one document, or with --watch one per event
    #[arg(long)]
    json: bool,
}

impl Events {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        if self.watch {
            let stream = session.daemon.events(self.last, None).await?;
            let mut end = StopSignals::listen()?;
            return tokio::select! {
                done = self.follow(session, stream) => done,
                () = end.recv() => Ok(()),
            };
        }
        let path = query("/v1/events/recent", &[("last", Some(self.last.to_string()))]);
        let kept: Vec<Event> = session.daemon.get(&path).await?;
        if self.json {
            return terminal::print_json(&kept);
        }
        if kept.is_empty() {
            terminal::print_note("no events");
        }
        let lines = kept.iter().map(|event| line(event, session.colour));
        terminal::print(&lines.collect::<String>())
    }

    /// Follows the stream across server restarts, resuming after the last event id.
    async fn follow(
        &self,
        session: &Session,
        mut stream: daemon::Events,
    ) -> Result<(), CommandError> {
        let mut seen: Option<String> = None;
        loop {
            let lost = match stream.next().await {
                Ok(Some(StreamItem::Event(event))) => {
                    seen = Some(event.id.clone());
                    match self.json {
                        true => terminal::print_json(&event)?,
                        false => terminal::print(&line(&event, session.colour))?,
                    }
                    continue;
                }
                Ok(Some(StreamItem::Live(id))) => {
                    seen = Some(id);
                    continue;
                }
                Ok(Some(StreamItem::Resync(why))) => {
                    terminal::print_note(&format!("events may be missing here: {}", clean(&why)));
                    continue;
                }
                Ok(Some(_)) => continue,
                Ok(None) => "the server closed the event stream".to_owned(),
                Err(failed) if failed.is_transient() => failed.to_string(),
                Err(failed) => return Err(failed),
            };
            terminal::print_note(&format!("{lost}; reconnecting"));
            stream = loop {
                sleep(BEFORE_NEXT_TRY).await;
                // A server started since does not know the id: ask for all its events.
                let last = if seen.is_some() { KEPT_MAX } else { self.last };
                match session.daemon.events(last, seen.as_deref()).await {
                    Ok(stream) => break stream,
                    Err(failed) if failed.is_transient() => {}
                    Err(failed) => return Err(failed),
                }
            };
        }
    }
}

/// Time, level, kind, text, client and operator.
fn line(event: &Event, colour: bool) -> String {
    let level = match event.level {
        Level::Debug => "debug".to_owned(),
        Level::Info => "info ".to_owned(),
        Level::Warn => Paint::Notable.on_if(colour, "warn "),
    };
    let text = clean(&event.text);
    // Most texts already name the client or operator.
    let unsaid = |name: &String| !text.contains(name.as_str());
    let client = event.client.as_ref().map(name_of).filter(unsaid);
    let client = client.map(|name| format!(" ({name})")).unwrap_or_default();
    let by = event.by.as_deref().map(clean).filter(unsaid);
    let by = by.map(|name| format!(", by {name}")).unwrap_or_default();
    format!("{}  {level}  {:<16}  {text}{client}{by}\n", clean(&event.at), clean(&event.kind))
}
