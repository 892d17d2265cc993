//! Our server beside NFS-Ganesha, beside what the machine can do and beside an older binary of ours:
//! the same directory, the same load ([`load`]), in turn.
#![forbid(unsafe_code)]

mod bars;
mod chart;
mod chroot;
pub mod command;
pub mod compare;
mod contender;
mod database;
pub mod ganesha;
mod grantee;
pub mod instructions;
mod interference;
pub mod limit;
pub mod link;
mod lockkeeper;
pub mod machine;
pub mod monitoring;
mod namespace;
pub mod packages;
mod population;
pub mod ratio;
mod report;
pub mod restart;
pub mod row;
mod rows;
mod rpcbind;
mod server;
mod svg;
mod table;
pub mod waiting;

pub use bars::misses;
pub use lockkeeper::Variant;
