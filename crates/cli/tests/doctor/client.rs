//! A client across a cable: what of it can be reached, and what is known of it.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::thread;

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::namespace::Namespace;
use testbed::process::Process;
use testbed::wait::until_blocking;
use wire::nfs3::NewAttributes;
use wire::nlm::{Range, Status};

use crate::patient::{
    Patient, Report, admin, firewall, known, problem, register, respond, rpcbind, statd, status,
};

const NLM: u32 = 100_021;
const NSM: u32 = 100_024;
const CLIENT: &str = "10.99.0.2";

/// This host, and another in a network next to it.
struct Pair {
    patient: Patient,
    there: Namespace,
}

impl Pair {
    fn new() -> Self {
        let (here, there) = Namespace::pair().unwrap();
        Self { patient: Patient::in_network(&Arc::new(here)), there }
    }

    fn examine(&self) -> Report {
        self.patient.examine(&["--client", CLIENT])
    }
}

/// Debian's rpcbind and statd there, and a lock manager.
fn healthy(there: &Namespace) -> (Process, Process, TempDir) {
    let daemons = statd(there);
    respond(there, 4045, &[NLM]);
    register(there, NLM, 4, 4045);
    daemons
}

#[test]
fn a_client_where_all_answers_is_fine_and_a_firewall_is_named_by_what_it_stops() {
    let pair = Pair::new();
    let _daemons = healthy(&pair.there);
    let said = pair.examine();
    said.is_fine("10.99.0.2: rpcbind answers on port 111 over TCP and UDP");
    said.is_fine("10.99.0.2: statd answers over TCP and UDP");
    said.is_fine("10.99.0.2: lockd answers over TCP and UDP");
    said.is_fine("clock agrees with this host's");
    for (rule, code, level, text, fix) in [
        (
            "udp dport 111 drop",
            "LK265",
            "warn",
            "over UDP it does not respond",
            "udp dport 111 accept",
        ),
        (
            "tcp dport 111 drop",
            "LK265",
            "warn",
            "over TCP it does not respond",
            "tcp dport 111 accept",
        ),
        ("th dport 662 drop", "LK272", "fail", "statd does not respond", "port=662 under [statd]"),
        ("udp dport 662 drop", "LK273", "warn", "over UDP it does not respond", "port=662"),
        ("th dport 4045 drop", "LK277", "fail", "lockd does not respond", "under [lockd]"),
        ("tcp dport 4045 drop", "LK278", "warn", "over TCP it does not respond", "under [lockd]"),
        ("th dport 662 reject", "LK271", "fail", "not listening", "restart rpc-statd"),
    ] {
        firewall(&pair.there, rule);
        let said = pair.examine();
        said.has(code, level, &[CLIENT, text], &[fix]);
        let worries = said.codes().into_iter().filter(|c| ("LK260".."LK280").contains(&c.as_str()));
        assert_eq!(worries.collect::<Vec<_>>(), [code], "{rule}: {:#}", said.report);
    }
}

#[test]
fn a_client_is_reached_by_ipv6_as_well() {
    let pair = Pair::new();
    let _daemons = healthy(&pair.there);
    let said = pair.patient.examine(&["--client", "fd99::2"]);
    said.is_fine("fd99::2: rpcbind answers on port 111 over TCP and UDP");
    said.is_fine("fd99::2: statd answers over TCP and UDP");
    // The lock manager there serves IPv4 alone.
    said.has("LK275", "fail", &["fd99::2: lockd is not registered"], &[]);
    firewall(&pair.there, "udp dport 111 drop");
    let said = pair.patient.examine(&["--client", "fd99::2"]);
    said.has("LK265", "warn", &["over UDP"], &["input ip6 saddr fd99::1 udp dport 111 accept"]);
}

