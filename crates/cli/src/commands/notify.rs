//! `lockkeeper notify`: send the notice of a restart to a client, an address or a network, or list
//! pending notices.

use std::net::IpAddr;

use admin::api::{ActionResult, ClientActionResult, Notice};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ipnet::IpNet;

use super::tables::{Cell, Table, age};
use super::terminal::{self, Paint};
use super::watch::{self, View};
use super::{Session, called, name_of};
use crate::daemon::{CommandError, Method, encoded};

const COLUMNS: &[(&str, usize)] =
    &[("ID", 3), ("CLIENT", 0), ("ADDRESS", 9), ("NOTICES", 0), ("ANSWERED", 0), ("NEXT", 0)];

#[derive(Debug, Args)]
pub(crate) struct Notify {
    /// Client to notify now (id or name), or an address or network where clients may be
    #[arg(value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["watch", "json"])]
    client: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Refresh every second until Ctrl-C
    #[arg(long)]
    watch: bool,
}

impl Notify {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let Some(client) = &self.client else {
            return self.queue(session).await;
        };
        if is_network(client) {
            let path = format!("/v1/notices?to={}", encoded(client));
            let result: ActionResult = session.daemon.send(Method::POST, &path).await?;
            return terminal::print(&format!("{}\n", result.done));
        }
        let path = format!("/v1/clients/{}/notify", encoded(client));
        let done: ClientActionResult = session.daemon.send(Method::POST, &path).await?;
        terminal::print(&format!("notifying {}\n", called(&done.client)))
    }

    /// All pending notices.
    async fn queue(&self, session: &Session) -> Result<(), CommandError> {
        let read = async || session.daemon.get::<Vec<Notice>>("/v1/notices").await;
        if self.json {
            return watch::repeat(self.watch, async || terminal::print_json(&read().await?)).await;
        }
        watch::show(self.watch, async || {
            let queue = read().await?;
            if queue.is_empty() {
                let remark = Some("no pending notices".into());
                return Ok(View { remark, ..View::default() });
            }
            Ok(table(&queue).draw(session.width(), session.colour).into())
        })
        .await
    }
}

fn is_network(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || text.parse::<IpNet>().is_ok()
}

fn table(queue: &[Notice]) -> Table {
    let mut table = Table::new(COLUMNS);
    for notice in queue {
        let answered = match (notice.answered, notice.attempts) {
            (true, _) => "yes".into(),
            (false, 0) => "no".into(),
            (false, _) => Cell::painted("no", Paint::Notable),
        };
        let next = notice.next_in_seconds.map(|next| format!("in {}", age(next)));
        table.row(vec![
            notice.client.id.as_str().into(),
            name_of(&notice.client).into(),
            notice.client.address.as_str().into(),
            u64::from(notice.attempts).into(),
            answered,
            next.unwrap_or_else(|| "-".into()).into(),
        ]);
    }
    table
}
