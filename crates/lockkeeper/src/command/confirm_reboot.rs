//! `lockkeeper confirm-reboot`: an operator knows what could not be proven, that a client rebooted.

use admin::api::{Client, ClientDone};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::{Session, called};
use crate::daemon::{Failed, Method, encoded, query};
use crate::tables::{age, many};
use crate::terminal::{self, agreed, must_be_asked, talk};

#[derive(Debug, Args)]
pub struct ConfirmReboot {
    /// Its id, name or address; `lockkeeper clients` shows who waits for it
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    client: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask, even if nothing hints at a reboot
    #[arg(long)]
    yes: bool,
}

impl ConfirmReboot {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        let plan = confirm(session, &self.client, true).await?;
        let (name, locks) = (called(&plan.client), many(plan.released, "lock"));
        if self.dry_run {
            let told = format!("would take {name} to have rebooted; would release {locks}\n");
            return terminal::print(&told);
        }
        if plan.released > 0 && !self.yes && !has_signs(&plan.client) {
            must_be_asked(false, &format!("confirm-reboot {}", self.client))?;
            let seen = plan.client.last_seen_seconds.map(age);
            let seen = seen.map(|age| format!(" It was seen {age} ago.")).unwrap_or_default();
            talk(&format!(
                "warning: nothing hints at a reboot of {name}, which holds {locks}.{seen}"
            ));
            if !agreed("Did it reboot?")? {
                return Err(Failed::Declined(format!("{name} keeps its locks")));
            }
        }
        let done = confirm(session, &plan.client.id, false).await?;
        let locks = many(done.released, "lock");
        terminal::print(&format!("{name} has rebooted; released {locks}\n"))
    }
}

/// Whether the server has a reason to believe in a reboot, if no proof.
fn has_signs(client: &Client) -> bool {
    client.pending_reboot.is_some() || client.suspect || client.crashed
}

async fn confirm(session: &Session, client: &str, dry_run: bool) -> Result<ClientDone, Failed> {
    let path = format!("/v1/clients/{}/confirm-reboot", encoded(client));
    let path = query(&path, &[("dry_run", dry_run.then(|| "true".to_owned()))]);
    session.daemon.send(Method::POST, &path).await
}
