//! Locks, shares and waiters: listing them, page by page, and releasing one.
//!
//! The driver waits while a page is taken from the keeper, so that takes a bounded number of rows;
//! what is sought by a filter is sought in several short looks.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use keeper::Keeper;
use keeper::bytes::FileKey;
use keeper::change::Lock as Recorded;
use keeper::identity::{ClientId, LockId, ShareId};
use keeper::request::OperatorAction;
use keeper::view::{LockView, ShareView, WaiterView};
use server::{Control, Found};

use crate::api::{DryRunQuery, Lock, LockKind, LockQuery, LockState, Page, Problem, Released};
use crate::ask::{Path, Query};
use crate::caller::Operator;
use crate::problem::Problems;
use crate::row::Row;
use crate::{Shared, clients, ids, shown};

pub const LIMIT: u32 = 100;
pub const LIMIT_MAX: u32 = 1000;
/// Rows that are looked at while the driver waits.
const LOOK_MAX: usize = 2000;
/// Rows that are looked at for one question; the page then ends early.
const SEEK_MAX: usize = 40_000;

/// What holds and awaits what
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(LockQuery),
    responses((status = 200, body = Page<Lock>), Problems))]
pub async fn list(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<LockQuery>,
) -> Result<Json<Page<Lock>>, Problem> {
    let control = shared.control()?;
    let limit = limit_of(query.limit)?;
    let (rows, next) = match (&query.client, &query.path) {
        (None, None) => by_id(&control, &query, limit).await?,
        (client, path) => {
            let client = match client {
                Some(client) => Some(clients::resolve_all(&control, client).await?),
                None => None,
            };
            match path {
                Some(path) => on_path(&control, path, client, &query, limit).await?,
                None => of_clients(&control, client.unwrap_or_default(), &query, limit).await?,
            }
        }
    };
    let total = control.look(total).await?;
    let items = tell(control, rows).await?;
    Ok(Json(Page { items, next, total }))
}

/// One lock, share or waiter, by its id or the beginning of it
#[utoipa::path(get, path = "/v1/locks/{id}", tag = "locks",
    params(("id" = String, Path, description = "`k7f2`, or a beginning that only one has")),
    responses((status = 200, body = Lock), Problems))]
pub async fn one(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Json<Lock>, Problem> {
    let control = shared.control()?;
    let row = find(&control, &id).await?;
    let mut told = tell(control, vec![row]).await?;
    told.pop().map(Json).ok_or_else(Problem::ending)
}

/// Releases a lock or a share that its owner does not give back
#[utoipa::path(delete, path = "/v1/locks/{id}", tag = "locks",
    params(("id" = String, Path, description = "`k7f2`, or a beginning that only one has"), DryRunQuery),
    responses((status = 200, body = Released), Problems))]
pub async fn release(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(query): Query<DryRunQuery>,
) -> Result<Json<Released>, Problem> {
    let control = shared.control()?;
    let row = find(&control, &id).await?;
    if row.state == LockState::Remembered {
        let detail = format!("{} is only remembered: it denies nobody", ids::entry(row.id));
        return Err(Problem::new(StatusCode::CONFLICT, "busy", detail)
            .hint("it goes with the end of grace: lockkeeper grace"));
    }
    if row.kind == LockKind::Waiter {
        let detail = format!("{} waits and holds nothing", ids::entry(row.id));
        return Err(Problem::new(StatusCode::CONFLICT, "waiting", detail)
            .hint("release what it waits for: lockkeeper locks --waiting"));
    }
    let client = clients::one_of(&control, row.owner().host, true).await?;
    let waiting = waiting_on(&control, &row).await?;
    let lock = row.clone();
    let granted = match query.dry_run {
        true => heirs(&control, &row, waiting).await?,
        false => {
            control.operate(&operator.0, OperatorAction::Release(row.id)).await?;
            granted_of(&control, &row, waiting).await?
        }
    };
    let mut told = tell(control, [vec![lock], granted].concat()).await?.into_iter();
    let lock = told.next().ok_or_else(Problem::ending)?;
    let warning = clients::may_go_on(&client);
    Ok(Json(Released { dry_run: query.dry_run, lock, client, granted: told.collect(), warning }))
}

