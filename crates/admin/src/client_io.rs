//! Handler of `/v1/io/clients`: NFS calls per client address (B8.92).

use keeper::Keeper;

use crate::api::{ClientIo, ClientIoList, ClientName, IoQuery, Problem};
use crate::caller::Reads;
use crate::exports::to_api;
use crate::extract::Query;
use crate::json::Json;
use crate::listing::LOOK_MAX;
use crate::problem::Problems;
use crate::row::client_name;

const LIMIT: u32 = 100;
const LIMIT_MAX: u32 = 10_000;

/// List the NFS calls, bytes and errors of each client, whether or not it locks
#[utoipa::path(get, path = "/v1/io/clients", tag = "clients", params(IoQuery),
    responses((status = 200, body = ClientIoList), Problems))]
pub(crate) async fn list(
    Reads(control): Reads,
    Query(query): Query<IoQuery>,
) -> Result<Json<ClientIoList>, Problem> {
    let limit = query.limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!("`limit` must be between 1 and {LIMIT_MAX}")));
    }
    let (found, total) = control.client_io(limit as usize);
    let mut clients: Vec<ClientIo> = Vec::with_capacity(found.len());
    for found in found.chunks(LOOK_MAX) {
        let addresses: Vec<_> = found.iter().map(|client| client.address).collect();
        let look = move |keeper: &Keeper| -> Vec<Vec<ClientName>> {
            let hosts_at = |address| keeper.hosts_at(address).take(HOSTS_MAX).map(client_name);
            addresses.into_iter().map(|address| hosts_at(address).collect()).collect()
        };
        // The figures do not depend on the store; only names are missing while it fails.
        let hosts = match control.engine().stalled_for() {
            Some(_) => None,
            None => control.read(look).await.ok(),
        };
        let hosts = hosts.into_iter().flatten().chain(std::iter::repeat(Vec::new()));
        clients.extend(found.iter().zip(hosts).map(|(client, hosts)| ClientIo {
            address: client.address.to_string(),
            clients: hosts,
            io: to_api(client.totals),
            last_seen_seconds: client.last_seen.as_secs_f64(),
            connections: client.connections as u64,
        }));
    }
    Ok(Json(ClientIoList { clients, total: total as u64 }))
}

/// Of one address: behind address translation it may have many.
const HOSTS_MAX: usize = 3;
