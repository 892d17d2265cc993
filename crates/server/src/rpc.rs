//! The RPC layer (RFC 5531), the same for all programs: finds the service of a call, runs it on the
//! network thread or on a worker, and answers a retransmission from the duplicate request cache.

pub mod admission;
pub(crate) mod callers;
pub(crate) mod dispatch;
pub mod duplicate_cache;
pub(crate) mod duplicates;
mod gathering;
pub mod limits;
pub mod order;
pub(crate) mod pending;
mod served_file_systems;
pub(crate) mod worker_call;
pub(crate) mod workers;
