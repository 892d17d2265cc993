//! What goes over a cable, captured live and judged by an independent dissector.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use judge::tshark::{Checksums, Complaint, Report, dissect};
use tempfile::TempDir;

use super::network::Network;

/// A capture that runs until it is judged.
pub struct Capture {
    child: Child,
    pcap: PathBuf,
    _dir: TempDir,
}

impl Capture {
    /// All TCP and UDP that goes over the cable of this network.
    pub fn start(network: &Network) -> Self {
        Self::on(network, "cable", "tcp or udp")
    }

    /// What a filter lets through of an interface of this network.
    pub fn on(network: &Network, interface: &str, filter: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pcap = dir.path().join("session.pcapng");
        let mut child = network
            .command("dumpcap")
            .args(["-i", interface, "-q", "-s", "0", "-B", "64", "-f", filter, "-w"])
            .arg(&pcap)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dumpcap of package wireshark-common is needed");
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        // It says so when it has begun: "File: ...".
        let begun = said.any(|line| line.unwrap().starts_with("File:"));
        assert!(begun, "dumpcap did not begin");
        std::thread::spawn(move || said.for_each(drop));
        Self { child, pcap, _dir: dir }
    }

    /// Ends it, and lets the dissector read it.
    pub fn dissected(mut self) -> Report {
        // What was captured is written in pieces; the last one must come too.
        std::thread::sleep(Duration::from_millis(500));
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
        dissect(&self.pcap, Checksums::Ignore)
    }

    /// Ends it. Nothing in it may be malformed, or strange to the dissector. Calls may be left
    /// without an answer, since messages are; a connection of a server that is killed ends by a
    /// reset.
    pub fn judge(self) -> Report {
        let report = self.dissected();
        let is_expected = |complaint: &Complaint| match complaint {
            Complaint::Unanswered { .. } => true,
            Complaint::Expert { layer, text, .. } => layer == "tcp" && text.contains("(RST)"),
            _ => false,
        };
        let complaints: Vec<String> = report
            .complaints
            .iter()
            .filter(|complaint| !is_expected(complaint))
            .map(ToString::to_string)
            .collect();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
        report
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Already ended, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
