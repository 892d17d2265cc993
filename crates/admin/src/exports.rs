//! Handlers of `/v1/exports` and `/v1/reload`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use server::{Control, IoTotals};
use vfs::export::shown_networks;
use vfs::{ExclusiveLock, ExportAccess, MountWalk, OpeningExport, RuleSet, Rules, Squash};

use crate::api::{Export, ExportRule, ExportState, Io, Problem, ReloadResult};
use crate::caller::Operator;
use crate::json::Json;
use crate::problem::Problems;
use crate::{AdminState, display};

/// List exports
#[utoipa::path(get, path = "/v1/exports", tag = "server",
    responses((status = 200, body = Vec<Export>), Problems))]
pub(crate) async fn list(
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Vec<Export>>, Problem> {
    let control = admin.control()?;
    let (exports, io) = (control.exports(), control.export_io());
    let served = exports.iter().map(|export| {
        let io = io.get(&export.id).copied().unwrap_or_default();
        served(&control, export, io)
    });
    Ok(Json(served.chain(exports.opening().iter().map(opening)).collect()))
}

/// Reload the exports from the configuration file
#[utoipa::path(post, path = "/v1/reload", tag = "server",
    responses((status = 200, body = ReloadResult), Problems))]
pub(crate) async fn reload(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
) -> Result<Json<ReloadResult>, Problem> {
    let control = admin.control()?;
    let result = admin.reload().await.map_err(|why| {
        Problem::new(StatusCode::CONFLICT, "not-reloaded", why)
            .hint("lockkeeper config check; the old exports remain in use")
    })?;
    control.log_command("reloaded", format!("{} {}", operator.0, result.done), &operator.0);
    Ok(Json(result))
}

fn served(control: &Control, export: &vfs::Export, io: IoTotals) -> Export {
    let file_system = export.filesystem.id();
    let state = match control.is_stalled(file_system) {
        true => ExportState::Unanswered,
        false => ExportState::Served,
    };
    Export {
        filesystem_id: Some(file_system.0.to_string()),
        file_system: Some(export.filesystem.kind().into()),
        io: Some(to_api(io)),
        ..named(&export.path, export.id, &export.rules, state)
    }
}

fn opening(export: &OpeningExport) -> Export {
    let state = match export.problem {
        Some(_) => ExportState::Failed,
        None => ExportState::Opening,
    };
    Export {
        problem: export.problem.clone(),
        waiting_seconds: Some(export.since.elapsed().as_secs_f64()),
        ..named(&export.path, export.id, &export.rules, state)
    }
}

/// What is known of any export.
fn named(path: &[u8], id: u32, rules: &RuleSet, state: ExportState) -> Export {
    let rules: Vec<ExportRule> = rules.iter().map(rule).collect();
    let first = rules.first();
    Export {
        path: display::bytes(path),
        access: first.map(|rule| rule.access.clone()).unwrap_or_default(),
        clients: rules.iter().flat_map(|rule| rule.clients.clone()).collect(),
        squash: first.map(|rule| rule.squash.clone()).unwrap_or_default(),
        reserved_ports: first.is_some_and(|rule| rule.reserved_ports),
        id,
        filesystem_id: None,
        file_system: None,
        state,
        problem: None,
        waiting_seconds: None,
        rules,
        io: None,
    }
}

/// In the words of the configuration.
fn rule(rules: &Rules) -> ExportRule {
    let access = match rules.access {
        ExportAccess::ReadWrite => "rw",
        ExportAccess::ReadOnly => "ro",
    };
    let squash = match rules.squash {
        Squash::None => "none",
        Squash::Root => "root",
        Squash::All => "all",
    };
    let exclusive_lock = match rules.exclusive_lock {
        ExclusiveLock::Read => "read",
        ExclusiveLock::Write => "write",
    };
    let mount_walk = match rules.mount_walk {
        MountWalk::Caller => "caller",
        MountWalk::Server => "server",
    };
    ExportRule {
        clients: shown_networks(&rules.clients),
        access: access.into(),
        squash: squash.into(),
        anonymous_uid: rules.anonymous_uid,
        anonymous_gid: rules.anonymous_gid,
        reserved_ports: rules.require_reserved_ports,
        lock_auth: rules.lock_auth,
        exclusive_lock: exclusive_lock.into(),
        stateless_clients: rules.stateless_clients,
        mount_walk: mount_walk.into(),
    }
}

pub(crate) fn to_api(totals: IoTotals) -> Io {
    let operations = totals.operations();
    let IoTotals { reads, writes, others: _, bytes_read, bytes_written, errors } = totals;
    Io { operations, reads, writes, bytes_read, bytes_written, errors }
}
