//! Properties of the decoders for arbitrary bytes: no panic, and whatever decodes can be encoded
//! again.
//!
//! Each function takes fuzzer input. A failed check panics, for libFuzzer and tests alike.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use vfs::{FileKey, FileSystemId, HandleKey, ObjectId};
use wire::nlm::{LockArgs, ShareReply, TestReply, Version, Versioned};
use wire::record::{Error, Limits, Next, Records};
use wire::rpc::{self, Call, CallParseError, Reply};
use wire::rpcbind;
use wire::xdr::{Decode, Writer};

use crate::programs::{
    self, MOUNT1, MOUNT3, NFS3, NLM1, NLM3, NLM4, NSM, NSM_CALLBACK, Procedure, RPCBIND2, RPCBIND3,
    RPCBIND4,
};
use crate::source::Source;

/// A fuzz target: its name, which is also the name of its corpus, and its check.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    pub check: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "record", check: record },
    Target { name: "rpc_call", check: rpc_call },
    Target { name: "rpc_reply", check: rpc_reply },
    Target { name: "nfs3_args", check: nfs3_args },
    Target { name: "nfs3_replies", check: nfs3_replies },
    Target { name: "mount", check: mount },
    Target { name: "rpcbind", check: rpcbind },
    Target { name: "handle", check: handle },
    Target { name: "nlm", check: nlm },
    Target { name: "nsm", check: nsm },
];

/// The key of the handles in the corpus.
pub fn handle_key() -> HandleKey {
    HandleKey::new(*b"the corpus' key!")
}

