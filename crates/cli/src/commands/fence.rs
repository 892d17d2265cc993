//! `lockkeeper fence` and `unfence`: shut out a client, the safe way to free its locks.

use admin::api::ClientActionResult;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::tables::{age, many};
use super::terminal::{self, clean, confirmed, print_note, require_confirmation};
use super::{Session, called};
use crate::daemon::{CommandError, Method, encoded, query};

#[derive(Debug, Args)]
pub(crate) struct Fence {
    /// Client (id, name or address)
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    client: String,
    /// Show what would happen without doing it
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Unfence {
    /// Client (id, name or address)
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    client: String,
    /// Show what would happen without doing it
    #[arg(long)]
    dry_run: bool,
}

impl Fence {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        require_confirmation(self.yes || self.dry_run, &format!("fence {}", self.client))?;
        let fence = async |client: &str, dry_run| {
            session.daemon.send::<ClientActionResult>(Method::PUT, &path(client, dry_run)).await
        };
        let plan = fence(&self.client, true).await?;
        let client = &plan.client;
        let name = called(client);
        let released = many(plan.released, "lock");
        if self.dry_run {
            return terminal::print(&format!("would fence {name}; would release {released}\n"));
        }
        let seen =
            client.last_seen_seconds.map(|seconds| format!(", last seen {} ago", age(seconds)));
        print_note(&format!(
            "{}: {name} at {}{}, holds {released}\n\
             It loses them and can neither lock nor write until: lockkeeper unfence {}",
            client.id,
            clean(&client.address),
            seen.unwrap_or_default(),
            client.word()
        ));
        if !self.yes && !confirmed("Fence?")? {
            return Err(CommandError::Declined(format!("{name} was not fenced")));
        }
        let done = fence(&client.id, false).await?;
        let released = many(done.released, "lock");
        terminal::print(&format!("fenced {}; released {released}\n", called(&done.client)))
    }
}

impl Unfence {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let path = path(&self.client, self.dry_run);
        let done: ClientActionResult = session.daemon.send(Method::DELETE, &path).await?;
        let name = called(&done.client);
        terminal::print(&match self.dry_run {
            true => format!("would allow {name} to lock and write again\n"),
            false => format!("{name} may lock and write again\n"),
        })
    }
}

fn path(client: &str, dry_run: bool) -> String {
    let dry_run = dry_run.then(|| "true".to_owned());
    query(&format!("/v1/clients/{}/fence", encoded(client)), &[("dry_run", dry_run)])
}
