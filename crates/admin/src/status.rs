//! How the server is, in one look: what it does, what it holds, and what should worry somebody.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use keeper::Keeper;
use keeper::change::Exactness;
use server::{Control, NotDone, RpcbindState};
use vfs::{Access, Squash};

use crate::api::{
    ClientState, Counts, Done, Export, GraceStatus, Problem, ServerState, Status, StoreStatus,
};
use crate::caller::Operator;
use crate::health::{self, Worries};
use crate::json::Json;
use crate::problem::Problems;
use crate::{Shared, clients, grace, shown};

/// How the server is
#[utoipa::path(get, path = "/v1/status", tag = "server",
    responses((status = 200, body = Status), Problems))]
pub async fn status(State(shared): State<Arc<Shared>>) -> Result<Json<Status>, Problem> {
    let control = match shared.control() {
        Ok(control) => control,
        Err(_) => return Ok(Json(standing_by(&shared))),
    };
    // While the store fails, the engine waits with it: then what was seen last is told.
    let looked = match Look::take(&control).await {
        Ok(looked) => {
            *shared.last_look() = Some(looked.clone());
            Some(looked)
        }
        Err(NotDone::Ending) => return Err(Problem::ending()),
        Err(_) => shared.last_look().clone(),
    };
    let stalled = control.engine().stalled_for();
    Ok(Json(serving(&shared, &control, looked, stalled)))
}

/// What is exported, and to whom
#[utoipa::path(get, path = "/v1/exports", tag = "server",
    responses((status = 200, body = Vec<Export>), Problems))]
pub async fn exports(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<Export>>, Problem> {
    let exports = shared.control()?.exports();
    let told = exports.iter().map(|export| Export {
        path: shown::bytes(&export.path),
        access: match export.rules.access {
            Access::ReadWrite => "rw",
            Access::ReadOnly => "ro",
        }
        .into(),
        clients: export.rules.clients.iter().map(ToString::to_string).collect(),
        squash: match export.rules.squash {
            Squash::None => "none",
            Squash::Root => "root",
            Squash::All => "all",
        }
        .into(),
        reserved_ports: export.rules.reserved_ports,
    });
    Ok(Json(told.collect()))
}

/// Reads the configuration file again: exports change, the rest stays
#[utoipa::path(post, path = "/v1/reload", tag = "server",
    responses((status = 200, body = Done), Problems))]
pub async fn reload(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<Done>, Problem> {
    let control = shared.control()?;
    let done = shared.reload().await.map_err(|why| {
        Problem::new(StatusCode::CONFLICT, "not-reloaded", why)
            .hint("lockkeeper config check; the old exports are served on")
    })?;
    control.note(
        "reloaded",
        format!("{} had the configuration read again", operator.0),
        &operator.0,
    );
    Ok(Json(Done { done }))
}

/// Whether the process lives
#[utoipa::path(get, path = "/health", tag = "server",
    responses((status = 200, body = Done), Problems))]
pub async fn health() -> Json<Done> {
    Json(Done { done: "alive".into() })
}

/// Whether it serves: 503 while it stands by, or while its store does not work
#[utoipa::path(get, path = "/ready", tag = "server",
    responses((status = 200, body = Done), Problems))]
pub async fn ready(State(shared): State<Arc<Shared>>) -> Result<Json<Done>, Problem> {
    let control = shared.control()?;
    match control.engine().stalled_for() {
        None => Ok(Json(Done { done: "serving".into() })),
        Some(_) => Err(NotDone::Stalled.into()),
    }
}

/// What one look at the keeper gives.
#[derive(Clone)]
pub struct Look {
    epoch: u64,
    nsm_state: u32,
    exact: bool,
    counts: Counts,
    grace: Option<GraceStatus>,
    worries: Worries,
}

