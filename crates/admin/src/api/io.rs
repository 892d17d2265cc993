//! NFS calls per client and per export.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::ClientName;

/// NFS calls, as far as they have been answered. A repeated call that is answered from the duplicate request
/// cache is not counted, and neither is NULL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Io {
    /// All calls: `reads`, `writes` and others.
    pub operations: u64,
    pub reads: u64,
    pub writes: u64,
    /// Bytes of file contents.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Calls answered with an error; a LOOKUP that finds nothing is none.
    pub errors: u64,
}

/// Reply to `GET /v1/io/clients`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClientIoList {
    /// Those with the most operations first.
    pub clients: Vec<ClientIo>,
    /// Number of addresses that are counted, at most about 10,000: a new one takes the place of the longest
    /// idle.
    pub total: u64,
}

/// The NFS calls from an address since the server started, whether or not the client ever locked. They are
/// counted in memory only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientIo {
    pub address: String,
    /// The hosts that lock from this address, at most three.
    pub clients: Vec<ClientName>,
    pub io: Io,
    /// Since its last NFS call.
    pub last_seen_seconds: f64,
    /// Open TCP connections.
    pub connections: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct IoQuery {
    /// At most 10,000; default 100.
    #[param(minimum = 1, maximum = 10000)]
    pub limit: Option<u32>,
}
