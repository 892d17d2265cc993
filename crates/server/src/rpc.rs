//! A call's whole life, whatever its program: from a record to its service, on the network thread or
//! on a worker, answered once however often it is repeated.

pub mod admission;
pub mod dispatch;
pub mod duplicates;
pub mod limits;
pub mod order;
pub mod pending;
pub mod workers;
