//! Handlers of `/v1/clients` and `/v1/notices`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use ipnet::IpNet;
use keeper::bytes::Name;
use keeper::change::Client as ClientRecord;
use keeper::event::Rejection;
use keeper::identity::ClientId;
use keeper::request::OperatorAction;
use keeper::step::OperatorError;
use keeper::view::ClientView;
use keeper::{FenceScope, Keeper};
use server::{Control, ControlError};

use crate::api::{
    ActionResult, Callback, Client, ClientActionResult, ClientKind, ClientName, ClientQuery,
    ClientState, ConfirmRebootQuery, DryRunQuery, FenceHits, Notice, NotifyQuery, Page,
    PendingReboot, ProbeQuery, Problem,
};
use crate::caller::{Operator, Reads, Sight};
use crate::extract::{Path, Query};
use crate::json::Json;
use crate::listing::LOOK_MAX;
use crate::locks::limit_of;
use crate::problem::Problems;
use crate::row::client_name;
use crate::{AdminState, display};

/// A client seen within this many seconds is presumed alive.
const LIVELY: f64 = 60.0;

/// List clients
#[utoipa::path(get, path = "/v1/clients", tag = "clients", params(ClientQuery),
    responses((status = 200, body = Page<Client>), Problems))]
pub(crate) async fn list(
    Reads(control): Reads,
    sight: Sight,
    Query(query): Query<ClientQuery>,
) -> Result<Json<Page<Client>>, Problem> {
    let limit = limit_of(query.limit)?;
    let mut after = match query.after.as_deref() {
        None => ClientId(0),
        Some(text) => text.parse::<ClientId>().ok().ok_or_else(|| {
            Problem::bad_request("`after` must be the `next` of the previous page, such as c3")
        })?,
    };
    let now = control.engine().clock().elapsed();
    let query = Arc::new(query);
    let mut page = Page { items: Vec::new(), next: None, total: 0, unanswered: Vec::new() };
    loop {
        // One more than fits shows whether there is a next page.
        let (room, query) = (limit + 1 - page.items.len(), query.clone());
        let look = move |keeper: &Keeper| {
            let mut found = Vec::new();
            let mut last = None;
            for (count, view) in keeper.clients(after).take(LOOK_MAX).enumerate() {
                last = Some(view.client.id).filter(|_| count + 1 == LOOK_MAX);
                if is_wanted(keeper, &view, &query) {
                    let writes_refused = keeper.is_fenced(view.client.address);
                    found.push(Client { writes_refused, ..to_api(keeper, &view, now) });
                    if found.len() >= room {
                        return (found, None, keeper.counts().clients as u64);
                    }
                }
            }
            (found, last, keeper.counts().clients as u64)
        };
        let (found, last, total) = control.read(look).await?;
        page.items.extend(found);
        page.total = total;
        match last {
            Some(last) => after = last,
            None => break,
        }
    }
    let more = page.items.len() > limit;
    page.items.truncate(limit);
    page.next = page.items.last().filter(|_| more).map(|client| client.id.clone());
    page.items.iter_mut().for_each(|client| withhold(sight, client));
    Ok(Json(page))
}

fn is_wanted(keeper: &Keeper, view: &ClientView<'_>, query: &ClientQuery) -> bool {
    query.state.is_none_or(|state| state_of(keeper, view) == state)
        && query.kind.is_none_or(|kind| kind_of(view.client) == kind)
        && query.name.as_deref().is_none_or(|name| is_named(view.client, name))
}

/// SM_MON's private data is the registrant's own.
fn withhold(sight: Sight, client: &mut Client) {
    if sight == Sight::WithoutPaths {
        client.private = None;
    }
}

/// Whether a client, or the machine that it monitors, has this name.
fn is_named(client: &ClientRecord, sought: &str) -> bool {
    let name = Name::from(sought);
    let is =
        |known: &Name| known.names_same_machine(&name) || display::bytes(known.bytes()) == sought;
    is(&client.name) || is(monitored_name(client))
}

