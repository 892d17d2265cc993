//! How clients find the server: its own rpcbind, queried by this test and by Debian's tools, and
//! Debian's rpcbind, with which it registers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use client::rpcbind::{RpcTransport, Rpcbind};
use client::{CallError, Connection, Datagram, Options, Refusal};
use lockkeeper_server::{Config, Limits, RpcbindMode, RpcbindState};
use support::{PATH, TestServer, config, export, memory, open_rules};
use testbed::debian::Machine;
use testbed::namespace::Namespace;
use testbed::process::Process;
use testbed::wait::until_blocking;
use tokio::sync::oneshot;
use wire::rpc::{Accepted, ProcedureId};
use wire::rpcbind::{Binding, Mapping, Netid, universal, v2, v3, v4};

const NFS: u32 = wire::nfs3::PROGRAM;
const MOUNT: u32 = wire::mount::PROGRAM;
/// A program that is not served.
const OTHER: u32 = 0x2000_0001;

fn exports() -> Vec<vfs::Export> {
    vec![export(PATH, memory(), open_rules())]
}

/// A server with an rpcbind of its own on a free port, and where that is.
async fn embedded() -> (TestServer, SocketAddr) {
    let port = testbed::ports::free_port().unwrap();
    let config = config(Limits::default())
        .with_listen("[::]:0".parse().unwrap())
        .with_rpcbind(RpcbindMode::Embedded)
        .with_rpcbind_port(port);
    let server = TestServer::try_start(config, exports()).await.unwrap();
    assert_eq!(server.rpcbind, RpcbindState::Embedded { port });
    (server, SocketAddr::new("127.0.0.1".parse().unwrap(), port))
}

/// Calls from a port that only root can use.
fn administrator() -> Options {
    Options { reserved_port: true, ..Options::default() }
}

async fn ask(at: SocketAddr, over: RpcTransport) -> Rpcbind {
    Rpcbind::connect(at, over, &Options::default()).await.unwrap()
}

fn mapping(program: u32, port: u16) -> Mapping {
    Mapping { program, version: 1, protocol: Netid::Tcp.protocol(), port: port.into() }
}

fn binding(program: u32, netid: &str, address: &str) -> Binding {
    Binding {
        program,
        version: 1,
        netid: netid.to_owned().into(),
        address: address.to_owned().into(),
        owner: b"somebody"[..].into(),
    }
}

#[tokio::test]
async fn every_version_knows_where_our_programs_are() {
    let (server, at) = embedded().await;
    let port = server.at.port();
    for over in [RpcTransport::Tcp, RpcTransport::Udp] {
        let mut rpcbind = ask(at, over).await;
        for (program, version) in [(NFS, 3), (MOUNT, 1), (MOUNT, 3)] {
            for netid in [Netid::Tcp, Netid::Udp] {
                assert_eq!(rpcbind.get_port(program, version, netid).await.unwrap(), port);
            }
            for netid in Netid::ALL {
                let found = rpcbind.get_addr(program, version, netid, at).await.unwrap();
                assert_eq!(found.port(), port);
            }
        }
        // Version 3 by its own procedure, and with the address that was asked.
        let asked = Binding { version: 3, ..binding(NFS, "tcp", "") };
        let text = rpcbind.call::<v3::GetAddr>(&asked).await.unwrap();
        let expected = universal(SocketAddr::new(at.ip(), port));
        assert_eq!(text, expected.into());
        assert!(rpcbind.get_port(OTHER, 1, Netid::Tcp).await.is_err());
    }
}

#[tokio::test]
async fn a_version_that_is_not_served_is_found_anyway_except_when_asked_for_exactly() {
    let (server, at) = embedded().await;
    let mut rpcbind = ask(at, RpcTransport::Tcp).await;
    let port = rpcbind.get_port(NFS, 4, Netid::Tcp).await.unwrap();
    assert_eq!(port, server.at.port());
    let asked = Binding { version: 4, ..binding(NFS, "tcp", "") };
    assert!(rpcbind.call::<v4::GetVersAddr>(&asked).await.unwrap().is_empty());
    assert!(!rpcbind.call::<v4::GetAddr>(&asked).await.unwrap().is_empty());
}

