//! Traffic on the bridge, recorded by dumpcap and dissected by tshark.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;
use crate::network::BRIDGE;
use testbed::process::{Process, run};

/// Packets reach the file a moment after the wire.
const DRAIN: Duration = Duration::from_millis(700);

/// A recording under way.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

impl Capture {
    /// Records everything that passes the bridge into `NAME.pcap` of the lab's directory.
    pub fn start(lab: &Lab, name: &str) -> Result<Self> {
        let file = lab.directory().join(format!("{name}.pcap"));
        let mut dumpcap = lab.command("dumpcap");
        dumpcap.args(["-q", "-P", "-i", BRIDGE, "-w"]).arg(&file);
        let process = lab.spawn(&format!("{name}.capture"), &mut dumpcap)?;
        let mut capture = Self { process, file };
        capture.process.wait_for_output(|output| output.contains("File:")).context("dumpcap")?;
        Ok(capture)
    }

    /// Ends the recording, in which tshark must find no malformed packet.
    pub fn stop(mut self) -> Result<Packets> {
        thread::sleep(DRAIN);
        self.process.stop(Duration::from_secs(10)).context("dumpcap")?;
        let packets = Packets { file: self.file.clone() };
        let malformed = packets.show("_ws.malformed", "frame.number")?;
        ensure!(malformed.is_empty(), "malformed packets in {:?}: {malformed:?}", packets.file);
        Ok(packets)
    }
}

/// A finished recording.
#[derive(Debug)]
pub struct Packets {
    file: PathBuf,
}

impl Packets {
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// How many packets match a display filter.
    pub fn count(&self, filter: &str) -> Result<usize> {
        Ok(self.show(filter, "frame.number")?.len())
    }

    /// One field of each packet that matches.
    pub fn show(&self, filter: &str, field: &str) -> Result<Vec<String>> {
        let mut tshark = Command::new("tshark");
        tshark.args(["-n", "-r"]).arg(&self.file);
        // Reserved ports belong to all sorts of protocols; what looks like RPC is RPC.
        tshark.args(["-o", "tcp.try_heuristic_first:TRUE", "-o", "udp.try_heuristic_first:TRUE"]);
        tshark.args(["-Y", filter, "-T", "fields", "-e", field]);
        Ok(run(&mut tshark)?.lines().map(str::to_owned).collect())
    }
}
