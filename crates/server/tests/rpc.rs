//! The envelope of calls, RFC 5531: what is answered to a call that cannot be carried out.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use bytes::Bytes;
use support::user;
use support::{RecordStream, TestServer, call, reply, results};
use wire::nfs3::{self, GetAttr, GetAttrArgs, Read, ReadArgs, SetAttr, SetAttrArgs};
use wire::rpc::{Accepted, AuthStatus, Credential, Denial, Procedure, Reply};
use wire::{Encode, Writer, mount};

/// A call of any program, with a credential of any flavour.
fn any_call(rpc: u32, numbers: (u32, u32, u32), flavour: u32, body: &[u8], args: &[u8]) -> Bytes {
    let mut out = Writer::new();
    for word in [77, 0, rpc, numbers.0, numbers.1, numbers.2, flavour] {
        out.u32(word);
    }
    out.opaque(body);
    Credential::None.encode(&mut out);
    out.fixed(args);
    out.finish().to_bytes()
}

fn plain(numbers: (u32, u32, u32), args: &[u8]) -> Bytes {
    any_call(2, numbers, 0, &[], args)
}

/// What the server answers to `record`, on a connection that works afterwards.
async fn answer(record: &[u8]) -> Reply {
    let server = TestServer::in_memory().await;
    let mut stream = server.stream().await;
    let answer = reply(stream.exchange(record).await);
    assert_eq!(answer.xid, 77);
    stream.assert_answers_null().await;
    answer
}

#[tokio::test]
async fn an_unknown_program_is_unavailable() {
    let answer = answer(&plain((100_099, 1, 0), &[])).await;
    assert_eq!(answer.verdict, Ok(Accepted::ProgramUnavailable));
}

#[tokio::test]
async fn an_unknown_version_is_answered_with_the_range_that_is_served() {
    for version in [0, 2, 4, u32::MAX] {
        let answer = answer(&plain((nfs3::PROGRAM, version, 0), &[])).await;
        assert_eq!(answer.verdict, Ok(Accepted::ProgramMismatch { low: 3, high: 3 }));
    }
    let answer = answer(&plain((mount::PROGRAM, 4, 0), &[])).await;
    assert_eq!(answer.verdict, Ok(Accepted::ProgramMismatch { low: 1, high: 3 }));
}

#[tokio::test]
async fn an_unknown_procedure_is_unavailable() {
    for numbers in [(nfs3::PROGRAM, 3, 22), (nfs3::PROGRAM, 3, u32::MAX), (mount::PROGRAM, 3, 6)] {
        let answer = answer(&plain(numbers, &[])).await;
        assert_eq!(answer.verdict, Ok(Accepted::ProcedureUnavailable), "{numbers:?}");
    }
}

#[tokio::test]
async fn arguments_that_are_none_are_garbage_in_every_procedure() {
    for procedure in 1..=21 {
        for args in [&[][..], &[0xff; 4], &[0, 0, 0, 64, 1, 2, 3, 4]] {
            let answer = answer(&plain((nfs3::PROGRAM, 3, procedure), args)).await;
            assert_eq!(answer.verdict, Ok(Accepted::GarbageArgs), "{procedure} {args:?}");
        }
    }
}

#[tokio::test]
async fn bytes_after_the_arguments_are_garbage() {
    let answer = answer(&plain((nfs3::PROGRAM, 3, 0), &[0; 4])).await;
    assert_eq!(answer.verdict, Ok(Accepted::GarbageArgs));

    let server = TestServer::in_memory().await;
    let object = server.root().await;
    let mut stream = server.stream().await;
    let good = call::<GetAttr>(77, &Credential::None, &GetAttrArgs { object });
    let longer = [&good[..], &[0; 4]].concat();
    assert_eq!(reply(stream.exchange(&longer).await).verdict, Ok(Accepted::GarbageArgs));
    assert!(results::<GetAttr>(stream.exchange(&good).await).is_ok());
}

#[tokio::test]
async fn a_handle_of_more_than_64_bytes_is_garbage() {
    let mut args = Writer::new();
    args.opaque(&[1; 65]);
    let answer =
        answer(&plain((nfs3::PROGRAM, 3, GetAttr::NUMBER), &args.finish().to_bytes())).await;
    assert_eq!(answer.verdict, Ok(Accepted::GarbageArgs));
}

