//! The headers of calls and replies, encoded by this crate, by onc-rpc and by nfs3_types.

mod support;

use bytes::Bytes;
use judge::Source;
use lockkeeper_wire::record::mark;
use lockkeeper_wire::rpc::*;
use lockkeeper_wire::{Decode, Encode, Writer};
use nfs3_types::rpc as nfs3;
use onc_rpc::auth::{AuthFlavor, AuthUnixParams};
use onc_rpc::{
    AcceptedReply, AcceptedStatus, AuthError, CallBody, MessageType, RejectedReply, ReplyBody,
    RpcMessage,
};
use support::{SEEDS, compare, opaque, pack};

type Message<'a> = RpcMessage<&'a [u8], &'a [u8]>;

/// onc-rpc writes the record mark too.
fn marked(message: &[u8]) -> Vec<u8> {
    [&mark(message.len()).to_be_bytes(), message].concat()
}

fn our_call(xid: u32, to: ProcedureId, credential: &Credential, args: &[u8]) -> Bytes {
    let mut out = Writer::new();
    write_call(&mut out, xid, to, credential);
    out.fixed(args);
    out.finish().to_bytes()
}

fn our_reply(xid: u32, verdict: Result<Accepted, Denial>, results: &[u8]) -> Bytes {
    let mut out = Writer::new();
    match verdict {
        Ok(accepted) => write_accepted(&mut out, xid, accepted),
        Err(denial) => write_denied(&mut out, xid, denial),
    }
    out.fixed(results);
    out.finish().to_bytes()
}

/// A sample call whose credential is at most 200 bytes long: onc-rpc stops there, where
/// RFC 5531 stops at 400.
fn sample(source: &mut Source) -> (u32, ProcedureId, Credential, Bytes) {
    let mut credential = source.any();
    if let Credential::Sys(sys) = &mut credential {
        sys.machine.0.truncate(100);
    }
    let args = (0..source.below(9)).flat_map(|_| source.any::<[u8; 4]>()).collect();
    let to = ProcedureId::new(source.any(), source.any(), source.any());
    (source.any(), to, credential, args)
}

fn their_credential(ours: &Credential) -> AuthFlavor<&[u8]> {
    match ours {
        Credential::None => AuthFlavor::AuthNone(None),
        Credential::Sys(sys) => AuthFlavor::AuthUnix(AuthUnixParams::new(
            sys.stamp,
            &sys.machine[..],
            sys.uid,
            sys.gid,
            sys.groups.as_slice().iter().copied(),
        )),
    }
}

#[test]
fn calls_agree_with_onc_rpc() {
    for seed in SEEDS {
        let (xid, to, credential, args) = sample(&mut Source::new(seed));
        let body = CallBody::new(
            to.program,
            to.version,
            to.procedure,
            their_credential(&credential),
            AuthFlavor::AuthNone(None),
            &args[..],
        );
        let theirs = Message::new(xid, MessageType::Call(body));
        let their_bytes = theirs.serialise().unwrap();
        let our_bytes = marked(&our_call(xid, to, &credential, &args));
        assert_eq!(our_bytes, their_bytes, "seed {seed}");
        assert_eq!(Message::try_from(&our_bytes[..]).unwrap(), theirs, "seed {seed}");

        let call = Call::parse(their_bytes[4..].to_vec().into()).unwrap();
        assert_eq!(call.to(), to);
        assert_eq!((call.xid, call.credential, call.args), (xid, credential, args));
    }
}

#[test]
fn credentials_up_to_their_full_length_agree_with_nfs3_types() {
    compare(|ours: &SysCredential| nfs3::auth_unix {
        stamp: ours.stamp,
        machinename: opaque(&ours.machine),
        uid: ours.uid,
        gid: ours.gid,
        gids: ours.groups.as_slice().to_vec(),
    });
}

