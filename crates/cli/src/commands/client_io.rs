//! `lockkeeper clients --io`: NFS calls, bytes and errors of each client address.

use std::collections::HashMap;
use std::time::Instant;

use admin::api::{ClientIo, ClientIoList};

use super::paged_list::ListOptions;
use super::tables::{Cell, Table, age, bytes};
use super::terminal::{self, Paint};
use super::watch::{self, View};
use super::{Session, name_of};
use crate::daemon::{CommandError, query};

const COLUMNS: &[(&str, usize)] = &[
    ("ADDRESS", 9),
    ("CLIENT", 0),
    ("OPS", 6),
    ("OPS/S", 6),
    ("READ", 9),
    ("WRITTEN", 9),
    ("ERRORS", 0),
    ("SEEN", 5),
    ("CONNECTIONS", 0),
];

/// Maximum of the API.
const CLIENTS_MAX: u64 = 10_000;

pub(super) async fn list(session: &Session, options: &ListOptions) -> Result<(), CommandError> {
    let limit = options.limit().min(CLIENTS_MAX).to_string();
    let path = query("/v1/io/clients", &[("limit", Some(limit))]);
    let read = async || session.daemon.get::<ClientIoList>(&path).await;
    if options.json {
        return watch::repeat(options.watch, async || terminal::print_json(&read().await?)).await;
    }
    let mut last = Rates::default();
    watch::show(options.watch, async || {
        let list = read().await?;
        let rates = last.next(&list, Instant::now());
        if list.clients.is_empty() {
            let remark = Some("no NFS calls since the server started".into());
            return Ok(View { remark, ..View::default() });
        }
        let text = table(&list, &rates).draw(session.width(), session.colour);
        Ok(View { text, remark: more(&list) })
    })
    .await
}

fn table(list: &ClientIoList, rates: &HashMap<String, f64>) -> Table {
    let mut table = Table::new(COLUMNS);
    for client in &list.clients {
        let ClientIo { address, clients, io, last_seen_seconds, connections } = client;
        let rate = rates.get(address).map(|rate| format!("{rate:.0}"));
        let errors = Cell::from(io.errors).painted_if((io.errors > 0).then_some(Paint::Notable));
        table.row(vec![
            address.as_str().into(),
            clients.iter().map(name_of).collect::<Vec<_>>().join(" ").into(),
            io.operations.into(),
            rate.unwrap_or_else(|| "-".into()).into(),
            bytes(io.bytes_read).into(),
            bytes(io.bytes_written).into(),
            errors,
            age(*last_seen_seconds).into(),
            (*connections).into(),
        ]);
    }
    table
}

fn more(list: &ClientIoList) -> Option<String> {
    let shown = list.clients.len();
    let all = list.total;
    (shown as u64 != all).then(|| {
        format!("showing the {shown} with the most operations of {all}; use --limit N or --all to see more")
    })
}

/// Operations per second, from two listings.
#[derive(Default)]
struct Rates {
    before: Option<(Instant, HashMap<String, u64>)>,
}

impl Rates {
    /// None in the first listing.
    fn next(&mut self, list: &ClientIoList, now: Instant) -> HashMap<String, f64> {
        let counts = list.clients.iter().map(|it| (it.address.clone(), it.io.operations));
        let counts: HashMap<String, u64> = counts.collect();
        let before = self.before.replace((now, counts.clone()));
        let Some((then, before)) = before else { return HashMap::new() };
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(0.001);
        let rate = |(address, count): (String, u64)| {
            // Counts begin again when the server is restarted.
            let more = count.saturating_sub(before.get(&address).copied().unwrap_or(0));
            (address, more as f64 / seconds)
        };
        counts.into_iter().map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use admin::api::{ClientName, Io};

    use super::*;

    fn list(operations: u64) -> ClientIoList {
        let io = Io { operations, bytes_read: 5 << 20, errors: 1, ..Io::default() };
        let client = ClientIo {
            address: "10.0.0.7".into(),
            clients: vec![ClientName {
                id: "c1".into(),
                name: "alice".into(),
                address: "10.0.0.7".into(),
            }],
            io,
            last_seen_seconds: 2.4,
            connections: 1,
        };
        ClientIoList { clients: vec![client], total: 2 }
    }

    #[test]
    fn rates_are_those_between_two_listings() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        assert!(rates.next(&list(100), start).is_empty());
        let second = rates.next(&list(150), start + Duration::from_secs(2));
        assert_eq!(second.get("10.0.0.7"), Some(&25.0));
        let restarted = rates.next(&list(3), start + Duration::from_secs(3));
        assert_eq!(restarted.get("10.0.0.7"), Some(&0.0));
    }

    #[test]
    fn a_row_says_who_did_how_much() {
        let rates = HashMap::from([("10.0.0.7".to_owned(), 25.2)]);
        let shown = table(&list(150), &rates).draw(None, false);
        let row: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = ["10.0.0.7", "alice", "150", "25", "5.0", "MiB", "0", "B", "1", "2s", "1"];
        assert_eq!(row, expected);
        assert!(more(&list(1)).unwrap().starts_with("showing the 1 with the most operations of 2"));
    }
}
