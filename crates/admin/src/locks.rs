//! Handlers of `/v1/locks`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use keeper::Keeper;
use keeper::identity::{LockId, ShareId};
use keeper::request::OperatorAction;
use server::Control;

use crate::api::{DryRunQuery, Lock, LockKind, LockQuery, LockState, Page, Problem, ReleaseResult};
use crate::caller::{Operator, Reads, Sight};
use crate::extract::{Path, Query};
use crate::files::Files;
use crate::json::Json;
use crate::listing::Listing;
use crate::problem::Problems;
use crate::row::Row;
use crate::{AdminState, clients, listing};

pub(crate) const LIMIT: u32 = 100;
pub(crate) const LIMIT_MAX: u32 = 1000;

/// List locks, shares and waiters
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(LockQuery),
    responses((status = 200, body = Page<Lock>), Problems))]
pub(crate) async fn list(
    Reads(control): Reads,
    sight: Sight,
    Query(query): Query<LockQuery>,
) -> Result<Json<Page<Lock>>, Problem> {
    if query.path.is_some() {
        sight.require_paths()?;
    }
    let limit = limit_of(query.limit)?;
    let Listing { rows, next, total, unanswered } = match (&query.client, &query.path) {
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
    let items = to_api(&control, sight, &rows).await?;
    Ok(Json(Page { items, next, total, unanswered: unanswered.into_iter().collect() }))
}

/// Show one lock, share or waiter
#[utoipa::path(get, path = "/v1/locks/{id}", tag = "locks",
    params(("id" = String, Path, description = "`k7f2`, or a unique prefix")),
    responses((status = 200, body = Lock), Problems))]
pub(crate) async fn one(
    Reads(control): Reads,
    sight: Sight,
    Path(id): Path<String>,
) -> Result<Json<Lock>, Problem> {
    let row = find(&control, &id).await?;
    let mut items = to_api(&control, sight, &[row]).await?;
    items.pop().map(Json).ok_or_else(Problem::ending)
}

/// Release a lock or share
#[utoipa::path(delete, path = "/v1/locks/{id}", tag = "locks",
    params(("id" = String, Path, description = "`k7f2`, or a unique prefix"), DryRunQuery),
    responses((status = 200, body = ReleaseResult), Problems))]
pub(crate) async fn release(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(query): Query<DryRunQuery>,
) -> Result<Json<ReleaseResult>, Problem> {
    let control = admin.control()?;
    let row = find(&control, &id).await?;
    if row.state == LockState::Remembered {
        let detail = format!("{} is only remembered and conflicts with nothing", row.id);
        return Err(Problem::new(StatusCode::CONFLICT, "busy", detail)
            .hint("it is dropped when the grace period ends: lockkeeper grace"));
    }
    if row.kind == LockKind::Waiter {
        let detail = format!("{} is a waiter and holds nothing", row.id);
        return Err(Problem::new(StatusCode::CONFLICT, "waiting", detail)
            .hint("release the lock it waits for: lockkeeper locks --waiting"));
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
    let rows = [vec![lock], granted].concat();
    let mut items = to_api(&control, Sight::Whole, &rows).await?.into_iter();
    let lock = items.next().ok_or_else(Problem::ending)?;
    let warning = clients::may_go_on(&client);
    Ok(Json(ReleaseResult {
        dry_run: query.dry_run,
        lock,
        client,
        granted: items.collect(),
        warning,
    }))
}

/// Waiters for the row's range, in queue order.
async fn waiting_on(control: &Control, row: &Row) -> Result<Vec<Row>, Problem> {
    let (file, range) = (row.file.clone(), row.range);
    let look = move |keeper: &Keeper| {
        let waiting = keeper.waiters_on(&file).filter(|waiter| waiter.range.overlaps(range));
        waiting.take(listing::LOOK_MAX).map(|waiter| Row::of_waiter(keeper, &waiter)).collect()
    };
    Ok(control.read(look).await?)
}

/// Locks that former waiters hold now.
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
    Ok(control.read(look).await?)
}

/// Waiters that would be granted if the row were released: blocked by no other lock and no earlier
/// waiter.
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
    Ok(control.read(look).await?)
}

pub(crate) fn limit_of(limit: Option<u32>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(LIMIT);
    match (1..=LIMIT_MAX).contains(&limit) {
        true => Ok(limit as usize),
        false => Err(Problem::bad_request(format!("`limit` must be between 1 and {LIMIT_MAX}"))),
    }
}

/// The rows as API types.
async fn to_api(control: &Control, sight: Sight, rows: &[Row]) -> Result<Vec<Lock>, Problem> {
    let files = Files::shown_to(sight, control, rows).await;
    let now_ms = control.engine().clock().now().wall_ms;
    Ok(rows.iter().map(|row| row.to_api(&files, now_ms)).collect())
}

/// The row with an id, or with the only id that has this prefix.
async fn find(control: &Control, id: &str) -> Result<Row, Problem> {
    let sought = id.to_owned();
    let look = move |keeper: &Keeper| match sought.parse::<LockId>().ok() {
        Some(id) => row_of(keeper, id).map_or_else(|| begun_with(keeper, &sought), |row| vec![row]),
        None => begun_with(keeper, &sought),
    };
    let mut found = control.read(look).await?;
    match (found.pop(), found.is_empty()) {
        (Some(row), true) => Ok(row),
        (None, _) => Err(Problem::no_such_lock(id)),
        (Some(row), false) => {
            let some = found.iter().chain([&row]).map(|row| row.id.to_string()).collect::<Vec<_>>();
            let detail = format!("ambiguous id {id}: {} ...", some.join(", "));
            Err(Problem::new(StatusCode::CONFLICT, "ambiguous-lock", detail)
                .hint("use a longer prefix: lockkeeper locks"))
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

/// Up to three rows whose ids have this prefix. For each number of digits that follow, the ids with
/// a prefix form one contiguous range.
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
