//! The doctor as a process, and patients: servers, daemons and machines with something wrong.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::rpcbind::{Over, Rpcbind};
use serde_json::Value;
use tempfile::TempDir;
use wire::Writer;
use wire::rpc::{self, Accepted, Call};
use wire::rpcbind::{Mapping, Netid, v2};

#[allow(dead_code, reason = "others do more with networks")]
#[path = "../../../server/tests/support/network.rs"]
pub mod network;

#[allow(dead_code, reason = "others do more with daemons")]
#[path = "../../../server/tests/support/daemons.rs"]
pub mod daemons;

use network::Network;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");
const PATIENCE: Duration = Duration::from_secs(30);

/// What the doctor said, and how it ended.
pub struct Said {
    pub code: i32,
    pub report: Value,
}

impl Said {
    /// The finding of this number, as (level, text, fix).
    pub fn find(&self, code: &str) -> Option<(String, String, String)> {
        let findings = self.report["findings"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let found = findings.iter().find(|finding| finding["code"] == code)?;
        Some((text(&found["level"]), text(&found["text"]), text(&found["fix"])))
    }

    pub fn codes(&self) -> Vec<String> {
        let findings = self.report["findings"].as_array().unwrap();
        findings.iter().filter_map(|f| f["code"].as_str().map(str::to_owned)).collect()
    }

    /// Asserts that it was found, and says and advises what it should.
    pub fn has(&self, code: &str, level: &str, text: &[&str], fix: &[&str]) {
        let Some(found) = self.find(code) else { panic!("no {code} in {:#}", self.report) };
        assert_eq!(found.0, level, "{code}: {found:?}");
        for part in text {
            assert!(found.1.contains(part), "{code}: {part:?} is not in {found:?}");
        }
        for part in fix {
            assert!(found.2.contains(part), "{code}: {part:?} is not in the fix of {found:?}");
        }
    }

    pub fn lacks(&self, codes: &[&str]) {
        for code in codes {
            assert!(self.find(code).is_none(), "{code} in {:#}", self.report);
        }
    }

    /// A line that is fine.
    pub fn is_fine(&self, part: &str) {
        let findings = self.report["findings"].as_array().unwrap();
        let told = |finding: &&Value| {
            finding["level"] == "ok" && finding["text"].as_str().unwrap().contains(part)
        };
        assert!(findings.iter().any(|f| told(&f)), "no {part:?} in {:#}", self.report);
    }
}

/// A place to examine: a state directory, perhaps in a network of its own.
pub struct Patient {
    pub home: TempDir,
    pub network: Option<Arc<Network>>,
    /// The admin socket that the doctor asks.
    pub socket: PathBuf,
}

impl Patient {
    /// On a disk, not in a /tmp that may be none.
    pub fn new() -> Self {
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let socket = home.path().join("admin.sock");
        std::fs::create_dir(home.path().join("export")).unwrap();
        Self { home, network: None, socket }
    }

