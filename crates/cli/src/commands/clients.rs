//! `lockkeeper clients`: all clients, or one in detail.

use std::fmt::Write as _;

use admin::api::{Client, ClientKind, ClientState};
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};

use super::fence::others;
use super::locks::word;
use super::paged_list::{ListOptions, PagedList};
use super::tables::{Cell, Table, age, many, moment};
use super::terminal::{self, Paint, clean};
use super::watch::{self, View};
use super::{Session, called, client_io, name_of};
use crate::daemon::{CommandError, encoded, query};

const COLUMNS: &[(&str, usize)] = &[
    ("ID", 3),
    ("CLIENT", 0),
    ("ADDRESS", 9),
    ("KIND", 0),
    ("STATE", 10),
    ("SEEN", 5),
    ("LOCKS", 0),
    ("SHARES", 0),
    ("WAITING", 0),
    ("UNCONFIRMED", 0),
    ("NSM", 0),
    ("REMARKS", 0),
];

/// As in the API.
const STATES: [&str; 7] =
    ["fenced", "reboot-pending", "crashed", "suspect", "recovering", "active", "idle"];

/// As in the API.
const KINDS: [&str; 3] = ["lock", "monitor", "other"];

#[derive(Debug, Args)]
pub(crate) struct Clients {
    /// Show this client in detail (id, name or address)
    #[arg(value_parser = NonEmptyStringValueParser::new(),
        conflicts_with_all = ["all", "limit", "state", "kind", "name"])]
    client: Option<String>,
    /// Check whether its lock manager answers; takes up to 5 s
    #[arg(long, requires = "client")]
    probe: bool,
    /// List only clients in this state
    #[arg(long, value_parser = PossibleValuesParser::new(STATES))]
    state: Option<String>,
    /// List only clients that lock, that registered with SM_MON, or of other protocols
    #[arg(long, value_parser = PossibleValuesParser::new(KINDS))]
    kind: Option<String>,
    /// List only clients of this name or that monitor it
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// List the NFS calls, bytes and errors of each address, also of clients that never lock; the most
    /// operations first
    #[arg(long, conflicts_with_all = ["client", "probe", "state", "kind", "name"])]
    io: bool,
    #[command(flatten)]
    options: ListOptions,
}

impl Clients {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        match &self.client {
            Some(client) => self.one(session, client).await,
            None if self.io => client_io::list(session, &self.options).await,
            None => self.list(session).await,
        }
    }

    async fn one(&self, session: &Session, client: &str) -> Result<(), CommandError> {
        let probe = self.probe.then(|| "true".to_owned());
        let path = query(&format!("/v1/clients/{}", encoded(client)), &[("probe", probe)]);
        let read = async || session.daemon.get::<Client>(&path).await;
        let again = self.options.watch;
        if self.options.json {
            return watch::repeat(again, async || terminal::print_json(&read().await?)).await;
        }
        watch::show(again, async || Ok(described(&read().await?, session.colour).into())).await
    }

    async fn list(&self, session: &Session) -> Result<(), CommandError> {
        let listing = PagedList {
            daemon: &session.daemon,
            path: "/v1/clients",
            filter: vec![
                ("state", self.state.clone()),
                ("kind", self.kind.clone()),
                ("name", self.name.clone()),
            ],
            options: &self.options,
        };
        let again = self.options.watch;
        if self.options.json {
            return watch::repeat(again, async || listing.print_json::<Client>().await).await;
        }
        watch::show(again, async || {
            let page = listing.read::<Client>().await?;
            let table = table(&page.items);
            if table.is_empty() {
                return Ok(View { remark: Some("no clients".into()), ..View::default() });
            }
            let text = table.draw(session.width(), session.colour);
            Ok(View { text, remark: listing.remark(&page) })
        })
        .await
    }
}

fn table(clients: &[Client]) -> Table {
    let mut table = Table::new(COLUMNS);
    for client in clients {
        table.row(vec![
            client.id.as_str().into(),
            called(client).into(),
            client.address.as_str().into(),
            kind(client.kind).into(),
            Cell::from(word(client.state)).painted_if(paint(client.state)),
            client.last_seen_seconds.map_or_else(|| "-".to_owned(), age).into(),
            client.locks.into(),
            client.shares.into(),
            client.waiting.into(),
            client.unconfirmed.into(),
            u64::from(client.nsm_state).into(),
            remarks(client).join("; ").into(),
        ]);
    }
    table
}

fn kind(kind: ClientKind) -> &'static str {
    match kind {
        ClientKind::Lock => "lock",
        ClientKind::Monitor => "monitor",
        ClientKind::Other => "other",
    }
}

fn paint(state: ClientState) -> Option<Paint> {
    match state {
        ClientState::Fenced | ClientState::RebootPending | ClientState::Crashed => Some(Paint::Bad),
        ClientState::Suspect | ClientState::Recovering => Some(Paint::Notable),
        ClientState::Active | ClientState::Idle => None,
    }
}

