//! An independent implementation of RPC reads what we send and writes what we read.

mod timeouts;

use bytes::Bytes;
use lockkeeper_client::{CallError, Connection, Refusal};
use onc_rpc::auth::AuthFlavor;
use onc_rpc::{AcceptedReply, AcceptedStatus, MessageType, ReplyBody, RpcMessage};
use testbed::peer::Listener;
use timeouts::long;
use tokio::io::AsyncWriteExt;
use wire::record::mark;
use wire::rpc::Accepted;
use wire::rpcbind::{Mapping, v2};

#[tokio::test]
async fn onc_rpc_understands_our_calls_and_we_its_replies() {
    let (peer, at) = Listener::bind().await;
    let server = tokio::spawn(async move {
        let mut caller = peer.accept().await;
        for status in [AcceptedStatus::Success([0, 0, 8, 1]), AcceptedStatus::GarbageArgs] {
            let record = caller.receive().await.unwrap();
            let whole = [&mark(record.len()).to_be_bytes()[..], &record].concat();
            let message = RpcMessage::try_from(Bytes::from(whole)).unwrap();
            let call = message.call_body().unwrap();
            assert_eq!((call.program(), call.program_version(), call.procedure()), (100_000, 2, 3));
            let AuthFlavor::AuthUnix(user) = call.auth_credentials() else {
                panic!("not AUTH_SYS")
            };
            assert_eq!((user.uid(), user.gid()), (1000, 100));
            assert_eq!(user.gids().unwrap(), [4, 27]);
            let expected = [100_003u32, 3, 6, 0].map(u32::to_be_bytes).concat();
            assert_eq!(&call.payload()[..], &expected[..]);

            let verifier = AuthFlavor::<&[u8]>::AuthNone(None);
            let body = ReplyBody::Accepted(AcceptedReply::new(verifier, status));
            let reply = RpcMessage::new(message.xid(), MessageType::Reply(body));
            caller.stream.write_all(&reply.serialise().unwrap()).await.unwrap();
        }
    });
    let options = long().user(1000, 100, &[4, 27]);
    let connection = Connection::connect(at, &options).await.unwrap();
    let mapping = Mapping { program: 100_003, version: 3, protocol: 6, port: 0 };
    assert_eq!(connection.call::<v2::GetPort>(&mapping).await.unwrap(), 2049);
    let refused = connection.call::<v2::GetPort>(&mapping).await.unwrap_err();
    let CallError::Refused(refusal) = refused else { panic!("{refused}") };
    assert_eq!(refusal, Refusal::NotRun(Accepted::GarbageArgs));
    server.await.unwrap();
}
