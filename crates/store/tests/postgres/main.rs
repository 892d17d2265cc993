//! The store in PostgreSQL, against a real server that the tests start themselves. With
//! `LOCKKEEPER_LONG=1` the loops are longer.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod conformance;
mod driver;
mod failover;
mod faults;
mod full;
mod hosts;
mod indexes;
mod late_statements;
mod leadership;
mod passwords;
mod paused;
mod proxy;
mod speed;
mod tls;
mod wire;
