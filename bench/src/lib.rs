//! Our server beside NFS-Ganesha: the same directory, the same load ([`load`]), in turn.
#![forbid(unsafe_code)]

mod bars;
pub mod command;
pub mod compare;
mod crowd;
mod database;
mod ganesha;
mod grantee;
mod interference;
mod lockkeeper;
mod namespace;
pub mod packages;
pub mod restart;
mod server;
mod table;
pub mod waiting;
pub mod watched;

pub use bars::misses;
