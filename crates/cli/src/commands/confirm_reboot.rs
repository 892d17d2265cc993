//! `lockkeeper confirm-reboot`: an operator confirms a reboot that the server cannot prove.

use admin::api::{Client, ClientActionResult};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::tables::{age, many};
use super::terminal::{self, confirmed, print_note, require_confirmation};
use super::{Session, called};
use crate::daemon::{CommandError, Method, encoded, query};

#[derive(Debug, Args)]
pub(crate) struct ConfirmReboot {
    /// Client (id, name or address); `lockkeeper clients` shows pending reboots
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    client: String,
    /// Show what would happen without doing it
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation, even if nothing indicates a reboot
    #[arg(long)]
    yes: bool,
}

impl ConfirmReboot {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let plan = confirm(session, &self.client, ("dry_run", true)).await?;
        let (name, locks) = (called(&plan.client), many(plan.released, "lock"));
        if self.dry_run {
            let text = format!("would accept the reboot of {name}; would release {locks}\n");
            return terminal::print(&text);
        }
        if plan.released > 0 && !self.yes && !has_signs(&plan.client) {
            require_confirmation(false, &format!("confirm-reboot {}", self.client))?;
            let seen = plan.client.last_seen_seconds.map(age);
            let seen = seen.map(|age| format!(" It was last seen {age} ago.")).unwrap_or_default();
            print_note(&format!(
                "warning: nothing indicates that {name} rebooted; it holds {locks}.{seen}"
            ));
            if !confirmed("Did it reboot?")? {
                return Err(CommandError::Declined(format!("{name} keeps its locks")));
            }
        }
        let force = plan.client.pending_reboot.is_none();
        let done = confirm(session, &plan.client.id, ("force", force)).await?;
        let locks = many(done.released, "lock");
        terminal::print(&format!("accepted the reboot of {name}; released {locks}\n"))
    }
}

/// Whether the server has evidence of a reboot, short of proof.
fn has_signs(client: &Client) -> bool {
    client.pending_reboot.is_some() || client.suspect || client.crashed
}

async fn confirm(
    session: &Session,
    client: &str,
    (key, set): (&'static str, bool),
) -> Result<ClientActionResult, CommandError> {
    let path = format!("/v1/clients/{}/confirm-reboot", encoded(client));
    let path = query(&path, &[(key, set.then(|| "true".to_owned()))]);
    session.daemon.send(Method::POST, &path).await
}