/// Who waits for what this row covers, first come first.
async fn waiting_on(control: &Control, row: &Row) -> Result<Vec<Row>, Problem> {
    let (file, range) = (row.file.clone(), row.range);
    let look = move |keeper: &Keeper| {
        let waiting = keeper.waiters_on(&file).filter(|waiter| waiter.range.overlaps(range));
        waiting.take(LOOK_MAX).map(|waiter| Row::of_waiter(keeper, &waiter)).collect()
    };
    Ok(control.look(look).await?)
}

/// Those who waited, and hold now what they waited for.
async fn granted_of(
    control: &Control,
    released: &Row,
    waited: Vec<Row>,
) -> Result<Vec<Row>, Problem> {
    let file = released.file.clone();
    let look = move |keeper: &Keeper| {
        let gone = waited.iter().filter(|waiter| keeper.waiter(waiter.id).is_none());
        let held = gone.filter_map(|waiter| keeper.owned_by(waiter.owner(), &file, waiter.range));
        held.map(|held| Row::of_lock(keeper, &held)).collect()
    };
    Ok(control.look(look).await?)
}

/// Those who would get what they wait for, were this released: nothing else is in their way, and
/// nobody who came before.
async fn heirs(control: &Control, released: &Row, waiting: Vec<Row>) -> Result<Vec<Row>, Problem> {
    let besides = released.id;
    let look = move |keeper: &Keeper| {
        let mut heirs: Vec<Row> = Vec::new();
        for waiter in waiting {
            let behind = heirs.iter().any(|earlier| earlier.is_in_the_way_of(&waiter));
            if !behind && !waiter.passed_over && !keeper.is_blocked_besides(waiter.id, besides) {
                heirs.push(waiter);
            }
        }
        heirs
    };
    Ok(control.look(look).await?)
}

pub fn limit_of(limit: Option<u32>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(LIMIT);
    match (1..=LIMIT_MAX).contains(&limit) {
        true => Ok(limit as usize),
        false => Err(Problem::bad_request(format!("limit is between 1 and {LIMIT_MAX}"))),
    }
}

fn total(keeper: &Keeper) -> u64 {
    let counts = keeper.counts();
    let remembered = keeper.remembered_len();
    (counts.locks + counts.shares + counts.waiters + remembered) as u64
}

/// Names and paths become text away from the threads of the network.
async fn tell(control: Control, rows: Vec<Row>) -> Result<Vec<Lock>, Problem> {
    let told = move || rows.iter().map(|row| row.tell(&control)).collect();
    tokio::task::spawn_blocking(told).await.map_err(|_| Problem::ending())
}

type Listed = Result<(Vec<Row>, Option<String>), Problem>;

/// Everything, in the order of ids, which never changes while somebody pages through it.
async fn by_id(control: &Control, query: &LockQuery, limit: usize) -> Listed {
    let mut after = start_of(query)?;
    let state = query.state;
    let mut rows = Vec::new();
    for _ in 0..SEEK_MAX / LOOK_MAX {
        let room = limit - rows.len();
        let look = move |keeper: &Keeper| some_by_id(keeper, after, state, room);
        let (found, last) = control.look(look).await?;
        rows.extend(found);
        match last {
            None => return Ok((rows, None)),
            Some(last) => after = last,
        }
        if rows.len() >= limit {
            break;
        }
    }
    Ok((rows, Some(ids::entry(after))))
}

/// Where entries of a state are.
#[derive(Clone, Copy)]
struct Tables {
    held: bool,
    waiting: bool,
    remembered: bool,
}

impl Tables {
    fn of(state: Option<LockState>) -> Self {
        let is = |one| state.is_none_or(|state| state == one);
        let (waiting, remembered) = (is(LockState::Waiting), is(LockState::Remembered));
        Self { held: state.is_none() || !(waiting || remembered), waiting, remembered }
    }
}

