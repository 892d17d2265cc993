//! A program registered with SM_MON: it is called by the procedure that it named, with its private
//! data, and only at the address from which it registered.

use testbed::peer::{Answer, Host, ReceivedCall, RpcbindKind, script};
use wire::Decode;
use wire::nlm::Status;
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs, Outcome, StatusArgs};

use super::support::range;
use super::support::restartable::{Ending, NAME, ip, server_address};
use super::*;

/// A program number that the dissector knows as a registrant's.
const PROGRAM: u32 = 200_048;
const PROCEDURE: (u32, u32, u32) = (PROGRAM, 1, 1);

fn registration(watched: &str, private: u8) -> MonArgs {
    let (program, version, procedure) = PROCEDURE;
    let my_id = MyId { my_name: OTHER.into(), program, version, procedure };
    let mon_id = MonId { mon_name: watched.to_owned().into(), my_id };
    MonArgs { mon_id, private: [private; 16] }
}

/// A host that serves the registrants' program over that transport.
async fn host(at: &str, by_tcp: bool) -> Host {
    let mut host = Host::bind(ip(at), 111, RpcbindKind::Full).await;
    let acknowledge = script(|_| Answer::results(&()));
    match by_tcp {
        true => host.tcp(PROGRAM, 1, acknowledge).await,
        false => host.udp(PROGRAM, 1, acknowledge).await,
    };
    host
}

fn status(call: &ReceivedCall, private: u8) -> (String, i32) {
    let numbers = (call.program, call.version, call.procedure);
    assert_eq!((numbers, call.from.ip()), (PROCEDURE, server_address().ip()));
    let args = StatusArgs::from_bytes(call.args.clone()).unwrap();
    assert_eq!(args.private, [private; 16]);
    (String::from_utf8(args.mon_name.to_vec()).unwrap(), args.state)
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

async fn register(from: &str, watched: &str, private: u8) {
    let reply = connect(from).await.call::<nsm::Mon>(&registration(watched, private)).await;
    assert_eq!(reply.unwrap().outcome, Outcome::Success);
}

/// SM_NOTIFY from that address.
async fn notify(from: &str, name: &str, state: i32) {
    let notice = NotifyArgs { mon_name: name.to_owned().into(), state };
    connect(from).await.call::<nsm::Notify>(&notice).await.unwrap();
}

#[test]
fn registrants_hear_of_our_restart_and_of_reboots() {
    let (mut server, theirs, capture) = start();
    theirs.block_on(async move || {
        let file = server.root();
        let by_tcp = host(CLIENT, true).await;
        let by_udp = host(THIRD, false).await;
        // Both say that this is their name; it is not asked.
        let bystander = host(OTHER, true).await;
        register(CLIENT, "carol", 8).await;
        register(THIRD, NAME, 9).await;
        let mut count = 0;
        for ending in [Ending::Crash, Ending::Stop] {
            server.restart(ending);
            count += 1;
            let now =
                connect(CLIENT).await.call::<nsm::Stat>(&b"x"[..].into()).await.unwrap().state;
            let (one, other) = (nth_call(&by_tcp, count).await, nth_call(&by_udp, count).await);
            assert_eq!(status(&one, 8), (host_name(), now), "carol is not in our state");
            assert_eq!(status(&other, 9), (NAME.into(), now));
        }
        // The host that they watch reboots.
        register(THIRD, "carol.example.org", 10).await;
        let carol = locker(FOURTH, "carol.example.org", 3).await;
        assert_eq!(carol.lock(&file, range(0, 0)).await.unwrap(), Status::Granted);
        drop(carol);
        notify(FOURTH, "carol.example.org", 77).await;
        let (one, other) = (nth_call(&by_tcp, count + 1).await, nth_call(&by_udp, count + 1).await);
        assert_eq!(status(&one, 8), ("carol".into(), 77));
        assert_eq!(status(&other, 10), ("carol.example.org".into(), 77));
        // Who is not registered any more hears nothing.
        let gone = registration("carol", 8).mon_id;
        connect(CLIENT).await.call::<nsm::Unmon>(&gone).await.unwrap();
        server.restart(Ending::Crash);
        nth_call(&by_udp, count + 3).await;
        assert_eq!((by_tcp.calls().len(), by_udp.calls().len()), (count + 1, count + 3));
        assert!(bystander.calls().is_empty() && bystander.lookups().is_empty());
    });
    capture.judge();
}

#[test]
fn a_notice_about_a_host_that_never_locked_reaches_its_registrants() {
    let (server, theirs, capture) = start();
    theirs.block_on(async move || {
        let registrant = host(CLIENT, true).await;
        register(CLIENT, "carol", 8).await;
        register(CLIENT, OTHER, 9).await;
        notify(FOURTH, "carol.example.org", 77).await;
        assert_eq!(status(&nth_call(&registrant, 1).await, 8), ("carol".into(), 77));
        // The same state, also under the other name, is answered and not relayed again.
        notify(FOURTH, "carol", 77).await;
        notify(FOURTH, "carol.example.org", 79).await;
        assert_eq!(status(&nth_call(&registrant, 2).await, 8), ("carol".into(), 79));
        notify(OTHER, "dave", 5).await;
        assert_eq!(status(&nth_call(&registrant, 3).await, 9), (OTHER.into(), 5));
        assert_eq!(registrant.calls().len(), 3);
        drop(server);
    });
    capture.judge();
}
