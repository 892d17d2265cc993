//! Handlers of `/v1/status`, `/health` and `/ready`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use keeper::Keeper;
use server::{Control, ControlError, RpcbindState};

use crate::api::{
    ActionResult, ClientState, Counts, Exactness, GraceStatus, Problem, ServerState, Status,
    StoreStatus,
};
use crate::caller::{Reads, Sight};
use crate::health::{self, ClientProblems, ExportProblems, StoreProblems};
use crate::json::Json;
use crate::problem::Problems;
use crate::{AdminState, clients, display, grace};

/// Show the state of the server and its problems
#[utoipa::path(get, path = "/v1/status", tag = "server",
    responses((status = 200, body = Status), Problems))]
pub(crate) async fn status(
    State(admin): State<Arc<AdminState>>,
    sight: Sight,
    reads: Result<Reads, Problem>,
) -> Result<Json<Status>, Problem> {
    let paths_withheld = sight == Sight::WithoutPaths;
    let Ok(Reads(control)) = reads else {
        return Ok(Json(Status { paths_withheld, ..standing_by(&admin) }));
    };
    // While the store fails, the engine waits: show the last summary, and that it is the last one.
    let asked = Instant::now();
    let summary = match KeeperSummary::take(&control).await {
        Ok(summary) => {
            *admin.last_summary() = Some(summary.clone());
            Some(summary)
        }
        Err(ControlError::Ending) => return Err(Problem::ending()),
        Err(_) => admin.last_summary().clone(),
    };
    let stalled = control.engine().stalled_for();
    let age = summary.as_ref().filter(|summary| summary.taken < asked);
    let age = age.map(|summary| summary.taken.elapsed());
    Ok(Json(Status {
        counts_age_seconds: age.map(|age| age.as_secs_f64()),
        paths_withheld,
        ..serving(&admin, &control, summary, stalled)
    }))
}

/// How old the last summary may become while the store works: `status` shows it once it fails.
const SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// Keeps the last summary young until the server ends.
pub(crate) async fn keep_summary(admin: Arc<AdminState>, control: Control) {
    loop {
        let is_young = |last: &KeeperSummary| last.taken.elapsed() < SUMMARY_EVERY;
        if !admin.last_summary().as_ref().is_some_and(is_young) {
            match KeeperSummary::take(&control).await {
                Ok(summary) => *admin.last_summary() = Some(summary),
                Err(ControlError::Ending) => return,
                Err(_) => {}
            }
        }
        tokio::time::sleep(SUMMARY_EVERY).await;
    }
}

/// Liveness check
#[utoipa::path(get, path = "/health", tag = "server",
    responses((status = 200, body = ActionResult), Problems))]
pub(crate) async fn health() -> Json<ActionResult> {
    Json(ActionResult { done: "alive".into() })
}

/// Readiness check: 503 while standing by or while the store is failing
#[utoipa::path(get, path = "/ready", tag = "server",
    responses((status = 200, body = ActionResult), Problems))]