/// Rows after an id, and up to which id was looked; no id at the end.
fn some_by_id(
    keeper: &Keeper,
    after: LockId,
    state: Option<LockState>,
    room: usize,
) -> (Vec<Row>, Option<LockId>) {
    let tables = Tables::of(state);
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

/// What some clients hold and await. There is no order by id in it, so the cursor says how many
/// entries were passed.
async fn of_clients(
    control: &Control,
    clients: Vec<ClientId>,
    query: &LockQuery,
    limit: usize,
) -> Listed {
    let (skip, state) = (skip_of(query)?, query.state);
    let look = move |keeper: &Keeper| {
        let tables = Tables::of(state);
        let held = clients.iter().filter(|_| tables.held).flat_map(|client| {
            let locks = keeper.locks_of(*client).map(Entry::Lock);
            locks.chain(keeper.shares_of(*client).map(Entry::Share))
        });
        let waiting = clients.iter().filter(|_| tables.waiting);
        let waiting = waiting.flat_map(|client| keeper.waiters_of(*client).map(Entry::Waiter));
        let remembered = keeper.remembered(LockId(0)).filter(|_| tables.remembered);
        let remembered = remembered.map(Entry::Record);
        let ours = |entry: &Entry<'_>| clients.contains(&entry.host());
        cut(keeper, held.chain(waiting).chain(remembered), ours, state, skip, limit)
    };
    Ok(control.look(look).await?)
}

/// What there is on a file, or on the files below a directory.
async fn on_path(
    control: &Control,
    path: &str,
    clients: Option<Vec<ClientId>>,
    query: &LockQuery,
    limit: usize,
) -> Listed {
    let (finder, sought) = (control.clone(), path.to_owned());
    let found = tokio::task::spawn_blocking(move || finder.find(sought.as_bytes()));
    let found: Vec<Found> = found.await.map_err(|_| Problem::ending())?;
    if found.is_empty() {
        let detail = format!("no export has a file {:?}", shown::bytes(path.as_bytes()));
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-path", detail)
            .hint("lockkeeper locks shows paths as they are below each export"));
    }
    if found.iter().any(|found| found.directory) {
        return below(control, found, clients, query, limit).await;
    }
    let skip = skip_of(query)?;
    let state = query.state;
    let files: Vec<FileKey> = found.into_iter().map(|found| found.file).collect();
    let look = move |keeper: &Keeper| {
        let tables = Tables::of(state);
        let held = files.iter().filter(|_| tables.held).flat_map(|file| {
            let locks = keeper.locks_on(file).map(Entry::Lock);
            locks.chain(keeper.shares_on(file).map(Entry::Share))
        });
        let waiting = files.iter().filter(|_| tables.waiting);
        let waiting = waiting.flat_map(|file| keeper.waiters_on(file).map(Entry::Waiter));
        let remembered = files.iter().filter(|_| tables.remembered);
        let remembered = remembered.flat_map(|file| keeper.remembered_on(file).map(Entry::Record));
        let theirs = |entry: &Entry<'_>| {
            clients.as_ref().is_none_or(|clients| clients.contains(&entry.host()))
        };
        cut(keeper, held.chain(waiting).chain(remembered), theirs, state, skip, limit)
    };
    Ok(control.look(look).await?)
}

/// What there is on the files below some directories: sought among all, in several short looks.
async fn below(
    control: &Control,
    within: Vec<Found>,
    clients: Option<Vec<ClientId>>,
    query: &LockQuery,
    limit: usize,
) -> Listed {
    let mut after = start_of(query)?;
    let (within, state) = (Arc::new(within), query.state);
    let mut rows = Vec::new();
    for _ in 0..SEEK_MAX / LOOK_MAX {
        let look = move |keeper: &Keeper| some_by_id(keeper, after, state, LOOK_MAX);
        let (found, last) = control.look(look).await?;
        let (places, within) = (control.clone(), within.clone());
        let is_below = move |row: &Row| {
            let place = places.place(&row.file);
            within.iter().any(|found| found.has_below(&place))
        };
        let found = found.into_iter().filter(|row| {
            clients.as_ref().is_none_or(|clients| clients.contains(&row.owner().host))
        });
        let found: Vec<Row> = found.collect();
        let found = tokio::task::spawn_blocking(move || {
            found.into_iter().filter(is_below).collect::<Vec<_>>()
        });
        rows.extend(found.await.map_err(|_| Problem::ending())?);
        if rows.len() > limit {
            // The page ends in the middle of what was looked at.
            rows.truncate(limit);
            let next = rows.last().map(|row| ids::entry(row.id));
            return Ok((rows, next));
        }
        match last {
            None => return Ok((rows, None)),
            Some(last) => after = last,
        }
    }
    Ok((rows, Some(ids::entry(after))))
}

