//! Messages of real peers, read back from captures.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod nlm;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::{Bytes, BytesMut};
use judge::tshark::{Checksums, DissectedMessage, dissect};
use judge::{Complaint, programs};
use lockkeeper_wire::nsm::StatusArgs;
use lockkeeper_wire::record::{Limits, Next, Records};
use lockkeeper_wire::rpc::{Accepted, Call, Procedure, Reply};
use lockkeeper_wire::{Decode, Encode, nlm as locks, nsm};
use nlm::dissected::{expected, read};
use nlm::fields::Described;
use nlm::walk::{Sample, Visitor, walk};

const LIMITS: Limits = Limits { record_bytes_max: 1 << 21, fragments_max: 16 };

/// What Linux's statd calls its own kernel with; tshark does not look into it.
const KERNEL_CALLBACK: (u32, u32, u32) = (locks::PROGRAM, locks::V3, 16);

/// Decodes one kind of message, encodes it again, and returns its fields.
type Reader = fn(Bytes) -> Vec<String>;

/// Readers of the arguments and the reply of each procedure.
#[derive(Default)]
struct Readers(HashMap<(u32, u32, u32), (Reader, Reader)>);

impl Visitor for Readers {
    fn visit<P: Procedure>(&mut self)
    where
        P::Args: Sample,
        P::Reply: Sample,
    {
        let number = (P::PROGRAM, P::VERSION, P::NUMBER);
        self.0.insert(number, (understand::<P::Args>, understand::<P::Reply>));
    }
}

fn understand<T: Decode + Encode + Described>(bytes: Bytes) -> Vec<String> {
    let value = T::from_bytes(bytes.clone()).unwrap();
    assert_eq!(value.to_bytes(), bytes);
    value.fields()
}

fn captures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut captures: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|kind| kind == "pcap")).collect();
    captures.sort();
    captures
}

/// The RPC messages of a capture in the order in which they were complete.
fn messages(pcap: &Path) -> Vec<Bytes> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-r"]).arg(pcap);
    for field in ["tcp.stream", "tcp.srcport", "tcp.payload", "udp.payload"] {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    let mut streams: HashMap<(String, String), (Records, BytesMut)> = HashMap::new();
    let mut messages = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [stream, port, segment, datagram] = fields[..] else { panic!("{line}") };
        if !datagram.is_empty() {
            messages.push(from_hex(datagram));
        }
        let (records, received) = streams
            .entry((stream.to_owned(), port.to_owned()))
            .or_insert_with(|| (Records::new(LIMITS), BytesMut::new()));
        received.extend_from_slice(&from_hex(segment));
        while let Next::Record(record) = records.next(received).unwrap() {
            messages.push(record);
        }
    }
    messages
}

fn from_hex(text: &str) -> Bytes {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn number(seen: &DissectedMessage) -> (u32, u32, u32) {
    (seen.program, seen.version, seen.procedure)
}

/// The arguments of a call, or the results of a reply that has any.
fn body(message: Bytes, seen: &DissectedMessage) -> Option<Bytes> {
    if seen.is_reply {
        let reply = Reply::from_bytes(message).unwrap();
        assert_eq!(reply.xid, seen.xid);
        (reply.verdict == Ok(Accepted::Success)).then_some(reply.results)
    } else {
        let call = Call::parse(message).unwrap();
        assert_eq!(call.xid, seen.xid);
        Some(call.args)
    }
}

#[test]
fn every_message_of_a_real_peer_is_understood_and_said_again_alike() {
    let mut readers = Readers::default();
    walk(&mut readers);
    let mut understood = 0;
    for pcap in captures() {
        let report = dissect(&pcap, Checksums::Ignore);
        // A real peer repeats itself, and some of its messages need no answer.
        let is_callback = |frame| {
            let mut messages = report.messages.iter();
            messages.any(|m| m.frame == frame && number(m) == KERNEL_CALLBACK)
        };
        let mut complaints = report.complaints.clone();
        complaints.retain(|complaint| match complaint {
            Complaint::Unanswered { .. } => false,
            Complaint::LeftOver { frame, .. } => !is_callback(*frame),
            _ => true,
        });
        assert_eq!(complaints, [], "{}", pcap.display());
        let messages = messages(&pcap);
        assert_eq!(messages.len(), report.messages.len(), "{}", pcap.display());
        for (message, seen) in messages.into_iter().zip(&report.messages) {
            println!("{} frame {}", pcap.display(), seen.frame);
            let number = number(seen);
            let Some(body) = body(message, seen) else { continue };
            if let Some((args, reply)) = readers.0.get(&number) {
                let fields = if seen.is_reply { reply(body) } else { args(body) };
                assert_eq!(read(seen), expected(&fields, seen.version));
                understood += 1;
            } else if let Some(procedure) = programs::find(number.0, number.1, number.2) {
                let form = if seen.is_reply { procedure.reply } else { procedure.args };
                (form.check)(body).unwrap();
            } else {
                assert_eq!(number, KERNEL_CALLBACK);
            }
        }
    }
    assert!(understood >= 18, "only {understood} messages of NLM and NSM");
}

/// Bytes that a real statd and a real sm-notify sent, not produced by this crate.
#[test]
fn what_statd_and_sm_notify_said_means_what_they_meant() {
    let last_word = |name: &str, wanted: fn(&Call) -> bool| {
        let pcap = captures().into_iter().find(|path| path.ends_with(name)).unwrap();
        let calls = messages(&pcap).into_iter().filter_map(|message| Call::parse(message).ok());
        calls.filter(wanted).last().unwrap().args
    };
    let status = last_word("statd-2.6.2.pcap", |call| call.program == locks::PROGRAM);
    let private = std::array::from_fn(|n| n as u8);
    assert_eq!(
        StatusArgs::from_bytes(status),
        Ok(StatusArgs { mon_name: "127.0.0.9".into(), state: 5, private })
    );
    let notice = last_word("sm-notify-2.6.2.pcap", |call| call.program == nsm::PROGRAM);
    assert_eq!(
        nsm::NotifyArgs::from_bytes(notice),
        Ok(nsm::NotifyArgs { mon_name: "client7".into(), state: 5 })
    );
}
