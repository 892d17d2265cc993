//! Every call and reply of every program, judged by tshark.
//!
//! Needs tshark (Debian: package `tshark`); without it these tests fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use judge::capture::Side;
use judge::tshark::{Checksums, Report, dissect};
use judge::{Capture, Source, programs};
use lockkeeper_wire::Writer;
use lockkeeper_wire::rpc::{self, Accepted, AuthStatus, Credential, Denial};

/// How many values of each message are shown to the dissector.
const VALUES: u32 = 12;

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 701);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 2049);

fn assert_no_complaint(capture: &Capture) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let pcap = dir.path().join("capture.pcap");
    capture.save(&pcap).unwrap();
    let report = dissect(&pcap, Checksums::Verify);
    if !report.complaints.is_empty() {
        let test = std::thread::current().name().unwrap_or("test").to_owned();
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test).with_extension("pcap");
        capture.save(&kept).unwrap();
        let lines: Vec<String> = report.complaints.iter().map(ToString::to_string).collect();
        panic!("tshark complains about {}:\n{}", kept.display(), lines.join("\n"));
    }
    report
}

/// Every procedure with `VALUES` calls, each with its reply; `send` puts them on the wire.
fn conversation(mut send: impl FnMut(Side, &[u8])) {
    let source = &mut Source::new(1);
    let mut xid = 0x1000;
    for procedure in programs::all() {
        for _ in 0..VALUES {
            xid += 1;
            let credential = source.any();
            send(Side::Client, &procedure.call(xid, &credential, source));
            send(Side::Server, &procedure.reply(xid, source));
        }
    }
}

/// Each procedure was seen `VALUES` times in each direction, and understood down to its last
/// field where tshark can do that.
fn assert_all_seen(report: &Report) {
    for procedure in programs::all() {
        for is_reply in [false, true] {
            let seen = report.messages.iter().filter(|m| {
                m.is_reply == is_reply
                    && (m.program, m.version, m.procedure)
                        == (procedure.program, procedure.version, procedure.number)
            });
            assert_eq!(seen.count() as u32, VALUES, "{}", procedure.name);
        }
    }
    // These it knows only by name.
    let named_only: BTreeSet<&str> = report
        .messages
        .iter()
        .filter(|m| !m.understood)
        .filter_map(|m| programs::find(m.program, m.version, m.procedure))
        .map(|procedure| procedure.name)
        .collect();
    let expected = [
        "rpcbind3::GetTime",
        "rpcbind3::Set",
        "rpcbind3::Unset",
        "rpcbind4::GetAddrList",
        "rpcbind4::GetTime",
        "rpcbind4::GetVersAddr",
        "rpcbind4::Set",
        "rpcbind4::Unset",
    ];
    assert_eq!(named_only.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn every_message_over_tcp_satisfies_tshark() {
    let mut capture = Capture::new();
    let mut connection = capture.connect(CLIENT, SERVER);
    conversation(|side, message| capture.send_record(&mut connection, side, message));
    capture.close(connection);
    assert_all_seen(&assert_no_complaint(&capture));
}

#[test]
fn every_message_over_udp_satisfies_tshark() {
    let mut capture = Capture::new();
    conversation(|side, message| match side {
        Side::Client => capture.datagram(CLIENT, SERVER, message),
        Side::Server => capture.datagram(SERVER, CLIENT, message),
    });
    assert_all_seen(&assert_no_complaint(&capture));
}

#[test]
fn several_records_in_one_segment_satisfy_tshark() {
    let mut capture = Capture::new();
    let mut connection = capture.connect(CLIENT, SERVER);
    let (mut calls, mut replies) = (Vec::new(), Vec::new());
    conversation(|side, message| {
        let stream = if side == Side::Client { &mut calls } else { &mut replies };
        stream.extend(lockkeeper_wire::record::mark(message.len()).to_be_bytes());
        stream.extend(message);
    });
    capture.send(&mut connection, Side::Client, &calls);
    capture.send(&mut connection, Side::Server, &replies);
    capture.close(connection);
    assert_all_seen(&assert_no_complaint(&capture));
}

#[test]
fn every_verdict_without_results_satisfies_tshark() {
    let verdicts = [
        Ok(Accepted::ProgramUnavailable),
        Ok(Accepted::ProgramMismatch { low: 3, high: 3 }),
        Ok(Accepted::ProcedureUnavailable),
        Ok(Accepted::GarbageArgs),
        Ok(Accepted::SystemError),
        Err(Denial::RpcMismatch { low: 2, high: 2 }),
        Err(Denial::Auth(AuthStatus::BadCredential)),
        Err(Denial::Auth(AuthStatus::RejectedCredential)),
        Err(Denial::Auth(AuthStatus::BadVerifier)),
        Err(Denial::Auth(AuthStatus::RejectedVerifier)),
        Err(Denial::Auth(AuthStatus::TooWeak)),
        Err(Denial::Auth(AuthStatus::InvalidResponse)),
        Err(Denial::Auth(AuthStatus::Failed)),
    ];
    let mut capture = Capture::new();
    let mut connection = capture.connect(CLIENT, SERVER);
    let getattr = &programs::NFS3[1];
    for (xid, verdict) in (1..).zip(verdicts) {
        let call = getattr.call(xid, &Credential::None, &mut Source::new(1));
        capture.send_record(&mut connection, Side::Client, &call);
        let mut out = Writer::new();
        match verdict {
            Ok(accepted) => rpc::write_accepted(&mut out, xid, accepted),
            Err(denial) => rpc::write_denied(&mut out, xid, denial),
        }
        capture.send_record(&mut connection, Side::Server, &out.finish().to_bytes());
    }
    capture.close(connection);
    assert_eq!(assert_no_complaint(&capture).messages.len(), 2 * verdicts.len());
}