#[test]
fn calls_with_full_credentials_agree_with_nfs3_types() {
    for seed in SEEDS {
        let source = &mut Source::new(seed);
        let ours: SysCredential = source.any();
        let theirs = nfs3::auth_unix {
            stamp: ours.stamp,
            machinename: opaque(&ours.machine),
            uid: ours.uid,
            gid: ours.gid,
            gids: ours.groups.as_slice().to_vec(),
        };
        let to = ProcedureId::new(source.any(), source.any(), source.any());
        let theirs = nfs3::rpc_msg {
            xid: source.any(),
            body: nfs3::msg_body::CALL(nfs3::call_body {
                rpcvers: nfs3::RPC_VERSION_2,
                prog: to.program,
                vers: to.version,
                proc: to.procedure,
                cred: nfs3::opaque_auth::auth_unix(&theirs),
                verf: nfs3::opaque_auth::default(),
            }),
        };
        let credential = Credential::Sys(ours);
        let bytes = pack(&theirs);
        assert_eq!(our_call(theirs.xid, to, &credential, &[]), bytes, "seed {seed}");
        assert_eq!(Call::parse(bytes.into()).unwrap().credential, credential);
    }
}

/// What a reply says, ours and theirs.
type ReplyParts<'a> = (Result<Accepted, Denial>, ReplyBody<&'a [u8], &'a [u8]>);

fn verdicts(results: &[u8]) -> Vec<ReplyParts<'_>> {
    let accepted = |ours, theirs| {
        let reply = AcceptedReply::new(AuthFlavor::AuthNone(None), theirs);
        (Ok(ours), ReplyBody::Accepted(reply))
    };
    let auth = |ours, theirs| {
        (Err(Denial::Auth(ours)), ReplyBody::Denied(RejectedReply::AuthError(theirs)))
    };
    vec![
        accepted(Accepted::Success, AcceptedStatus::Success(results)),
        accepted(Accepted::ProgramUnavailable, AcceptedStatus::ProgramUnavailable),
        accepted(
            Accepted::ProgramMismatch { low: 1, high: u32::MAX },
            AcceptedStatus::ProgramMismatch { low: 1, high: u32::MAX },
        ),
        accepted(Accepted::ProcedureUnavailable, AcceptedStatus::ProcedureUnavailable),
        accepted(Accepted::GarbageArgs, AcceptedStatus::GarbageArgs),
        accepted(Accepted::SystemError, AcceptedStatus::SystemError),
        (
            Err(Denial::RpcMismatch { low: 2, high: 3 }),
            ReplyBody::Denied(RejectedReply::RpcVersionMismatch { low: 2, high: 3 }),
        ),
        auth(AuthStatus::BadCredential, AuthError::BadCredentials),
        auth(AuthStatus::RejectedCredential, AuthError::RejectedCredentials),
        auth(AuthStatus::BadVerifier, AuthError::BadVerifier),
        auth(AuthStatus::RejectedVerifier, AuthError::RejectedVerifier),
        auth(AuthStatus::TooWeak, AuthError::TooWeak),
        auth(AuthStatus::InvalidResponse, AuthError::InvalidResponseVerifier),
        auth(AuthStatus::Failed, AuthError::Failed),
    ]
}

#[test]
fn replies_agree_with_onc_rpc() {
    let some = [1, 2, 3, 4, 5, 6, 7, 8];
    for results in [&[][..], &some[..4], &some] {
        for (ours, theirs) in verdicts(results) {
            let results = if ours == Ok(Accepted::Success) { results } else { &[] };
            let theirs = Message::new(0xfeed_f00d, MessageType::Reply(theirs));
            let their_bytes = theirs.serialise().unwrap();
            let our_bytes = marked(&our_reply(0xfeed_f00d, ours, results));
            assert_eq!(our_bytes, their_bytes, "{ours:?}");
            assert_eq!(Message::try_from(&our_bytes[..]).unwrap(), theirs);

            let reply = Reply::from_bytes(their_bytes[4..].to_vec().into()).unwrap();
            assert_eq!((reply.xid, reply.verdict), (0xfeed_f00d, ours));
            assert_eq!(reply.results, results);
        }
    }
}