/// Show one client
#[utoipa::path(get, path = "/v1/clients/{id}", tag = "clients",
    params(("id" = String, Path, description = "`c3`, or a unique name or address"), ProbeQuery),
    responses((status = 200, body = Client), Problems))]
pub(crate) async fn one(
    Reads(control): Reads,
    sight: Sight,
    Path(id): Path<String>,
    Query(query): Query<ProbeQuery>,
) -> Result<Json<Client>, Problem> {
    let id = resolve(&control, &id).await?;
    let mut client = one_of(&control, id, query.probe).await?;
    withhold(sight, &mut client);
    Ok(Json(client))
}

/// Release all locks of a client and refuse its locks and writes
#[utoipa::path(put, path = "/v1/clients/{id}/fence", tag = "clients",
    params(("id" = String, Path, description = "`c3`, or a unique name or address"), DryRunQuery),
    responses((status = 200, body = ClientActionResult), Problems))]
pub(crate) async fn fence(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(query): Query<DryRunQuery>,
) -> Result<Json<ClientActionResult>, Problem> {
    act(&admin, &operator, &id, OperatorAction::Fence, query.dry_run).await
}

/// Allow a fenced client to lock and write again
#[utoipa::path(delete, path = "/v1/clients/{id}/fence", tag = "clients",
    params(("id" = String, Path, description = "`c3`, or a unique name or address"), DryRunQuery),
    responses((status = 200, body = ClientActionResult), Problems))]
pub(crate) async fn unfence(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(query): Query<DryRunQuery>,
) -> Result<Json<ClientActionResult>, Problem> {
    act(&admin, &operator, &id, OperatorAction::Unfence, query.dry_run).await
}

/// Resend the notice of the server's last restart
#[utoipa::path(post, path = "/v1/clients/{id}/notify", tag = "clients",
    params(("id" = String, Path, description = "`c3`, or a unique name or address"), DryRunQuery),
    responses((status = 200, body = ClientActionResult), Problems))]
pub(crate) async fn notify(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(query): Query<DryRunQuery>,
) -> Result<Json<ClientActionResult>, Problem> {
    act(&admin, &operator, &id, OperatorAction::Renotify, query.dry_run).await
}

/// Accept a pending report of a reboot, and release what the client held when it arrived
#[utoipa::path(post, path = "/v1/clients/{id}/confirm-reboot", tag = "clients",
    params(("id" = String, Path, description = "`c3`, or a unique name or address"),
        ConfirmRebootQuery),
    responses((status = 200, body = ClientActionResult), Problems))]
pub(crate) async fn confirm_reboot(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(query): Query<ConfirmRebootQuery>,
) -> Result<Json<ClientActionResult>, Problem> {
    let force = query.force;
    let confirm = |client| OperatorAction::ConfirmReboot { client, force };
    act(&admin, &operator, &id, confirm, query.dry_run).await
}

/// Remove a client that holds nothing
#[utoipa::path(delete, path = "/v1/clients/{id}", tag = "clients",
    params(("id" = String, Path, description = "`c3`, or a unique name or address"), DryRunQuery),
    responses((status = 200, body = ClientActionResult), Problems))]
pub(crate) async fn forget(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(query): Query<DryRunQuery>,
) -> Result<Json<ClientActionResult>, Problem> {
    act(&admin, &operator, &id, OperatorAction::Forget, query.dry_run).await
}

/// List pending notices of the server's restart
#[utoipa::path(get, path = "/v1/notices", tag = "clients",
    responses((status = 200, body = Vec<Notice>), Problems))]
