//! Clients behind a router that translates addresses, in both directions, by nft.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use testbed::namespace::Namespace;
use testbed::peer::{Answer, Host, RpcbindKind, script};
use testbed::process::Process;
use testbed::server::Server;
use testbed::wait::{bounded, until};
use wire::Decode as _;
use wire::nfs3::NewAttributes;
use wire::nlm::{self, Range, Status, StatusReply, TestArgs};

use crate::patient::{PROGRAM, Patient, Report, rpcbind};

const CODES: [&str; 5] = ["LK286", "LK295", "LK296", "LK297", "LK298"];
const BYTE: Range = Range { offset: 0, length: 1 };
/// Of the server.
const SERVER: &str = "10.99.0.1";
/// Of the router, towards the first client: what clients mount if it forwards a port.
const ROUTER: &str = "10.98.1.1";
/// A chain as iptables has it, which masquerades all that leaves for the network of the server.
const MASQUERADE: &str = "table ip nat { chain POSTROUTING { type nat hook postrouting priority 100; \
    oifname eth0 masquerade; }; }";
/// A published port, as of a container.
const FORWARD: &str = "table ip nat { chain PREROUTING { type nat hook prerouting priority -100; \
    ip daddr 10.98.1.1 th dport { 111, 2049 } dnat to 10.99.0.1; }; }";

/// A server, a router, and two clients behind it.
struct Office {
    patient: Patient,
    router: Namespace,
    clients: [Namespace; 2],
    export: String,
    _server: Server,
    _daemon: Option<Process>,
}

impl Office {
    fn new(rules: &str) -> Self {
        Self::with(rules, |_| None)
    }

    /// `before` starts what the server finds in its network.
    fn with(rules: &str, before: impl FnOnce(&Namespace) -> Option<Process>) -> Self {
        testbed::packages::install(&["nftables"]).unwrap();
        let (here, router) = Namespace::pair().unwrap();
        router.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        here.ip("route add 10.98.0.0/16 via 10.99.0.2").unwrap();
        let clients = [1, 2].map(|number| {
            let client = Namespace::new().unwrap();
            let link = format!("link add eth{number} type veth peer eth0 netns {}", client.name());
            router.ip(&link).unwrap();
            router.ip(&format!("addr add 10.98.{number}.1/24 dev eth{number}")).unwrap();
            router.ip(&format!("link set eth{number} up")).unwrap();
            client.ip(&format!("addr add 10.98.{number}.2/24 dev eth0")).unwrap();
            client.ip("link set eth0 up").unwrap();
            client.ip(&format!("route add default via 10.98.{number}.1")).unwrap();
            client
        });
        let patient = Patient::in_network(&Arc::new(here));
        let export = patient.path("export");
        std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o777)).unwrap();
        let daemon = before(patient.network.as_ref().unwrap());
        let server = patient.serve(&[]);
        let export = export.to_str().unwrap().to_owned();
        let office = Self { patient, router, clients, export, _server: server, _daemon: daemon };
        if !rules.is_empty() {
            office.on_router(&["nft", rules]);
        }
        office
    }

    fn on_router(&self, words: &[&str]) {
        let output = self.router.output(words[0], &words[1..]).unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The doctor on the first client, about the server at this address.
    fn examine_from_client(&self, server: &str) -> Report {
        let mut command: Command = self.clients[0].command(PROGRAM);
        let mounted = format!("{server}:{}", self.export);
        let output = command.args(["doctor", "--json", "--mount", &mounted]).output().unwrap();
        let report = serde_json::from_slice(&output.stdout).unwrap();
        Report { code: output.status.code().unwrap(), report }
    }

    /// A lock from there, as a machine of this name, by the server's own address.
    fn lock(&self, from: usize, machine: &'static str) {
        let export = self.export.clone();
        self.clients[from].block_on(async move || {
            let (locker, file) = client(SERVER, &export, machine).await;
            assert_eq!(locker.lock(&file, BYTE).await.unwrap(), Status::Granted);
        });
    }
}

/// A machine that has mounted the export from this address, and a file of its own name.
async fn client(server: &str, export: &str, machine: &str) -> (Locker, Vec<u8>) {
    let connection = connect(server).await;
    let root = mount::mount(&connection, export).await.unwrap();
    let nfs = Nfs(connection.clone());
    let file = match nfs.lookup_path(&root, machine.as_bytes()).await {
        Ok(file) => file,
        Err(_) => {
            let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
            nfs.create(&root, machine.as_bytes(), new).await.unwrap()
        }
    };
    (Locker::new(connection, machine, 1), file.0.to_vec())
}

#[test]
fn a_router_that_only_routes_is_fine() {
    let office = Office::new("");
    office.lock(0, "alice");
    office.lock(1, "bob");
    let said = office.patient.examine(&[]);
    said.is_fine("no sign of address translation");
    said.lacks(&CODES);
    let said = office.examine_from_client(SERVER);
    said.is_fine(
        "no address is translated between this machine (10.98.1.2) and the server (10.99.0.1)",
    );
    assert_eq!(said.code, 0, "{:#}", said.report);
}

