//! Whether the store can be trusted, while a server runs and while none does.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;

use client::nfs::Nfs;
use client::{Connection, Locker, Options as ClientOptions, mount};
use serde_json::json;
use store::conformance::lock;
use store::{CommitOutcome, Durability, Embedded, EmbeddedSettings, Store as _, Token};
use testbed::postgres::{Options, Server};
use testbed::wait::until_blocking;
use wire::nfs3::NewAttributes;
use wire::nlm::Range;

use crate::patient::{Patient, Report, admin, status};

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
    patient.examine(&[]).is_fine("is exact: 0 clients, 0 locks");
    // As after a crash of the machine: no mark, so the end of the journal is unknown.
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
    said.has("LK254", "fail", &["is unusable", "snapshot"], &["backup", "store check"]);
}

#[test]
fn a_store_that_contradicts_itself_is_told() {
    let patient = Patient::new();
    let path = patient.path("state/store");
    fs::create_dir(patient.state()).unwrap();
    let settings = EmbeddedSettings::new(&path, "/run/lockkeeper", Durability::Power).unwrap();
    let mut store = Embedded::open(settings).unwrap();
    // A lock of a client that is not there.
    let done = store.commit(&[lock(7, 5)], Token(1));
    assert!(matches!(done, CommitOutcome::Done), "{done:?}");
    drop(store);
    let said = patient.examine(&[]);
    said.has("LK253", "fail", &["is inconsistent", "does not exist"], &["backup", "store clear"]);
}

#[test]
fn a_running_server_tells_how_it_found_its_store() {
    let patient = Patient::new();
    patient.serve(&QUIET).kill();
    let mut server = patient.serve(&QUIET);
    patient.examine(&[]).is_fine("was exact at start");
    server.kill();
    // As after a restart of the machine: nothing in /run.
    let fresh = "mount -t tmpfs tmpfs /run; exec \"$@\"";
    let mut server = patient.serve_by("unshare", &["--mount", "sh", "-c", fresh, "sh"], &QUIET);
    let said = patient.examine(&[]);
    said.has("LK250", "warn", &["not exact"], &["durability = \"power\""]);
    said.lacks(&["LK106"]);
    server.kill();
    let memory = [&QUIET[..], &["--store", "memory:"]].concat();
    let _server = patient.serve(&memory);
    let said = patient.examine(&[]);
    said.has("LK252", "warn", &["in memory"], &["remove --store memory:"]);
    said.lacks(&["LK105", "LK250"]);
}

#[test]
fn a_store_that_has_stalled_is_told() {
    let patient = Patient::new();
    fs::create_dir(patient.state()).unwrap();
    fs::set_permissions(patient.path("export"), fs::Permissions::from_mode(0o777)).unwrap();
    let port = testbed::ports::free_port().unwrap();
    let at = SocketAddr::new([127, 0, 0, 1].into(), port);
    let small = "mount -t tmpfs -o size=8m,mode=700 none \"$1\"; shift; exec \"$@\"";
    let state = patient.state();
    let first = ["--mount", "sh", "-c", small, "sh", state.to_str().unwrap()];
    let listen = at.to_string();
    let options = ["--listen", &listen, "--rpcbind", "off", "--ports", "any"];
    let server = patient.serve_by("unshare", &first, &options);
    // Its own view of the directory, filled to the last byte.
    let seen = format!("/proc/{}/root{}/fill", server.id(), state.display());
    let mut fill = fs::File::create(seen).unwrap();
    while fill.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    let export = patient.path("export");
    let asked = thread::spawn(move || lock_one_file(at, &export));
    until_blocking("the store stalls", || {
        let said = patient.examine(&[]);
        said.find("LK251").is_some()
    });
    let said = patient.examine(&[]);
    said.has("LK251", "fail", &["has been failing for", "locks wait"], &["free disk space"]);
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

fn examine_with(change: impl FnOnce(&mut serde_json::Value)) -> Report {
    let patient = Patient::new();
    let mut status = status();
    change(&mut status);
    admin(&patient.socket, vec![("/v1/status", 200, status)]);
    patient.examine(&[])
}

#[test]
fn what_the_server_says_of_its_store_is_told() {
    let said = examine_with(|status| status["store"]["exact"] = false.into());
    said.has("LK250", "warn", &["not exact", "had a grace period"], &["durability = \"power\""]);
    let said = examine_with(|status| {
        status["store"]["exact"] = false.into();
        status["grace"] = json!({ "active": true, "exact": false, "began": true, "remaining_seconds": 62.0,
            "missing": 1, "parked": 0, "expected": [], "expected_total": 0 });
    });
    said.has("LK250", "warn", &["can reclaim for 62 s"], &["lockkeeper grace"]);
    let said = examine_with(|status| status["store"]["stalled_seconds"] = 12.0.into());
    said.has("LK251", "fail", &["has been failing for 12 s"], &["free disk space"]);
    let said = examine_with(|status| status["store"]["kind"] = "memory".into());
    said.has("LK252", "warn", &["in memory"], &["remove --store memory:"]);
    examine_with(|_| ()).lacks(&["LK250", "LK251", "LK252"]);
}

#[test]
fn servers_that_share_a_database_are_told() {
    let database = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let patient = Patient::new();
    let url = database.tcp_url().unwrap();
    let file = patient.path("x.toml");
    // The servers of a pair must agree on the id of the file system.
    let export = format!("[[export]]\npath = {:?}\nfilesystem_id = 7\n", patient.path("export"));
    let text = format!("[store]\nurl = \"{url}\"\n[standby]\nlease = \"600ms\"\n{export}");
    fs::write(&file, text).unwrap();
    let config = ["-c", file.to_str().unwrap()];
    patient.examine(&config).is_fine("no server has used the database yet");

    let other = Patient::new();
    let mut first = patient.serve(&[&QUIET[..], &config, &["--node", "a"]].concat());
    let standby = [&QUIET[..], &config, &["--standby", "--node", "b"]].concat();
    let mut second = other.start_standby(&standby);
    until_blocking("the standby is seen", || {
        let said = patient.examine(&config);
        said.lacks(&["LK255", "LK256"]);
        said.report.to_string().contains("standby b was last seen")
    });
    patient.examine(&config).is_fine("a serves since");
    let said = other.examine(&config);
    said.is_fine("standby: no port is served");
    assert_eq!(said.code, 0, "{:#}", said.report);
    second.kill();
    until_blocking("its silence is seen", || {
        patient.examine(&config).report.to_string().contains("LK256")
    });
    let said = patient.examine(&config);
    said.has("LK256", "warn", &["standby b", "will not take over"], &["on b:"]);
    // As after a takeover from a machine that could not be fenced.
    database.psql("UPDATE lockkeeper.seat SET unfenced = '{old}'").unwrap();
    let said = patient.examine(&config);
    said.has(
        "LK257",
        "warn",
        &["not fenced: old"],
        &["lockkeeper store fenced old", "on_takeover under [standby]"],
    );
    first.kill();
    drop(database);
    let said = patient.examine(&config);
    said.has("LK255", "fail", &["127.0.0.1"], &["start the database", "store check postgres://"]);
}
