//! Interoperation with Debian's `rpc.statd` and `sm-notify`, in both directions.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use client::rpcbind::{self, RpcTransport};
use client::{Datagram, Locker};
use testbed::debian::{HOST_NAME, Machine, state_directory};
use testbed::peer::{Answer, Host, ReceivedCall, RpcbindKind, script, success};
use tokio::net::UdpSocket;
use tokio::time::sleep;
use wire::Decode;
use wire::nlm::{Status, StatusReply, TestArgs};
use wire::nsm::{self, MonArgs, MonId, MyId, Outcome, StatusArgs};
use wire::rpc::Call;
use wire::rpcbind::{Binding, Mapping, PROTOCOL_UDP, universal, v2};

use super::support::restartable::{Ending, ip, server_address};
use super::support::{bounded, range, until};
use super::*;

/// Where statd calls the kernel of its machine.
const KERNEL: (u32, u32, u32) = (wire::nlm::PROGRAM, 3, 16);

/// As the kernel speaks to the daemons of its own machine.
async fn loopback(port: u16) -> Datagram {
    let at = SocketAddr::new(ip("127.0.0.1"), port);
    let options = Options { reserved_port: true, ..Options::default() };
    Datagram::connect(at, &options).await.unwrap()
}

/// What the kernel of a client does before it locks: it registers with rpcbind, and has statd watch
/// the server by the address that it mounted.
async fn watch(server: IpAddr) {
    let (program, version, procedure) = KERNEL;
    let mapping = Mapping { program, version, protocol: PROTOCOL_UDP, port: 702 };
    assert!(loopback(111).await.call::<v2::Set>(&mapping).await.unwrap());
    let my_id = MyId { my_name: HOST_NAME.into(), program, version, procedure };
    let mon_id = MonId { mon_name: server.to_string().into(), my_id };
    let args = MonArgs { mon_id, private: *b"sixteen bytes .." };
    let watched = loopback(662).await.call::<nsm::Mon>(&args).await.unwrap();
    assert_eq!((watched.outcome, watched.state), (Outcome::Success, 7));
}

/// Receives statd's call to the kernel and answers it.
async fn downcall(kernel: &UdpSocket) -> StatusArgs {
    let mut buffer = [0; 2000];
    let (length, from) = bounded("a call of statd", kernel.recv_from(&mut buffer)).await.unwrap();
    let call = Call::parse(buffer[..length].to_vec().into()).unwrap();
    assert_eq!((call.program, call.version, call.procedure), KERNEL);
    kernel.send_to(&success(call.xid, &()), from).await.unwrap();
    StatusArgs::from_bytes(call.args).unwrap()
}