#[test]
fn a_client_s_rpcbind_is_refused_or_silent_or_out_of_reach() {
    let pair = Pair::new();
    let said = pair.examine();
    said.has("LK262", "fail", &["refused", "rpcbind is not running"], &["rpcbind.socket"]);
    said.lacks(&["LK270", "LK275"]);
    let from = "ip saddr 10.99.0.1 tcp dport 111 accept";
    firewall(&pair.there, "th dport 111 drop");
    let said = pair.examine();
    said.has("LK263", "fail", &["does not respond", "off, or a firewall drops"], &["ping", from]);
    said.lacks(&["LK262", "LK264"]);
    firewall(&pair.there, "reject with icmpx type admin-prohibited");
    let said = pair.examine();
    said.has("LK264", "fail", &["unreachable", "firewall rejects"], &["ip route get", from]);
    firewall(&pair.there, "accept");
    pair.there.block_on(async || {
        let listener = TcpListener::bind("0.0.0.0:111").unwrap();
        thread::spawn(move || listener.incoming().for_each(drop));
    });
    let said = pair.examine();
    said.has("LK266", "fail", &["closes it"], &["/etc/hosts.deny"]);
}

#[test]
fn programs_that_are_not_registered_or_dead_are_told_apart() {
    let pair = Pair::new();
    let _rpcbind = rpcbind(&pair.there);
    let said = pair.examine();
    said.has("LK270", "fail", &["statd is not registered"], &["enable --now rpc-statd"]);
    said.has("LK275", "fail", &["lockd is not registered"], &["without nolock"]);
    for program in [NSM, NLM] {
        register(&pair.there, program, if program == NSM { 1 } else { 4 }, 999);
    }
    let said = pair.examine();
    said.has("LK271", "fail", &["statd is registered, but not listening"], &["restart rpc-statd"]);
    said.has("LK276", "fail", &["lockd is registered, but not listening"], &["unmount"]);
    said.lacks(&["LK270", "LK275"]);
}

#[test]
fn a_program_that_hangs_is_not_taken_for_a_healthy_one() {
    let pair = Pair::new();
    let _rpcbind = rpcbind(&pair.there);
    register(&pair.there, NSM, 1, 998);
    // The kernel accepts the connection, but no process reads from it.
    let hung = pair.there.block_on(async || {
        (TcpListener::bind("0.0.0.0:998").unwrap(), UdpSocket::bind("0.0.0.0:998").unwrap())
    });
    pair.examine().has("LK272", "fail", &["statd accepts the connection but never replies"], &[]);
    drop(hung);
}

#[test]
fn clocks_that_differ_are_told() {
    testbed::packages::install(&["faketime"]).unwrap();
    let pair = Pair::new();
    let _rpcbind = rpcbind(&pair.there);
    let args = ["--client", CLIENT];
    let said = pair.patient.examine_by("faketime", &["--exclude-monotonic", "-f", "+3h"], &args);
    said.has("LK222", "warn", &["by 3 h"], &["timedatectl"]);
}

#[test]
fn a_client_that_nobody_knows_is_told() {
    let patient = Patient::new();
    let said = patient.examine(&["--client", "no-such-host.invalid"]);
    said.has("LK260", "fail", &["no-such-host.invalid"], &["lockkeeper clients"]);
    let many = problem("ambiguous-client", "alice is c3 and c9");
    let answers = vec![("/v1/status", 200, status()), ("/v1/clients/alice", 409, many)];
    admin(&patient.socket, answers);
    let said = patient.examine(&["--client", "alice"]);
    said.has("LK261", "fail", &["alice is c3 and c9"], &["use its id"]);
    said.lacks(&["LK260"]);
}

/// Locks a file from there, as a machine of this name.
fn lock_from(there: &Namespace, export: &str, machine: &'static str) {
    let export = export.to_owned();
    there.block_on(async move || {
        let at = "10.99.0.1:2049".parse().unwrap();
        let options = Options { reserved_port: true, ..Options::default().user(1, 1, &[]) };
        let connection = Connection::connect(at, &options).await.unwrap();
        let root = mount::mount(&connection, &export).await.unwrap();
        let nfs = Nfs(connection.clone());
        let handle = nfs.create(&root, b"file", NewAttributes::default()).await.unwrap();
        let locker = Locker::new(connection, machine, 1);
        let range = Range { offset: 0, length: 1 };
        assert_eq!(locker.lock(&handle.0, range).await.unwrap(), Status::Granted);
    });
}

