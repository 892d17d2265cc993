//! ONC RPC version 2, RFC 5531: the headers of calls and replies.

use bytes::Bytes;

use crate::xdr::{Decode, Encode, Error, Reader, Result, Writer, xdr_bytes, xdr_enum, xdr_struct};

/// A procedure of a program, with the types of its arguments and results.
pub trait Procedure {
    const PROGRAM: u32;
    const VERSION: u32;
    const NUMBER: u32;
    type Args: Encode + Decode;
    type Reply: Encode + Decode;
}

/// Which procedure of which program a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcedureId {
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

impl ProcedureId {
    pub const fn new(program: u32, version: u32, procedure: u32) -> Self {
        Self { program, version, procedure }
    }

    pub const fn of<P: Procedure>() -> Self {
        Self::new(P::PROGRAM, P::VERSION, P::NUMBER)
    }
}

/// Declares procedures of one program and version.
macro_rules! procedures {
    ($program:expr, $version:expr; $($(#[$meta:meta])* $name:ident = $number:literal ($args:ty) -> $reply:ty;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;

        impl $crate::rpc::Procedure for $name {
            const PROGRAM: u32 = $program;
            const VERSION: u32 = $version;
            const NUMBER: u32 = $number;
            type Args = $args;
            type Reply = $reply;
        }
    )*};
}
pub(crate) use procedures;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_BODY_MAX: u32 = 400;

pub const AUTH_NONE: u32 = 0;
pub const AUTH_SYS: u32 = 1;

xdr_bytes! {
    /// The machine name in an AUTH_SYS credential.
    pub struct MachineName(max 255);
}

/// The caller's identity, as the caller claims it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    None,
    Sys(SysCredential),
}

xdr_struct! {
    /// The body of AUTH_SYS, RFC 5531 appendix A.
    pub struct SysCredential {
        pub stamp: u32,
        pub machine: MachineName,
        pub uid: u32,
        pub gid: u32,
        pub groups: Groups,
    }
}

/// Up to sixteen supplementary groups, the limit of AUTH_SYS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Groups {
    count: usize,
    ids: [u32; 16],
}

impl Groups {
    pub const MAX: usize = 16;

    /// The first sixteen of `ids`.
    pub fn new(ids: &[u32]) -> Self {
        let mut groups = Self { count: ids.len().min(Self::MAX), ..Self::default() };
        groups.ids[..groups.count].copy_from_slice(&ids[..groups.count]);
        groups
    }

    pub fn as_slice(&self) -> &[u32] {
        &self.ids[..self.count]
    }
}

impl Encode for Groups {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.count as u32);
        self.as_slice().iter().for_each(|id| out.u32(*id));
    }
}

impl Decode for Groups {
    fn decode(input: &mut Reader) -> Result<Self> {
        let count = input.u32()?;
        if count as usize > Self::MAX {
            return Err(Error::TooLong { length: count, max: Self::MAX as u32 });
        }
        let mut groups = Self { count: count as usize, ..Self::default() };
        for id in &mut groups.ids[..count as usize] {
            *id = input.u32()?;
        }
        Ok(groups)
    }
}

impl Credential {
    fn flavour(&self) -> u32 {
        match self {
            Self::None => AUTH_NONE,
            Self::Sys(_) => AUTH_SYS,
        }
    }
}

impl Encode for Credential {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.flavour());
        match self {
            Self::None => out.u32(0),
            Self::Sys(body) => out.opaque(&body.to_bytes()),
        }
    }
}

/// A call with a decoded header; `args` is not decoded yet.
#[derive(Debug, Clone)]
pub struct Call {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: Credential,
    pub args: Bytes,
}

/// Why a record is not a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallParseError {
    /// A reply, or too short: it gets no answer.
    NotACall,
    /// A call that is answered with this denial.
    Denied { xid: u32, denial: Denial },
    /// The header ends early: answered with GARBAGE_ARGS.
    Garbage { xid: u32 },
}

impl Call {
    pub fn to(&self) -> ProcedureId {
        ProcedureId::new(self.program, self.version, self.procedure)
    }

