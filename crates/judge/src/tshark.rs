//! tshark as a second opinion: what an independent dissector says about every RPC message in a
//! capture, be it written by [`crate::capture`] or taken from real traffic.
//!
//! The dissection is read from PDML, which tshark prints with one protocol or field a line and
//! with every quote and bracket inside a value escaped; so lines and quotes are all that is parsed
//! here.

use std::collections::HashSet;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Something that the dissector does not like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Complaint {
    /// tshark is missing or failed: nothing was judged.
    NotJudged(String),
    /// There is no RPC message in the capture.
    NothingSeen,
    /// A payload that was taken for something else than RPC: garbage, or a reply without a call.
    NotRpc { frame: u32, layer: String },
    /// A message of a program that we speak, not dissected as that program.
    NotDissected { frame: u32, program: u32 },
    /// Bytes that follow the message inside its record or datagram.
    LeftOver { frame: u32, layer: String },
    /// An expert's warning or error.
    Expert { frame: u32, layer: String, text: String },
    /// A call that nobody answered.
    Unanswered { frame: u32, xid: u32 },
    /// A reply that belongs to no call in the capture.
    Orphan { frame: u32, xid: u32 },
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJudged(why) => write!(f, "not judged: {why}"),
            Self::NothingSeen => write!(f, "no RPC message in the capture"),
            Self::NotRpc { frame, layer } => write!(f, "frame {frame}: {layer}, which is no RPC"),
            Self::NotDissected { frame, program } => {
                write!(f, "frame {frame}: not dissected as program {program}")
            }
            Self::LeftOver { frame, layer } => {
                write!(f, "frame {frame}: bytes left over after {layer}")
            }
            Self::Expert { frame, layer, text } => write!(f, "frame {frame}: {layer}: {text}"),
            Self::Unanswered { frame, xid } => write!(f, "frame {frame}: call {xid:#x} unanswered"),
            Self::Orphan { frame, xid } => write!(f, "frame {frame}: reply {xid:#x} has no call"),
        }
    }
}

/// One RPC message as the dissector saw it. In a reply, program and procedure are those of the
/// call that it found for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    pub frame: u32,
    pub xid: u32,
    pub is_reply: bool,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    /// The protocol that took the body: "nfs", "mount", "portmap", "nlm", "stat", "statnotify".
    pub layer: String,
    /// The fields of the body: of NLM and NSM only, whose bodies are small.
    pub fields: Vec<Field>,
    /// Whether the dissector looked into the body; it knows no more than the names of some
    /// procedures.
    pub understood: bool,
    body_bytes: u32,
    /// For a reply: the frame of its call.
    call_frame: Option<u32>,
    /// For a reply: the procedure ran.
    success: bool,
    /// For a call: sent before.
    repeated: bool,
}

impl Seen {
    /// Only NULL of NFS has no body, and the dissector does not mind if another has none.
    fn lacks_body(&self) -> bool {
        self.layer == "nfs" && self.procedure != 0 && self.body_bytes == 0
    }
}

/// A field as the dissector names it, as it explains it to people, and its bytes in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Field {
    pub name: String,
    pub text: String,
    pub hex: String,
}

/// Everything the dissector said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub messages: Vec<Seen>,
    pub complaints: Vec<Complaint>,
}

/// Whether checksums of IP, TCP and UDP are verified. In a capture of real traffic they are
/// often not computed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    Verify,
    Ignore,
}

/// What the dissector complains about in this capture; nothing, if all is well.
///
/// Of real traffic, take only the ports of the server into the capture, from before the first
/// call until after the last reply; and let a test that resets connections or sends one-way
/// calls set those complaints aside.
pub fn judge(pcap: &Path) -> Vec<Complaint> {
    dissect(pcap, Checksums::Ignore).complaints
}

pub fn dissect(pcap: &Path, checksums: Checksums) -> Report {
    let mut reading = Reading::default();
    if let Err(why) = run(pcap, checksums, &mut reading) {
        return Report { complaints: vec![Complaint::NotJudged(why)], ..Report::default() };
    }
    reading.finish()
}

fn run(pcap: &Path, checksums: Checksums, reading: &mut Reading) -> Result<(), String> {
    let verify = checksums == Checksums::Verify;
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "pdml", "-r"]).arg(pcap);
    // Reserved ports belong to all sorts of protocols; what looks like RPC is RPC.
    command.args(["-o", "tcp.try_heuristic_first:TRUE", "-o", "udp.try_heuristic_first:TRUE"]);
    for layer in ["ip", "tcp", "udp"] {
        command
            .arg("-o")
            .arg(format!("{layer}.check_checksum:{}", if verify { "TRUE" } else { "FALSE" }));
    }
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| {
            format!("tshark cannot be started ({error}); install package tshark")
        })?;
    if let Some(output) = child.stdout.take() {
        let mut line = Vec::new();
        for part in BufReader::new(output).split(b'\n') {
            line.extend(part.map_err(|error| error.to_string())?);
            // A value may hold a line break, but never the sign that ends a tag.
            if line.last().is_none_or(|last| *last == b'>') {
                reading.line(String::from_utf8_lossy(&line).trim_start());
                line.clear();
            }
        }
    }
    let mut said = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut said).map_err(|error| error.to_string())?;
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("tshark: {status}: {}", said.trim())) }
}

/// The reading of one dissection, line by line.
#[derive(Debug, Default)]
struct Reading {
    report: Report,
    frame: Frame,
}

/// What is known of the packet that is being read.
#[derive(Debug, Default)]
struct Frame {
    number: u32,
    /// The protocol whose fields are being read.
    layer: String,
    payload_bytes: u32,
    has_rpc: bool,
    /// Bytes of a record that ends in a later packet, or that were seen before.
    is_part: bool,
    expert: String,
}

