//! An ONC RPC client (RFC 5531). Every call of the product goes through this crate.
//!
//! | type | transport | use |
//! |---|---|---|
//! | [`Pipeline`] | one TCP connection, owned by one task | the least overhead per call |
//! | [`Connection`] | one TCP connection, shared by many callers | calls from several tasks |
//! | [`Datagram`] | one UDP socket, connected to one peer | one call at a time, retransmitted |
//! | [`UdpClient`] | one UDP socket, any peer | many calls at once, retransmitted |
//!
//! A call returns the procedure's results or a [`CallError`]. After [`CallError::Timeout`] and
//! [`CallError::Closed`] it is unknown whether the server has run the procedure. Dropping the future
//! of a call abandons the call; a reply that arrives later is ignored.
//!
//! On top of these, [`rpcbind`] finds the port of a program, [`mount`] the root handle of an export,
//! [`nfs`] works with files, and [`Locker`] with locks.
//!
//! | module | contents |
//! |---|---|
//! | `pipeline`, `connection`, `datagram`, `udp_client`, `locker` | the types above |
//! | `envelope` | the header of a call and of a reply |
//! | `output` | queued records, written with one system call |
//! | `socket` | sockets with the source address and port of the [`Options`] |
//! | `xid` | unpredictable transaction ids |
//! | `options`, `error` | settings and errors |
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

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
pub use envelope::PreparedCall;
pub use error::{CallError, ConnectError, Refusal};
pub use locker::Locker;
pub use options::Options;
pub use pipeline::Pipeline;
pub use udp_client::{UdpClient, UdpReply};
pub use xid::next as next_xid;