pub(crate) async fn notices(Reads(control): Reads) -> Result<Json<Vec<Notice>>, Problem> {
    let now = control.engine().clock().elapsed();
    let look = move |keeper: &Keeper| {
        let owed = keeper.notices().take(NOTICES_MAX);
        owed.map(|notice| {
            let view = notice.client.and_then(|client| keeper.client(client));
            Notice {
                client: view.map_or_else(
                    || ClientName {
                        id: "-".into(),
                        name: "-".into(),
                        address: notice.to.to_string(),
                    },
                    |view| client_name(view.client),
                ),
                attempts: notice.attempts,
                answered: notice.answered,
                next_in_seconds: notice.next.map(|at| at.saturating_sub(now).as_secs_f64()),
            }
        })
        .collect()
    };
    Ok(Json(control.read(look).await?))
}

const NOTICES_MAX: usize = 10_000;

/// Send the notice of the server's last restart to an address or a network
#[utoipa::path(post, path = "/v1/notices", tag = "clients", params(NotifyQuery),
    responses((status = 200, body = ActionResult), Problems))]
pub(crate) async fn notify_addresses(
    State(admin): State<Arc<AdminState>>,
    operator: Operator,
    Query(query): Query<NotifyQuery>,
) -> Result<Json<ActionResult>, Problem> {
    let no_such = |why| Problem::new(StatusCode::NOT_FOUND, "no-such-address", why);
    let addresses = addresses_in(&query.to).map_err(no_such)?;
    let count = addresses.len();
    let action = OperatorAction::NotifyAddresses(addresses);
    admin.control()?.operate(&operator.0, action).await?;
    let addresses = if count == 1 { "address" } else { "addresses" };
    Ok(Json(ActionResult { done: format!("notifying {count} {addresses}") }))
}

/// The most addresses that one request may notify (I10).
const ADDRESSES_MAX: usize = 1024;

/// The address, or the hosts of the network, that `to` names.
fn addresses_in(to: &str) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = to.parse::<IpAddr>() {
        return Ok(vec![address]);
    }
    let network: IpNet = to.parse().map_err(|_| format!("{to:?} is no address or network"))?;
    let hosts: Vec<IpAddr> = network.hosts().take(ADDRESSES_MAX + 1).collect();
    if hosts.len() > ADDRESSES_MAX {
        return Err(format!("{network} has more than {ADDRESSES_MAX} addresses"));
    }
    Ok(hosts)
}

async fn act(
    admin: &AdminState,
    operator: &Operator,
    id: &str,
    action: impl Fn(ClientId) -> OperatorAction,
    dry_run: bool,
) -> Result<Json<ClientActionResult>, Problem> {
    let control = admin.control()?;
    let found = matching(&control, id).await?;
    let id = match action(ClientId(0)) {
        OperatorAction::Fence(_) | OperatorAction::Unfence(_) => machine_of(id, found)?,
        _ => only(id, found)?,
    };
    let before = one_of(&control, id, false).await?;
    let action = action(id);
    let hits = match action {
        OperatorAction::Fence(_) => Some(hits_of(&control, id).await?),
        _ => None,
    };
    if dry_run {
        if let OperatorAction::Forget(_) = action
            && (before.locks + before.shares + before.waiting > 0
                || before.fenced
                || before.notice.is_some())
        {
            return Err(Problem::in_use(&before));
        }
        let released = match action {
            OperatorAction::Fence(client) => {
                control.read(move |keeper: &Keeper| held_by_machine(keeper, client)).await?
            }
            OperatorAction::ConfirmReboot { client, .. } => {
                control.read(move |keeper: &Keeper| keeper.released_by_reboot(client)).await?
            }
            _ => 0,
        };
        return Ok(Json(ClientActionResult { dry_run, client: before, released, hits }));
    }
    let done = control.operate(&operator.0, action.clone()).await.map_err(|why| match why {
        ControlError::Refused(OperatorError::Busy) => Problem::in_use(&before),
        why => why.into(),
    })?;
    let client = one_of(&control, id, false).await.unwrap_or(before);
    Ok(Json(ClientActionResult { dry_run, client, released: done.released, hits }))
}

