//! What someone between the server and its database can read, as tshark sees it.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use lockkeeper_store::conformance::{client, lock};
use lockkeeper_store::{CommitOutcome, Store as _, Token};
use tempfile::TempDir;
use testbed::certificates::Authority;
use testbed::postgres::Server;
use testbed::process::Process;
use testbed::{packages, wait};

use crate::driver::taken;
use crate::tls::{RIGHT, over_tcp, server};

/// The payloads of all packets to and from a port of loopback.
struct Capture {
    tshark: Process,
    port: u16,
    _directory: TempDir,
}

impl Capture {
    fn start(port: u16) -> Self {
        packages::install(&["tshark"]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("tshark");
        command.args(["-i", "lo", "-l", "-n", "-f", &format!("tcp port {port}")]);
        command.args(["-T", "fields", "-e", "tcp.payload"]);
        let tshark = Process::start(&mut command, &directory.path().join("log")).unwrap();
        let mut capture = Self { tshark, port, _directory: directory };
        capture.sees("the first packet");
        capture
    }

    /// Sends this until it is seen: everything that was sent before has been seen then.
    fn sees(&mut self, text: &str) {
        wait::until_blocking("tshark", || {
            self.tshark.check().unwrap();
            let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            socket.write_all(text.as_bytes()).unwrap();
            drop(socket);
            std::thread::sleep(Duration::from_millis(50));
            contains(&self.payloads(), text)
        });
    }

    fn payloads(&self) -> Vec<u8> {
        let output = self.tshark.output();
        let hex = output.lines().filter(|line| line.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let hex: Vec<u8> = hex.flat_map(str::bytes).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        hex.chunks(2).filter_map(byte).collect()
    }

    fn end(mut self) -> Vec<u8> {
        self.sees("the last packet");
        let payloads = self.payloads();
        self.tshark.stop(Duration::from_secs(10)).unwrap();
        payloads
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// B5.93
#[test]
fn tshark_sees_no_statement_and_no_row_with_tls() {
    let authority = Authority::new("ours").unwrap();
    let server = server();
    let certificate = authority.issue("right", RIGHT).unwrap();
    server.set_certificate(Some(&certificate), authority.certificate()).unwrap();
    // The name of a host is in the rows.
    for (parameters, is_readable) in [
        ("sslmode=disable".to_owned(), true),
        (format!("sslmode=verify-full&sslrootcert={}", authority.certificate().display()), false),
    ] {
        let payloads = traffic(&server, &parameters);
        assert!(payloads.len() > 4_000, "{} bytes", payloads.len());
        for text in ["SELECT", "lockkeeper", "alice.example.com"] {
            assert_eq!(contains(&payloads, text), is_readable, "{text}, {parameters}");
        }
    }
}

/// Of a store that takes the leadership, commits and is read.
fn traffic(server: &Server, parameters: &str) -> Vec<u8> {
    let capture = Capture::start(server.port().unwrap());
    let (mut store, lease) = taken(&over_tcp(server, parameters));
    let token = Token(store.last_token().unwrap().0 + 1);
    assert!(matches!(store.commit(&[client(1), lock(2, 1)], token), CommitOutcome::Done));
    assert!(store.load().unwrap().locks.len() == 1);
    wait::until_blocking("the heartbeat", || !lease.has_standby());
    store.release_leadership().unwrap();
    drop(store);
    capture.end()
}
