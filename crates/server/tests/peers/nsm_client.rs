//! The test client of nfs-utils for status monitors: every procedure of NSM in its order, from the
//! monitor's own machine. The server gives the kinds of replies that a live `rpc.statd` gives, and an
//! independent dissector understands both.

use std::net::SocketAddr;

use client::{CallError, Datagram};
use judge::tshark::DissectedMessage;
use testbed::debian::{Machine, STATD_PORT, state_directory};
use testbed::peer::success;
use tokio::net::UdpSocket;
use tokio::time::timeout;
use wire::Decode;
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs, Outcome, StatReply, StatusArgs};
use wire::rpc::{Call, ProcedureId};
use wire::rpcbind::{Mapping, PROTOCOL_UDP, v2};

use super::support::bounded;
use super::support::restartable::{Ending, MOMENT, ip};
use super::*;

/// What the monitor calls: statd accepts only the lock manager's program, and procedure 16 or 24. Of
/// its versions the server itself serves all but this one.
const CALLBACK: (u32, u32, u32) = (wire::nlm::PROGRAM, 2, 16);
const PRIVATE: [u8; 16] = *b"sixteen bytes ..";
/// Watched hosts; addresses, since names would have to resolve for statd.
const WATCHED: &str = "10.99.0.77";
const OTHER_WATCHED: &str = "10.99.0.78";

/// The kind of a reply, as far as the protocol defines it.
#[derive(Debug, PartialEq)]
enum Reply {
    /// STAT_SUCC with an odd state, as of a monitor that is up.
    Success,
    /// Only an odd state.
    State,
    Void,
    /// The RPC error of a procedure that does not exist.
    NoSuchProcedure,
    Other(String),
}

fn stat(reply: Result<StatReply, CallError>) -> Reply {
    match reply {
        Ok(StatReply { outcome: Outcome::Success, state }) if state % 2 == 1 => Reply::Success,
        other => Reply::Other(format!("{other:?}")),
    }
}

fn state(reply: Result<nsm::StateReply, CallError>) -> Reply {
    match reply {
        Ok(reply) if reply.state % 2 == 1 => Reply::State,
        other => Reply::Other(format!("{other:?}")),
    }
}

fn void(reply: Result<(), CallError>) -> Reply {
    reply.map_or_else(|error| Reply::Other(format!("{error:?}")), |()| Reply::Void)
}

/// As root of the monitor's own machine.
async fn local(port: u16) -> Datagram {
    let at = SocketAddr::new(ip("127.0.0.1"), port);
    let options = Options { reserved_port: true, ..Options::default() };
    Datagram::connect(at, &options).await.unwrap()
}

fn my_id() -> MyId {
    let (program, version, procedure) = CALLBACK;
    MyId { my_name: b"127.0.0.1"[..].into(), program, version, procedure }
}

fn mon_id(watched: &str) -> MonId {
    MonId { mon_name: watched.to_owned().into(), my_id: my_id() }
}

fn notice(state: i32) -> NotifyArgs {
    NotifyArgs { mon_name: WATCHED.into(), state }
}

/// The callback that the monitor makes, answered.
async fn callback(socket: &UdpSocket) -> StatusArgs {
    let mut buffer = [0; 2000];
    let (length, from) = bounded("a callback", socket.recv_from(&mut buffer)).await.unwrap();
    let call = Call::parse(buffer[..length].to_vec().into()).unwrap();
    assert_eq!((call.program, call.version, call.procedure), CALLBACK);
    socket.send_to(&success(call.xid, &()), from).await.unwrap();
    StatusArgs::from_bytes(call.args).unwrap()
}

