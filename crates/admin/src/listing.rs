//! Paging through locks, shares and waiters.
//!
//! The engine waits while the keeper is read, so each look examines a bounded number of entries; a
//! filtered search takes several looks.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use keeper::Keeper;
use keeper::bytes::FileKey;
use keeper::change::Lock as LockRecord;
use keeper::identity::{ClientId, LockId, ShareId};
use keeper::view::{LockView, ShareView, WaiterView};
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

/// Entries of some clients. They are not ordered by id, so the cursor counts the entries passed.
pub(crate) async fn of_clients(
    control: &Control,
    clients: Vec<ClientId>,
    query: &LockQuery,
    limit: usize,
) -> Result<Listing, Problem> {
    let (skip, state) = (skip_of(query)?, query.state);
    let look = move |keeper: &Keeper| {
        let tables = StateTables::of(state);
        let held = clients.iter().filter(|_| tables.held).flat_map(|client| {
            let locks = keeper.locks_of(*client).map(KeeperEntry::Lock);
            locks.chain(keeper.shares_of(*client).map(KeeperEntry::Share))
        });
        let waiting = clients.iter().filter(|_| tables.waiting);
        let waiting =
            waiting.flat_map(|client| keeper.waiters_of(*client).map(KeeperEntry::Waiter));
        let remembered = keeper.remembered(LockId(0)).filter(|_| tables.remembered);
        let remembered = remembered.map(KeeperEntry::Record);
        let ours = |entry: &KeeperEntry<'_>| clients.contains(&entry.host());
        cut(keeper, held.chain(waiting).chain(remembered), ours, state, skip, limit)
    };
    Ok(control.read(look).await?)
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
    let skip = skip_of(query)?;
    let state = query.state;
    let files: Vec<FileKey> = match found.is_empty() {
        true => vec![by_suffix(control, path).await?],
        false => found.into_iter().map(|found| found.file).collect(),
    };
    let look = move |keeper: &Keeper| {
        let tables = StateTables::of(state);
        let held = files.iter().filter(|_| tables.held).flat_map(|file| {
            let locks = keeper.locks_on(file).map(KeeperEntry::Lock);
            locks.chain(keeper.shares_on(file).map(KeeperEntry::Share))
        });
        let waiting = files.iter().filter(|_| tables.waiting);
        let waiting = waiting.flat_map(|file| keeper.waiters_on(file).map(KeeperEntry::Waiter));
        let remembered = files.iter().filter(|_| tables.remembered);
        let remembered =
            remembered.flat_map(|file| keeper.remembered_on(file).map(KeeperEntry::Record));
        let theirs = |entry: &KeeperEntry<'_>| {
            clients.as_ref().is_none_or(|clients| clients.contains(&entry.host()))
        };
        cut(keeper, held.chain(waiting).chain(remembered), theirs, state, skip, limit)
    };
    Ok(control.read(look).await?)
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

fn skip_of(query: &LockQuery) -> Result<usize, Problem> {
    match query.after.as_deref() {
        None => Ok(0),
        Some(text) => {
            let count = text.strip_prefix('n').and_then(|text| text.parse().ok());
            count.ok_or_else(|| wrong_cursor(text, 'k'))
        }
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

/// An entry of the keeper, not yet converted to a row.
enum KeeperEntry<'a> {
    Lock(LockView<'a>),
    Share(ShareView<'a>),
    Waiter(WaiterView<'a>),
    Record(&'a LockRecord),
}

impl KeeperEntry<'_> {
    fn host(&self) -> ClientId {
        match self {
            Self::Lock(view) => view.owner.host,
            Self::Share(view) => view.owner.host,
            Self::Waiter(view) => view.owner.host,
            Self::Record(record) => record.owner.host,
        }
    }

    fn row(&self, keeper: &Keeper) -> Row {
        match self {
            Self::Lock(view) => Row::of_lock(keeper, view),
            Self::Share(view) => Row::of_share(keeper, view),
            Self::Waiter(view) => Row::of_waiter(keeper, view),
            Self::Record(record) => Row::of_record(keeper, record),
        }
    }
}

/// Cuts one page out of entries, examining a bounded number. Rows are made only of matching entries.
fn cut<'a>(
    keeper: &Keeper,
    entries: impl Iterator<Item = KeeperEntry<'a>>,
    wanted: impl Fn(&KeeperEntry<'a>) -> bool,
    state: Option<LockState>,
    skip: usize,
    limit: usize,
) -> Listing {
    let mut rows = Vec::new();
    let total = total(keeper);
    for (place, entry) in entries.enumerate().skip(skip) {
        if rows.len() >= limit || place - skip >= LOOK_MAX * 4 {
            return Listing { rows, next: Some(format!("n{place}")), total, ..Listing::default() };
        }
        if wanted(&entry) {
            let row = entry.row(keeper);
            rows.extend(Some(row).filter(|row| state.is_none_or(|state| row.state == state)));
        }
    }
    Listing { rows, total, ..Listing::default() }
}
