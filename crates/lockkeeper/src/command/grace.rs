//! `lockkeeper grace`: whom the server waits for after its restart, and to stop waiting.

use admin::api::{Done, GraceStatus};
use clap::{Args, Subcommand};

use super::{Session, name_of};
use crate::daemon::{Failed, Method};
use crate::tables::{Cell, Table, many};
use crate::terminal::{self, Paint, agreed, clean, must_be_asked, talk};
use crate::watch::{self, View};

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
pub struct Grace {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Who is expected, and what is missing
    Status(Look),
    /// Stop waiting: others may take what was not taken back
    End {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct Look {
    /// Print the API's JSON
    #[arg(long)]
    json: bool,
    /// Show it again every second, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

impl Grace {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        match self.what {
            Some(What::End { yes }) => end(session, yes).await,
            Some(What::Status(look)) => look.run(session).await,
            None => self.look.run(session).await,
        }
    }
}

impl Look {
    async fn run(self, session: &Session) -> Result<(), Failed> {
        let read = async || session.daemon.get::<GraceStatus>("/v1/grace").await;
        if self.json {
            return watch::repeat(self.watch, async || terminal::print_json(&read().await?)).await;
        }
        watch::show(self.watch, async || Ok(shown(&read().await?, session))).await
    }
}

async fn end(session: &Session, yes: bool) -> Result<(), Failed> {
    must_be_asked(yes, "grace end")?;
    let grace: GraceStatus = session.daemon.get("/v1/grace").await?;
    // If there is nothing to end, the server says so best.
    if grace.active {
        talk(&format!("{}\n{}", summary(&grace), consequence(&grace)));
        if !yes && !agreed("End it?")? {
            return Err(Failed::Declined("the grace period goes on".into()));
        }
    }
    let done: Done = session.daemon.send(Method::POST, "/v1/grace/end").await?;
    terminal::print(&format!("{}\n", clean(&done.done)))
}

fn consequence(grace: &GraceStatus) -> &'static str {
    match grace.exact {
        true => "Others may then take what was not taken back, if its holder does not answer.",
        false => "What was not taken back is then free; its holders may still believe in it.",
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
    let from = if grace.began { "" } else { " from the first call of a client" };
    format!(
        "grace ends in {:.0} s{from}{early}; {} of {} missing, {} waiting",
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
