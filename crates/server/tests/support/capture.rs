//! Live captures, judged by an independent dissector (tshark).

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use judge::tshark::{Checksums, Complaint, Report, dissect};
use tempfile::TempDir;
use testbed::namespace::Namespace;

/// A capture that runs until it is judged.
pub struct Capture {
    child: Child,
    pcap: PathBuf,
    _dir: TempDir,
}

impl Capture {
    /// All TCP and UDP over the veth of this network.
    pub fn start(network: &Namespace) -> Self {
        Self::on(network, "eth0", "tcp or udp")
    }

    /// Packets of one interface that match a capture filter.
    pub fn on(network: &Namespace, interface: &str, filter: &str) -> Self {
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
        let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
        let started = messages.any(|line| line.unwrap().starts_with("File:"));
        assert!(started, "dumpcap did not start");
        std::thread::spawn(move || messages.for_each(drop));
        Self { child, pcap, _dir: dir }
    }

    /// Ends the capture and dissects it.
    pub fn dissected(mut self) -> Report {
        // dumpcap writes in pieces; let the last one reach the file.
        std::thread::sleep(Duration::from_millis(500));
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
        dissect(&self.pcap, Checksums::Ignore)
    }

    /// Ends the capture. The dissector may complain of nothing but calls without a reply, since NLM
    /// messages have none, and resets, since a killed server's connections end so.
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