#[test]
fn every_reason_of_theirs_to_refuse_a_credential_is_one_of_ours() {
    for word in 1..20_000u32 {
        let mut bytes = our_reply(7, Err(Denial::Auth(AuthStatus::TooWeak)), &[]).to_vec();
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&word.to_be_bytes());
        let theirs = Message::try_from(&marked(&bytes)[..]).is_ok();
        assert_eq!(Reply::from_bytes(bytes.into()).is_ok(), theirs, "{word}");
    }
}

#[test]
fn a_verifier_with_a_body_is_read_over() {
    let verifier = [7; 13];
    let body = CallBody::new(
        1,
        2,
        3,
        AuthFlavor::AuthNone(None),
        AuthFlavor::AuthShort(&verifier[..]),
        &[0, 0, 0, 9][..],
    );
    let bytes = Message::new(5, MessageType::Call(body)).serialise().unwrap();
    let call = Call::parse(bytes[4..].to_vec().into()).unwrap();
    assert_eq!((call.xid, &call.args[..]), (5, &[0, 0, 0, 9][..]));

    let reply = AcceptedReply::new(
        AuthFlavor::AuthShort(&verifier[..]),
        AcceptedStatus::Success(&[0, 0, 0, 9][..]),
    );
    let body = MessageType::Reply(ReplyBody::Accepted(reply));
    let bytes = Message::new(5, body).serialise().unwrap();
    let reply = Reply::from_bytes(bytes[4..].to_vec().into()).unwrap();
    assert_eq!((reply.verdict, &reply.results[..]), (Ok(Accepted::Success), &[0, 0, 0, 9][..]));
}

#[test]
fn a_flavour_that_we_do_not_take_is_denied() {
    let denial = Denial::Auth(AuthStatus::RejectedCredential);
    for credential in
        [AuthFlavor::AuthShort(&[1; 8][..]), AuthFlavor::Unknown { id: 6, data: &[1; 21] }]
    {
        let body = CallBody::new(1, 2, 3, credential, AuthFlavor::AuthNone(None), &[][..]);
        let bytes = Message::new(5, MessageType::Call(body)).serialise().unwrap();
        let refused = Call::parse(bytes[4..].to_vec().into()).err();
        assert_eq!(refused, Some(CallParseError::Denied { xid: 5, denial }));
    }
}

#[test]
fn every_strict_prefix_of_a_call_without_arguments_is_refused() {
    for seed in SEEDS {
        let (xid, to, credential, _) = sample(&mut Source::new(seed));
        let bytes = our_call(xid, to, &credential, &[]);
        for length in 0..bytes.len() {
            assert!(Call::parse(bytes.slice(..length)).is_err(), "seed {seed}, {length} bytes");
        }
    }
}

#[test]
fn every_strict_prefix_of_a_reply_without_results_is_refused() {
    for (verdict, _) in verdicts(&[]) {
        let bytes = our_reply(7, verdict, &[]);
        for length in 0..bytes.len() {
            assert!(Reply::from_bytes(bytes.slice(..length)).is_err(), "{verdict:?}, {length}");
        }
    }
}

#[test]
fn bytes_after_a_credential_inside_its_body_are_refused() {
    let sys: SysCredential = Source::new(1).any();
    let mut out = Writer::new();
    for word in [7, 0, 2, 1, 2, 3, AUTH_SYS] {
        out.u32(word);
    }
    out.opaque(&[&sys.to_bytes()[..], &[0; 4]].concat());
    out.u32(AUTH_NONE);
    out.u32(0);
    let denial = Denial::Auth(AuthStatus::BadCredential);
    assert_eq!(
        Call::parse(out.finish().to_bytes()).err(),
        Some(CallParseError::Denied { xid: 7, denial })
    );
}