/// What the STATE column does not show.
fn remarks(client: &Client) -> Vec<String> {
    let mut remarks = Vec::new();
    if client.kind == ClientKind::Monitor {
        remarks.push(format!("monitors {}", client.monitored_name));
    }
    if client.kind == ClientKind::Other {
        remarks.push(format!("protocol {}", client.protocol));
    }
    for (is, state) in [
        (client.crashed, ClientState::Crashed),
        (client.suspect, ClientState::Suspect),
        (client.fenced, ClientState::Fenced),
    ] {
        if is && client.state != state {
            remarks.push(word(state));
        }
    }
    if client.writes_refused && !client.fenced {
        remarks.push("locks and writes refused, as another client at its address is fenced".into());
    }
    if let Some(notice) = &client.notice
        && !notice.answered
        && notice.attempts > 0
    {
        remarks.push(format!("has not answered {}", many(notice.attempts.into(), "notice")));
    }
    if client.pending_reboot.is_some() {
        remarks.push(format!("lockkeeper confirm-reboot {}", client.word()));
    }
    remarks
}

/// One client in detail, with the commands that apply to it.
fn described(client: &Client, colour: bool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, rest: String| {
        let _ = writeln!(text, "{name:>9}: {}", rest);
    };
    line("client", format!("{} ({}), {}", called(client), client.id, clean(&client.address)));
    if let Some(others) = others(client) {
        line("also at", format!("{}: {others}", clean(&client.address)));
    }
    if client.writes_refused && !client.fenced {
        line("refused", "locks and writes, as another client at its address is fenced".into());
    }
    let state = word(client.state);
    let seen = client.last_seen_seconds.map(age);
    let seen = seen
        .map_or("not seen since the server started".into(), |age| format!("last seen {age} ago"));
    let answers = match client.answers {
        None => "",
        Some(true) => ", its lock manager answers",
        Some(false) => ", its lock manager does not answer",
    };
    let painted = paint(client.state).map_or(state.clone(), |paint| paint.on_if(colour, &state));
    line("state", format!("{painted}, {seen}{answers}"));
    let also: Vec<_> = [
        (client.fenced, ClientState::Fenced),
        (client.crashed, ClientState::Crashed),
        (client.suspect, ClientState::Suspect),
    ]
    .into_iter()
    .filter(|(is, state)| *is && *state != client.state)
    .map(|(_, state)| word(state))
    .collect();
    if !also.is_empty() {
        line("also", also.join(", "));
    }
    line(
        "holds",
        format!(
            "{}, {}; {} unconfirmed, {} waiting",
            many(client.locks, "lock"),
            many(client.shares, "share"),
            client.unconfirmed,
            client.waiting
        ),
    );
    let monitored = if client.monitored { "monitored" } else { "not monitored" };
    line("NSM", format!("state {}, {monitored}", client.nsm_state));
    line("known", format!("since {}, epoch {}", moment(&client.registered_at), client.epoch));
    match client.kind {
        ClientKind::Lock => line("kind", "lock".into()),
        ClientKind::Monitor => {
            line("kind", format!("monitor, of {}", clean(&client.monitored_name)));
        }
        ClientKind::Other => {
            line("kind", format!("other, of protocol {}", clean(&client.protocol)))
        }
    }
    if let Some(called) = &client.callback {
        line(
            "callback",
            format!(
                "program {} version {} procedure {} at {}",
                called.program,
                called.version,
                called.procedure,
                clean(&called.address)
            ),
        );
    }
    if let Some(private) = &client.private {
        line("private", clean(private));
    }
    if !client.our_addresses.is_empty() {
        let ours: Vec<_> = client.our_addresses.iter().map(|text| clean(text)).collect();
        line("uses", format!("server address {}", ours.join(" ")));
    }
    if let Some(notice) = &client.notice {
        line("notice", self::notice(notice));
    }
    if let Some(pending) = &client.pending_reboot {
        line(
            "reboot",
            format!(
                "reported by {} since {} with {} (received {}); not accepted: {}",
                clean(&pending.source),
                moment(&pending.since),
                pending.nsm_state.map_or("FREE_ALL".into(), |state| format!("NSM state {state}")),
                many(u64::from(pending.repeats) + 1, "time"),
                clean(&pending.why)
            ),
        );
        line("action", format!("lockkeeper confirm-reboot {}", client.word()));
    }
    if client.fenced {
        line("action", format!("lockkeeper unfence {}", client.word()));
    }
    text
}

/// Progress of a notice.
pub(crate) fn notice(notice: &admin::api::Notice) -> String {
    let name = name_of(&notice.client);
    let tries = many(notice.attempts.into(), "notice");
    match (notice.answered, notice.next_in_seconds) {
        (true, _) => format!("answered by {name} after {tries}"),
        (false, Some(next)) => format!("{tries} not answered, next in {}", age(next)),
        (false, None) => format!("{tries} not answered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_kinds_are_those_of_the_api() {
        for state in STATES {
            let parsed: ClientState = serde_json::from_value(state.into()).unwrap();
            assert_eq!(word(parsed), state);
        }
        for name in KINDS {
            let parsed: ClientKind = serde_json::from_value(name.into()).unwrap();
            assert_eq!(kind(parsed), name);
        }
    }
}