#[tokio::test]
async fn lists_name_every_program_version_and_transport() {
    let (server, at) = embedded().await;
    let mut rpcbind = ask(at, RpcTransport::Tcp).await;
    let mappings = rpcbind.call::<v2::Dump>(&()).await.unwrap().0;
    for (program, version) in [(100_000, 2), (100_000, 4), (NFS, 3), (MOUNT, 1), (MOUNT, 3)] {
        let of = mappings.iter().filter(|m| (m.program, m.version) == (program, version)).count();
        assert_eq!(of, 2, "{program} {version}");
    }
    let bindings = rpcbind.call::<v4::Dump>(&()).await.unwrap().0;
    assert_eq!(bindings, rpcbind.call::<v3::Dump>(&()).await.unwrap().0);
    assert_eq!(bindings.iter().filter(|b| b.program == NFS).count(), 4);
    let asked = Binding { version: 3, ..binding(NFS, "tcp", "") };
    let addresses = rpcbind.call::<v4::GetAddrList>(&asked).await.unwrap().0;
    assert_eq!(addresses.len(), 4);
    let port = server.at.port();
    let expected = universal(SocketAddr::new(at.ip(), port)).into();
    assert!(addresses.iter().any(|a| a.address == expected), "{addresses:?}");
    let time = rpcbind.call::<v4::GetTime>(&()).await.unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(now.abs_diff(time.into()) < 5);
}

#[tokio::test]
async fn programs_of_this_host_register_and_leave_and_ours_stay() {
    let (server, at) = embedded().await;
    for over in [RpcTransport::Tcp, RpcTransport::Udp] {
        let mut user = ask(at, over).await;
        let refused = user.call::<v2::Set>(&mapping(OTHER, 700)).await.unwrap();
        assert!(!refused, "not from a port that any user can send from");
        let mut rpcbind = Rpcbind::connect(at, over, &administrator()).await.unwrap();
        assert!(rpcbind.call::<v2::Set>(&mapping(OTHER, 700)).await.unwrap());
        assert!(rpcbind.call::<v2::Set>(&mapping(OTHER, 700)).await.unwrap(), "it is so already");
        assert!(!rpcbind.call::<v2::Set>(&mapping(OTHER, 701)).await.unwrap(), "it is taken");
        assert_eq!(rpcbind.get_port(OTHER, 1, Netid::Tcp).await.unwrap(), 700);
        assert!(rpcbind.call::<v2::Unset>(&mapping(OTHER, 0)).await.unwrap());
        assert!(!rpcbind.call::<v2::Unset>(&mapping(OTHER, 0)).await.unwrap());
        let sixth = binding(OTHER, "udp6", "::.2.188");
        assert!(rpcbind.call::<v4::Set>(&sixth).await.unwrap());
        assert!(rpcbind.call::<v4::Unset>(&binding(OTHER, "", "")).await.unwrap());
        for bad in [binding(OTHER, "carrier-pigeon", "::.2.188"), binding(OTHER, "tcp", "nowhere")]
        {
            assert!(!rpcbind.call::<v4::Set>(&bad).await.unwrap());
        }
        let ours = Mapping { version: 3, ..mapping(NFS, 0) };
        assert!(!rpcbind.call::<v2::Unset>(&ours).await.unwrap());
        let port = rpcbind.get_port(NFS, 3, Netid::Tcp).await.unwrap();
        assert_eq!(port, server.at.port());
    }
}

#[tokio::test]
async fn registrations_are_bounded() {
    let (_server, at) = embedded().await;
    let connection = Connection::connect(at, &administrator()).await.unwrap();
    let mut taken = 0;
    for number in 0..3000 {
        let set = connection.call::<v2::Set>(&mapping(OTHER + number, 700)).await.unwrap();
        taken += usize::from(set);
    }
    assert!((900..1024).contains(&taken), "{taken}");
}

#[tokio::test]
async fn calls_to_third_parties_are_not_made() {
    let (_server, at) = embedded().await;
    for over in [RpcTransport::Tcp, RpcTransport::Udp] {
        for (version, procedure) in [(2, v2::CALLIT), (3, 5), (4, 5), (4, 10)] {
            let outcome = match over {
                RpcTransport::Tcp => {
                    let connection = Connection::connect(at, &Options::default()).await.unwrap();
                    connection
                        .call_raw(ProcedureId::new(100_000, version, procedure), &[0; 16])
                        .await
                }
                RpcTransport::Udp => {
                    let mut socket = Datagram::connect(at, &Options::default()).await.unwrap();
                    socket.call_raw(ProcedureId::new(100_000, version, procedure), &[0; 16]).await
                }
            };
            let refusal = Refusal::NotRun(Accepted::ProcedureUnavailable);
            assert!(
                matches!(&outcome, Err(CallError::Refused(found)) if *found == refusal),
                "{version} {procedure}: {outcome:?}"
            );
        }
    }
}

