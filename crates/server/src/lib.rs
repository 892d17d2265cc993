//! The server: sockets, dispatch, services and the way they are started.
//!
//! A request goes one way: `transport` (a record) -> `dispatch` (which service, seen before?) ->
//! `service` (which file, who asks, what) -> a file system of `vfs` -> back as a reply.
//! [`Server`] puts it together; `boot.rs` reads as the story of a start.
#![forbid(unsafe_code)]

mod boot;
pub mod chronicle;
mod control;
mod dispatch;
pub mod driver;
mod duplicates;
mod files;
mod limits;
mod liveness;
mod locks;
pub mod meters;
pub mod news;
mod our_names;
mod outbound;
mod rarely;
mod registrar;
pub mod replay;
mod service;
mod task;
mod tenure;
pub mod transport;
mod workers;

pub use boot::{BootError, Config, Ended, Failed, SWITCHED_OFF, Server, Stopper};
pub use control::{Control, Found, NotDone, Place};
pub use limits::Limits;
pub use locks::{Locks, LocksError};
pub use registrar::{RegisterError, RpcbindMode, RpcbindState};
pub use transport::listen::ListenError;
