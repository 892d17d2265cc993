//! The server: sockets, dispatch, services and the way they are started.
//!
//! A request goes one way: `transport` (a record) -> `rpc` (which service, seen before, on which
//! thread) -> `service` (which file, who asks, what) -> a file system of `vfs`, or the `engine` with
//! the keeper and its store -> back as a reply.
//! [`Server`] puts it together; `boot.rs` reads as the story of a start.
#![forbid(unsafe_code)]

mod boot;
mod callbacks;
pub mod chronicle;
mod control;
pub mod engine;
mod files;
pub mod liveness;
pub mod locks;
pub mod meters;
pub mod news;
mod our_names;
pub mod peer;
mod rarely;
mod registrar;
pub mod rpc;
mod service;
mod tenure;
pub mod transport;

pub use boot::{BootError, Config, Ended, Failed, SWITCHED_OFF, Server, Stopper};
pub use control::{Control, Found, NotDone, Place};
pub use locks::{Locks, LocksError};
pub use peer::permission;
pub use registrar::{RegisterError, RpcbindMode, RpcbindState};
pub use rpc::limits::Limits;
pub use transport::listen::ListenError;