#[test]
fn machines_that_a_router_masquerades_are_found_on_both_sides_and_the_fix_helps() {
    let office = Office::new(MASQUERADE);
    office.lock(0, "alice");
    office.lock(1, "bob");
    let said = office.patient.examine(&[]);
    let text = ["2 machines come from 10.99.0.2 (alice, bob)", "masquerades"];
    let fix = "on the router: nft insert rule ip nat POSTROUTING ip daddr 10.99.0.1 accept;";
    said.has("LK295", "warn", &text, &[fix]);
    for time in ["the mount table is new", "it has the other machine, and this one"] {
        let said = office.examine_from_client(SERVER);
        let text = ["the server sees this machine (10.98.1.2) as 10.99.0.2"];
        said.has("LK297", "fail", &text, &["a route back to 10.98.1.2"]);
        said.lacks(&["LK286", "LK298"]);
        assert_eq!(said.code, 1, "{time}: {:#}", said.report);
    }
    // What is said to help does.
    let (_, _, fix) = office.examine_from_client(SERVER).find("LK297").unwrap();
    let command = fix.strip_prefix("on the router: ").unwrap().split(';').next().unwrap();
    office.on_router(&command.split(' ').collect::<Vec<_>>());
    let said = office.examine_from_client(SERVER);
    assert_eq!(said.code, 0, "{:#}", said.report);
}

#[test]
fn a_server_behind_a_forwarded_port_is_found_by_the_client() {
    let office = Office::new(FORWARD);
    let said = office.examine_from_client(ROUTER);
    let text = ["10.98.1.1 is translated on the way: the server is 10.99.0.1", "GRANTED"];
    said.has("LK298", "fail", &text, &["mount 10.99.0.1:/", "ip addr add 10.98.1.1"]);
    said.lacks(&["LK286", "LK297"]);
    office.examine_from_client(SERVER).lacks(&CODES);
    let said = office.examine_from_client("10.98.1.77");
    said.has("LK286", "fail", &["rpcbind of 10.98.1.77 cannot be asked"], &["port 111"]);
}

#[test]
fn the_host_s_rpcbind_tells_the_server_s_address_as_well() {
    let office = Office::with(FORWARD, |network| Some(rpcbind(network)));
    office.examine_from_client(SERVER).is_fine("no address is translated");
    let said = office.examine_from_client(ROUTER);
    said.has("LK298", "fail", &["the server is 10.99.0.1"], &[]);
}

/// Linux takes a GRANTED from the address that it mounted, and refuses any other.
async fn lock_manager(of: Ipv4Addr, mounted: IpAddr) -> Host {
    let mut host = Host::bind(of.into(), 111, RpcbindKind::Full).await;
    let answer = script(move |call| match call.procedure {
        0 => Answer::results(&()),
        _ => {
            let args = TestArgs::from_bytes(call.args.clone()).unwrap();
            let is_known = call.from.ip() == mounted;
            let status = if is_known { Status::Granted } else { Status::Denied };
            Answer::results(&StatusReply { cookie: args.cookie, status })
        }
    });
    host.tcp(nlm::PROGRAM, nlm::V4, answer.clone()).await;
    host.udp(nlm::PROGRAM, nlm::V4, answer).await;
    host
}

/// Alice waits three times for a lock, having mounted the server by this address.
fn wait_three_times(office: &Office, mounted: &'static str) {
    let export = office.export.clone();
    let (done, is_done) = mpsc::channel();
    let waiting = office.clients[0].spawn(async move || {
        let host = lock_manager(Ipv4Addr::new(10, 98, 1, 2), mounted.parse().unwrap()).await;
        let (alice, file) = client(mounted, &export, "alice").await;
        let holder = Locker::new(connect(mounted).await, "alice", 2);
        for round in 1..=3 {
            take(&holder, &file).await;
            assert_eq!(alice.wait(&file, BYTE).await.unwrap(), Status::Blocked);
            assert_eq!(holder.unlock(&file, BYTE).await.unwrap(), Status::Granted);
            let granted = || host.calls().iter().filter(|call| call.procedure == 5).count();
            until("the lock is granted", || granted() == round).await;
            if mounted == SERVER {
                assert_eq!(alice.unlock(&file, BYTE).await.unwrap(), Status::Granted);
            }
        }
        take(&holder, &file).await;
        done.send(()).unwrap();
    });
    is_done.recv_timeout(testbed::wait::LIMIT).unwrap();
    waiting.join().unwrap();
}

/// As soon as a lock that was refused is free again.
async fn take(holder: &Locker, file: &[u8]) {
    let taken = async {
        while holder.lock(file, BYTE).await.unwrap() != Status::Granted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    bounded("the lock is free", taken).await;
}

async fn connect(server: &str) -> Connection {
    let options = Options { reserved_port: true, ..Options::default().user(1, 1, &[]) };
    let at = SocketAddr::new(server.parse().unwrap(), 2049);
    Connection::connect(at, &options).await.unwrap()
}

#[test]
fn a_client_that_refuses_its_locks_is_named_as_one_that_mounted_another_address() {
    for (rules, mounted) in [("", SERVER), (FORWARD, ROUTER)] {
        let office = Office::new(rules);
        wait_three_times(&office, mounted);
        if mounted == SERVER {
            office.patient.examine(&[]).lacks(&CODES);
            continue;
        }
        let said = office.patient.examine(&[]);
        let text = ["alice refused 3 locks", "another address than this server's own"];
        said.has("LK296", "warn", &text, &["lockkeeper doctor --mount"]);
        said.lacks(&["LK295"]);
    }
}
