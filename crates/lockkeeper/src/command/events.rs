//! `lockkeeper events`: what happened, line by line; and what happens.

use std::time::Duration;

use admin::api::{Event, Level};
use clap::Args;
use tokio::time::sleep;

use super::{Session, name_of};
use crate::daemon::{self, Failed, events::Item, query};
use crate::terminal::{self, Paint, clean};
use crate::watch::End;

/// The most that the server keeps for us.
const KEPT_MAX: u32 = 10_000;
const BEFORE_NEXT_TRY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct Events {
    /// Show so many of those that happened
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(..=i64::from(KEPT_MAX)))]
    last: u32,
    /// Go on with what happens, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print the API's JSON: one document, or with --watch one for each event
    #[arg(long)]
    json: bool,
}

impl Events {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        if self.watch {
            let stream = session.daemon.events(self.last, None).await?;
            let mut end = End::listen()?;
            return tokio::select! {
                done = self.follow(session, stream) => done,
                () = end.heard() => Ok(()),
            };
        }
        let path = query("/v1/events/recent", &[("last", Some(self.last.to_string()))]);
        let kept: Vec<Event> = session.daemon.get(&path).await?;
        if self.json {
            return terminal::print_json(&kept);
        }
        if kept.is_empty() {
            terminal::talk("no events");
        }
        let lines = kept.iter().map(|event| line(event, session.colour));
        terminal::print(&lines.collect::<String>())
    }

    /// Also across restarts of the daemon: what happened meanwhile is asked for by the last id.
    async fn follow(&self, session: &Session, mut stream: daemon::Events) -> Result<(), Failed> {
        let mut seen: Option<String> = None;
        loop {
            let lost = match stream.next().await {
                Ok(Some(Item::News(event))) => {
                    seen = Some(event.id.clone());
                    match self.json {
                        true => terminal::print_json(&event)?,
                        false => terminal::print(&line(&event, session.colour))?,
                    }
                    continue;
                }
                Ok(Some(Item::Live(id))) => {
                    seen = Some(id);
                    continue;
                }
                Ok(Some(Item::Resync(why))) => {
                    terminal::talk(&format!("some events may be missing here: {}", clean(&why)));
                    continue;
                }
                Ok(Some(_)) => continue,
                Ok(None) => "the daemon ended the stream".to_owned(),
                Err(failed) if failed.may_pass() => failed.to_string(),
                Err(failed) => return Err(failed),
            };
            terminal::talk(&format!("{lost}; waiting for it"));
            stream = loop {
                sleep(BEFORE_NEXT_TRY).await;
                // A daemon that does not know the last id, since it was started after it, sends all
                // that happened since.
                let last = if seen.is_some() { KEPT_MAX } else { self.last };
                match session.daemon.events(last, seen.as_deref()).await {
                    Ok(stream) => break stream,
                    Err(failed) if failed.may_pass() => {}
                    Err(failed) => return Err(failed),
                }
            };
        }
    }
}

/// When, how bad, what, and who did it.
fn line(event: &Event, colour: bool) -> String {
    let level = match event.level {
        Level::Debug => "debug".to_owned(),
        Level::Info => "info ".to_owned(),
        Level::Warn => Paint::Notable.on_if(colour, "warn "),
    };
    let text = clean(&event.text);
    // Most texts say it already.
    let unsaid = |name: &String| !text.contains(name.as_str());
    let client = event.client.as_ref().map(name_of).filter(unsaid);
    let client = client.map(|name| format!(" ({name})")).unwrap_or_default();
    let by = event.by.as_deref().map(clean).filter(unsaid);
    let by = by.map(|name| format!(", by {name}")).unwrap_or_default();
    format!("{}  {level}  {:<16}  {text}{client}{by}\n", clean(&event.at), clean(&event.kind))
}
