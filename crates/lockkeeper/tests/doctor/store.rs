//! Whether the store can be trusted, while a server runs and while none does.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;

use client::nfs::Nfs;
use client::{Connection, Locker, Options as ClientOptions, mount};
use serde_json::json;
use store::conformance::lock;
use store::{Committed, Durability, Embedded, Settings, Store as _, Token};
use testbed::postgres::{Options, Server};
use wire::nfs3::NewAttributes;
use wire::nlm::Range;

use crate::support::{Patient, Said, admin, eventually, status};

const QUIET: [&str; 4] = ["--listen", "127.0.0.1:0", "--rpcbind", "off"];

fn files(directory: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let list = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> =
        list.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn a_store_at_rest_is_read_and_left_as_it_is() {
    let patient = Patient::new();
    patient.serve(&QUIET).kill();
    let store = patient.path("state/store");
    let before = files(&store);
    patient.examine(&[]).is_fine("is complete: 0 clients, 0 locks");
    // What the machine's end leaves: no mark, and a journal of which nobody knows the end.
    let said = patient.examine_after("mount -t tmpfs tmpfs /run", &[]);
    said.has("LK250", "warn", &["not exact"], &["durability = \"power\""]);
    assert_eq!(files(&store), before, "the doctor wrote to the store");
    // One byte is wrong.
    let journal = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
    for file in journal.filter(|path| path.to_str().unwrap().contains("snapshot")) {
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
    }
    let said = patient.examine(&[]);
    said.has("LK254", "fail", &["cannot be used", "snapshot"], &["backup", "store check"]);
}

#[test]
fn a_store_that_contradicts_itself_is_told() {
    let patient = Patient::new();
    let path = patient.path("state/store");
    fs::create_dir(patient.state()).unwrap();
    let settings = Settings::new(&path, "/run/lockkeeper", Durability::Power).unwrap();
    let mut store = Embedded::open(settings).unwrap();
    // A lock of a client that is not there.
    let done = store.commit(&[lock(7, 5)], Token(1));
    assert!(matches!(done, Committed::Done), "{done:?}");
    drop(store);
    let said = patient.examine(&[]);
    said.has("LK253", "fail", &["contradicts itself", "not there"], &["backup", "store clear"]);
}

#[test]
fn a_running_server_tells_how_it_found_its_store() {
    let patient = Patient::new();
    patient.serve(&QUIET).kill();
    let server = patient.serve(&QUIET);
    patient.examine(&[]).is_fine("was complete at the start");
    server.kill();
    // As after a restart of the machine: nothing in /run.
    let fresh = "mount -t tmpfs tmpfs /run; exec \"$@\"";
    let server = patient.serve_by("unshare", &["--mount", "sh", "-c", fresh, "sh"], &QUIET);
    let said = patient.examine(&[]);
    said.has("LK250", "warn", &["not exact"], &["durability = \"power\""]);
    said.lacks(&["LK106"]);
    server.kill();
    let memory = [&QUIET[..], &["--store", "memory:"]].concat();
    let _server = patient.serve(&memory);
    let said = patient.examine(&[]);
    said.has("LK252", "warn", &["in memory"], &["without --store memory:"]);
    said.lacks(&["LK105", "LK250"]);
}

#[test]
fn a_store_that_has_stalled_is_told() {
    let patient = Patient::new();
    fs::create_dir(patient.state()).unwrap();
    fs::set_permissions(patient.path("export"), fs::Permissions::from_mode(0o777)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = SocketAddr::new([127, 0, 0, 1].into(), port);
    let small = "mount -t tmpfs -o size=8m,mode=700 none \"$1\"; shift; exec \"$@\"";
    let state = patient.state();
    let first = ["--mount", "sh", "-c", small, "sh", state.to_str().unwrap()];
    let listen = at.to_string();
    let options = ["--listen", &listen, "--rpcbind", "off", "--ports", "any"];
    let server = patient.serve_by("unshare", &first, &options);
    // Its own view of the directory, filled to the last byte.
    let seen = format!("/proc/{}/root{}/fill", server.0.id(), state.display());
    let mut fill = fs::File::create(seen).unwrap();
    while fill.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    let export = patient.path("export");
    let asked = thread::spawn(move || lock_one_file(at, &export));
    eventually("the store stalls", || {
        let said = patient.examine(&[]);
        said.find("LK251").is_some()
    });
    let said = patient.examine(&[]);
    said.has("LK251", "fail", &["has not worked for", "locks wait"], &["free space"]);
    said.lacks(&["LK104"]);
    assert_eq!(said.code, 1);
    drop(server);
    let _ = asked.join();
}

/// Asks for more locks than fit into what is left of a block.
fn lock_one_file(at: SocketAddr, export: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = ClientOptions::default().user(1, 1, &[]);
        let connection = Connection::connect(at, &options).await.unwrap();
        let root = mount::mount(&connection, export.to_str().unwrap()).await.unwrap();
        let nfs = Nfs(connection.clone());
        let handle = nfs.create(&root, b"file", NewAttributes::default()).await.unwrap();
        let locker = Locker::new(connection, "alice", 1);
        for byte in 0..1000 {
            let range = Range { offset: byte * 2, length: 1 };
            if locker.lock(&handle.0, range).await.is_err() {
                return;
            }
        }
    });
}