#[test]
fn a_client_that_holds_a_lock_is_found_by_its_name_and_its_notices_are_counted() {
    let pair = Pair::new();
    let _daemons = healthy(&pair.there);
    let export = pair.patient.path("export");
    std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut server = pair.patient.serve(&[]);
    lock_from(&pair.there, export.to_str().unwrap(), "client7.example.org");
    let said = pair.patient.examine(&["--client", "client7.example.org"]);
    said.is_fine("client7.example.org (10.99.0.2) is registered: 1 held");
    said.is_fine("client7.example.org (10.99.0.2): statd answers");
    said.is_fine("client7.example.org (10.99.0.2): lockd answers");
    said.lacks(&["LK260", "LK281", "LK285", "LK292"]);
    // The notice of the restart does not arrive.
    firewall(&pair.there, "th dport { 111, 662 } drop");
    server.kill();
    let _server = pair.patient.serve(&[]);
    let client = ["--client", CLIENT];
    let unheard = || pair.patient.examine(&client).find("LK281").is_some();
    until_blocking("a notice is not answered", unheard);
    let said = pair.patient.examine(&client);
    said.has("LK281", "warn", &["has not answered"], &["lockkeeper notify c"]);
    said.has("LK263", "fail", &["client7.example.org (10.99.0.2)", "does not respond"], &[]);
    assert_eq!(said.code, 1);
}

/// A patient whose server says this of alice.
fn alice(client: Value) -> Pair {
    let pair = Pair::new();
    let answers = vec![("/v1/status", 200, status()), ("/v1/clients/alice", 200, client)];
    admin(&pair.patient.socket, answers);
    pair
}

#[test]
fn what_the_server_knows_of_a_client_is_told() {
    let mut client = known("alice", CLIENT);
    for worry in ["fenced", "crashed", "suspect"] {
        client[worry] = true.into();
    }
    client["answers"] = false.into();
    client["notice"] = json!({ "client": { "id": "c3", "name": "alice", "address": CLIENT },
        "attempts": 4, "answered": false, "next_in_seconds": 2.0 });
    client["pending_reboot"] = json!({ "source": CLIENT, "name": "alice", "nsm_state": 9,
        "why": "its connection is alive", "repeats": 1, "since": "2026-11-16T10:00:00Z" });
    let said = alice(client).patient.examine(&["--client", "alice"]);
    said.has("LK280", "warn", &["its connection is alive"], &["confirm-reboot c3"]);
    said.has("LK281", "warn", &["not answered 4 notices"], &["lockkeeper notify c3"]);
    said.has("LK282", "warn", &["alice (10.99.0.2) is fenced"], &["lockkeeper unfence c3"]);
    said.has("LK283", "warn", &["did not contact the server"], &["lockkeeper fence c3"]);
    said.has("LK284", "warn", &["may have rebooted"], &["confirm-reboot c3"]);
    said.has("LK285", "warn", &["did not answer the server"], &[]);
    // Reported from where it is not known: it may have another address now.
    let mut moved = known("alice", CLIENT);
    moved["pending_reboot"] = json!({ "source": "10.99.0.77", "name": "alice", "nsm_state": 9,
        "why": "another address", "repeats": 1, "since": "2026-11-16T10:00:00Z" });
    let said = alice(moved).patient.examine(&["--client", "alice"]);
    said.has("LK280", "warn", &["another address"], &["confirm-reboot c3", "roaming = true"]);
    let said = alice(known("alice", CLIENT)).patient.examine(&["--client", "alice"]);
    said.is_fine("alice (10.99.0.2) is registered: 1 held, 0 waiting");
    said.lacks(&["LK280", "LK281", "LK282", "LK283", "LK284", "LK285"]);
}

