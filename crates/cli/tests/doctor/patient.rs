//! The doctor as a process, and what it examines: servers, daemons and networks with a defect.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use client::rpcbind::{RpcTransport, Rpcbind};
use serde_json::Value;
use tempfile::TempDir;
use testbed::debian::{Machine, state_directory};
use testbed::namespace::Namespace;
use testbed::peer::{Answer, script, serve_datagrams, serve_streams};
use testbed::process::Process;
use testbed::server::Server;
use testbed::wait;
use tokio::net::{TcpListener, UdpSocket};
use wire::rpc::Accepted;
use wire::rpcbind::{Mapping, Netid, v2};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// The doctor's findings and exit code.
pub struct Report {
    pub code: i32,
    pub report: Value,
}

impl Report {
    /// The finding with this code, as (level, text, fix).
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

    /// Asserts that there is a finding with this code, level, and parts of text and fix.
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

    /// Asserts that a finding of level `ok` contains this.
    pub fn is_fine(&self, part: &str) {
        let findings = self.report["findings"].as_array().unwrap();
        let matches = |finding: &&Value| {
            finding["level"] == "ok" && finding["text"].as_str().unwrap().contains(part)
        };
        assert!(findings.iter().any(|f| matches(&f)), "no {part:?} in {:#}", self.report);
    }
}

/// A state directory to examine, perhaps in a network of its own.
pub struct Patient {
    pub home: TempDir,
    pub network: Option<Arc<Namespace>>,
    /// The admin socket that the doctor asks.
    pub socket: PathBuf,
}

impl Patient {
    /// On a disk: `/tmp` may be a tmpfs.
    pub fn new() -> Self {
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let socket = home.path().join("admin.sock");
        std::fs::create_dir(home.path().join("export")).unwrap();
        Self { home, network: None, socket }
    }