    pub fn parse(record: Bytes) -> std::result::Result<Self, CallParseError> {
        let mut input = Reader::new(record);
        let (Ok(xid), Ok(CALL)) = (input.u32(), input.u32()) else {
            return Err(CallParseError::NotACall);
        };
        Self::after_xid(xid, input)
    }

    fn after_xid(xid: u32, mut input: Reader) -> std::result::Result<Self, CallParseError> {
        let garbage = |_| CallParseError::Garbage { xid };
        let denied = |denial| CallParseError::Denied { xid, denial };
        if input.u32().map_err(garbage)? != RPC_VERSION {
            return Err(denied(Denial::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION }));
        }
        let program = input.u32().map_err(garbage)?;
        let version = input.u32().map_err(garbage)?;
        let procedure = input.u32().map_err(garbage)?;
        let bad = |_| denied(Denial::Auth(AuthStatus::BadCredential));
        let flavour = input.u32().map_err(garbage)?;
        let body = input.opaque(AUTH_BODY_MAX).map_err(bad)?;
        let credential = match flavour {
            AUTH_NONE => Credential::None,
            AUTH_SYS => Credential::Sys(SysCredential::from_bytes(body).map_err(bad)?),
            _ => return Err(denied(Denial::Auth(AuthStatus::RejectedCredential))),
        };
        let _verifier_flavour = input.u32().map_err(garbage)?;
        input.opaque(AUTH_BODY_MAX).map_err(|_| denied(Denial::Auth(AuthStatus::BadVerifier)))?;
        Ok(Self { xid, program, version, procedure, credential, args: input.rest() })
    }
}

/// Writes the header of a call; the arguments follow.
pub fn write_call(out: &mut Writer, xid: u32, to: ProcedureId, credential: &Credential) {
    let ProcedureId { program, version, procedure } = to;
    for word in [xid, CALL, RPC_VERSION, program, version, procedure] {
        out.u32(word);
    }
    credential.encode(out);
    Credential::None.encode(out);
}

xdr_enum! {
    /// auth_stat: why a credential is rejected.
    pub enum AuthStatus {
        BadCredential = 1,
        RejectedCredential = 2,
        BadVerifier = 3,
        RejectedVerifier = 4,
        TooWeak = 5,
        InvalidResponse = 6,
        Failed = 7,
    }
}

/// MSG_DENIED: the call was rejected before its procedure was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    RpcMismatch { low: u32, high: u32 },
    Auth(AuthStatus),
}

/// MSG_ACCEPTED, accept_stat: whether the procedure ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// The results follow.
    Success,
    ProgramUnavailable,
    ProgramMismatch {
        low: u32,
        high: u32,
    },
    ProcedureUnavailable,
    GarbageArgs,
    SystemError,
}

/// Writes the header of a reply to an accepted call; after `Success` the results follow.
pub fn write_accepted(out: &mut Writer, xid: u32, accepted: Accepted) {
    for word in [xid, REPLY, 0, AUTH_NONE, 0] {
        out.u32(word);
    }
    match accepted {
        Accepted::Success => out.u32(0),
        Accepted::ProgramUnavailable => out.u32(1),
        Accepted::ProgramMismatch { low, high } => {
            out.u32(2);
            out.u32(low);
            out.u32(high);
        }
        Accepted::ProcedureUnavailable => out.u32(3),
        Accepted::GarbageArgs => out.u32(4),
        Accepted::SystemError => out.u32(5),
    }
}

pub fn write_denied(out: &mut Writer, xid: u32, denial: Denial) {
    for word in [xid, REPLY, 1] {
        out.u32(word);
    }
    match denial {
        Denial::RpcMismatch { low, high } => {
            out.u32(0);
            out.u32(low);
            out.u32(high);
        }
        Denial::Auth(status) => {
            out.u32(1);
            status.encode(out);
        }
    }
}

/// A reply with a decoded header; `results` are those of the procedure if it is `Success`.
#[derive(Debug, Clone)]
pub struct Reply {
    pub xid: u32,
    pub verdict: std::result::Result<Accepted, Denial>,
    pub results: Bytes,
}