#[test]
fn statd_accepts_our_notices_by_the_address_that_it_monitors() {
    let (mut server, theirs, capture) = start();
    let dir = state_directory(7).unwrap();
    let machine = Machine::boot(&theirs).unwrap();
    let _rpcbind = machine.rpcbind().unwrap();
    let statd = machine.statd(&dir).unwrap();
    theirs.block_on(async move || {
        let file = server.root();
        let kernel = UdpSocket::bind("127.0.0.1:702").await.unwrap();
        watch(server_address().ip()).await;
        let mut client = locker(CLIENT, HOST_NAME, 0).await;
        client.state = 7;
        assert_eq!(client.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        for ending in [Ending::Crash, Ending::Stop] {
            server.restart(ending);
            let told = downcall(&kernel).await;
            assert_eq!(&told.private, b"sixteen bytes ..");
            assert_eq!(told.mon_name, nsm::Name::from(server_address().ip().to_string()));
            let client = locker(CLIENT, HOST_NAME, 0).await;
            let stat = client.connection.call::<nsm::Stat>(&HOST_NAME.into()).await.unwrap();
            assert_eq!(told.state, stat.state);
            let said = statd.output();
            let notice = format!("Received SM_NOTIFY from {}", server_address().ip());
            assert!(said.contains(&notice), "{said}");
            assert_eq!(client.reclaim(&file, range(0, 9)).await.unwrap(), Status::Granted);
        }
    });
    capture.judge();
}

#[test]
fn sm_notify_frees_the_locks_of_a_kernel_that_is_gone_and_of_no_other() {
    let (server, theirs, capture) = start();
    let dir = state_directory(7).unwrap();
    let registration = "0100007f 000186b5 00000003 00000010 00000000000000000000000000000000 \
                        10.99.0.1 client7.example.org\n";
    fs::write(dir.path().join("sm/10.99.0.1"), registration).unwrap();
    let file = server.root();
    let theirs = Arc::new(theirs);
    let here = theirs.clone();
    theirs.block_on(async move || {
        // Its lock manager, where our witness stands.
        let mut host = Host::bind(ip(CLIENT), 111, RpcbindKind::Full).await;
        host.tcp(wire::nlm::PROGRAM, 4, script(|_| Answer::results(&()))).await;
        let client = locker(CLIENT, HOST_NAME, 0).await;
        let other = locker(OTHER, "other", 1).await;
        assert_eq!(client.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        nth_call(&host, 1).await;
        // A status monitor that starts anew in a container is not a reboot.
        let machine = Machine::boot(&here).unwrap();
        let mut notifier = machine.sm_notify(&dir).unwrap();
        until("a notice was sent", || notifier.output().contains("Sending")).await;
        sleep(Duration::from_secs(3)).await;
        assert_eq!(other.lock(&file, range(0, 9)).await.unwrap(), Status::Denied);
        // Nor is it one when the client has closed its connection for being idle.
        drop(client);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(other.lock(&file, range(0, 9)).await.unwrap(), Status::Denied);
        assert!(notifier.is_running(), "it was not answered: {}", notifier.output());
        // Now nothing is left of it.
        drop(host);
        until("sm-notify was answered", || !notifier.is_running()).await;
        assert_eq!(other.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
    });
    drop(server);
    let seen = capture.judge().messages;
    let of = |is_reply| {
        let notices = seen.iter().filter(|m| (m.program, m.procedure) == (nsm::PROGRAM, 6));
        notices.filter(|m| m.is_reply == is_reply).count()
    };
    assert!(of(false) > of(true), "{} notices, {} answers", of(false), of(true));
}

/// As a lock manager does it when it starts.
async fn register(version: u32, netid: &'static str, at: SocketAddr) {
    let options = Options { reserved_port: true, ..Options::default() };
    let rpcbind = "[::1]:111".parse().unwrap();
    let mut rpcbind =
        rpcbind::Rpcbind::connect(rpcbind, RpcTransport::Tcp, &options).await.unwrap();
    let binding = Binding {
        program: wire::nlm::PROGRAM,
        version,
        netid: netid.into(),
        address: universal(at).into(),
        owner: "superuser".into(),
    };
    assert!(rpcbind.call::<wire::rpcbind::v4::Set>(&binding).await.unwrap());
}

#[test]
fn a_client_over_ipv6_is_found_through_its_own_rpcbind() {
    let (mut server, theirs, capture) = start();
    let dir = state_directory(7).unwrap();
    let machine = Machine::boot(&theirs).unwrap();
    let _rpcbind = machine.rpcbind().unwrap();
    let _statd = machine.statd(&dir).unwrap();
    theirs.block_on(async move || {
        let file = server.root();
        let (here, there) = (ip("fd99::2"), SocketAddr::new(ip("fd99::1"), 2049));
        // Its lock manager has another port for each transport, and takes what it waits for.
        let mut host = Host::bind(here, 0, RpcbindKind::Full).await;
        let take = || {
            script(|call: &ReceivedCall| match call.procedure {
                5 => {
                    let args = TestArgs::from_bytes(call.args.clone()).unwrap();
                    Answer::results(&StatusReply { cookie: args.cookie, status: Status::Granted })
                }
                _ => Answer::results(&()),
            })
        };
        register(4, "tcp6", host.tcp(wire::nlm::PROGRAM, 4, take()).await).await;
        register(4, "udp6", host.udp(wire::nlm::PROGRAM, 4, take()).await).await;
        let kernel = UdpSocket::bind("127.0.0.1:702").await.unwrap();
        watch(there.ip()).await;

        let options = Options { source: Some(here), ..Options::default().user(0, 0, &[]) };
        let connect = async || Connection::connect(there, &options).await.unwrap();
        let client = Locker::new(connect().await, HOST_NAME, 0);
        let other = locker(OTHER, "other", 1).await;
        assert_eq!(other.lock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        assert_eq!(client.wait(&file, range(0, 9)).await.unwrap(), Status::Blocked);
        assert_eq!(other.unlock(&file, range(0, 9)).await.unwrap(), Status::Granted);
        let is_granted = |call: &ReceivedCall| {
            call.procedure == 5 && call.over_tcp && call.from.ip() == there.ip()
        };
        until("it was told over TCP", || host.calls().iter().any(is_granted)).await;
        assert_eq!(other.lock(&file, range(0, 9)).await.unwrap(), Status::Denied);

        server.restart(Ending::Crash);
        let told = downcall(&kernel).await;
        assert_eq!(told.mon_name, nsm::Name::from(there.ip().to_string()));
        let client = Locker::new(connect().await, HOST_NAME, 0);
        assert_eq!(client.reclaim(&file, range(0, 9)).await.unwrap(), Status::Granted);
    });
    capture.judge();
}