/// A handle verifies only if this key signed it, with nothing but zeros after it; and with any one
/// bit flipped it no longer does.
pub fn handle(data: &[u8]) {
    let key = handle_key();
    if let Ok(opened) = key.verify(data) {
        let signed = key.sign(opened.export, &opened.file);
        let rest = data.strip_prefix(signed.as_bytes());
        assert!(rest.is_some_and(|rest| rest.iter().all(|byte| *byte == 0)), "forged");
    }
    let Some((bit, object)) = data.split_first() else { return };
    let Some(object) = ObjectId::new(object) else { return };
    let file = FileKey { filesystem: FileSystemId(u64::from(*bit)), object };
    let mut bytes = key.sign(7, &file).as_bytes().to_vec();
    assert_eq!(key.verify(&bytes).map(|opened| opened.file), Ok(file));
    let bit = usize::from(*bit) * 7 % (bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
    assert!(key.verify(&bytes).is_err(), "bit {bit} does not matter");
}

/// Small enough that a fuzzer reaches both limits.
pub const RECORD_LIMITS: Limits = Limits { record_bytes_max: 96, fragments_max: 4 };

/// The first byte seeds the sizes of the chunks in which the rest arrives. After each chunk
/// [`Records`] must agree with a naive implementation on all bytes received so far.
pub fn record(data: &[u8]) {
    let Some((seed, stream)) = data.split_first() else { return };
    let stream = &stream[..stream.len().min(1_024)];
    let mut sizes = Source::new(u64::from(*seed));
    let mut records = Records::new(RECORD_LIMITS);
    let mut received = BytesMut::new();
    let mut found = Vec::new();
    let mut fed = 0;
    while fed < stream.len() {
        let size = (1 + sizes.below(48)).min(stream.len() - fed);
        received.extend_from_slice(&stream[fed..fed + size]);
        fed += size;
        let end = loop {
            match records.next(&mut received) {
                Ok(Next::Record(record)) => found.push(record.to_vec()),
                Ok(Next::Missing(bytes)) => break Ok(bytes),
                Err(error) => break Err(error),
            }
        };
        let (expected, expected_end, between) = naive(&stream[..fed]);
        assert_eq!((&found, end), (&expected, expected_end), "after {fed} bytes");
        if end.is_err() {
            return;
        }
        assert_eq!(records.between(&received), between, "after {fed} bytes");
    }
}

/// A naive implementation of record marking (RFC 5531, section 11), from the start each time.
/// Returns the records, the number of missing bytes or the error, and whether the stream ends
/// between two records.
fn naive(stream: &[u8]) -> (Vec<Vec<u8>>, Result<usize, Error>, bool) {
    let Limits { record_bytes_max, fragments_max } = RECORD_LIMITS;
    let mut records = Vec::new();
    let mut current: Option<(Vec<u8>, usize)> = None;
    let mut at = 0;
    loop {
        let between = current.is_none() && at == stream.len();
        if stream.len() - at < 4 {
            return (records, Ok(4 - (stream.len() - at)), between);
        }
        let last = stream[at] >= 0x80;
        let length = (usize::from(stream[at] & 0x7f) << 24)
            + (usize::from(stream[at + 1]) << 16)
            + (usize::from(stream[at + 2]) << 8)
            + usize::from(stream[at + 3]);
        let (mut bytes, fragments) = current.take().unwrap_or_default();
        if bytes.len() + length > record_bytes_max {
            return (records, Err(Error::TooLong { max: record_bytes_max }), between);
        }
        let end = at + 4 + length;
        if end > stream.len() {
            return (records, Ok(end - stream.len()), between);
        }
        bytes.extend(&stream[at + 4..end]);
        at = end;
        if last {
            records.push(bytes);
        } else if fragments + 1 == fragments_max {
            return (records, Err(Error::TooManyFragments { max: fragments_max }), between);
        } else {
            current = Some((bytes, fragments + 1));
        }
    }
}

/// A record as a server receives it: the RPC header, then the arguments of the procedure it names.
pub fn rpc_call(data: &[u8]) {
    match Call::parse(Bytes::copy_from_slice(data)) {
        Ok(call) => {
            let mut out = Writer::new();
            let to = call.to();
            rpc::write_call(&mut out, call.xid, to, &call.credential);
            let mut bytes = out.finish().to_bytes().to_vec();
            bytes.extend_from_slice(&call.args);
            let again = Call::parse(bytes.into());
            assert!(
                again.as_ref().is_ok_and(|again| (again.xid, &again.credential, &again.args)
                    == (call.xid, &call.credential, &call.args)
                    && again.to() == to),
                "{call:?} came back as {again:?}"
            );
            if let Some(procedure) = programs::find(to.program, to.version, to.procedure) {
                let _ = (procedure.args.check)(call.args);
            }
        }
        Err(CallParseError::Denied { xid, denial }) => {
            let mut out = Writer::new();
            rpc::write_denied(&mut out, xid, denial);
            rpc_reply(&out.finish().to_bytes());
        }
        Err(CallParseError::NotACall | CallParseError::Garbage { .. }) => {}
    }
}

/// A record as a client receives it.
pub fn rpc_reply(data: &[u8]) {
    let Ok(reply) = Reply::from_bytes(Bytes::copy_from_slice(data)) else { return };
    let mut out = Writer::new();
    match reply.verdict {
        Ok(accepted) => rpc::write_accepted(&mut out, reply.xid, accepted),
        Err(denial) => rpc::write_denied(&mut out, reply.xid, denial),
    }
    out.fixed(&reply.results);
    let again = Reply::from_bytes(out.finish().to_bytes());
    assert!(
        again.as_ref().is_ok_and(|again| (again.xid, again.verdict, &again.results)
            == (reply.xid, reply.verdict, &reply.results)),
        "{reply:?} came back as {again:?}"
    );
}

/// The first byte chooses the procedure, the rest is its arguments.
pub fn nfs3_args(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    if let Some(procedure) = NFS3.get(usize::from(*first)) {
        let _ = (procedure.args.check)(Bytes::copy_from_slice(rest));
    }
}

/// The first byte chooses the procedure, the rest is its reply.
pub fn nfs3_replies(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    if let Some(procedure) = NFS3.get(usize::from(*first)) {
        let _ = (procedure.reply.check)(Bytes::copy_from_slice(rest));
    }
}

/// The first byte chooses procedure and direction, the rest is the message.
pub fn mount(data: &[u8]) {
    either(&[MOUNT3, MOUNT1], data);
}

/// As [`mount`]; the same bytes are also tried as a universal address.
pub fn rpcbind(data: &[u8]) {
    either(&[RPCBIND2, RPCBIND3, RPCBIND4], data);
    if let Some(address) = rpcbind::parse_universal(data) {
        let text = rpcbind::universal(address);
        assert_eq!(rpcbind::parse_universal(text.as_bytes()), Some(address), "{text}");
    }
}

/// As [`mount`]. A value decoded in one version is also encoded in the others, where no status or
/// range may appear that the version does not have.
pub fn nlm(data: &[u8]) {
    either(&[NLM4, NLM3, NLM1], data);
    let Some((_, rest)) = data.split_first() else { return };
    for version in Version::ALL {
        said_in_every_version::<LockArgs>(version, rest);
        said_in_every_version::<TestReply>(version, rest);
        said_in_every_version::<ShareReply>(version, rest);
    }
}

fn said_in_every_version<T: Versioned + PartialEq + Debug>(heard: Version, data: &[u8]) {
    let Ok(value) = T::from_bytes_as(heard, Bytes::copy_from_slice(data)) else { return };
    for version in Version::ALL {
        let said = value.to_bytes_as(version);
        let understood = T::from_bytes_as(version, said.clone());
        assert!(understood.is_ok(), "{value:?} cannot be said in {version:?}");
        let again = understood.map(|value| value.to_bytes_as(version));
        assert_eq!(again, Ok(said), "{value:?} in {version:?}");
    }
}

/// As [`mount`].
pub fn nsm(data: &[u8]) {
    either(&[NSM, NSM_CALLBACK], data);
}

/// Even numbers are arguments, odd ones replies, of the procedures in order.
fn either(tables: &[&[Procedure]], data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let Some(procedure) = tables.iter().copied().flatten().nth(usize::from(first / 2)) else {
        return;
    };
    let form = if first % 2 == 0 { procedure.args } else { procedure.reply };
    let _ = (form.check)(Bytes::copy_from_slice(rest));
}