/// Whom a fence of this client hits, also at addresses from which its machine has only mounted.
async fn hits_of(control: &Control, id: ClientId) -> Result<FenceHits, Problem> {
    let name = control.read(move |keeper: &Keeper| Some(keeper.client(id)?.client.name.clone()));
    let name = name.await?.ok_or_else(|| Problem::no_such_client(&id.to_string()))?;
    let mounted = control.mounted_from(&name);
    let look = move |keeper: &Keeper| {
        let FenceScope { machine, addresses, neighbours } = keeper.fence_scope(id, &mounted);
        let names = |ids: BTreeSet<ClientId>| {
            let views = ids.into_iter().filter_map(|id| keeper.client(id));
            views.map(|view| client_name(view.client)).collect()
        };
        FenceHits {
            machine: names(machine),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            neighbours: names(neighbours),
        }
    };
    Ok(control.read(look).await?)
}

fn held_by_machine(keeper: &Keeper, client: ClientId) -> u64 {
    let machine = keeper.fence_scope(client, &[]).machine.into_iter();
    let views = machine.filter_map(|id| keeper.client(id));
    views.map(|view| (view.locks + view.shares) as u64).sum()
}

/// The client that a fence is asked for: if several match, any of them if all are one machine.
fn machine_of(text: &str, found: Vec<(ClientId, ClientName)>) -> Result<ClientId, Problem> {
    let Some((first, name)) = found.first() else { return only(text, found) };
    let name = Name::from(name.name.as_str());
    let same = |(_, other): &(ClientId, ClientName)| {
        Name::from(other.name.as_str()).names_same_machine(&name)
    };
    match found.iter().all(same) {
        true => Ok(*first),
        false => only(text, found),
    }
}

/// A warning if the client is probably alive and may keep relying on a released lock.
pub(crate) fn may_go_on(client: &Client) -> Option<String> {
    let seen = client.last_seen_seconds.filter(|seconds| *seconds < LIVELY);
    let sign = match (client.answers, seen) {
        (Some(true), _) => "answers now".to_string(),
        (_, Some(seconds)) => format!("was last seen {seconds:.0} s ago"),
        _ => return None,
    };
    Some(format!("{} {sign} and will not be notified; it may keep writing", client.name))
}

pub(crate) async fn one_of(
    control: &Control,
    id: ClientId,
    probe: bool,
) -> Result<Client, Problem> {
    let now = control.engine().clock().elapsed();
    let look = move |keeper: &Keeper| {
        let view = keeper.client(id)?;
        let host = view.client.is_host().then(|| view.client.key());
        let address = view.client.address;
        let others = keeper.hosts_at(address).filter(|other| other.id != id);
        let client = Client {
            writes_refused: keeper.is_fenced(address),
            same_address: others.map(client_name).collect(),
            ..to_api(keeper, &view, now)
        };
        Some((client, host))
    };
    let found = control.read(look).await?;
    let (mut client, host) = found.ok_or_else(|| Problem::no_such_client(&id.to_string()))?;
    if let Some(host) = host.filter(|_| probe) {
        client.answers = Some(control.is_reachable(host).await);
    }
    Ok(client)
}

/// The client matching an id, name or address; an error unless exactly one does.
pub(crate) async fn resolve(control: &Control, text: &str) -> Result<ClientId, Problem> {
    only(text, matching(control, text).await?)
}

fn only(text: &str, found: Vec<(ClientId, ClientName)>) -> Result<ClientId, Problem> {
    match &found[..] {
        [one] => Ok(one.0),
        [] => Err(Problem::no_such_client(text)),
        group => {
            let names = group
                .iter()
                .take(5)
                .map(|(_, name)| format!("{} ({} {})", name.id, name.name, name.address));
            let names = names.collect::<Vec<_>>().join(", ");
            let detail = format!("{} clients match: {names}", group.len());
            Err(Problem::new(StatusCode::CONFLICT, "ambiguous-client", detail)
                .hint("use the id, such as c3"))
        }
    }
}