    pub fn in_network(network: &Arc<Namespace>) -> Self {
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

    pub fn examine(&self, args: &[&str]) -> Report {
        self.examine_by("env", &[], args)
    }

    /// The doctor started by another program.
    pub fn examine_by(&self, program: &str, first: &[&str], args: &[&str]) -> Report {
        let mut command = self.command(program);
        command.env("LOCKKEEPER_ADMIN", &self.socket).args(first).arg(PROGRAM);
        command.args(["doctor", "--json", "--state"]).arg(self.state()).args(args);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let report = serde_json::from_str(&said).unwrap_or_else(|error| {
            panic!("{error}: {said} {}", String::from_utf8_lossy(&output.stderr))
        });
        Report { code: output.status.code().unwrap(), report }
    }

    /// The doctor where a script has changed what is mounted; `$1` is the patient's home.
    pub fn examine_after(&self, script: &str, args: &[&str]) -> Report {
        let script = format!("set -e; {script}\nshift; exec \"$@\"");
        let home = self.home.path().to_str().unwrap();
        self.examine_by("unshare", &["--mount", "sh", "-c", &script, "sh", home], args)
    }

    /// `lockkeeper serve` with this state directory.
    pub fn serve(&self, options: &[&str]) -> Server {
        self.serve_by("env", &[], options)
    }

    /// A standby of another server of the same store; does not wait for it.
    pub fn start_standby(&self, options: &[&str]) -> Server {
        let mut command = self.command(PROGRAM);
        command.args(["serve", "--admin", "off", "--state"]).arg(self.state()).args(options);
        command.arg("--admin-socket").arg(&self.socket);
        command.args(self.export(options)).env_remove("NOTIFY_SOCKET");
        Server::spawn(&mut command, &self.path("log")).unwrap()
    }

    /// The directory to export, unless the configuration file has an export.
    fn export(&self, options: &[&str]) -> Option<PathBuf> {
        let file = options.iter().skip_while(|option| **option != "-c").nth(1);
        let configured =
            |file: &&str| std::fs::read_to_string(file).unwrap().contains("[[export]]");
        (!file.is_some_and(configured)).then(|| self.path("export"))
    }

    pub fn serve_by(&self, program: &str, first: &[&str], options: &[&str]) -> Server {
        let mut command = self.command(program);
        command.args(first).args([PROGRAM, "serve", "--admin", "off"]).args(options);
        command.arg("--state").arg(self.state()).args(self.export(options));
        if !options.contains(&"--admin-socket") {
            command.arg("--admin-socket").arg(&self.socket);
        }
        Server::start(command.env_remove("NOTIFY_SOCKET"), &self.path("log")).unwrap()
    }
}

/// An admin socket that serves fixed documents by path.
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

/// The status of a healthy server.
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

/// A client without findings.
pub fn known(name: &str, address: &str) -> Value {
    serde_json::json!({
        "id": "c3", "name": name, "address": address, "kind": "lock",
        "protocol": "nlm", "state": "active",
        "last_seen_seconds": 2.0, "answers": true, "registered_at": "2026-11-16T10:00:00Z",
        "epoch": 12, "monitored_name": name, "private": null,
        "callback": { "address": address, "program": 100_024, "version": 1, "procedure": 6 },
        "nsm_state": 7, "locks": 1, "shares": 0, "waiting": 0, "unconfirmed": 0,
        "monitored": true, "fenced": false, "crashed": false, "suspect": false,
        "our_addresses": [], "pending_reboot": null, "notice": null,
    })
}

/// Debian's rpcbind.
pub fn rpcbind(network: &Namespace) -> Process {
    Machine::boot(network).unwrap().rpcbind().unwrap()
}

/// Debian's rpcbind and statd.
pub fn statd(network: &Namespace) -> (Process, Process, TempDir) {
    let machine = Machine::boot(network).unwrap();
    let state = state_directory(7).unwrap();
    (machine.rpcbind().unwrap(), machine.statd(&state).unwrap(), state)
}

/// Registers a program with the rpcbind of a network, over TCP and UDP.
pub fn register(network: &Namespace, program: u32, version: u32, port: u16) {
    network.block_on(async move || {
        let options = client::Options { reserved_port: true, ..client::Options::default() };
        let at = "127.0.0.1:111".parse().unwrap();
        let mut rpcbind = Rpcbind::connect(at, RpcTransport::Tcp, &options).await.unwrap();
        for netid in [Netid::Tcp, Netid::Udp] {
            let protocol = netid.protocol();
            let mapping = Mapping { program, version, protocol, port: port.into() };
            assert!(rpcbind.call::<v2::Set>(&mapping).await.unwrap());
        }
    });
}

/// Replaces the firewall of a network by one rule for incoming packets.
pub fn firewall(network: &Namespace, rule: &str) {
    testbed::packages::install(&["nftables"]).unwrap();
    let rules = format!(
        "flush ruleset; table inet wall {{ chain in {{ type filter hook input priority 0; {rule}; \
         }}; }}"
    );
    let output = network.output("nft", &[&rules]).unwrap();
    assert!(output.status.success(), "{rules}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Programs that answer NULL at one port, over TCP and UDP, until the test program ends.
pub fn respond(network: &Namespace, port: u16, programs: &'static [u32]) {
    let (ready, is_ready) = mpsc::channel();
    network.spawn(async move || {
        let udp = UdpSocket::bind(("0.0.0.0", port)).await.unwrap();
        let tcp = TcpListener::bind(("0.0.0.0", port)).await.unwrap();
        ready.send(()).unwrap();
        let script = script(move |call| match programs.contains(&call.program) {
            true => Answer::results(&()),
            false => Answer::Status(Accepted::ProgramUnavailable),
        });
        tokio::join!(serve_datagrams(udp, script.clone()), serve_streams(tcp, script, || ()));
    });
    is_ready.recv_timeout(wait::LIMIT).unwrap();
}
