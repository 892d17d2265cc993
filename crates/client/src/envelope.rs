//! The header of a call before its arguments, and of a reply before its results.

use bytes::Bytes;
use wire::record;
use wire::rpc::{Accepted, Credential, Procedure, ProcedureId, Reply};
use wire::{Decode, Encode, Message, Writer};

use crate::{CallError, Refusal};

/// Writes calls with one credential, which is encoded once.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    /// The encoded credential and verifier.
    identity: Bytes,
}

impl Envelope {
    pub(crate) fn new(credential: &Credential) -> Self {
        let mut out = Writer::new();
        credential.encode(&mut out);
        Credential::None.encode(&mut out);
        Self { identity: out.finish().head }
    }

    /// Everything before the arguments.
    pub(crate) fn write(&self, out: &mut Writer, xid: u32, to: ProcedureId) {
        let ProcedureId { program, version, procedure } = to;
        const CALL: u32 = 0;
        const RPC_VERSION: u32 = 2;
        for word in [xid, CALL, RPC_VERSION, program, version, procedure] {
            out.u32(word);
        }
        out.fixed(&self.identity);
    }

    /// A complete call with its record mark.
    pub(crate) fn record(&self, xid: u32, to: ProcedureId, args: &impl Encode) -> Message {
        let mut out = Writer::new();
        out.u32(0);
        self.write(&mut out, xid, to);
        args.encode(&mut out);
        let (mut head, payload) = out.into_parts();
        fill_mark(&mut head, &payload);
        Message { head: head.freeze(), payload }
    }

    /// A complete call without a record mark.
    pub(crate) fn datagram(&self, xid: u32, to: ProcedureId, args: &impl Encode) -> Bytes {
        let mut out = Writer::new();
        self.write(&mut out, xid, to);
        args.encode(&mut out);
        out.finish().to_bytes()
    }
}

/// Sets the record mark in the first four bytes of `head`.
pub(crate) fn fill_mark(head: &mut [u8], payload: &Bytes) {
    let length = head.len() - 4 + payload.len().next_multiple_of(4);
    head[..4].copy_from_slice(&record::mark(length).to_be_bytes());
}

/// Encoded arguments, possibly invalid on purpose.
#[derive(Debug)]
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl Encode for Raw<'_> {
    fn encode(&self, out: &mut Writer) {
        out.fixed(self.0);
    }
}

/// A call that is encoded once and sent many times, each time with a new xid.
#[derive(Debug, Clone)]
pub struct PreparedCall {
    pub(crate) head: Vec<u8>,
    pub(crate) payload: Bytes,
    args_at: usize,
}

impl PreparedCall {
    pub fn new<P: Procedure>(credential: &Credential, args: &P::Args) -> Self {
        let envelope = Envelope::new(credential);
        let message = envelope.record(0, ProcedureId::of::<P>(), args);
        // Mark, six words, then the identity.
        let args_at = 4 + 24 + envelope.identity.len();
        Self { head: message.head.to_vec(), payload: message.payload, args_at }
    }

    /// The encoded arguments without the payload, to change an offset or a name in place.
    pub fn args_mut(&mut self) -> &mut [u8] {
        &mut self.head[self.args_at..]
    }
}

/// The results, if the procedure ran.
pub(crate) fn results(reply: Reply) -> Result<Bytes, CallError> {
    match reply.verdict {
        Ok(Accepted::Success) => Ok(reply.results),
        Ok(other) => Err(CallError::Refused(Refusal::NotRun(other))),
        Err(denial) => Err(CallError::Refused(Refusal::Denied(denial))),
    }
}

pub(crate) fn decode<T: Decode>(results: Bytes) -> Result<T, CallError> {
    Ok(T::from_bytes(results)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nfs3::{GetAttr, GetAttrArgs};
    use wire::rpc::Call;

    #[test]
    fn a_prepared_call_is_the_call_that_was_prepared() {
        let options = crate::Options::default().user(1000, 100, &[4, 27]);
        let args = GetAttrArgs { object: b"handle"[..].into() };
        let mut prepared = PreparedCall::new::<GetAttr>(&options.credential, &args);
        prepared.args_mut()[4] = b'H';
        let call = Call::parse(Bytes::from(prepared.head[4..].to_vec())).unwrap();
        assert_eq!(call.credential, options.credential);
        assert_eq!(call.to(), ProcedureId::of::<GetAttr>());
        assert_eq!(GetAttrArgs::from_bytes(call.args).unwrap().object, b"Handle"[..].into());
    }
}