pub(crate) async fn ready(
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<ActionResult>, Problem> {
    // Without the status text, which names another server: this is for all.
    let control = admin.control().map_err(|problem| Problem {
        detail: "not serving: starting, or standing by".into(),
        ..problem
    })?;
    match control.engine().stalled_for() {
        None => Ok(Json(ActionResult { done: "serving".into() })),
        Some(_) => Err(ControlError::Stalled.into()),
    }
}

/// The keeper's state at one moment.
#[derive(Clone)]
pub(crate) struct KeeperSummary {
    taken: Instant,
    epoch: u64,
    nsm_state: u32,
    exactness: Exactness,
    counts: Counts,
    grace: Option<GraceStatus>,
    problems: ClientProblems,
    /// Reclaims that an exact store did not have.
    unrecorded: u64,
}

impl KeeperSummary {
    async fn take(control: &Control) -> Result<Self, ControlError> {
        let now = control.engine().clock().elapsed();
        let summary = control.read(move |keeper| Self::at(keeper, now)).await?;
        clients::see_all(control, summary, move |summary: &mut Self, keeper, view| {
            if view.alternates(now) {
                summary.problems.add_alternating(view);
            }
            let state = clients::state_of(keeper, view);
            let counts = &mut summary.counts;
            let count = match state {
                ClientState::Fenced => &mut counts.fenced,
                ClientState::RebootPending => &mut counts.reboot_pending,
                ClientState::Crashed => &mut counts.crashed,
                ClientState::Suspect => &mut counts.suspect,
                _ => return,
            };
            *count += 1;
            summary.problems.add(state, view);
        })
        .await
    }

    /// Everything except the clients.
    fn at(keeper: &Keeper, now: Duration) -> Self {
        let found = keeper.counts();
        let counts = Counts {
            clients: found.clients as u64,
            locks: found.locks as u64,
            shares: found.shares as u64,
            waiting: found.waiters as u64,
            longest_wait_seconds: keeper.longest_wait(now).map(|wait| wait.as_secs_f64()),
            unconfirmed: found.unconfirmed as u64,
            notices_owed: keeper.notices().filter(|notice| !notice.answered).count() as u64,
            ..Counts::default()
        };
        let mut problems = ClientProblems::default();
        problems.add_unanswered(keeper);
        Self {
            taken: Instant::now(),
            epoch: keeper.epoch().0,
            nsm_state: keeper.nsm_state(),
            exactness: keeper.exactness().into(),
            counts,
            grace: keeper.grace().map(|_| grace::look(keeper, now)),
            problems,
            unrecorded: keeper.unrecorded_reclaims(),
        }
    }
}

fn serving(
    admin: &AdminState,
    control: &Control,
    keeper: Option<KeeperSummary>,
    stalled: Option<Duration>,
) -> Status {
    let commits = control.metrics().and_then(|metrics| metrics.commits.quantile(0.99));
    let facts = &admin.facts;
    let exactness = keeper.as_ref().map(|keeper| keeper.exactness).unwrap_or_default();
    let store = StoreStatus {
        kind: facts.store.clone(),
        shown: facts.store_shown.clone(),
        durability: facts.durability.clone(),
        exact: exactness == Exactness::Exact,
        exactness,
        commit_p99_seconds: commits.map(|took| took.as_secs_f64()),
        stalled_seconds: stalled.map(|since| since.as_secs_f64()),
        stall_reason: stalled.and_then(|_| control.engine().stall_reason()),
    };
    let grace = keeper.as_ref().and_then(|keeper| keeper.grace.clone());
    let state = match (&stalled, &grace) {
        (Some(_), _) => ServerState::Stalled,
        (None, Some(_)) => ServerState::Grace,
        (None, None) => ServerState::Serving,
    };
    let summary = match (&stalled, &grace) {
        (Some(since), _) => format!("the store has been failing for {} s", since.as_secs()),
        (None, Some(grace)) if !grace.began => "grace, waiting for the first client call".into(),
        (None, Some(grace)) => format!("grace, {} s left", grace.remaining_seconds.ceil()),
        (None, None) => "serving".into(),
    };
    let no_rpcbind = match control.rpcbind() {
        RpcbindState::Off { reason } if reason != server::SWITCHED_OFF => Some(reason.as_str()),
        _ => None,
    };
    let problems = keeper.as_ref().map(|keeper| &keeper.problems);
    let store_problems = StoreProblems {
        open: (exactness == Exactness::Open).then(|| control.open_reason()),
        // While the store fails, the copy waits for it.
        copy: control.roster_copy_problem().filter(|_| stalled.is_none()),
        unrecorded: keeper.as_ref().map_or(0, |keeper| keeper.unrecorded),
        warnings: control.engine().store_warnings(),
    };
    let exports = ExportProblems::of(control);
    let health =
        health::findings(&store, &store_problems, grace.as_ref(), problems, &exports, no_rpcbind);
    Status {
        version: facts.version.clone(),
        node: facts.node.clone(),
        state,
        summary,
        started_at: display::time(admin.started_ms),
        uptime_seconds: admin.started.elapsed().as_secs_f64(),
        epoch: keeper.as_ref().map(|keeper| keeper.epoch),
        nsm_state: keeper.as_ref().map(|keeper| keeper.nsm_state),
        store,
        grace,
        counts: keeper.map(|keeper| keeper.counts).unwrap_or_default(),
        counts_age_seconds: None,
        paths_withheld: false,
        health,
    }
}

fn standing_by(admin: &AdminState) -> Status {
    let facts = &admin.facts;
    Status {
        version: facts.version.clone(),
        node: facts.node.clone(),
        state: match admin.waits_for().as_str() {
            crate::STARTING => ServerState::Starting,
            _ => ServerState::Standby,
        },
        summary: admin.waits_for(),
        started_at: display::time(admin.started_ms),
        uptime_seconds: admin.started.elapsed().as_secs_f64(),
        epoch: None,
        nsm_state: None,
        store: StoreStatus {
            kind: facts.store.clone(),
            shown: facts.store_shown.clone(),
            durability: facts.durability.clone(),
            exact: true,
            exactness: Exactness::Exact,
            commit_p99_seconds: None,
            stalled_seconds: None,
            stall_reason: None,
        },
        grace: None,
        counts: Counts::default(),
        counts_age_seconds: None,
        paths_withheld: false,
        health: Vec::new(),
    }
}