/// Examines alice where /etc/hosts says this and nothing else is asked.
fn with_hosts(client: Value, hosts: &str) -> Report {
    let pair = alice(client);
    let patient = &pair.patient;
    std::fs::write(patient.path("hosts"), hosts).unwrap();
    std::fs::write(patient.path("nsswitch.conf"), "hosts: files\n").unwrap();
    let file = patient.path("x.toml");
    std::fs::write(&file, "[rpc]\nnames = [\"filer.example\"]\n").unwrap();
    patient.examine_after(
        "mount --bind \"$1/hosts\" /etc/hosts; mount --bind \"$1/nsswitch.conf\" \
         /etc/nsswitch.conf",
        &["--client", "alice", "-c", file.to_str().unwrap()],
    )
}

#[test]
fn names_that_a_client_cannot_match_are_told() {
    const NAMES: [&str; 5] = ["LK290", "LK291", "LK292", "LK293", "LK294"];
    let mut client = known("alice", CLIENT);
    client["our_addresses"] = json!(["10.99.0.1"]);
    let said = with_hosts(client.clone(), "10.99.0.1 filer.example\n10.99.0.2 alice\n");
    said.lacks(&NAMES);
    said.is_fine("alice recognises notices");

    let said = with_hosts(client.clone(), "10.99.0.9 filer.example\n10.99.0.2 alice\n");
    said.has(
        "LK291",
        "warn",
        &["filer.example", "10.99.0.1", "FreeBSD"],
        &["names = [", "--name NAME"],
    );

    let said = with_hosts(client.clone(), "10.99.0.1 filer.example\n10.99.0.7 alice\n");
    said.has("LK293", "warn", &["uses 10.99.0.2", "10.99.0.7"], &["make alice resolve"]);
    let said = with_hosts(client.clone(), "10.99.0.1 filer.example\n10.99.0.2 mallory\n");
    said.has("LK294", "warn", &["calls itself alice", "mallory"], &["make alice resolve"]);

    client["our_addresses"] = json!(["10.99.0.55"]);
    let said = with_hosts(client, "10.99.0.1 filer.example\n10.99.0.2 alice\n");
    said.has("LK292", "warn", &["10.99.0.55", "no longer has"], &["ip addr add 10.99.0.55"]);
}

#[test]
fn an_address_whose_name_leads_elsewhere_is_told() {
    let mut client = known("alice", CLIENT);
    client["our_addresses"] = json!(["10.99.0.1"]);
    let pair = alice(client);
    let patient = &pair.patient;
    // Who asks for a name gets filer.example, who asks for an address 10.99.0.9.
    names_lead_elsewhere(patient.network.as_ref().unwrap());
    std::fs::write(patient.path("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    std::fs::write(patient.path("nsswitch.conf"), "hosts: dns\n").unwrap();
    let said = patient.examine_after(
        "mount --bind \"$1/resolv.conf\" /etc/resolv.conf; mount --bind \"$1/nsswitch.conf\" \
         /etc/nsswitch.conf",
        &["--client", "alice"],
    );
    let text = ["10.99.0.1 resolves to filer.example", "resolves to 10.99.0.9"];
    said.has("LK290", "warn", &text, &["make filer.example resolve to 10.99.0.1"]);
}

/// A name server that is wrong about us.
fn names_lead_elsewhere(network: &Namespace) {
    network.block_on(async || {
        let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                // The question is one name, which ends with a zero, and its type and class.
                let question = &buffer[12..length];
                let end = question.iter().position(|byte| *byte == 0).unwrap() + 5;
                let (kind, data): (u8, &[u8]) = match question[end - 3] {
                    12 => (12, b"\x05filer\x07example\0"),
                    1 => (1, &[10, 99, 0, 9]),
                    other => (other, &[]),
                };
                let count = u8::from(!data.is_empty());
                let mut reply = buffer[..2].to_vec();
                reply.extend([0x84, 0, 0, 1, 0, count, 0, 0, 0, 0]);
                reply.extend(&question[..end]);
                if count == 1 {
                    reply.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 9, 0, data.len() as u8]);
                    reply.extend(data);
                }
                let _ = socket.send_to(&reply, from);
            }
        });
    });
}