impl Decode for Reply {
    fn decode(input: &mut Reader) -> Result<Self> {
        let xid = input.u32()?;
        match input.u32()? {
            REPLY => {}
            other => return Err(Error::BadValue(other)),
        }
        let verdict = match input.u32()? {
            0 => {
                let _flavour = input.u32()?;
                input.opaque(AUTH_BODY_MAX)?;
                Ok(match input.u32()? {
                    0 => Accepted::Success,
                    1 => Accepted::ProgramUnavailable,
                    2 => Accepted::ProgramMismatch { low: input.u32()?, high: input.u32()? },
                    3 => Accepted::ProcedureUnavailable,
                    4 => Accepted::GarbageArgs,
                    5 => Accepted::SystemError,
                    other => return Err(Error::BadValue(other)),
                })
            }
            1 => Err(match input.u32()? {
                0 => Denial::RpcMismatch { low: input.u32()?, high: input.u32()? },
                1 => Denial::Auth(AuthStatus::decode(input)?),
                other => return Err(Error::BadValue(other)),
            }),
            other => return Err(Error::BadValue(other)),
        };
        let results = input.fixed(input.remaining() & !3)?;
        Ok(Self { xid, verdict, results })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(credential: &Credential) -> Bytes {
        let mut out = Writer::new();
        write_call(&mut out, 7, ProcedureId::new(100_003, 3, 1), credential);
        out.u32(99);
        out.finish().to_bytes()
    }

    #[test]
    fn a_call_comes_back_as_it_was_written() {
        let sys = Credential::Sys(SysCredential {
            stamp: 1,
            machine: b"alice"[..].into(),
            uid: 1000,
            gid: 100,
            groups: Groups::new(&[4, 27]),
        });
        let parsed = Call::parse(call(&sys)).unwrap();
        assert_eq!(
            (parsed.xid, parsed.program, parsed.version, parsed.procedure),
            (7, 100_003, 3, 1)
        );
        assert_eq!(parsed.credential, sys);
        assert_eq!(&parsed.args[..], &[0, 0, 0, 99]);
    }

    #[test]
    fn an_unknown_flavour_is_answered_with_an_auth_error() {
        let mut bytes = call(&Credential::None).to_vec();
        bytes[27] = 6; // RPCSEC_GSS
        let denial = Denial::Auth(AuthStatus::RejectedCredential);
        assert_eq!(
            Call::parse(bytes.into()).err(),
            Some(CallParseError::Denied { xid: 7, denial })
        );
    }

    #[test]
    fn seventeen_groups_are_a_bad_credential() {
        let mut body = Writer::new();
        for word in [0, 0, 0, 0, 17] {
            body.u32(word);
        }
        (0..17).for_each(|n| body.u32(n));
        let mut out = Writer::new();
        for word in [7, CALL, 2, 100_003, 3, 1, AUTH_SYS] {
            out.u32(word);
        }
        out.opaque(&body.finish().to_bytes());
        Credential::None.encode(&mut out);
        let denial = Denial::Auth(AuthStatus::BadCredential);
        assert_eq!(
            Call::parse(out.finish().to_bytes()).err(),
            Some(CallParseError::Denied { xid: 7, denial })
        );
    }

    #[test]
    fn a_reply_is_not_a_call() {
        let mut out = Writer::new();
        write_accepted(&mut out, 7, Accepted::Success);
        assert_eq!(Call::parse(out.finish().to_bytes()).err(), Some(CallParseError::NotACall));
    }

    #[test]
    fn every_verdict_comes_back_as_it_was_written() {
        for accepted in [
            Accepted::Success,
            Accepted::ProgramUnavailable,
            Accepted::ProgramMismatch { low: 1, high: 3 },
            Accepted::ProcedureUnavailable,
            Accepted::GarbageArgs,
            Accepted::SystemError,
        ] {
            let mut out = Writer::new();
            write_accepted(&mut out, 9, accepted);
            let reply = Reply::from_bytes(out.finish().to_bytes()).unwrap();
            assert_eq!((reply.xid, reply.verdict), (9, Ok(accepted)));
        }
        for denial in [Denial::RpcMismatch { low: 2, high: 2 }, Denial::Auth(AuthStatus::TooWeak)] {
            let mut out = Writer::new();
            write_denied(&mut out, 9, denial);
            assert_eq!(Reply::from_bytes(out.finish().to_bytes()).unwrap().verdict, Err(denial));
        }
    }
}
