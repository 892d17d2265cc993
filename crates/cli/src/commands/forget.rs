//! `lockkeeper forget`: removes a client that holds nothing.

use admin::api::ClientActionResult;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::terminal::{self, clean};
use super::{Session, called};
use crate::daemon::{CommandError, Method, encoded, query};

#[derive(Debug, Args)]
pub(crate) struct Forget {
    /// Client (id, name or address)
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    client: String,
    /// Show what would happen without doing it
    #[arg(long)]
    dry_run: bool,
}

impl Forget {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let path = format!("/v1/clients/{}", encoded(&self.client));
        let path = query(&path, &[("dry_run", self.dry_run.then(|| "true".to_owned()))]);
        let done: ClientActionResult = session.daemon.send(Method::DELETE, &path).await?;
        let client = &done.client;
        let (id, address) = (&client.id, clean(&client.address));
        terminal::print(&match self.dry_run {
            true => format!("would forget {} ({id}) at {address}\n", called(client)),
            false => format!("forgot {} ({id}) at {address}\n", called(client)),
        })
    }
}