    pub fn in_network(network: &Arc<Network>) -> Self {
        Self { network: Some(network.clone()), ..Self::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// A program in the patient's network.
    pub fn command(&self, program: &str) -> Command {
        match &self.network {
            Some(network) => network.command(program),
            None => Command::new(program),
        }
    }

    pub fn examine(&self, args: &[&str]) -> Said {
        self.examine_by("env", &[], args)
    }

    /// The doctor started by another program.
    pub fn examine_by(&self, program: &str, first: &[&str], args: &[&str]) -> Said {
        let mut command = self.command(program);
        command.env("LOCKKEEPER_ADMIN", &self.socket).args(first).arg(PROGRAM);
        command.args(["doctor", "--json", "--state"]).arg(self.state()).args(args);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let report = serde_json::from_str(&said).unwrap_or_else(|error| {
            panic!("{error}: {said} {}", String::from_utf8_lossy(&output.stderr))
        });
        Said { code: output.status.code().unwrap(), report }
    }

    /// The doctor where a script has changed what is mounted; `$1` is the patient's home.
    pub fn examine_after(&self, script: &str, args: &[&str]) -> Said {
        let script = format!("set -e; {script}\nshift; exec \"$@\"");
        let home = self.home.path().to_str().unwrap();
        self.examine_by("unshare", &["--mount", "sh", "-c", &script, "sh", home], args)
    }

    /// `lockkeeper serve` with this state directory.
    pub fn serve(&self, options: &[&str]) -> Serving {
        self.serve_by("env", &[], options)
    }

    /// One that waits for another server of the same store.
    pub fn start_standby(&self, options: &[&str]) -> Serving {
        let mut command = self.command(PROGRAM);
        command.args(["serve", "--admin", "off", "--state"]).arg(self.state()).args(options);
        command.arg("--admin-socket").arg(&self.socket);
        command.arg(self.path("export")).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Serving(command.spawn().unwrap())
    }

    pub fn serve_by(&self, program: &str, first: &[&str], options: &[&str]) -> Serving {
        let mut command = self.command(program);
        command.args(first).args([PROGRAM, "serve", "--admin", "off"]).args(options);
        command.arg("--state").arg(self.state()).arg(self.path("export"));
        if !options.contains(&"--admin-socket") {
            command.arg("--admin-socket").arg(&self.socket);
        }
        Serving::start(command, &self.path("log"))
    }
}

/// A process that ends with the test.
pub struct Serving(pub Child);

impl Serving {
    /// Waits until it says where to mount from.
    fn start(mut command: Command, log: &Path) -> Self {
        let into = std::fs::File::create(log).unwrap();
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        let child = command.stdout(into.try_clone().unwrap()).stderr(into).spawn().unwrap();
        let mut serving = Self(child);
        eventually("it serves", || {
            let said = std::fs::read_to_string(log).unwrap();
            assert!(serving.0.try_wait().unwrap().is_none(), "it ended: {said}");
            said.lines().any(|line| line.starts_with("mount "))
        });
        serving
    }

    /// As `kill -9`.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < give_up, "in vain waited until {what}");
        thread::sleep(Duration::from_millis(30));
    }
}

/// An admin socket that always says the same: documents by path.
pub fn admin(socket: &Path, answers: Vec<(&'static str, u16, Value)>) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let Some(path) = head.split_whitespace().nth(1) else { continue };
            let found = answers.iter().find(|(of, ..)| path.split('?').next() == Some(of));
            let (status, body) = match found {
                Some((_, status, body)) => (*status, body.clone()),
                None => (404, problem("no-such-client", "there is no such client")),
            };
            let body = body.to_string();
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
}

pub fn problem(code: &str, detail: &str) -> Value {
    serde_json::json!({ "title": "x", "status": 404, "code": code, "detail": detail, "hint": null })
}

/// What a healthy server says of itself.
pub fn status() -> Value {
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "node": "filer", "state": "serving", "summary": "",
        "started_at": "2026-11-16T10:00:00Z", "uptime_seconds": 60.0, "epoch": 3, "nsm_state": 7,
        "store": { "kind": "embedded", "shown": "embedded:/x", "durability": "process",
            "exact": true, "commit_p99_seconds": 0.0002, "stalled_seconds": null },
        "grace": null, "health": [],
        "counts": { "clients": 1, "locks": 1, "shares": 0, "waiting": 0, "unconfirmed": 0,
            "fenced": 0, "crashed": 0, "suspect": 0, "reboot_pending": 0, "notices_owed": 0 },
    })
}

/// What it says of a client without a worry.
pub fn known(name: &str, address: &str) -> Value {
    serde_json::json!({
        "id": "c3", "name": name, "address": address, "kind": "host", "state": "active",
        "last_seen_seconds": 2.0, "answers": true, "registered_at": "2026-11-16T10:00:00Z",
        "nsm_state": 7, "locks": 1, "shares": 0, "waiting": 0, "unconfirmed": 0,
        "monitored": true, "fenced": false, "crashed": false, "suspect": false,
        "our_addresses": [], "pending_reboot": null, "notice": null, "watches": null,
    })
}

/// Debian's rpcbind, with a /run of its own.
pub fn rpcbind(network: &Network) -> Serving {
    testbed::packages::install(&["rpcbind"]).unwrap();
    let script = "mount -t tmpfs tmpfs /run && mkdir /run/rpcbind && exec rpcbind -f";
    let mut command = network.command("sh");
    command.args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
    let serving = Serving(command.spawn().unwrap());
    let answers = || network.run("rpcinfo", &["-p", "127.0.0.1"]).status.success();
    eventually("rpcbind answers", answers);
    serving
}

/// Tells the rpcbind there that a program is at a port, over TCP and UDP.
pub fn register(network: &Network, program: u32, version: u32, port: u16) {
    network.block_on(async move || {
        let options = client::Options { reserved_port: true, ..client::Options::default() };
        let at = "127.0.0.1:111".parse().unwrap();
        let mut rpcbind = Rpcbind::connect(at, Over::Tcp, &options).await.unwrap();
        for netid in [Netid::Tcp, Netid::Udp] {
            let protocol = netid.protocol();
            let mapping = Mapping { program, version, protocol, port: port.into() };
            assert!(rpcbind.call::<v2::Set>(&mapping).await.unwrap());
        }
    });
}

/// A firewall in a network: one rule for what comes in.
pub fn firewall(network: &Network, rule: &str) {
    testbed::packages::install(&["nftables"]).unwrap();
    let rules = format!(
        "flush ruleset; table inet wall {{ chain in {{ type filter hook input priority 0; {rule}; \
         }}; }}"
    );
    let output = network.run("nft", &[&rules]);
    assert!(output.status.success(), "{rules}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Programs that answer NULL at one port, over TCP and UDP, for as long as the test runs.
pub fn respond(network: &Network, port: u16, programs: &'static [u32]) {
    network.block_on(async move || {
        let udp = UdpSocket::bind(("0.0.0.0", port)).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(&answer(&buffer[..length], programs), from);
            }
        });
        let tcp = TcpListener::bind(("0.0.0.0", port)).unwrap();
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                thread::spawn(move || respond_on(stream, programs));
            }
        });
    });
}

fn respond_on(mut stream: TcpStream, programs: &[u32]) {
    let mut head = [0; 4];
    while stream.read_exact(&mut head).is_ok() {
        let mut record = vec![0; (u32::from_be_bytes(head) & 0x7fff_ffff) as usize];
        stream.read_exact(&mut record).unwrap();
        let reply = answer(&record, programs);
        let head = 0x8000_0000 | reply.len() as u32;
        stream.write_all(&[&head.to_be_bytes()[..], &reply].concat()).unwrap();
    }
}

fn answer(call: &[u8], programs: &[u32]) -> Vec<u8> {
    let call = Call::parse(Bytes::copy_from_slice(call)).unwrap();
    let served = programs.contains(&call.program);
    let verdict = if served { Accepted::Success } else { Accepted::ProgramUnavailable };
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, call.xid, verdict);
    out.finish().to_bytes().to_vec()
}
