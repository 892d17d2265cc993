//! `lockkeeper fence` and `unfence`: shut out a client, the safe way to free its locks.

use admin::api::{Client, ClientActionResult, ClientName, FenceHits};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::tables::{age, many};
use super::terminal::{self, clean, confirmed, print_note, require_confirmation};
use super::{Session, called, name_of};
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
        let hits = plan.hits.clone().unwrap_or_default();
        let (aliases, neighbours) =
            (listed(&hits.machine, client), listed(&hits.neighbours, client));
        if self.dry_run {
            let aliases =
                aliases.map(|others| format!("; would also fence {others}, by the same name"));
            let neighbours = neighbours.map(|others| {
                format!("; would also refuse locks and writes of {others}, at the same address")
            });
            let elsewhere = elsewhere(&hits, client)
                .map(|addresses| format!("; would also refuse locks and writes from {addresses}"));
            let others: Vec<String> =
                [aliases, elsewhere, neighbours].into_iter().flatten().collect();
            return terminal::print(&format!(
                "would fence {name}; would release {released}{}\n",
                others.concat()
            ));
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
        if let Some(aliases) = aliases {
            print_note(&format!("The same machine by its name, fenced as well: {aliases}"));
        }
        if let Some(addresses) = elsewhere(&hits, client) {
            print_note(&format!("Refused from there as well: {addresses}"));
        }
        if let Some(others) = neighbours {
            print_note(&format!(
                "A fence holds by address, too: until then {others} can neither lock nor write"
            ));
        }
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
            false if done.client.writes_refused => format!(
                "{name} is not fenced any more; locks and writes from {} are still refused: another \
                 client there is fenced\n",
                clean(&done.client.address)
            ),
            false => format!("{name} may lock and write again\n"),
        })
    }
}

/// The other addresses at which the machine is refused.
fn elsewhere(hits: &FenceHits, client: &Client) -> Option<String> {
    const SHOWN_MAX: usize = 5;
    let others: Vec<String> =
        hits.addresses.iter().filter(|it| **it != client.address).map(|it| clean(it)).collect();
    let more = others.len().saturating_sub(SHOWN_MAX);
    let more = (more > 0).then(|| format!("{more} others"));
    let shown: Vec<String> = others.into_iter().take(SHOWN_MAX).chain(more).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// The other clients at the same address, by name and id.
pub(super) fn others(client: &Client) -> Option<String> {
    listed(&client.same_address, client)
}

/// Clients other than this one, by name and id.
fn listed(clients: &[ClientName], besides: &Client) -> Option<String> {
    const SHOWN_MAX: usize = 5;
    let others: Vec<&ClientName> = clients.iter().filter(|it| it.id != besides.id).collect();
    let names = others.iter().take(SHOWN_MAX);
    let mut names: Vec<String> =
        names.map(|other| format!("{} ({})", name_of(other), other.id)).collect();
    if others.len() > SHOWN_MAX {
        names.push(format!("{} others", others.len() - SHOWN_MAX));
    }
    let last = names.pop()?;
    Some(match names.is_empty() {
        true => last,
        false => format!("{} and {last}", names.join(", ")),
    })
}

fn path(client: &str, dry_run: bool) -> String {
    let dry_run = dry_run.then(|| "true".to_owned());
    query(&format!("/v1/clients/{}/fence", encoded(client)), &[("dry_run", dry_run)])
}
