//! Notices to Debian's rpc.statd, found through Debian's rpcbind, in a network namespace. Needs root.

use super::*;
use bytes::Bytes;
use std::net::UdpSocket as BlockingSocket;
use testbed::debian::{Machine, STATD_PORT, state_directory};
use testbed::namespace::Namespace;
use testbed::peer::{call, success};
use wire::Decode;
use wire::nsm::{self, Mon, MonArgs, MonId, MyId, StatReply, StatusArgs};
use wire::rpc::{Call, Credential, Procedure, Reply};
use wire::rpcbind::{Mapping, PROTOCOL_UDP, v2};

/// The monitored server, and the procedure by which statd calls the kernel of its host.
const SERVER: &str = "127.0.0.9";
const KERNEL: (u32, u32, u32) = (100_021, 3, 16);
const STATE: u32 = 4_000_000_001;

fn socket(address: (&str, u16)) -> BlockingSocket {
    let socket = BlockingSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

fn receive(socket: &BlockingSocket) -> (Bytes, SocketAddr) {
    let mut buffer = [0; 2_000];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (Bytes::copy_from_slice(&buffer[..length]), from)
}

fn ask<P: Procedure>(to: (&str, u16), args: &P::Args) -> P::Reply {
    let us = socket(("127.0.0.1", 701));
    us.send_to(&call::<P>(1, &Credential::None, args), to).unwrap();
    let reply = Reply::from_bytes(receive(&us).0).unwrap();
    P::Reply::from_bytes(reply.results).unwrap()
}

/// Makes statd watch us, as the kernel of a client does before it locks.
fn monitor(private: [u8; 16]) {
    let my_id = MyId {
        my_name: "localhost".into(),
        program: KERNEL.0,
        version: KERNEL.1,
        procedure: KERNEL.2,
    };
    let mon_id = MonId { mon_name: SERVER.into(), my_id };
    let answer = ask::<Mon>(("127.0.0.1", STATD_PORT), &MonArgs { mon_id, private });
    assert!(matches!(answer, StatReply { outcome: nsm::Outcome::Success, .. }));
}

#[test]
fn a_real_status_monitor_understands_our_notice() {
    let network = Namespace::new().unwrap();
    let dir = state_directory(7).unwrap();
    let machine = Machine::boot(&network).unwrap();
    let _rpcbind = machine.rpcbind().unwrap();
    let _statd = machine.statd(&dir).unwrap();
    network.ip("addr add 10.9.9.1/32 dev lo").unwrap();
    network.enter(|| {
        let (program, version, _) = KERNEL;
        let mapping = Mapping { program, version, protocol: PROTOCOL_UDP, port: 702 };
        assert!(ask::<v2::Set>(("127.0.0.1", 111), &mapping));
        monitor(*b"sixteen bytes ..");
        let kernel = socket(("127.0.0.1", 702));

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let settings = peer::Settings { send_from_reserved_ports: true, ..quick_peers() };
        let notify = |to: &str, ours: &str, name: &str| {
            let (to, ours) = (to.parse().unwrap(), ours.parse().unwrap());
            let settings = settings.clone();
            runtime.block_on(async {
                let mut fixture = Fixture::calling(settings).await;
                let result = fixture.notice(notice(to, &[(ours, name)])).await;
                fixture.no_more_reports().await;
                result
            })
        };
        // Under an unknown name: our source address is enough.
        assert_eq!(notify("127.0.0.1", SERVER, "who?"), NoticeResult::Answered);
        let (call, from) = receive(&kernel);
        let call = Call::parse(call).unwrap();
        assert_eq!((call.program, call.version, call.procedure), KERNEL);
        let status = StatusArgs::from_bytes(call.args).unwrap();
        assert_eq!(status.state.cast_unsigned(), STATE);
        assert_eq!(&status.private, b"sixteen bytes ..");
        kernel.send_to(&success(call.xid, &()), from).unwrap();

        assert_eq!(notify("::1", "::1", "who?"), NoticeResult::Answered);
        // No route.
        assert_eq!(notify("10.8.8.8", "10.9.9.1", "server"), NoticeResult::Unsent);
        assert_eq!(notify("10.8.8.8", "10.9.9.2", "server"), NoticeResult::Unsent);
    });
}
