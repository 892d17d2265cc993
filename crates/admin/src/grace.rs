//! The grace period: whom it waits for, and its end.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use keeper::Keeper;
use keeper::change::Exactness;
use keeper::identity::ClientId;
use keeper::request::OperatorAction;

use crate::Shared;
use crate::api::{Done, Expected, GraceStatus, Problem};
use crate::caller::Operator;
use crate::json::Json;
use crate::problem::Problems;
use crate::row::client_name;

const EXPECTED_MAX: usize = 100;

/// Whom the grace period waits for
#[utoipa::path(get, path = "/v1/grace", tag = "grace",
    responses((status = 200, body = GraceStatus), Problems))]
pub async fn show(State(shared): State<Arc<Shared>>) -> Result<Json<GraceStatus>, Problem> {
    let control = shared.control()?;
    let now = control.engine().clock().elapsed();
    let look = move |keeper: &Keeper| look(keeper, now);
    Ok(Json(control.look(look).await?))
}

/// Ends the grace period: who has not reclaimed its locks by now may lose them
#[utoipa::path(post, path = "/v1/grace/end", tag = "grace",
    responses((status = 200, body = Done), Problems))]
pub async fn end(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<Done>, Problem> {
    shared.control()?.operate(&operator.0, OperatorAction::EndGrace).await?;
    Ok(Json(Done { done: "grace is over".into() }))
}

pub fn look(keeper: &Keeper, now: Duration) -> GraceStatus {
    // An incomplete store does not know what they held, only who they were.
    let exact = keeper.exactness() == Exactness::Exact;
    let epoch = keeper.epoch();
    let all = keeper.clients(ClientId(0)).filter(|view| match exact {
        true => view.unconfirmed > 0,
        false => {
            let client = view.client;
            client.registrant.is_none() && client.monitored && client.epoch < epoch
        }
    });
    let mut expected = Vec::new();
    let mut expected_total = 0;
    for view in all {
        expected_total += 1;
        if expected.len() < EXPECTED_MAX {
            let notice = keeper.notice_to(view.client.id);
            expected.push(Expected {
                client: client_name(view.client),
                unconfirmed: view.unconfirmed as u64,
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
        remaining_seconds: grace.map_or(0.0, |grace| grace.remaining(now).as_secs_f64()),
        began: grace.is_none_or(|grace| grace.ends.is_some()),
        missing: grace.map_or(0, |grace| grace.missing as u64),
        parked: grace.map_or(0, |grace| grace.parked as u64),
        expected,
        expected_total,
    }
}
