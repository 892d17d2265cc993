//! Each kind of bad traffic gets its complaint.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::net::{Ipv4Addr, SocketAddrV4};

use bytes::Bytes;
use judge::capture::Side;
use judge::tshark::{Checksums, dissect};
use judge::{Capture, Complaint, Source, judge, programs};
use lockkeeper_judge as judge;
use wire::nsm::NotifyArgs;
use wire::rpc::{self, Credential, ProcedureId};
use wire::{Encode, Writer};

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 701);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 2049);

/// A GETATTR with this xid, and its reply.
fn exchange(xid: u32) -> (Bytes, Bytes) {
    let getattr = &programs::NFS3[1];
    let source = &mut Source::new(u64::from(xid));
    (getattr.call(xid, &Credential::None, source), getattr.reply(xid, source))
}

fn complaints(capture: &Capture) -> Vec<Complaint> {
    let dir = tempfile::tempdir().unwrap();
    let pcap = dir.path().join("test.pcap");
    capture.save(&pcap).unwrap();
    judge(&pcap)
}

fn datagrams(call: &[u8], reply: &[u8]) -> Capture {
    let mut capture = Capture::new();
    capture.datagram(CLIENT, SERVER, call);
    capture.datagram(SERVER, CLIENT, reply);
    capture
}

#[test]
fn a_good_exchange_gets_no_complaint() {
    let (call, reply) = exchange(1);
    assert_eq!(complaints(&datagrams(&call, &reply)), []);
}

#[test]
fn bytes_after_a_reply_are_left_over() {
    let (call, reply) = exchange(1);
    let longer = [&reply[..], &[0, 0, 0, 9]].concat();
    let expected = Complaint::LeftOver { frame: 2, layer: "nfs".into() };
    assert_eq!(complaints(&datagrams(&call, &longer)), [expected]);
}

#[test]
fn a_reply_that_ends_early_is_malformed() {
    let (call, reply) = exchange(1);
    for length in [8, 16, reply.len() - 4] {
        let found = complaints(&datagrams(&call, &reply[..length]));
        assert!(
            matches!(
                found[0],
                Complaint::Expert { frame: 2, .. } | Complaint::NotDissected { frame: 2, .. }
            ),
            "{length}: {found:?}"
        );
    }
}

#[test]
fn a_call_without_a_reply_is_unanswered() {
    let (call, reply) = exchange(1);
    let mut capture = datagrams(&call, &reply);
    capture.datagram(CLIENT, SERVER, &exchange(2).0);
    assert_eq!(complaints(&capture), [Complaint::Unanswered { frame: 3, xid: 2 }]);
}

#[test]
fn a_reply_to_another_call_is_no_answer() {
    let found = complaints(&datagrams(&exchange(1).0, &exchange(2).1));
    assert!(found.contains(&Complaint::Unanswered { frame: 1, xid: 1 }), "{found:?}");
    assert!(matches!(found[0], Complaint::NotRpc { frame: 2, .. }), "{found:?}");
}

#[test]
fn traffic_other_than_rpc_is_reported() {
    let (call, reply) = exchange(1);
    let mut capture = datagrams(&call, &reply);
    let mut connection = capture.connect(CLIENT, SERVER);
    capture.send(&mut connection, Side::Client, b"GET / HTTP/0.9, not an RPC call");
    let found = complaints(&capture);
    assert!(matches!(found[..], [Complaint::NotRpc { frame: 6, .. }]), "{found:?}");
}

#[test]
fn a_gap_in_a_stream_is_an_expert_warning() {
    let mut capture = Capture::new();
    let mut connection = capture.connect(CLIENT, SERVER);
    let (call, reply) = exchange(1);
    capture.send_record(&mut connection, Side::Client, &call);
    Capture::new().send(&mut connection, Side::Server, b"never captured");
    capture.send_record(&mut connection, Side::Server, &reply);
    let found = complaints(&capture);
    assert!(
        found.iter().any(|c| matches!(c, Complaint::Expert { layer, .. } if layer == "tcp")),
        "{found:?}"
    );
}

#[test]
fn a_line_break_in_a_name_hides_nothing() {
    let notify = &programs::NSM[6];
    let source = &mut Source::new(1);
    let mut out = Writer::new();
    rpc::write_call(
        &mut out,
        1,
        ProcedureId::new(notify.program, 1, notify.number),
        &Credential::None,
    );
    NotifyArgs { mon_name: "a\nb".into(), state: 3 }.encode(&mut out);
    let call = out.finish().to_bytes();
    let dir = tempfile::tempdir().unwrap();
    let pcap = dir.path().join("test.pcap");
    datagrams(&call, &notify.reply(1, source)).save(&pcap).unwrap();
    let report = dissect(&pcap, Checksums::Verify);
    assert_eq!(report.complaints, []);
    let fields = &report.messages[0].fields;
    let hex = |name: &str| fields.iter().find(|f| f.name == name).map(|f| &f.hex[..]);
    assert_eq!(hex("stat.mon_id.name"), Some("610a62"));
    assert_eq!(hex("stat.state"), Some("00000003"));
}

#[test]
fn an_empty_capture_is_not_a_success() {
    assert_eq!(complaints(&Capture::new()), [Complaint::NothingSeen]);
}

#[test]
fn a_capture_that_cannot_be_read_is_not_a_success() {
    let found = judge("no/such/file.pcap".as_ref());
    assert!(matches!(found[..], [Complaint::NotJudged(_)]), "{found:?}");
}

#[test]
fn a_wrong_checksum_is_seen_when_asked_for() {
    let (call, reply) = exchange(1);
    let dir = tempfile::tempdir().unwrap();
    let pcap = dir.path().join("test.pcap");
    let mut bytes = datagrams(&call, &reply).to_pcap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&pcap, bytes).unwrap();
    let found = dissect(&pcap, Checksums::Verify).complaints;
    assert!(
        matches!(&found[..], [Complaint::Expert { frame: 2, layer, .. }] if layer == "udp"),
        "{found:?}"
    );
    assert_eq!(judge(&pcap), []);
}
