//! NSM with Debian's rpc.statd and sm-notify, in both directions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::net::UdpSocket;

use bytes::Bytes;
use lockkeeper_wire::nsm::{
    self, Mon, MonArgs, MonId, MyId, Name, Notify, NotifyArgs, Null, Outcome, Stat, StatReply,
    StateReply, StatusArgs, Unmon, UnmonAll,
};
use lockkeeper_wire::rpc::{Accepted, Call, Credential, Procedure, Reply};
use lockkeeper_wire::rpcbind::{self, Mapping, PROTOCOL_UDP, v2};
use lockkeeper_wire::{Decode, Encode, nlm as locks};
use testbed::debian::{Machine, STATD_PORT, state_directory};
use testbed::namespace::Namespace;
use testbed::peer;
use testbed::wait::LIMIT;

/// The state that statd starts with.
const STATE: i32 = 7;

/// What the kernel asks its statd for: to be called by a procedure that only it serves.
const KERNEL_PROCEDURE: u32 = 16;

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

fn receive(socket: &UdpSocket) -> (Bytes, std::net::SocketAddr) {
    let mut buffer = [0; 9_000];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (Bytes::copy_from_slice(&buffer[..length]), from)
}

fn call<P: Procedure>(socket: &UdpSocket, to: &str, args: &P::Args) -> P::Reply {
    let xid = 0x1000 + P::NUMBER;
    socket.send_to(&peer::call::<P>(xid, &Credential::None, args), to).unwrap();
    let reply = Reply::from_bytes(receive(socket).0).unwrap();
    assert_eq!((reply.xid, reply.verdict), (xid, Ok(Accepted::Success)));
    P::Reply::from_bytes(reply.results).unwrap()
}

/// Waits for a call, which `answer` answers.
fn serve<R: Encode>(socket: &UdpSocket, answer: impl FnOnce(&Call) -> R) {
    let (bytes, from) = receive(socket);
    let call = Call::parse(bytes).unwrap();
    socket.send_to(&peer::success(call.xid, &answer(&call)), from).unwrap();
}

#[test]
fn statd_understands_our_calls_and_calls_us_back() {
    let network = Namespace::new().unwrap();
    let machine = Machine::boot(&network).unwrap();
    let dir = state_directory(STATE.cast_unsigned()).unwrap();
    let record = dir.path().join("sm/127.0.0.9");
    let _rpcbind = machine.rpcbind().unwrap();
    let _statd = machine.statd(&dir).unwrap();

    network.enter(|| {
        let statd = format!("127.0.0.1:{STATD_PORT}");
        let us = socket("127.0.0.1:701");
        call::<Null>(&us, &statd, &());

        let mon_name = Name::from("127.0.0.9");
        let fine = StatReply { outcome: Outcome::Success, state: STATE };
        assert_eq!(call::<Stat>(&us, &statd, &mon_name), fine);

        let my_id = MyId {
            my_name: "localhost".into(),
            program: locks::PROGRAM,
            version: locks::V3,
            procedure: KERNEL_PROCEDURE,
        };
        let private = *b"\0\x01 sixteen bytes";
        let mon_id = MonId { mon_name: mon_name.clone(), my_id: my_id.clone() };
        let mon = MonArgs { mon_id: mon_id.clone(), private };
        assert_eq!(call::<Mon>(&us, &statd, &mon), fine);
        assert_eq!(
            fs::read_to_string(&record).unwrap(),
            "0100007f 000186b5 00000003 00000010 0001207369787465656e206279746573 127.0.0.9 \
             localhost\n"
        );

        let mapping = Mapping {
            program: locks::PROGRAM,
            version: locks::V3,
            protocol: PROTOCOL_UDP,
            port: 702,
        };
        assert!(call::<v2::Set>(&us, "127.0.0.1:111", &mapping));
        let manager = socket("127.0.0.1:702");
        let restarted = NotifyArgs { mon_name: mon_name.clone(), state: STATE + 4 };
        call::<Notify>(&socket("127.0.0.9:703"), &statd, &restarted);
        serve(&manager, |call| {
            assert_eq!((call.program, call.version), (locks::PROGRAM, locks::V3));
            assert_eq!(call.procedure, KERNEL_PROCEDURE);
            let status = StatusArgs { mon_name, state: STATE + 4, private };
            assert_eq!(StatusArgs::from_bytes(call.args.clone()), Ok(status));
        });

        let state = StateReply { state: STATE };
        assert_eq!(call::<Unmon>(&us, &statd, &mon_id), state);
        assert!(!record.exists());
        assert_eq!(call::<UnmonAll>(&us, &statd, &my_id), state);
    });
}

#[test]
fn notices_of_sm_notify_are_understood() {
    let network = Namespace::new().unwrap();
    let machine = Machine::boot(&network).unwrap();
    let dir = state_directory(STATE.cast_unsigned()).unwrap();
    let registration = "0100007f 000186b5 00000003 00000010 00000000000000000000000000000000 \
                        127.0.0.9 client7.example.org\n";
    fs::write(dir.path().join("sm/127.0.0.9"), registration).unwrap();
    let names = network.enter(|| {
        let (portmap, statd) = (socket("127.0.0.9:111"), socket("127.0.0.9:662"));
        let _notifier = machine.sm_notify(&dir).unwrap();
        serve(&portmap, |call| {
            let to = (call.program, call.version, call.procedure);
            assert_eq!(to, (rpcbind::PROGRAM, rpcbind::V2, v2::GetPort::NUMBER));
            let asked = Mapping::from_bytes(call.args.clone()).unwrap();
            let Mapping { program, version, protocol, .. } = asked;
            assert_eq!((program, version, protocol), (nsm::PROGRAM, nsm::VERSION, PROTOCOL_UDP));
            u32::from(STATD_PORT)
        });
        [(); 2].map(|()| {
            let mut notice = None;
            serve(&statd, |call| {
                let to = (call.program, call.version, call.procedure);
                assert_eq!(to, (nsm::PROGRAM, nsm::VERSION, Notify::NUMBER));
                let args = NotifyArgs::from_bytes(call.args.clone()).unwrap();
                assert_eq!(args.to_bytes(), call.args);
                notice = Some(args);
            });
            let NotifyArgs { mon_name, state } = notice.unwrap();
            assert_eq!(state, STATE + 2);
            mon_name
        })
    });
    assert_eq!(names, ["client7.example.org", "client7"].map(Name::from));
}
