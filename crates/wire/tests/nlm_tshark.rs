//! The fields of every NLM and NSM message, as tshark reads them.
//!
//! Needs tshark (Debian: package `tshark`); without it these tests fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod nlm;

use std::any::type_name;
use std::net::{Ipv4Addr, SocketAddrV4};

use judge::tshark::{Checksums, DissectedMessage, dissect};
use judge::{Capture, Source};
use lockkeeper_wire::nlm::{Access, Mode, ShareArgs, Status, StatusReply, v4};
use lockkeeper_wire::nsm::{self, Outcome, StatReply};
use lockkeeper_wire::rpc::{self, Accepted, Credential, Procedure, ProcedureId};
use lockkeeper_wire::{Encode, Writer};
use nlm::dissected::{expected, read};
use nlm::fields::Described;
use nlm::walk::{Sample, Visitor, walk};

/// How many values of each message are shown to the dissector.
const VALUES: u64 = 20;

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 701);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 2049);

/// A capture, and what must be read in each of its packets.
#[derive(Default)]
struct Conversation {
    capture: Capture,
    xid: u32,
    expected: Vec<Expected>,
}

struct Expected {
    /// As our type is called.
    procedure: &'static str,
    value: String,
    fields: Vec<String>,
}

impl Conversation {
    fn exchange<P: Procedure>(&mut self, args: &P::Args, reply: &P::Reply)
    where
        P::Args: Sample,
        P::Reply: Sample,
    {
        self.xid += 1;
        let mut out = Writer::new();
        let to = ProcedureId::of::<P>();
        rpc::write_call(&mut out, self.xid, to, &Credential::None);
        args.encode(&mut out);
        self.capture.datagram(CLIENT, SERVER, &out.finish().to_bytes());
        let mut out = Writer::new();
        rpc::write_accepted(&mut out, self.xid, Accepted::Success);
        reply.encode(&mut out);
        self.capture.datagram(SERVER, CLIENT, &out.finish().to_bytes());
        let procedure = type_name::<P>().rsplit("::").next().unwrap();
        for (value, fields) in
            [(format!("{args:?}"), args.fields()), (format!("{reply:?}"), reply.fields())]
        {
            let fields = expected(&fields, P::VERSION);
            self.expected.push(Expected { procedure, value, fields });
        }
    }

    fn dissect(&self) -> Vec<DissectedMessage> {
        let dir = tempfile::tempdir().unwrap();
        let pcap = dir.path().join("locks.pcap");
        self.capture.save(&pcap).unwrap();
        let report = dissect(&pcap, Checksums::Verify);
        assert_eq!(report.complaints, []);
        assert_eq!(report.messages.len(), self.expected.len());
        report.messages
    }
}

impl Visitor for Conversation {
    fn visit<P: Procedure>(&mut self)
    where
        P::Args: Sample,
        P::Reply: Sample,
    {
        for seed in 0..VALUES {
            let source = &mut Source::new(seed * 100 + u64::from(P::NUMBER));
            let (args, reply): (P::Args, P::Reply) = (source.any(), source.any());
            self.exchange::<P>(&args, &reply);
        }
    }
}

#[test]
fn tshark_reads_in_every_message_what_we_wrote() {
    let mut conversation = Conversation::default();
    walk(&mut conversation);
    let messages = conversation.dissect();
    assert_eq!(messages.len() as u64, 2 * VALUES * (16 + 20 + 20 + 7 + 1));
    for (message, Expected { procedure, value, fields }) in
        messages.iter().zip(&conversation.expected)
    {
        assert!(message.understood, "{procedure}");
        let DissectedMessage { program, version, is_reply, .. } = message;
        let what = format!("{program} v{version} {procedure} reply {is_reply}: {value}");
        assert_eq!(&read(message), fields, "{what}");
        let field = message.fields.iter().find(|field| field.name.contains(".procedure_v"));
        assert_eq!(plain_name(&field.unwrap().text), procedure.to_lowercase(), "{what}");
    }
}

/// "V4 Procedure: NM_LOCK (22)" is `nmlock`.
fn plain_name(text: &str) -> String {
    let name = text.rsplit(": ").next().unwrap().split(' ').next().unwrap();
    name.replace("MON-CALLBACK", "Callback").replace('_', "").to_lowercase()
}

/// What tshark says about a field in the messages that have it.
fn texts<'a>(messages: &'a [DissectedMessage], name: &str) -> Vec<&'a str> {
    let fields = messages.iter().flat_map(|message| &message.fields);
    fields
        .filter(|field| field.name == name)
        .map(|field| field.text.split_once(": ").unwrap().1)
        .collect()
}

#[test]
fn every_status_has_the_meaning_that_tshark_knows() {
    let mut conversation = Conversation::default();
    for status in Status::ALL {
        let reply = StatusReply { cookie: b"four"[..].into(), status };
        conversation.exchange::<v4::Lock>(&Source::new(1).any(), &reply);
    }
    for outcome in [Outcome::Success, Outcome::Failure] {
        let reply = StatReply { outcome, state: 3 };
        conversation.exchange::<nsm::Stat>(&Source::new(1).any(), &reply);
    }
    let messages = conversation.dissect();
    let meanings = [
        (Status::Granted, "NLM_GRANTED (0)"),
        (Status::Denied, "NLM_DENIED (1)"),
        (Status::DeniedNoLocks, "NLM_DENIED_NOLOCKS (2)"),
        (Status::Blocked, "NLM_BLOCKED (3)"),
        (Status::DeniedGracePeriod, "NLM_DENIED_GRACE_PERIOD (4)"),
        (Status::Deadlock, "NLM_DEADLCK (5)"),
        (Status::RoFs, "NLM_ROFS (6)"),
        (Status::StaleFh, "NLM_STALE_FH (7)"),
        (Status::FBig, "NLM_BIG (8)"),
        (Status::Failed, "NLM_FAILED (9)"),
    ];
    let seen: Vec<_> = Status::ALL.into_iter().zip(texts(&messages, "nlm.stat")).collect();
    assert_eq!(seen, meanings);
    assert_eq!(texts(&messages, "stat.stat_res.res"), ["STAT_SUCC (0)", "STAT_FAIL (1)"]);
}

#[test]
fn every_share_has_the_meaning_that_tshark_knows() {
    let mut conversation = Conversation::default();
    let modes = [Mode::DenyNone, Mode::DenyRead, Mode::DenyWrite, Mode::DenyBoth];
    let accesses = [Access::None, Access::Read, Access::Write, Access::Both];
    for (mode, access) in modes.into_iter().zip(accesses) {
        let mut args: ShareArgs = Source::new(1).any();
        (args.share.mode, args.share.access) = (mode, access);
        conversation.exchange::<v4::Share>(&args, &Source::new(1).any());
    }
    let messages = conversation.dissect();
    let modes = ["deny none (0)", "deny read (1)", "deny write (2)", "deny read/write (3)"];
    assert_eq!(texts(&messages, "nlm.share.mode"), modes);
    let accesses = ["no access (0)", "read-only (1)", "write-only (2)", "read/write (3)"];
    assert_eq!(texts(&messages, "nlm.share.access"), accesses);
}
