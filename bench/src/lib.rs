//! Our server beside NFS-Ganesha and beside an older binary of ours: the same directory, the same
//! load ([`load`]), in turn.
#![forbid(unsafe_code)]

mod bars;
pub mod command;
pub mod compare;
mod contender;
mod database;
mod ganesha;
mod grantee;
pub mod instructions;
mod interference;
mod lockkeeper;
pub mod monitoring;
mod namespace;
pub mod packages;
mod population;
pub mod ratio;
pub mod restart;
pub mod row;
mod rpcbind;
mod server;
mod table;
pub mod waiting;

pub use bars::misses;
pub use lockkeeper::Variant;