/// The sequence, up to SM_SIMU_CRASH: what each step was answered, and what was called back.
async fn sequence(port: u16) -> (Vec<(&'static str, Reply)>, StatusArgs) {
    let (program, version, _) = CALLBACK;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let own_port = u32::from(socket.local_addr().unwrap().port());
    let mapping = Mapping { program, version, protocol: PROTOCOL_UDP, port: own_port };
    assert!(local(111).await.call::<v2::Set>(&mapping).await.unwrap());

    let mut monitor = local(port).await;
    let mut replies = vec![
        ("NULL", void(monitor.call::<nsm::Null>(&()).await)),
        ("STAT", stat(monitor.call::<nsm::Stat>(&WATCHED.into()).await)),
    ];
    let args = |watched| MonArgs { mon_id: mon_id(watched), private: PRIVATE };
    replies.push(("MON", stat(monitor.call::<nsm::Mon>(&args(WATCHED)).await)));
    replies.push(("MON again", stat(monitor.call::<nsm::Mon>(&args(WATCHED)).await)));
    replies.push(("NOTIFY", void(monitor.call::<nsm::Notify>(&notice(77)).await)));
    let told = callback(&socket).await;
    replies.push(("NOTIFY again", void(monitor.call::<nsm::Notify>(&notice(77)).await)));
    let nothing = timeout(MOMENT, socket.recv_from(&mut [0; 10])).await;
    assert!(nothing.is_err(), "a repeat is not relayed");
    replies.push(("UNMON", state(monitor.call::<nsm::Unmon>(&mon_id(WATCHED)).await)));
    replies.push(("UNMON again", state(monitor.call::<nsm::Unmon>(&mon_id(WATCHED)).await)));
    for watched in [WATCHED, OTHER_WATCHED] {
        replies.push(("MON", stat(monitor.call::<nsm::Mon>(&args(watched)).await)));
    }
    replies.push(("UNMON_ALL", state(monitor.call::<nsm::UnmonAll>(&my_id()).await)));
    let unknown = monitor.call_raw(ProcedureId::new(nsm::PROGRAM, 1, 7), &[]).await;
    replies.push(match unknown.map_err(|error| error.to_string()) {
        Err(error) if error.contains("ProcedureUnavailable") => ("7", Reply::NoSuchProcedure),
        other => ("7", Reply::Other(format!("{other:?}"))),
    });
    replies.push(("SIMU_CRASH", void(monitor.call::<nsm::SimuCrash>(&()).await)));
    (replies, told)
}

/// Procedure, direction and field names of each message to or from the monitor.
fn dissected(messages: &[DissectedMessage]) -> Vec<(u32, bool, Vec<String>)> {
    let of_nsm = messages.iter().filter(|message| message.program == nsm::PROGRAM);
    of_nsm
        .map(|message| {
            let fields = message.fields.iter().map(|field| field.name.clone()).collect();
            (message.procedure, message.is_reply, fields)
        })
        .collect()
}

#[test]
fn the_test_client_of_nfs_utils_gets_the_replies_of_a_live_statd() {
    let (ours, theirs) = networks();
    // Not the callbacks: the dissector does not know version 2 of the lock manager.
    let our_capture = Capture::on(&ours, "lo", "udp port 2049");
    let their_capture = Capture::on(&theirs, "lo", &format!("udp port {STATD_PORT}"));
    let mut server = RestartableServer::that_simulates_crashes(ours);
    let before = server.network().block_on(async || {
        local(2049).await.call::<nsm::Stat>(&WATCHED.into()).await.unwrap().state
    });
    let (our_replies, our_callback) = server.network().block_on(async || sequence(2049).await);
    let our_report = our_capture.judge();
    // A simulated crash is one: the next state is greater, and odd.
    server.restart(Ending::Crash);
    let after = server.network().block_on(async || {
        local(2049).await.call::<nsm::Stat>(&WATCHED.into()).await.unwrap().state
    });
    assert!(after > before && after % 2 == 1, "{before} {after}");

    let dir = state_directory(7).unwrap();
    let machine = Machine::boot(&theirs).unwrap();
    let _rpcbind = machine.rpcbind().unwrap();
    let _statd = machine.statd(&dir).unwrap();
    let (replies, callback) = theirs.block_on(async || sequence(STATD_PORT).await);
    let report = their_capture.judge();

    assert_eq!(our_replies, replies, "beside statd's");
    assert!(our_replies.iter().all(|(_, reply)| !matches!(reply, Reply::Other(_))));
    assert_eq!(our_callback, callback);
    let told = StatusArgs { mon_name: WATCHED.into(), state: 77, private: PRIVATE };
    assert_eq!(our_callback, told);
    // Without the question for the first state.
    assert_eq!(dissected(&our_report.messages)[2..], dissected(&report.messages));
}