/// A server in a network, stopped when dropped.
struct ServerThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    fn start(network: &Namespace, config: Config) -> Result<(Self, RpcbindState), String> {
        let (ready, started) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread =
            network.spawn(async move || match TestServer::try_start(config, exports()).await {
                Ok(server) => {
                    ready.send(Ok(server.rpcbind.clone())).unwrap();
                    let _ = stopped.await;
                    server.stop();
                    server.ended().await;
                }
                Err(error) => ready.send(Err(error.to_string())).unwrap(),
            });
        match started.recv().unwrap() {
            Ok(state) => Ok((Self { stop: Some(stop), thread: Some(thread) }, state)),
            Err(error) => {
                // Its sockets are closed when the thread has ended.
                thread.join().unwrap();
                Err(error)
            }
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn on_111(mode: RpcbindMode) -> Config {
    Config::default()
        .with_listen("[::]:2049".parse().unwrap())
        .with_rpcbind(mode)
        .with_rpcbind_check_every(Duration::from_millis(300))
}

fn output(network: &Namespace, program: &str, args: &[&str]) -> String {
    let output = network.output(program, args).unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}");
    text
}

#[test]
fn debian_s_rpcinfo_and_showmount_understand_our_rpcbind() {
    let network = Namespace::new().unwrap();
    let (_served, state) = ServerThread::start(&network, on_111(RpcbindMode::Auto)).unwrap();
    assert_eq!(state, RpcbindState::Embedded { port: 111 });
    let list = output(&network, "rpcinfo", &["-p", "127.0.0.1"]);
    for line in ["100000    2   tcp    111", "100003    3   tcp   2049", "100005    3   udp   2049"]
    {
        assert!(list.contains(line), "{line} is not in\n{list}");
    }
    let list = output(&network, "rpcinfo", &["-s", "127.0.0.1"]);
    let nfs = list.lines().find(|line| line.contains("100003")).unwrap();
    for netid in ["tcp", "udp", "tcp6", "udp6"] {
        assert!(nfs.contains(netid), "{nfs}");
    }
    for transport in ["tcp", "udp"] {
        for (program, version) in [("100003", "3"), ("100005", "1"), ("100005", "3")] {
            let args = ["-T", transport, "127.0.0.1", program, version];
            assert!(output(&network, "rpcinfo", &args).contains("ready and waiting"));
        }
    }
    let list = output(&network, "rpcinfo", &["-T", "tcp6", "::1", "100003", "3"]);
    assert!(list.contains("ready and waiting"), "{list}");
    assert!(output(&network, "showmount", &["-e", "127.0.0.1"]).contains(PATH));
    assert!(output(&network, "showmount", &["-a", "127.0.0.1"]).contains("All mount points"));
}

#[test]
fn strangers_cannot_register_and_get_no_list_over_udp() {
    let (here, there) = Namespace::pair().unwrap();
    let (_served, _) = ServerThread::start(&here, on_111(RpcbindMode::Embedded)).unwrap();
    there.block_on(async || {
        for at in ["10.99.0.1:111", "[fd99::1]:111"] {
            let at: SocketAddr = at.parse().unwrap();
            for over in [RpcTransport::Tcp, RpcTransport::Udp] {
                let options = administrator();
                let mut rpcbind = Rpcbind::connect(at, over, &options).await.unwrap();
                assert!(!rpcbind.call::<v2::Set>(&mapping(OTHER, 700)).await.unwrap());
                let set = binding(OTHER, "tcp", "0.0.0.0.2.188");
                assert!(!rpcbind.call::<v3::Set>(&set).await.unwrap());
                assert!(!rpcbind.call::<v4::Set>(&set).await.unwrap());
                assert!(!rpcbind.call::<v4::Unset>(&binding(NFS, "", "")).await.unwrap());
                assert_eq!(rpcbind.get_port(NFS, 3, Netid::Tcp).await.unwrap(), 2049);
                let near = rpcbind.get_addr(NFS, 3, Netid::Tcp, at).await.unwrap();
                assert_eq!(near.port(), 2049);
                let list = rpcbind.call::<v2::Dump>(&()).await;
                let list4 = rpcbind.call::<v4::Dump>(&()).await;
                if over == RpcTransport::Tcp {
                    assert!(list.is_ok() && list4.is_ok());
                } else {
                    assert!(matches!(list, Err(CallError::Refused(_))), "{list:?}");
                    assert!(matches!(list4, Err(CallError::Refused(_))), "{list4:?}");
                }
            }
        }
    });
    here.block_on(async || {
        let mut rpcbind = ask("127.0.0.1:111".parse().unwrap(), RpcTransport::Udp).await;
        assert!(rpcbind.call::<v2::Dump>(&()).await.is_ok());
    });
}

/// Debian's rpcbind.
fn system_rpcbind(network: &Namespace) -> Process {
    Machine::boot(network).unwrap().rpcbind().unwrap()
}

/// How many lines of `rpcinfo` are about NFS.
fn registered(network: &Namespace) -> usize {
    let list = network.output("rpcinfo", &["127.0.0.1"]).unwrap();
    String::from_utf8_lossy(&list.stdout).lines().filter(|line| line.contains("100003")).count()
}

#[test]
fn debian_s_rpcbind_knows_us_from_start_to_stop_and_again_after_it_restarted() {
    let network = Namespace::new().unwrap();
    let system = system_rpcbind(&network);
    let (served, state) = ServerThread::start(&network, on_111(RpcbindMode::Auto)).unwrap();
    assert_eq!(state, RpcbindState::System { port: 111 });
    assert_eq!(registered(&network), 4);
    assert!(output(&network, "showmount", &["-e", "127.0.0.1"]).contains(PATH));
    drop(system);
    let system = system_rpcbind(&network);
    until_blocking("the server registered again", || registered(&network) == 4);
    drop(served);
    assert_eq!(registered(&network), 0);
    drop(system);
}

#[test]
fn what_a_dead_server_left_behind_is_replaced_and_a_living_one_is_respected() {
    let network = Namespace::new().unwrap();
    let _system = system_rpcbind(&network);
    // Registers a port without a listener.
    network.block_on(async || {
        let options = administrator();
        let at = "127.0.0.1:111".parse().unwrap();
        let mut rpcbind = Rpcbind::connect(at, RpcTransport::Tcp, &options).await.unwrap();
        let dead = Mapping { version: 3, ..mapping(NFS, 999) };
        assert!(rpcbind.call::<v2::Set>(&dead).await.unwrap());
    });
    let (_first, _) = ServerThread::start(&network, on_111(RpcbindMode::System)).unwrap();
    let list = output(&network, "rpcinfo", &["-p", "127.0.0.1"]);
    assert!(!list.contains(" 999 ") && list.contains("100003    3   tcp   2049"), "{list}");

    for mode in [RpcbindMode::System, RpcbindMode::Auto] {
        let second = on_111(mode).with_listen("[::]:2050".parse().unwrap());
        let error =
            ServerThread::start(&network, second).err().expect("two servers of one program");
        for part in ["an NFS server", "100003", "2049", "systemctl disable --now nfs-server"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
    assert_eq!(registered(&network), 4, "the first server was unregistered");
}

#[test]
fn a_host_without_rpcbind_is_named_with_a_way_out() {
    let network = Namespace::new().unwrap();
    let error = ServerThread::start(&network, on_111(RpcbindMode::System)).err().unwrap();
    assert!(error.contains("--rpcbind embedded"), "{error}");
}

#[test]
fn a_server_of_one_family_stays_registered_without_registering_again_and_again() {
    let network = Namespace::new().unwrap();
    let _system = system_rpcbind(&network);
    let config = on_111(RpcbindMode::System)
        .with_listen("[::1]:2049".parse().unwrap())
        .with_rpcbind_check_every(Duration::from_millis(100));
    let (_served, _) = ServerThread::start(&network, config).unwrap();
    assert_eq!(registered(&network), 2);
    // A look takes one connection, registering again takes another.
    let before = connections_made(&network);
    std::thread::sleep(Duration::from_millis(2_000));
    let made = connections_made(&network) - before;
    assert!((5..=22).contains(&made), "{made}");
}

/// The number of active opens in this network (RFC 1213, tcpActiveOpens).
fn connections_made(network: &Namespace) -> u32 {
    let text = output(network, "cat", &["/proc/net/snmp"]);
    let line = text.lines().rfind(|line| line.starts_with("Tcp:")).unwrap();
    line.split_whitespace().nth(5).unwrap().parse().unwrap()
}