/// All clients matching an id, name or address.
pub(crate) async fn resolve_all(control: &Control, text: &str) -> Result<Vec<ClientId>, Problem> {
    let found = matching(control, text).await?;
    match found.is_empty() {
        true => Err(Problem::no_such_client(text)),
        false => Ok(found.into_iter().map(|(id, _)| id).collect()),
    }
}

async fn matching(control: &Control, text: &str) -> Result<Vec<(ClientId, ClientName)>, Problem> {
    if let Ok(id) = text.parse::<ClientId>() {
        let look = move |keeper: &Keeper| keeper.client(id).map(|view| client_name(view.client));
        if let Some(name) = control.read(look).await? {
            return Ok(vec![(id, name)]);
        }
    }
    let (sought, address) = (text.to_owned(), text.parse().ok());
    let see = move |all: &mut Vec<Arc<ClientRecord>>, _: &Keeper, view: &ClientView<'_>| {
        let name = view.client.name.bytes();
        if Some(view.client.address) == address
            || name == sought.as_bytes()
            || display::bytes(name) == sought
        {
            all.push(view.client.clone());
        }
    };
    let all = see_all(control, Vec::new(), see).await?;
    // A host takes precedence over its registrations.
    let hosts = all.iter().any(|client| client.is_host());
    let meant = all.iter().filter(|client| !hosts || client.is_host());
    Ok(meant.map(|client| (client.id, client_name(client))).collect())
}

/// Visits all clients in batches of [`LOOK_MAX`], as the engine waits during each.
pub(crate) async fn see_all<T: Send + 'static>(
    control: &Control,
    mut seen: T,
    see: impl Fn(&mut T, &Keeper, &ClientView<'_>) + Clone + Send + 'static,
) -> Result<T, ControlError> {
    let mut after = ClientId(0);
    loop {
        let see = see.clone();
        let look = move |keeper: &Keeper| {
            let mut last = None;
            for (count, view) in keeper.clients(after).take(LOOK_MAX).enumerate() {
                see(&mut seen, keeper, &view);
                last = Some(view.client.id).filter(|_| count + 1 == LOOK_MAX);
            }
            (seen, last)
        };
        let last;
        (seen, last) = control.read(look).await?;
        match last {
            Some(last) => after = last,
            None => return Ok(seen),
        }
    }
}

pub(crate) fn state_of(keeper: &Keeper, view: &ClientView<'_>) -> ClientState {
    let has_something = view.locks + view.shares + view.waiting > 0;
    match view {
        _ if view.client.fenced => ClientState::Fenced,
        _ if view.pending.is_some() => ClientState::RebootPending,
        _ if view.crashed => ClientState::Crashed,
        _ if view.suspect => ClientState::Suspect,
        _ if view.missing > 0 && keeper.in_window() => ClientState::Recovering,
        _ if has_something => ClientState::Active,
        _ => ClientState::Idle,
    }
}

