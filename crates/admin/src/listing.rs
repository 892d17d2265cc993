//! Paging through locks, shares and waiters.
//!
//! The engine waits while the keeper is read, so each look examines a bounded number of entries; a
//! filtered search takes several looks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use axum::http::StatusCode;
use keeper::Keeper;
use keeper::bytes::FileKey;
use keeper::identity::{ClientId, LockId, ShareId};
use keeper::pages::{Entry, Position, Table};
use server::{Control, PathMatch, ResolvedPath};

use crate::api::{LockQuery, LockState, Problem};
use crate::display;
use crate::files::Files;
use crate::row::Row;

/// Entries examined per look.
pub(crate) const LOOK_MAX: usize = 2000;
/// Entries examined per request; beyond it the page ends early.
const SEEK_MAX: usize = 40_000;

/// Rows, the cursor of the next page, and the number of entries without a filter.
#[derive(Default)]
pub(crate) struct Listing {
    pub rows: Vec<Row>,
    pub next: Option<String>,
    pub total: u64,
    /// Exports whose file systems did not say whether more files belong to the listing.
    pub unanswered: BTreeSet<String>,
}

fn total(keeper: &Keeper) -> u64 {
    let counts = keeper.counts();
    let remembered = keeper.remembered_len();
    (counts.locks + counts.shares + counts.waiters + remembered) as u64
}

/// All entries in the order of ids, which is stable while a client pages.
pub(crate) async fn by_id(
    control: &Control,
    query: &LockQuery,
    limit: usize,
) -> Result<Listing, Problem> {
    let mut after = start_of(query)?;
    let state = query.state;
    let mut listing = Listing::default();
    for _ in 0..SEEK_MAX / LOOK_MAX {
        let room = limit - listing.rows.len();
        let look = move |keeper: &Keeper| (some_by_id(keeper, after, state, room), total(keeper));
        let ((found, last), total) = control.read(look).await?;
        listing.rows.extend(found);
        listing.total = total;
        listing.next = last.map(|last| last.to_string());
        match last {
            Some(last) if listing.rows.len() < limit => after = last,
            _ => break,
        }
    }
    Ok(listing)
}

/// Which tables of the keeper contain entries of a state.
#[derive(Clone, Copy)]
struct StateTables {
    held: bool,
    waiting: bool,
    remembered: bool,
}

impl StateTables {
    fn of(state: Option<LockState>) -> Self {
        let is = |one| state.is_none_or(|state| state == one);
        let (waiting, remembered) = (is(LockState::Waiting), is(LockState::Remembered));
        Self { held: state.is_none() || !(waiting || remembered), waiting, remembered }
    }
}

/// Rows after an id, and the last id examined; `None` at the end.
pub(crate) fn some_by_id(
    keeper: &Keeper,
    after: LockId,
    state: Option<LockState>,
    room: usize,
) -> (Vec<Row>, Option<LockId>) {
    let tables = StateTables::of(state);
    let mut locks = tables.held.then(|| keeper.locks(after)).into_iter().flatten().peekable();
    let shares = tables.held.then(|| keeper.shares(ShareId(after.0)));
    let mut shares = shares.into_iter().flatten().peekable();
    let mut waiters =
        tables.waiting.then(|| keeper.waiters(after)).into_iter().flatten().peekable();
    let records = tables.remembered.then(|| keeper.remembered(after));
    let mut records = records.into_iter().flatten().peekable();
    let mut rows = Vec::new();
    let mut last = after;
    for _ in 0..LOOK_MAX {
        let next = [
            locks.peek().map(|lock| lock.id.0),
            shares.peek().map(|share| share.id.0),
            waiters.peek().map(|waiter| waiter.id.0),
            records.peek().map(|record| record.id.0),
        ];
        let Some(first) = next.iter().flatten().min().copied() else { return (rows, None) };
        if rows.len() >= room {
            return (rows, Some(last));
        }
        last = LockId(first);
        let row = if next[0] == Some(first) {
            locks.next().map(|lock| Row::of_lock(keeper, &lock))
        } else if next[1] == Some(first) {
            shares.next().map(|share| Row::of_share(keeper, &share))
        } else if next[2] == Some(first) {
            waiters.next().map(|waiter| Row::of_waiter(keeper, &waiter))
        } else {
            records.next().map(|record| Row::of_record(keeper, record))
        };
        rows.extend(row.filter(|row| state.is_none_or(|state| row.state == state)));
    }
    (rows, Some(last))
}

