//! Calls to RPC servers, RFC 5531: every call that the product makes goes through here.
//!
//! - [`Pipeline`] is one TCP connection owned by one task, with the least overhead per call.
//! - [`Connection`] is one TCP connection shared by many callers.
//! - [`Datagram`] is a UDP socket that repeats a call until it is answered.
//! - [`Postbox`] is a UDP socket with calls to many peers under way.
//!
//! One level above, [`rpcbind`] finds the port of a program, [`mount`] the root of an export, and
//! [`nfs`] works with files, [`Locker`] with locks.
#![forbid(unsafe_code)]

mod connection;
mod datagram;
mod envelope;
mod error;
mod locker;
pub mod mount;
pub mod nfs;
mod options;
mod output;
mod pipeline;
mod postbox;
pub mod rpcbind;
mod socket;
mod xid;

pub use connection::Connection;
pub use datagram::Datagram;
pub use envelope::Prepared;
pub use error::{CallError, ConnectError, Refusal};
pub use locker::Locker;
pub use options::Options;
pub use pipeline::Pipeline;
pub use postbox::{Answered, Postbox};
pub use xid::next as next_xid;
