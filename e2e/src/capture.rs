//! What went over the wire, recorded by dumpcap and read by tshark: an independent witness.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command;
use crate::lab::Lab;
use crate::namespace::BRIDGE;
use crate::process::{Process, tail};

const START_PATIENCE: Duration = Duration::from_secs(20);
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
        let log = format!("{name}.capture");
        let mut dumpcap = lab.command("dumpcap");
        dumpcap.args(["-q", "-P", "-i", BRIDGE, "-w"]).arg(&file);
        let process = lab.spawn(&log, &mut dumpcap)?;
        let mut capture = Self { process, file };
        let log = lab.directory().join(format!("{log}.log"));
        let end = Instant::now() + START_PATIENCE;
        while !tail(&log, 5).contains("File:") {
            capture.process.check().context("dumpcap")?;
            if Instant::now() > end {
                bail!("dumpcap does not start");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(capture)
    }

    /// Ends it. Whatever was recorded, tshark must understand it.
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

    /// How many packets match, in the words of tshark.
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
        Ok(command::finish(&mut tshark)?.lines().map(str::to_owned).collect())
    }
}
