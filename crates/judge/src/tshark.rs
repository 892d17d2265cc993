//! tshark as an independent dissector of the RPC messages in a capture, written by
//! [`crate::capture`] or taken from real traffic.
//!
//! The dissection is read from PDML, which tshark prints with one protocol or field per line and all
//! quotes and brackets inside values escaped, so a full XML parser is not needed.

use std::collections::HashSet;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// A problem found in a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Complaint {
    /// tshark is missing or failed; the capture was not checked.
    NotJudged(String),
    /// There is no RPC message in the capture.
    NothingSeen,
    /// A payload not recognised as RPC: garbage, or a reply without a call.
    NotRpc { frame: u32, layer: String },
    /// A message of a supported program, not dissected as that program.
    NotDissected { frame: u32, program: u32 },
    /// Bytes that follow the message inside its record or datagram.
    LeftOver { frame: u32, layer: String },
    /// An expert's warning or error.
    Expert { frame: u32, layer: String, text: String },
    /// A call without a reply.
    Unanswered { frame: u32, xid: u32 },
    /// A reply without a call.
    Orphan { frame: u32, xid: u32 },
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJudged(why) => write!(f, "not judged: {why}"),
            Self::NothingSeen => write!(f, "no RPC message in the capture"),
            Self::NotRpc { frame, layer } => write!(f, "frame {frame}: {layer} instead of RPC"),
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

/// A dissected RPC message. In a reply, program and procedure are those of the matching call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DissectedMessage {
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
    /// Whether the body was dissected; of some procedures the dissector knows only the name.
    pub understood: bool,
    body_bytes: u32,
    /// For a reply: the frame of its call.
    call_frame: Option<u32>,
    /// For a reply: the procedure ran.
    success: bool,
    /// For a call: a retransmission.
    repeated: bool,
}

impl DissectedMessage {
    /// Only NFS NULL has no body; the dissector accepts any procedure without one.
    fn lacks_body(&self) -> bool {
        self.layer == "nfs" && self.procedure != 0 && self.body_bytes == 0
    }
}

/// A field: its name, its human-readable value and its bytes in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Field {
    pub name: String,
    pub text: String,
    pub hex: String,
}

/// The result of a dissection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub messages: Vec<DissectedMessage>,
    pub complaints: Vec<Complaint>,
}

/// Whether checksums of IP, TCP and UDP are verified. In captures of real traffic they are often
/// missing because of offloading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    Verify,
    Ignore,
}

/// The problems found in a capture.
///
/// A capture of real traffic must contain only the ports of the server, from before the first call
/// until after the last reply. A test that resets connections or sends one-way calls must ignore the
/// resulting complaints.
pub fn judge(pcap: &Path) -> Vec<Complaint> {
    dissect(pcap, Checksums::Ignore).complaints
}

pub fn dissect(pcap: &Path, checksums: Checksums) -> Report {
    let mut parser = Parser::default();
    if let Err(why) = run(pcap, checksums, &mut parser) {
        return Report { complaints: vec![Complaint::NotJudged(why)], ..Report::default() };
    }
    parser.finish()
}

fn run(pcap: &Path, checksums: Checksums, parser: &mut Parser) -> Result<(), String> {
    let verify = checksums == Checksums::Verify;
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "pdml", "-r"]).arg(pcap);
    // Reserved ports are assigned to other protocols; prefer the RPC heuristics.
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
            // A value may contain a line break, but never an unescaped `>`.
            if line.last().is_none_or(|last| *last == b'>') {
                parser.line(String::from_utf8_lossy(&line).trim_start());
                line.clear();
            }
        }
    }
    let mut stderr = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut stderr).map_err(|error| error.to_string())?;
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("tshark: {status}: {}", stderr.trim())) }
}

/// The parser of one dissection.
#[derive(Debug, Default)]
struct Parser {
    report: Report,
    frame: Frame,
}

/// The packet being parsed.
#[derive(Debug, Default)]
struct Frame {
    number: u32,
    /// The protocol whose fields are being parsed.
    layer: String,
    payload_bytes: u32,
    has_rpc: bool,
    /// Bytes of a record that ends in a later packet, or a TCP retransmission.
    is_part: bool,
    expert: String,
}

const WARNING: u32 = 0x60_0000;

impl Parser {
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
                let seen =
                    DissectedMessage { frame, understood: true, ..DissectedMessage::default() };
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

    /// The message whose fields are being parsed: the last of this packet.
    fn current(&mut self) -> Option<&mut DissectedMessage> {
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
            let DissectedMessage { frame, xid, program, .. } = *message;
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

/// The dissector's name of a program.
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

/// The escaped value of an attribute; empty if there is none.
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
