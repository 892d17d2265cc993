//! The store in PostgreSQL, against a real server that the tests start themselves. With
//! `LOCKKEEPER_LONG=1` the loops are longer.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod conforming;
mod faults;
mod full;
mod late;
mod proxy;
mod seat;
mod speed;
mod stopped;
mod world;
