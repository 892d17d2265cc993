//! `lockkeeper fence` and `unfence`: shut a client out, which is the safe way to free what it holds.

use admin::api::ClientDone;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::{Session, called};
use crate::daemon::{Failed, Method, encoded, query};
use crate::tables::{age, many};
use crate::terminal::{self, agreed, clean, must_be_asked, talk};

#[derive(Debug, Args)]
pub struct Fence {
    /// Its id, name or address
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    client: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub struct Unfence {
    /// Its id, name or address
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    client: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Fence {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        must_be_asked(self.yes || self.dry_run, &format!("fence {}", self.client))?;
        let fence = async |client: &str, dry_run| {
            session.daemon.send::<ClientDone>(Method::PUT, &path(client, dry_run)).await
        };
        let plan = fence(&self.client, true).await?;
        let client = &plan.client;
        let name = called(client);
        let released = many(plan.released, "lock");
        if self.dry_run {
            return terminal::print(&format!("would fence {name}; would release {released}\n"));
        }
        let seen = client.last_seen_seconds.map(|seconds| format!(", seen {} ago", age(seconds)));
        talk(&format!(
            "{}: {name} at {}{}, holds {released}\n\
             It loses them, and can neither lock nor write until: lockkeeper unfence {}",
            client.id,
            clean(&client.address),
            seen.unwrap_or_default(),
            client.word()
        ));
        if !self.yes && !agreed("Fence?")? {
            return Err(Failed::Declined(format!("{name} was not fenced")));
        }
        let done = fence(&client.id, false).await?;
        let released = many(done.released, "lock");
        terminal::print(&format!("fenced {}; released {released}\n", called(&done.client)))
    }
}

impl Unfence {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        let path = path(&self.client, self.dry_run);
        let done: ClientDone = session.daemon.send(Method::DELETE, &path).await?;
        let name = called(&done.client);
        terminal::print(&match self.dry_run {
            true => format!("would let {name} lock and write again\n"),
            false => format!("{name} may lock and write again\n"),
        })
    }
}

fn path(client: &str, dry_run: bool) -> String {
    let dry_run = dry_run.then(|| "true".to_owned());
    query(&format!("/v1/clients/{}/fence", encoded(client)), &[("dry_run", dry_run)])
}
