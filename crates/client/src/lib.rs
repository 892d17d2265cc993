//! Calls to RPC servers, RFC 5531: every call that the product makes goes through here.
//!
//! - [`Pipeline`] is one TCP connection owned by one task, with the least overhead per call.
//! - [`Connection`] is one TCP connection shared by many callers.
//! - [`Datagram`] is a UDP socket that repeats a call until it is answered.
//! - [`UdpClient`] is a UDP socket with calls to many peers under way.
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
pub mod rpcbind;
mod socket;
mod udp_client;
mod xid;

pub use connection::Connection;
pub use datagram::Datagram;
pub use envelope::Prepared;
pub use error::{CallError, ConnectError, Refusal};
pub use locker::Locker;
pub use options::Options;
pub use pipeline::Pipeline;
pub use udp_client::{Answered, UdpClient};
pub use xid::next as next_xid;
