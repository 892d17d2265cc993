//! `lockkeeper notify`: tell a client again that the server restarted, or see who is being told.

use admin::api::{ClientDone, Notice};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::{Session, called, name_of};
use crate::daemon::{Failed, Method, encoded};
use crate::tables::{Cell, Table, age};
use crate::terminal::{self, Paint};
use crate::watch::{self, View};

const COLUMNS: &[(&str, usize)] =
    &[("ID", 3), ("CLIENT", 0), ("ADDRESS", 9), ("NOTICES", 0), ("ANSWERED", 0), ("NEXT", 0)];

#[derive(Debug, Args)]
pub struct Notify {
    /// Whom to tell now: its id, name or address
    #[arg(value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["watch", "json"])]
    client: Option<String>,
    /// Print the API's JSON
    #[arg(long)]
    json: bool,
    /// Show it again every second, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

impl Notify {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        let Some(client) = &self.client else {
            return self.queue(session).await;
        };
        let path = format!("/v1/clients/{}/notify", encoded(client));
        let done: ClientDone = session.daemon.send(Method::POST, &path).await?;
        terminal::print(&format!("telling {} again\n", called(&done.client)))
    }

    /// Everybody who is owed a notice.
    async fn queue(&self, session: &Session) -> Result<(), Failed> {
        let read = async || session.daemon.get::<Vec<Notice>>("/v1/notices").await;
        if self.json {
            return watch::repeat(self.watch, async || terminal::print_json(&read().await?)).await;
        }
        watch::show(self.watch, async || {
            let queue = read().await?;
            if queue.is_empty() {
                let remark = Some("nobody has to be told of a restart".into());
                return Ok(View { remark, ..View::default() });
            }
            Ok(table(&queue).draw(session.width(), session.colour).into())
        })
        .await
    }
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