#[tokio::test]
async fn credentials_other_than_none_and_sys_are_rejected() {
    for flavour in [2, 3, 6, 390_003, u32::MAX] {
        let answer = answer(&any_call(2, (nfs3::PROGRAM, 3, 0), flavour, &[], &[])).await;
        let denial = Denial::Auth(AuthStatus::RejectedCredential);
        assert_eq!(answer.verdict, Err(denial), "{flavour}");
    }
}

#[tokio::test]
async fn seventeen_groups_are_a_bad_credential() {
    let mut body = Writer::new();
    for word in [0, 0, 1000, 1000, 17].into_iter().chain(0..17) {
        body.u32(word);
    }
    let body = body.finish().to_bytes();
    let answer = answer(&any_call(2, (nfs3::PROGRAM, 3, 0), 1, &body, &[])).await;
    assert_eq!(answer.verdict, Err(Denial::Auth(AuthStatus::BadCredential)));
}

#[tokio::test]
async fn sixteen_groups_are_taken() {
    let groups: Vec<u32> = (5000..5016).collect();
    let server = TestServer::in_memory().await;
    let object = server.root().await;
    let record = call::<GetAttr>(1, &user(4_000_000_000, 1, &groups), &GetAttrArgs { object });
    assert!(results::<GetAttr>(server.stream().await.exchange(&record).await).is_ok());
}

#[tokio::test]
async fn a_credential_of_more_than_400_bytes_is_bad() {
    let answer = answer(&any_call(2, (nfs3::PROGRAM, 3, 0), 0, &[0; 404], &[])).await;
    assert_eq!(answer.verdict, Err(Denial::Auth(AuthStatus::BadCredential)));
}

#[tokio::test]
async fn another_version_of_rpc_is_a_mismatch() {
    for version in [0, 1, 3] {
        let answer = answer(&any_call(version, (nfs3::PROGRAM, 3, 0), 0, &[], &[])).await;
        assert_eq!(answer.verdict, Err(Denial::RpcMismatch { low: 2, high: 2 }), "{version}");
    }
}

#[tokio::test]
async fn what_is_no_call_gets_no_answer_and_does_no_harm() {
    let server = TestServer::in_memory().await;
    let mut stream = server.stream().await;
    let mut reply_to_nobody = Writer::new();
    wire::rpc::write_accepted(&mut reply_to_nobody, 9, Accepted::Success);
    stream.send_record(&reply_to_nobody.finish().to_bytes()).await;
    stream.send_record(&[]).await;
    stream.send_record(&[1, 2, 3]).await;
    stream.send_record(&[0; 7]).await;
    stream.send_record(&[0xff; 400]).await;
    stream.assert_answers_null().await;
}

#[tokio::test]
async fn an_envelope_that_ends_early_is_answered_or_ignored_but_never_fatal() {
    let server = TestServer::in_memory().await;
    let mut stream = server.stream().await;
    let whole = call::<nfs3::Null>(77, &user(1, 2, &[3, 4]), &());
    for length in (0..whole.len()).step_by(4) {
        stream.send_record(&whole[..length]).await;
        if length >= 8 {
            let answer = reply(stream.receive().await.unwrap());
            assert_ne!(answer.verdict, Ok(Accepted::Success), "{length}");
        }
    }
    stream.assert_answers_null().await;
}

#[tokio::test]
async fn a_call_without_credential_is_done_as_nobody() {
    let server = TestServer::in_memory().await;
    let nfs = server.nfs().await;
    let root = server.root().await;
    let new = nfs3::NewAttributes { mode: Some(0o600), ..Default::default() };
    let secret = nfs.create(&root, b"secret", new).await.unwrap();

    let mut stream: RecordStream = server.stream().await;
    let args = ReadArgs { file: secret.clone(), offset: 0, count: 1 };
    let as_nobody = stream.exchange(&call::<Read>(1, &Credential::None, &args)).await;
    assert_eq!(results::<Read>(as_nobody).unwrap_err().0, nfs3::Status::Acces);
    let as_owner = stream.exchange(&call::<Read>(2, &user(0, 0, &[]), &args)).await;
    assert!(results::<Read>(as_owner).is_ok());
    let args = SetAttrArgs { object: secret, new, guard: None };
    let as_nobody = stream.exchange(&call::<SetAttr>(3, &Credential::None, &args)).await;
    assert_eq!(results::<SetAttr>(as_nobody).unwrap_err().0, nfs3::Status::Perm);
}