fn to_api(keeper: &Keeper, view: &ClientView<'_>, now: Duration) -> Client {
    let client = view.client;
    let name = client_name(client);
    Client {
        id: name.id.clone(),
        name: name.name.clone(),
        address: name.address.clone(),
        kind: kind_of(client),
        protocol: client.protocol.name().to_owned(),
        state: state_of(keeper, view),
        last_seen_seconds: view.last_seen.map(|seen| now.saturating_sub(seen).as_secs_f64()),
        answers: None,
        registered_at: display::time(client.registered_at_ms),
        epoch: client.epoch.0,
        monitored_name: display::bytes(monitored_name(client).bytes()),
        nsm_state: client.incarnation.0,
        callback: callback_of(client),
        private: client.registrant.as_ref().map(|registrant| hex(&registrant.private)),
        locks: view.locks as u64,
        shares: view.shares as u64,
        waiting: view.waiting as u64,
        unconfirmed: view.unconfirmed as u64,
        monitored: client.monitored,
        fenced: client.fenced,
        writes_refused: client.fenced,
        same_address: Vec::new(),
        crashed: view.crashed,
        suspect: view.suspect,
        our_addresses: client.used.iter().map(ToString::to_string).collect(),
        pending_reboot: view.pending.map(|pending| PendingReboot {
            source: pending.source.to_string(),
            name: display::bytes(pending.name.bytes()),
            nsm_state: pending.to.map(|to| to.0),
            why: match pending.why {
                Rejection::Alive => "its previous kernel still answers",
                Rejection::Unproven => "the report came under another name or is outdated",
                Rejection::Elsewhere => {
                    "the report came from another address; believed from there only with roaming \
                     = true in [nsm], while its own address is silent"
                }
                Rejection::Unreclaimed => {
                    "it may still reclaim what it held before the server's restart; accepted after \
                     15 s without a reclaim if its status monitor confirms it, else after the window"
                }
                Rejection::Unverified => {
                    "its status monitor does not confirm it (verify = \"ask\"); checked again at \
                     each repeat"
                }
            }
            .into(),
            repeats: pending.repeats,
            since: display::time(pending.first_at_ms),
        }),
        notice: keeper.notice_to(client.id).map(|notice| Notice {
            client: name,
            attempts: notice.attempts,
            answered: notice.answered,
            next_in_seconds: notice.next.map(|at| at.saturating_sub(now).as_secs_f64()),
        }),
    }
}

fn kind_of(client: &ClientRecord) -> ClientKind {
    match client.registrant {
        None if client.protocol.is_foreign() => ClientKind::Other,
        None => ClientKind::Lock,
        Some(_) => ClientKind::Monitor,
    }
}

fn monitored_name(client: &ClientRecord) -> &Name {
    client.registrant.as_ref().map_or(&client.name, |registrant| &registrant.watched)
}

/// A lock client's status monitor is sent SM_NOTIFY; a registrant named its own procedure. The server
/// calls no clients of other protocols.
fn callback_of(client: &ClientRecord) -> Option<Callback> {
    const SM_NOTIFY: (u32, u32, u32) = (100_024, 1, 6);
    if client.protocol.is_foreign() {
        return None;
    }
    let called = client.registrant.as_ref().map(|registrant| &registrant.callback);
    let (program, version, procedure) =
        called.map_or(SM_NOTIFY, |called| (called.program, called.version, called.procedure));
    Some(Callback { address: client.address.to_string(), program, version, procedure })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use keeper::change::{Protocol, Snapshot};
    use keeper::config::Config;
    use keeper::identity::{Epoch, HostKey, Incarnation, RequestId};
    use keeper::request::RegisterRequest;
    use keeper::time::Time;

    use super::*;

    #[test]
    fn a_client_of_an_embedded_protocol_is_listed_with_it() {
        let now = Time { mono: Duration::ZERO, wall_ms: 0 };
        let mut keeper = Keeper::restore(Snapshot::default(), Epoch(1), Config::default(), now);
        let request = RegisterRequest {
            id: RequestId(1),
            protocol: Protocol::new("lease").unwrap(),
            client: HostKey::new([192, 0, 2, 7].into(), "alice".into()),
            incarnation: Incarnation(5),
        };
        keeper.handle_register(request, now);
        let again = Keeper::restore(keeper.snapshot(), Epoch(2), Config::default(), now);
        let view = again.clients(ClientId(0)).next().unwrap();
        let client = to_api(&again, &view, Duration::ZERO);
        assert_eq!((client.protocol.as_str(), client.kind), ("lease", ClientKind::Other));
        assert_eq!((client.name.as_str(), client.nsm_state), ("alice", 5));
        assert_eq!(client.state, ClientState::Idle);
        assert!(!client.monitored);
    }
}
