//! Messages as bytes: XDR (RFC 4506), ONC RPC v2 (RFC 5531), rpcbind (RFC 1833), MOUNT and NFSv3
//! (RFC 1813), NLM and NSM (Open Group C702, chapters 10 to 14).
//!
//! No I/O and no clock. Decoding borrows from the received buffer, checks every length against both
//! the bytes that remain and the field's maximum before it allocates, and rejects trailing bytes.
//! Encoding cannot fail. A type that has a name in its specification says so in its documentation.
//!
//! | module | contents |
//! |---|---|
//! | [`xdr`] | words, opaque data, lists; [`Encode`] and [`Decode`]; macros for structures and enumerations |
//! | [`record`] | record marking: messages on a TCP stream |
//! | [`rpc`] | the headers of calls and replies, credentials, [`rpc::Procedure`] |
//! | [`rpcbind`] | versions 2 to 4: the port of a program |
//! | [`mount`] | MOUNT versions 1 and 3: the root handle of an export |
//! | [`nfs3`] | procedures and status; [`nfs3::call`], [`nfs3::reply`], [`nfs3::attributes`] |
//! | [`nlm`] | versions 1, 3 and 4, one Rust type per message; [`nlm::call`], [`nlm::reply`] |
//! | [`nsm`] | monitoring and restart notices |
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod mount;
pub mod nfs3;
pub mod nlm;
pub mod nsm;
pub mod record;
pub mod rpc;
pub mod rpcbind;
pub mod xdr;

pub use xdr::{Decode, Encode, Error, Message, Reader, Writer};