/// Entries of some clients. They are not ordered by id, so the cursor is the place of the last one.
pub(crate) async fn of_clients(
    control: &Control,
    mut clients: Vec<ClientId>,
    query: &LockQuery,
    limit: usize,
) -> Result<Listing, Problem> {
    clients.sort_unstable();
    let sought = Sought { places: Places::Clients(clients), state: query.state };
    search(control, sought, query, limit).await
}

/// Entries on a file, or on all files below a directory.
pub(crate) async fn on_path(
    control: &Control,
    path: &str,
    clients: Option<Vec<ClientId>>,
    query: &LockQuery,
    limit: usize,
) -> Result<Listing, Problem> {
    let ResolvedPath { matches: found, unanswered } = control.resolve_path(path.as_bytes()).await;
    if let Some(export) = unanswered.first() {
        return Err(does_not_answer(&display::bytes(export), path));
    }
    if found.iter().any(|found| found.directory) {
        return below(control, found, clients, query, limit).await;
    }
    let files: Vec<FileKey> = match found.is_empty() {
        true => vec![by_suffix(control, path).await?],
        false => found.into_iter().map(|found| found.file).collect(),
    };
    let sought = Sought { places: Places::Files(files, clients), state: query.state };
    search(control, sought, query, limit).await
}

/// Without an answer it is not known which file a path names, or whether it names only one.
fn does_not_answer(export: &str, path: &str) -> Problem {
    let detail = format!("the file system of {export} does not answer");
    let hint = match path.starts_with('/') {
        true => "lockkeeper locks --client CLIENT; lockkeeper locks lists all with their ids",
        false => "an absolute path in another export; lockkeeper locks --client CLIENT",
    };
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unanswered", detail).hint(hint)
}

/// The only locked file whose path ends with these names.
async fn by_suffix(control: &Control, path: &str) -> Result<FileKey, Problem> {
    let shown = display::bytes(path.as_bytes());
    let suffix = format!("/{}", shown.trim_matches('/'));
    let mut found: BTreeMap<String, FileKey> = BTreeMap::new();
    let mut after = LockId(0);
    for _ in 0..SEEK_MAX / LOOK_MAX {
        // An absolute path has no other meaning.
        if path.starts_with('/') {
            break;
        }
        let look = move |keeper: &Keeper| some_by_id(keeper, after, None, LOOK_MAX);
        let (rows, last) = control.read(look).await?;
        let files = Files::of(control, &rows).await;
        for row in rows {
            let file = files.to_api(&row.file);
            if file.path.is_some() && file.shown.ends_with(&suffix) {
                found.insert(file.shown, row.file);
            }
        }
        match last {
            Some(last) => after = last,
            None => break,
        }
    }
    let paths: Vec<&str> = found.keys().take(3).map(String::as_str).collect();
    match paths.len() {
        0 => Err(Problem::new(
            StatusCode::NOT_FOUND,
            "no-such-path",
            format!("no file {shown:?} in any export"),
        )
        .hint("lockkeeper locks lists paths")),
        1 => found.into_values().next().ok_or_else(Problem::ending),
        _ => Err(Problem::new(
            StatusCode::CONFLICT,
            "ambiguous-path",
            format!("{} locked files end with {shown:?}: {} ...", found.len(), paths.join(", ")),
        )
        .hint("use a longer path: lockkeeper locks")),
    }
}

