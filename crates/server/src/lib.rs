//! The server: sockets, dispatch, services and the way they are started.
//!
//! A request goes one way: `transport` (a record) -> `dispatch` (which service, seen before?) ->
//! `service` (which file, who asks, what) -> a file system of `vfs` -> back as a reply.
//! [`Server`] puts it together; `boot.rs` reads as the story of a start.
#![forbid(unsafe_code)]

mod boot;
mod dispatch;
mod limits;
mod rarely;
mod registrar;
mod replay;
mod service;
mod transport;
mod workers;

pub use boot::{BootError, Config, Server, Stopper};
pub use limits::Limits;
pub use registrar::{RegisterError, RpcbindMode, RpcbindState};
pub use transport::listen::ListenError;
