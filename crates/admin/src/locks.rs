//! Locks, shares and waiters: listing them, finding one, and releasing one.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use keeper::Keeper;
use keeper::identity::{LockId, ShareId};
use keeper::request::OperatorAction;
use server::Control;

use crate::api::{DryRunQuery, Lock, LockKind, LockQuery, LockState, Page, Problem, Released};
use crate::ask::{Path, Query};
use crate::caller::Operator;
use crate::files::Files;
use crate::json::Json;
use crate::listing::Listing;
use crate::problem::Problems;
use crate::row::Row;
use crate::{Shared, clients, listing};

pub const LIMIT: u32 = 100;
pub const LIMIT_MAX: u32 = 1000;

/// What holds and awaits what
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(LockQuery),
    responses((status = 200, body = Page<Lock>), Problems))]
pub async fn list(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<LockQuery>,
) -> Result<Json<Page<Lock>>, Problem> {
    let control = shared.control()?;
    let limit = limit_of(query.limit)?;
    let Listing { rows, next, total } = match (&query.client, &query.path) {
        (None, None) => listing::by_id(&control, &query, limit).await?,
        (client, path) => {
            let client = match client {
                Some(client) => Some(clients::resolve_all(&control, client).await?),
                None => None,
            };
            match path {
                Some(path) => listing::on_path(&control, path, client, &query, limit).await?,
                None => {
                    listing::of_clients(&control, client.unwrap_or_default(), &query, limit).await?
                }
            }
        }
    };
    let items = tell(&control, &rows).await?;
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
    let mut told = tell(&control, &[row]).await?;
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
        let detail = format!("{} is only remembered: it denies nobody", row.id);
        return Err(Problem::new(StatusCode::CONFLICT, "busy", detail)
            .hint("it goes with the end of grace: lockkeeper grace"));
    }
    if row.kind == LockKind::Waiter {
        let detail = format!("{} waits and holds nothing", row.id);
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
    let mut told = tell(&control, &[vec![lock], granted].concat()).await?.into_iter();
    let lock = told.next().ok_or_else(Problem::ending)?;
    let warning = clients::may_go_on(&client);
    Ok(Json(Released { dry_run: query.dry_run, lock, client, granted: told.collect(), warning }))
}

/// Who waits for what this row covers, first come first.
async fn waiting_on(control: &Control, row: &Row) -> Result<Vec<Row>, Problem> {
    let (file, range) = (row.file.clone(), row.range);
    let look = move |keeper: &Keeper| {
        let waiting = keeper.waiters_on(&file).filter(|waiter| waiter.range.overlaps(range));
        waiting.take(listing::LOOK_MAX).map(|waiter| Row::of_waiter(keeper, &waiter)).collect()
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

/// As the API says it.
async fn tell(control: &Control, rows: &[Row]) -> Result<Vec<Lock>, Problem> {
    let files = Files::of(control, rows).await?;
    let now_ms = control.engine().clock().now().wall_ms;
    Ok(rows.iter().map(|row| row.tell(&files, now_ms)).collect())
}

/// The row of an id, or of the beginning of one.
async fn find(control: &Control, id: &str) -> Result<Row, Problem> {
    let sought = id.to_owned();
    let look = move |keeper: &Keeper| match sought.parse::<LockId>().ok() {
        Some(id) => row_of(keeper, id).map_or_else(|| begun_with(keeper, &sought), |row| vec![row]),
        None => begun_with(keeper, &sought),
    };
    let mut found = control.look(look).await?;
    match (found.pop(), found.is_empty()) {
        (Some(row), true) => Ok(row),
        (None, _) => Err(Problem::no_such_lock(id)),
        (Some(row), false) => {
            let some = found.iter().chain([&row]).map(|row| row.id.to_string()).collect::<Vec<_>>();
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
    let Some(LockId(begin)) = text.parse::<LockId>().ok().filter(|id| id.0 > 0) else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    let mut span = 32u64;
    while let Some(first) = begin.checked_mul(span) {
        let last = first.saturating_add(span - 1);
        let (found, _) = listing::some_by_id(keeper, LockId(first - 1), None, 3);
        rows.extend(found.into_iter().take_while(|row| row.id.0 <= last));
        match span.checked_mul(32) {
            Some(wider) if rows.len() < 3 => span = wider,
            _ => break,
        }
    }
    rows
}