/// Entries on files below some directories: a search through all entries, in several looks.
async fn below(
    control: &Control,
    within: Vec<PathMatch>,
    clients: Option<Vec<ClientId>>,
    query: &LockQuery,
    limit: usize,
) -> Result<Listing, Problem> {
    let mut after = start_of(query)?;
    let state = query.state;
    let mut listing = Listing::default();
    for _ in 0..SEEK_MAX / LOOK_MAX {
        let look =
            move |keeper: &Keeper| (some_by_id(keeper, after, state, LOOK_MAX), total(keeper));
        let ((found, last), total) = control.read(look).await?;
        let found = found.into_iter().filter(|row| {
            clients.as_ref().is_none_or(|clients| clients.contains(&row.owner().host))
        });
        let found: Vec<Row> = found.collect();
        let files = Files::of(control, &found).await;
        for row in found {
            let Some(place) = files.place(&row.file) else { continue };
            if within.iter().any(|within| within.contains(place)) {
                listing.rows.push(row);
            } else if within.iter().any(|within| within.may_contain(&row.file, place)) {
                let export = place.export.as_deref().map(display::bytes);
                listing.unanswered.extend(export);
            }
        }
        listing.total = total;
        listing.next = last.map(|last| last.to_string());
        if listing.rows.len() > limit {
            // The page ends within the entries examined.
            listing.rows.truncate(limit);
            listing.next = listing.rows.last().map(|row| row.id.to_string());
            break;
        }
        match last {
            Some(last) => after = last,
            None => break,
        }
    }
    Ok(listing)
}

fn start_of(query: &LockQuery) -> Result<LockId, Problem> {
    match query.after.as_deref() {
        None => Ok(LockId(0)),
        Some(text) => text.parse::<LockId>().ok().ok_or_else(|| wrong_cursor(text, 'n')),
    }
}

/// A conflict if the cursor belongs to another kind of query, else a bad request.
fn wrong_cursor(text: &str, other: char) -> Problem {
    let detail = "`after` must be the `next` of the previous page of the same query";
    match text.starts_with(other) {
        true => Problem::new(StatusCode::CONFLICT, "wrong-cursor", detail),
        false => Problem::bad_request(detail),
    }
}

/// Where entries are looked for.
enum Places {
    /// In order of id.
    Clients(Vec<ClientId>),
    /// The entries of these clients, or of all.
    Files(Vec<FileKey>, Option<Vec<ClientId>>),
}

struct Sought {
    places: Places,
    state: Option<LockState>,
}

/// The last entry that was examined: the client's id or the number of the file, and its place there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Spot {
    place: u64,
    position: Position,
}

const TABLES: [Table; 4] = [Table::Locks, Table::Shares, Table::Waiters, Table::Remembered];

/// One page, in several looks.
async fn search(
    control: &Control,
    sought: Sought,
    query: &LockQuery,
    limit: usize,
) -> Result<Listing, Problem> {
    let mut spot = match query.after.as_deref() {
        None => Spot::default(),
        Some(text) => Spot::parse(text).ok_or_else(|| wrong_cursor(text, 'k'))?,
    };
    let sought = Arc::new(sought);
    let mut listing = Listing::default();
    for _ in 0..SEEK_MAX / LOOK_MAX {
        let (room, sought) = (limit - listing.rows.len(), sought.clone());
        let look = move |keeper: &Keeper| (sought.some(keeper, spot, room), total(keeper));
        let ((found, last), total) = control.read(look).await?;
        listing.rows.extend(found);
        listing.total = total;
        listing.next = last.map(|last| last.to_string());
        match last {
            Some(last) if listing.rows.len() < limit => spot = last,
            _ => break,
        }
    }
    Ok(listing)
}

