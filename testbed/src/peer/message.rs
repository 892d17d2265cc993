//! RPC messages as bytes (RFC 5531).

use bytes::Bytes;
use wire::rpc::{
    Accepted, Credential, Groups, Procedure, ProcedureId, Reply, SysCredential, write_accepted,
    write_call,
};
use wire::{Decode, Encode, Writer, record};

/// A record as it goes over a stream, in one fragment.
pub fn marked(record: &[u8]) -> Vec<u8> {
    [&record::mark(record.len()).to_be_bytes()[..], record].concat()
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Credential {
    let (machine, groups) = (Default::default(), Groups::new(groups));
    Credential::Sys(SysCredential { stamp: 0, machine, uid, gid, groups })
}

pub fn call<P: Procedure>(xid: u32, credential: &Credential, args: &P::Args) -> Bytes {
    let mut out = Writer::new();
    write_call(&mut out, xid, ProcedureId::of::<P>(), credential);
    args.encode(&mut out);
    out.finish().to_bytes()
}

/// A reply that the procedure ran, with these results.
pub fn success(xid: u32, results: &impl Encode) -> Bytes {
    let mut out = Writer::new();
    write_accepted(&mut out, xid, Accepted::Success);
    results.encode(&mut out);
    out.finish().to_bytes()
}

pub fn reply(record: Bytes) -> Reply {
    Reply::from_bytes(record).unwrap()
}

/// The results in a reply, which must be a success.
pub fn results<P: Procedure>(record: Bytes) -> P::Reply {
    let reply = reply(record);
    assert_eq!(reply.verdict, Ok(Accepted::Success));
    P::Reply::from_bytes(reply.results).unwrap()
}