const WARNING: u32 = 0x60_0000;

impl Reading {
    fn line(&mut self, line: &str) {
        if line.starts_with("<packet>") {
            self.frame = Frame::default();
        } else if line.starts_with("</packet>") {
            self.end_of_packet();
        } else if line.starts_with("<proto ") {
            self.protocol(attribute(line, "name"), number(attribute(line, "size")));
        } else if line.starts_with("<field ") {
            self.field(attribute(line, "name"), attribute(line, "show"), line);
        }
    }

    fn protocol(&mut self, name: &str, bytes: u32) {
        let frame = self.frame.number;
        match name {
            "rpc" => {
                self.frame.has_rpc = true;
                let seen = Seen { frame, understood: true, ..Seen::default() };
                self.report.messages.push(seen);
            }
            "nfs" | "mount" | "portmap" | "nlm" | "stat" | "statnotify" => {
                if let Some(message) = self.current() {
                    message.layer = name.to_owned();
                    message.body_bytes = bytes;
                }
            }
            "fake-field-wrapper" => return,
            _ => {}
        }
        self.frame.layer = name.to_owned();
    }

    fn field(&mut self, name: &str, show: &str, line: &str) {
        let frame = &mut self.frame;
        match name {
            "num" => frame.number = number(show),
            "tcp.len" => frame.payload_bytes = number(show),
            "udp.length" => frame.payload_bytes = number(show).saturating_sub(8),
            "tcp.segment_data"
            | "tcp.reassembled_in"
            | "tcp.analysis.retransmission"
            | "tcp.analysis.spurious_retransmission"
            | "tcp.analysis.keep_alive" => frame.is_part = true,
            "_ws.expert" => frame.expert = attribute(line, "showname").to_owned(),
            "_ws.expert.severity" if number(show) >= WARNING => {
                let Frame { number: frame, layer, expert: text, .. } = &self.frame;
                let complaint =
                    Complaint::Expert { frame: *frame, layer: layer.clone(), text: text.clone() };
                self.report.complaints.push(complaint);
            }
            "data" if frame.has_rpc => {
                let complaint =
                    Complaint::LeftOver { frame: frame.number, layer: frame.layer.clone() };
                self.report.complaints.push(complaint);
            }
            _ => self.field_of_message(name, show, line),
        }
    }

    fn field_of_message(&mut self, name: &str, show: &str, line: &str) {
        let of_locks = matches!(&self.frame.layer[..], "nlm" | "stat" | "statnotify");
        let Some(message) = self.current() else { return };
        if of_locks && !name.is_empty() {
            let [text, hex] = ["showname", "value"].map(|part| attribute(line, part).to_owned());
            message.fields.push(Field { name: name.to_owned(), text, hex });
        }
        match name {
            "rpc.xid" => message.xid = number(show),
            "rpc.msgtyp" => message.is_reply = number(show) == 1,
            "rpc.program" => message.program = number(show),
            "rpc.programversion" => message.version = number(show),
            "rpc.procedure" => message.procedure = number(show),
            "rpc.state_accept" => message.success = number(show) == 0,
            "rpc.repframe" | "rpc.reqframe" if message.is_reply => {
                message.call_frame = Some(number(show));
            }
            "rpc.dup" | "rpc.call.dup" => message.repeated = true,
            "rpc.unknown_body" => message.understood = false,
            _ => {}
        }
    }

    /// The message whose fields are being read: the last of this packet.
    fn current(&mut self) -> Option<&mut Seen> {
        if self.frame.has_rpc { self.report.messages.last_mut() } else { None }
    }

    fn end_of_packet(&mut self) {
        let Frame { number: frame, payload_bytes, has_rpc, is_part, .. } = self.frame;
        if payload_bytes > 0 && !has_rpc && !is_part {
            let layer = std::mem::take(&mut self.frame.layer);
            self.report.complaints.push(Complaint::NotRpc { frame, layer });
        }
    }

    fn finish(self) -> Report {
        let Report { messages, mut complaints } = self.report;
        if messages.is_empty() {
            complaints.push(Complaint::NothingSeen);
        }
        let answered: HashSet<(Option<u32>, u32)> =
            messages.iter().filter(|m| m.is_reply).map(|m| (m.call_frame, m.xid)).collect();
        for message in &messages {
            let Seen { frame, xid, program, .. } = *message;
            if message.is_reply && message.call_frame.is_none() {
                complaints.push(Complaint::Orphan { frame, xid });
            }
            if !message.is_reply && !message.repeated && !answered.contains(&(Some(frame), xid)) {
                complaints.push(Complaint::Unanswered { frame, xid });
            }
            let looked_into = !message.is_reply || message.success;
            let elsewhere = layer_of(program).is_some_and(|layer| layer != message.layer);
            if looked_into && (elsewhere || message.lacks_body()) {
                complaints.push(Complaint::NotDissected { frame, program });
            }
        }
        Report { messages, complaints }
    }
}

/// What the dissector calls a program.
fn layer_of(program: u32) -> Option<&'static str> {
    match program {
        100_000 => Some("portmap"),
        100_003 => Some("nfs"),
        100_005 => Some("mount"),
        100_021 => Some("nlm"),
        100_024 => Some("stat"),
        200_048 => Some("statnotify"),
        _ => None,
    }
}

/// The value of an attribute, as it is escaped; empty if there is none.
fn attribute<'a>(line: &'a str, name: &str) -> &'a str {
    let Some(start) = line.find(&format!(" {name}=\"")) else { return "" };
    let value = &line[start + name.len() + 3..];
    value.split('"').next().unwrap_or("")
}

/// Decimal or `0x` hexadecimal; zero if it is neither.
fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap_or(0),
        None => text.parse().unwrap_or(0),
    }
}