impl Sought {
    /// Rows after a spot, and the last spot examined; `None` at the end. Rows are made only of matching
    /// entries.
    fn some(&self, keeper: &Keeper, from: Spot, room: usize) -> (Vec<Row>, Option<Spot>) {
        let mut rows = Vec::new();
        let mut last = from;
        let mut examined = 0;
        let places = match &self.places {
            Places::Clients(clients) => clients.iter().map(|client| client.0).collect(),
            Places::Files(files, _) => (0..files.len() as u64).collect::<Vec<_>>(),
        };
        for place in places.into_iter().filter(|place| *place >= from.place) {
            for table in TABLES.into_iter().filter(|table| self.is_in(*table)) {
                let start = Position { table, after: None };
                let start = if place == from.place { from.position.max(start) } else { start };
                if start.table != table {
                    continue;
                }
                let entries: Box<dyn Iterator<Item = (Position, Entry<'_>)>> = match &self.places {
                    Places::Clients(_) => Box::new(keeper.entries_of(ClientId(place), start)),
                    Places::Files(files, _) => match files.get(place as usize) {
                        Some(file) => Box::new(keeper.entries_on(file, start)),
                        None => continue,
                    },
                };
                for (position, entry) in entries.take_while(|(at, _)| at.table == table) {
                    if rows.len() >= room || examined >= LOOK_MAX {
                        return (rows, Some(last));
                    }
                    examined += 1;
                    last = Spot { place, position };
                    if self.is_by(place, &entry) {
                        let row = row(keeper, &entry);
                        let wanted = |row: &Row| self.state.is_none_or(|state| row.state == state);
                        rows.extend(Some(row).filter(wanted));
                    }
                }
            }
        }
        (rows, None)
    }

    fn is_in(&self, table: Table) -> bool {
        let tables = StateTables::of(self.state);
        match table {
            Table::Locks | Table::Shares => tables.held,
            Table::Waiters => tables.waiting,
            Table::Remembered => tables.remembered,
        }
    }

    fn is_by(&self, place: u64, entry: &Entry<'_>) -> bool {
        let host = match entry {
            Entry::Lock(view) => view.owner.host,
            Entry::Share(view) => view.owner.host,
            Entry::Waiter(view) => view.owner.host,
            Entry::Remembered(record) => record.owner.host,
        };
        match &self.places {
            Places::Clients(_) => host.0 == place,
            Places::Files(_, clients) => {
                clients.as_ref().is_none_or(|clients| clients.contains(&host))
            }
        }
    }
}

fn row(keeper: &Keeper, entry: &Entry<'_>) -> Row {
    match entry {
        Entry::Lock(view) => Row::of_lock(keeper, view),
        Entry::Share(view) => Row::of_share(keeper, view),
        Entry::Waiter(view) => Row::of_waiter(keeper, view),
        Entry::Remembered(record) => Row::of_record(keeper, record),
    }
}

/// Opaque to callers: `n` and the numbers, in hexadecimal.
impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = TABLES.iter().position(|table| *table == self.position.table);
        write!(f, "n{:x}.{}", self.place, table.unwrap_or_default())?;
        match self.position.after {
            Some((major, minor)) => write!(f, ".{major:x}.{minor:x}"),
            None => Ok(()),
        }
    }
}

impl Spot {
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let plain = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
            text.bytes().all(plain).then(|| u64::from_str_radix(text, 16).ok())?
        };
        let mut parts = text.strip_prefix('n')?.split('.');
        let place = number(parts.next()?)?;
        let table = *TABLES.get(parts.next()?.parse::<usize>().ok()?)?;
        let after = match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => None,
            (Some(major), Some(minor), None) => Some((number(major)?, number(minor)?)),
            _ => return None,
        };
        Some(Self { place, position: Position { table, after } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_and_others_are_refused() {
        let at = |table, after| Spot { place: 31, position: Position { table, after } };
        for spot in [
            Spot::default(),
            at(Table::Shares, None),
            at(Table::Locks, Some((u64::MAX, u64::MAX))),
            at(Table::Remembered, Some((1, 0))),
        ] {
            assert_eq!(Spot::parse(&spot.to_string()), Some(spot), "{spot}");
        }
        for text in ["", "n", "n1", "n1.4", "n1.0.5", "n1.0.5.5.5", "k1", "n+1.0", "n1.0.+1.1"] {
            assert_eq!(Spot::parse(text), None, "{text}");
        }
    }
}
