//! `lockkeeper grace`: which clients have yet to reclaim, and ending the grace period.

use admin::api::{ActionResult, Exactness, GraceStatus};
use clap::{Args, Subcommand};

use super::tables::{Cell, Table, many};
use super::terminal::{self, Paint, clean, confirmed, print_note, require_confirmation};
use super::watch::{self, View};
use super::{Session, name_of};
use crate::daemon::{CommandError, Method};

const COLUMNS: &[(&str, usize)] = &[
    ("ID", 3),
    ("CLIENT", 0),
    ("ADDRESS", 9),
    ("UNCONFIRMED", 0),
    ("NOTICES", 0),
    ("ANSWERED", 0),
];

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Grace {
    #[command(subcommand)]
    command: Option<GraceCommand>,
    #[command(flatten)]
    status: StatusOptions,
}

#[derive(Debug, Subcommand)]
enum GraceCommand {
    /// Show the expected clients and their unreclaimed locks
    Status(StatusOptions),
    /// End the grace period; locks not reclaimed may then go to other clients
    End {
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct StatusOptions {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Refresh every second until Ctrl-C
    #[arg(long)]
    watch: bool,
}

impl Grace {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        match self.command {
            Some(GraceCommand::End { yes }) => end(session, yes).await,
            Some(GraceCommand::Status(look)) => look.run(session).await,
            None => self.status.run(session).await,
        }
    }
}

impl StatusOptions {
    async fn run(self, session: &Session) -> Result<(), CommandError> {
        let read = async || session.daemon.get::<GraceStatus>("/v1/grace").await;
        if self.json {
            return watch::repeat(self.watch, async || terminal::print_json(&read().await?)).await;
        }
        watch::show(self.watch, async || Ok(shown(&read().await?, session))).await
    }
}

async fn end(session: &Session, yes: bool) -> Result<(), CommandError> {
    require_confirmation(yes, "grace end")?;
    let grace: GraceStatus = session.daemon.get("/v1/grace").await?;
    // Outside grace, the server's error says so.
    if grace.active {
        print_note(&format!("{}\n{}", summary(&grace), consequence(&grace)));
        if !yes && !confirmed("End the grace period?")? {
            return Err(CommandError::Declined("the grace period continues".into()));
        }
    }
    let done: ActionResult = session.daemon.send(Method::POST, "/v1/grace/end").await?;
    terminal::print(&format!("{}\n", clean(&done.done)))
}

fn consequence(grace: &GraceStatus) -> &'static str {
    match (grace.exact, grace.exactness) {
        (true, _) => {
            "Locks not reclaimed may then go to other clients if their holders do not answer."
        }
        (false, Exactness::Open) => {
            "Locks not reclaimed are then free, although clients may still rely on them, also clients \
             that are not listed here."
        }
        (false, _) => "Locks not reclaimed are then free, although clients may still rely on them.",
    }
}

fn shown(grace: &GraceStatus, session: &Session) -> View {
    let mut text = summary(grace) + "\n";
    if !grace.expected.is_empty() {
        text += &table(grace).draw(session.width(), session.colour);
    }
    let more = grace.expected_total.saturating_sub(grace.expected.len() as u64);
    let remark = (grace.active && more > 0)
        .then(|| format!("and {more} more: lockkeeper clients --state recovering"));
    View { text, remark }
}

fn summary(grace: &GraceStatus) -> String {
    if !grace.active {
        return "no grace period".into();
    }
    let early = if grace.exact { ", or when all have reclaimed" } else { "" };
    let degree = match (grace.exact, grace.exactness) {
        (true, _) => "",
        (false, Exactness::Open) => " (open: any client may reclaim)",
        (false, _) => " (roster: all clients are known, locks may be missing)",
    };
    let from = if grace.began { "" } else { " after the first client call" };
    format!(
        "grace{degree} ends in {:.0} s{from}{early}; {} of {} not reclaimed, {} waiting",
        grace.remaining_seconds,
        many(grace.missing, "lock"),
        many(grace.expected_total, "client"),
        many(grace.parked, "request")
    )
}

fn table(grace: &GraceStatus) -> Table {
    let mut table = Table::new(COLUMNS);
    for expected in &grace.expected {
        let answered = match expected.answered {
            true => "yes".into(),
            false => Cell::painted("no", Paint::Notable),
        };
        table.row(vec![
            expected.client.id.as_str().into(),
            name_of(&expected.client).into(),
            expected.client.address.as_str().into(),
            expected.unconfirmed.into(),
            u64::from(expected.notices).into(),
            answered,
        ]);
    }
    table
}