fn start_of(query: &LockQuery) -> Result<LockId, Problem> {
    match query.after.as_deref() {
        None => Ok(LockId(0)),
        Some(text) => ids::parse_entry(text).ok_or_else(|| wrong_cursor(text, 'n')),
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

/// One that would do for another question, or for none.
fn wrong_cursor(text: &str, other: char) -> Problem {
    let detail = "`after` is the `next` of the page before, of the same question";
    match text.starts_with(other) {
        true => Problem::new(StatusCode::CONFLICT, "wrong-cursor", detail),
        false => Problem::bad_request(detail),
    }
}

/// Something that is listed, before anything is made of it.
enum Entry<'a> {
    Lock(LockView<'a>),
    Share(ShareView<'a>),
    Waiter(WaiterView<'a>),
    Record(&'a Recorded),
}

impl Entry<'_> {
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

/// One page. Passing an entry costs little; rows are made only of what is wanted, and only so many
/// are looked at.
fn cut<'a>(
    keeper: &Keeper,
    entries: impl Iterator<Item = Entry<'a>>,
    wanted: impl Fn(&Entry<'a>) -> bool,
    state: Option<LockState>,
    skip: usize,
    limit: usize,
) -> (Vec<Row>, Option<String>) {
    let mut rows = Vec::new();
    for (place, entry) in entries.enumerate().skip(skip) {
        if rows.len() >= limit || place - skip >= LOOK_MAX * 4 {
            return (rows, Some(format!("n{place}")));
        }
        if wanted(&entry) {
            let row = entry.row(keeper);
            rows.extend(Some(row).filter(|row| state.is_none_or(|state| row.state == state)));
        }
    }
    (rows, None)
}

/// The row of an id, or of the beginning of one.
async fn find(control: &Control, id: &str) -> Result<Row, Problem> {
    let sought = id.to_owned();
    let look = move |keeper: &Keeper| match ids::parse_entry(&sought) {
        Some(id) => row_of(keeper, id).map_or_else(|| begun_with(keeper, &sought), |row| vec![row]),
        None => begun_with(keeper, &sought),
    };
    let mut found = control.look(look).await?;
    match (found.pop(), found.is_empty()) {
        (Some(row), true) => Ok(row),
        (None, _) => Err(Problem::no_such_lock(id)),
        (Some(row), false) => {
            let some = found.iter().chain([&row]).map(|row| ids::entry(row.id)).collect::<Vec<_>>();
            let detail = format!("several ids begin with {id}: {} ...", some.join(", "));
            Err(Problem::new(StatusCode::CONFLICT, "ambiguous-lock", detail)
                .hint("type more of the id: lockkeeper locks"))
        }
    }
}

fn row_of(keeper: &Keeper, id: LockId) -> Option<Row> {
    let lock = keeper.lock(id).map(|lock| Row::of_lock(keeper, &lock));
    let share = || keeper.share(ShareId(id.0)).map(|share| Row::of_share(keeper, &share));
    let waiter = || keeper.waiter(id).map(|waiter| Row::of_waiter(keeper, &waiter));
    let record = || keeper.remembered_one(id).map(|record| Row::of_record(keeper, record));
    lock.or_else(share).or_else(waiter).or_else(record)
}

/// Up to three rows whose ids begin so. A beginning is worth most digits of an id: the numbers that
/// begin with it lie together, once for each number of digits that follow.
fn begun_with(keeper: &Keeper, text: &str) -> Vec<Row> {
    let Some(LockId(begin)) = ids::parse_entry(text).filter(|id| id.0 > 0) else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    let mut span = 32u64;
    while let Some(first) = begin.checked_mul(span) {
        let last = first.saturating_add(span - 1);
        let (found, _) = some_by_id(keeper, LockId(first - 1), None, 3);
        rows.extend(found.into_iter().take_while(|row| row.id.0 <= last));
        match span.checked_mul(32) {
            Some(wider) if rows.len() < 3 => span = wider,
            _ => break,
        }
    }
    rows
}