impl Look {
    async fn take(control: &Control) -> Result<Self, NotDone> {
        let now = control.engine().clock().elapsed();
        let look = control.look(move |keeper| Self::at(keeper, now)).await?;
        clients::see_all(control, look, |look: &mut Self, keeper, view| {
            let state = clients::state_of(keeper, view);
            let counts = &mut look.counts;
            let count = match state {
                ClientState::Fenced => &mut counts.fenced,
                ClientState::RebootPending => &mut counts.reboot_pending,
                ClientState::Crashed => &mut counts.crashed,
                ClientState::Suspect => &mut counts.suspect,
                _ => return,
            };
            *count += 1;
            look.worries.add(state, view);
        })
        .await
    }

    /// All but the clients.
    fn at(keeper: &Keeper, now: Duration) -> Self {
        let found = keeper.counts();
        let counts = Counts {
            clients: found.clients as u64,
            locks: found.locks as u64,
            shares: found.shares as u64,
            waiting: found.waiters as u64,
            unconfirmed: found.unconfirmed as u64,
            notices_owed: keeper.notices().filter(|notice| !notice.answered).count() as u64,
            ..Counts::default()
        };
        let mut worries = Worries::default();
        worries.add_unanswered(keeper);
        Self {
            epoch: keeper.epoch().0,
            nsm_state: keeper.nsm_state(),
            exact: keeper.exactness() == Exactness::Exact,
            counts,
            grace: keeper.grace().map(|_| grace::look(keeper, now)),
            worries,
        }
    }
}

fn serving(
    shared: &Shared,
    control: &Control,
    look: Option<Look>,
    stalled: Option<Duration>,
) -> Status {
    let commits = control.meters().and_then(|meters| meters.commits.quantile(0.99));
    let facts = &shared.facts;
    let store = StoreStatus {
        kind: facts.store.clone(),
        shown: facts.store_shown.clone(),
        durability: facts.durability.clone(),
        exact: look.as_ref().is_none_or(|look| look.exact),
        commit_p99_seconds: commits.map(|took| took.as_secs_f64()),
        stalled_seconds: stalled.map(|since| since.as_secs_f64()),
    };
    let grace = look.as_ref().and_then(|look| look.grace.clone());
    let state = match (&stalled, &grace) {
        (Some(_), _) => ServerState::Stalled,
        (None, Some(_)) => ServerState::Grace,
        (None, None) => ServerState::Serving,
    };
    let summary = match (&stalled, &grace) {
        (Some(since), _) => format!("the store has not worked for {} s", since.as_secs()),
        (None, Some(grace)) if !grace.began => "grace, until a first client calls".into(),
        (None, Some(grace)) => format!("grace, {} s left", grace.remaining_seconds.ceil()),
        (None, None) => "serving".into(),
    };
    let no_rpcbind = match control.rpcbind() {
        RpcbindState::Off { reason } if reason != server::SWITCHED_OFF => Some(reason.as_str()),
        _ => None,
    };
    let worries = look.as_ref().map(|look| &look.worries);
    let health = health::findings(&store, grace.as_ref(), worries, no_rpcbind);
    Status {
        version: facts.version.clone(),
        node: facts.node.clone(),
        state,
        summary,
        started_at: shown::time(shared.started_ms),
        uptime_seconds: shared.started.elapsed().as_secs_f64(),
        epoch: look.as_ref().map(|look| look.epoch),
        nsm_state: look.as_ref().map(|look| look.nsm_state),
        store,
        grace,
        counts: look.map(|look| look.counts).unwrap_or_default(),
        health,
    }
}

fn standing_by(shared: &Shared) -> Status {
    let facts = &shared.facts;
    Status {
        version: facts.version.clone(),
        node: facts.node.clone(),
        state: match shared.waits_for().as_str() {
            crate::STARTING => ServerState::Starting,
            _ => ServerState::Standby,
        },
        summary: shared.waits_for(),
        started_at: shown::time(shared.started_ms),
        uptime_seconds: shared.started.elapsed().as_secs_f64(),
        epoch: None,
        nsm_state: None,
        store: StoreStatus {
            kind: facts.store.clone(),
            shown: facts.store_shown.clone(),
            durability: facts.durability.clone(),
            exact: true,
            commit_p99_seconds: None,
            stalled_seconds: None,
        },
        grace: None,
        counts: Counts::default(),
        health: Vec::new(),
    }
}
