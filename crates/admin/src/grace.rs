//! Handlers of `/v1/grace`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use keeper::Keeper;
use keeper::change::Exactness;
use keeper::identity::ClientId;
use keeper::request::OperatorAction;

use crate::AdminState;
use crate::api::{ActionResult, ExpectedClient, GraceStatus, Problem};
use crate::caller::{Operator, Reads};
use crate::json::Json;
use crate::problem::Problems;
use crate::row::client_name;

const EXPECTED_MAX: usize = 100;

/// Show the grace period and the clients it waits for
#[utoipa::path(get, path = "/v1/grace", tag = "grace",
    responses((status = 200, body = GraceStatus), Problems))]
pub(crate) async fn show(Reads(control): Reads) -> Result<Json<GraceStatus>, Problem> {
    let now = control.engine().clock().elapsed();
    let look = move |keeper: &Keeper| look(keeper, now);
    Ok(Json(control.read(look).await?))
}

/// End the grace period; clients that have not reclaimed their locks may lose them
#[utoipa::path(post, path = "/v1/grace/end", tag = "grace",
    responses((status = 200, body = ActionResult), Problems))]
pub(crate) async fn end(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
) -> Result<Json<ActionResult>, Problem> {
    admin.control()?.operate(&operator.0, OperatorAction::EndGrace).await?;
    Ok(Json(ActionResult { done: "ended the grace period".into() }))
}

pub(crate) fn look(keeper: &Keeper, now: Duration) -> GraceStatus {
    // An inexact store knows the clients but not all their locks.
    let exact = keeper.exactness() == Exactness::Exact;
    let epoch = keeper.epoch();
    let all = keeper.clients(ClientId(0)).filter(|view| match exact {
        true => view.missing > 0,
        false => {
            let client = view.client;
            client.is_host() && client.monitored && client.epoch < epoch
        }
    });
    let mut expected = Vec::new();
    let mut expected_total = 0;
    for view in all {
        expected_total += 1;
        if expected.len() < EXPECTED_MAX {
            let notice = keeper.notice_to(view.client.id);
            expected.push(ExpectedClient {
                client: client_name(view.client),
                unconfirmed: if exact { view.missing } else { view.unconfirmed } as u64,
                notices: notice.map_or(0, |notice| notice.attempts),
                answered: notice.is_none_or(|notice| notice.answered),
            });
        }
    }
    let grace = keeper.grace();
    if grace.is_none() && !exact {
        (expected, expected_total) = (Vec::new(), 0);
    }
    GraceStatus {
        active: grace.is_some(),
        exact,
        exactness: keeper.exactness().into(),
        remaining_seconds: grace.map_or(0.0, |grace| grace.remaining(now).as_secs_f64()),
        began: grace.is_none_or(|grace| grace.ends.is_some()),
        missing: grace.map_or(0, |grace| grace.missing as u64),
        parked: grace.map_or(0, |grace| grace.parked as u64),
        expected,
        expected_total,
    }
}