fn examine_with(change: impl FnOnce(&mut serde_json::Value)) -> Said {
    let patient = Patient::new();
    let mut status = status();
    change(&mut status);
    admin(&patient.socket, vec![("/v1/status", 200, status)]);
    patient.examine(&[])
}

#[test]
fn what_the_server_says_of_its_store_is_told() {
    let said = examine_with(|status| status["store"]["exact"] = false.into());
    said.has("LK250", "warn", &["not exact", "were given time"], &["durability = \"power\""]);
    let said = examine_with(|status| {
        status["store"]["exact"] = false.into();
        status["grace"] = json!({ "active": true, "exact": false, "began": true, "remaining_seconds": 62.0,
            "missing": 1, "parked": 0, "expected": [], "expected_total": 0 });
    });
    said.has("LK250", "warn", &["take them back for 62 s"], &["lockkeeper grace"]);
    let said = examine_with(|status| status["store"]["stalled_seconds"] = 12.0.into());
    said.has("LK251", "fail", &["has not worked for 12 s"], &["free space"]);
    let said = examine_with(|status| status["store"]["kind"] = "memory".into());
    said.has("LK252", "warn", &["in memory"], &["without --store memory:"]);
    examine_with(|_| ()).lacks(&["LK250", "LK251", "LK252"]);
}

#[test]
fn servers_that_share_a_database_are_told() {
    let database = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let patient = Patient::new();
    let url = database.tcp_url().unwrap();
    let file = patient.path("x.toml");
    let text = format!("[store]\nurl = \"{url}\"\n[standby]\nlease = \"600ms\"\n");
    fs::write(&file, text).unwrap();
    let config = ["-c", file.to_str().unwrap()];
    patient.examine(&config).is_fine("no server has used the database yet");

    let other = Patient::new();
    let first = patient.serve(&[&QUIET[..], &config, &["--node", "a"]].concat());
    let standby = [&QUIET[..], &config, &["--standby", "--node", "b"]].concat();
    let second = other.start_standby(&standby);
    eventually("the standby is seen", || {
        let said = patient.examine(&config);
        said.lacks(&["LK255", "LK256"]);
        said.report.to_string().contains("the standby b was heard of")
    });
    patient.examine(&config).is_fine("a serves since");
    let said = other.examine(&config);
    said.is_fine("a standby serves no port");
    assert_eq!(said.code, 0, "{:#}", said.report);
    second.kill();
    eventually("its silence is seen", || {
        patient.examine(&config).report.to_string().contains("LK256")
    });
    let said = patient.examine(&config);
    said.has("LK256", "warn", &["standby b", "will not help"], &["on b:"]);
    // As after a takeover from a machine that nobody can look into.
    database.psql("UPDATE lockkeeper.seat SET unfenced = '{old}'").unwrap();
    let said = patient.examine(&config);
    said.has("LK257", "warn", &["nobody made sure: old"], &["on_takeover under [standby]"]);
    first.kill();
    drop(database);
    let said = patient.examine(&config);
    said.has("LK255", "fail", &["127.0.0.1"], &["start the database", "store check postgres://"]);
}
