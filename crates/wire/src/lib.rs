//! Bytes to messages and back: XDR (RFC 4506), ONC RPC v2 (RFC 5531), rpcbind (RFC 1833),
//! MOUNT and NFSv3 (RFC 1813), NLM and NSM (Open Group C702, chapters 10 to 14).
//!
//! No I/O and no clock. Decoding borrows from the received buffer, checks every length against
//! what remains *and* against the field's own maximum before anything is allocated, and rejects
//! trailing bytes. Protocol names live here; plain English lives in the crates above.
#![forbid(unsafe_code)]

pub mod mount;
pub mod nfs3;
pub mod nlm;
pub mod nsm;
pub mod record;
pub mod rpc;
pub mod rpcbind;
pub mod xdr;

pub use xdr::{Decode, Encode, Error, Message, Reader, Writer};
