//! The initial corpus of the fuzz targets: small valid messages, a few of each kind.

use bytes::Bytes;
use vfs::{FileKey, FileSystemId, ObjectId};
use wire::record::mark;

use crate::check;
use crate::programs::{
    MOUNT1, MOUNT3, NFS3, NLM1, NLM3, NLM4, NSM, NSM_CALLBACK, Procedure, RPCBIND2, RPCBIND3,
    RPCBIND4,
};
use crate::source::Source;

/// File name and content.
pub type Seed = (String, Vec<u8>);

/// The seeds of every target, by the target's name.
pub fn all() -> Vec<(&'static str, Vec<Seed>)> {
    vec![
        ("record", records()),
        ("rpc_call", calls()),
        ("rpc_reply", replies()),
        ("nfs3_args", chosen(NFS3, |p| p.args.sample)),
        ("nfs3_replies", chosen(NFS3, |p| p.reply.sample)),
        ("mount", both(&[MOUNT3, MOUNT1])),
        ("rpcbind", rpcbind()),
        ("handle", handles()),
        ("nlm", both(&[NLM4, NLM3, NLM1])),
        ("nsm", both(&[NSM, NSM_CALLBACK])),
    ]
}

/// The longest of a few samples that is still small; the fuzzer grows it by itself.
fn small(sample: fn(&mut Source) -> Bytes, seed: u64) -> Vec<u8> {
    (0..8)
        .map(|attempt| sample(&mut Source::new(seed * 8 + attempt)))
        .filter(|bytes| bytes.len() < 512)
        .max_by_key(Bytes::len)
        .unwrap_or_default()
        .to_vec()
}

/// One message of each procedure, after the byte that chooses it.
fn chosen(table: &[Procedure], sample: fn(&Procedure) -> fn(&mut Source) -> Bytes) -> Vec<Seed> {
    (0u8..)
        .zip(table)
        .map(|(at, procedure)| {
            let mut bytes = vec![at];
            bytes.extend(small(sample(procedure), u64::from(at)));
            (file_name(procedure.name), bytes)
        })
        .collect()
}

/// One call and one reply of each procedure, if not empty.
fn both(tables: &[&[Procedure]]) -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (at, procedure) in (0u8..).zip(tables.iter().copied().flatten()) {
        for (form, direction, choice) in
            [(procedure.args, "call", 2 * at), (procedure.reply, "reply", 2 * at + 1)]
        {
            let body = small(form.sample, u64::from(at));
            if !body.is_empty() {
                let name = format!("{}-{direction}", file_name(procedure.name));
                seeds.push((name, [&[choice][..], &body].concat()));
            }
        }
    }
    seeds
}

/// Handles with object ids of several lengths, and one padded as in MOUNT v1.
fn handles() -> Vec<Seed> {
    let key = check::handle_key();
    let signed = |length: usize| {
        let object = ObjectId::new(&[0xa5; ObjectId::MAX][..length]).unwrap_or(0.into());
        let file = FileKey { filesystem: FileSystemId(9), object };
        key.sign(1, &file).as_bytes().to_vec()
    };
    let mut padded = signed(8);
    padded.resize(32, 0);
    let plain = [0, 1, 8, 9, 29, ObjectId::MAX].map(|n| (format!("seed-{n}-bytes"), signed(n)));
    plain.into_iter().chain([("seed-padded".to_string(), padded)]).collect()
}

fn rpcbind() -> Vec<Seed> {
    let mut seeds = both(&[RPCBIND2, RPCBIND3, RPCBIND4]);
    for (name, address) in
        [("v4", "10.0.0.1.8.1"), ("v6", "fd00::1.8.1"), ("mapped", "::ffff:10.0.0.1.0.111")]
    {
        seeds.push((format!("seed-universal-{name}"), address.into()));
    }
    seeds
}

fn calls() -> Vec<Seed> {
    let source = &mut Source::new(3);
    let of_files = [&NFS3[1], &NFS3[3], &NFS3[7], &NFS3[8], &NFS3[17], &MOUNT3[1]];
    let of_ports = [&RPCBIND2[3], &RPCBIND4[3]];
    let of_locks = [&NLM4[2], &NLM3[7], &NLM1[11], &NSM[2], &NSM[6]];
    let procedures = of_files.into_iter().chain(of_ports).chain(of_locks);
    procedures
        .map(|procedure| {
            let credential = source.any();
            let bytes = procedure.call(0x1234_5678, &credential, source).to_vec();
            (file_name(procedure.name), bytes)
        })
        .collect()
}

fn replies() -> Vec<Seed> {
    use wire::rpc::{Accepted, AuthStatus, Denial, write_accepted, write_denied};
    let xid = 0x1234_5678;
    let written = |name: &str, write: &dyn Fn(&mut wire::Writer)| {
        let mut out = wire::Writer::new();
        write(&mut out);
        (format!("seed-{name}"), out.finish().to_bytes().to_vec())
    };
    let mismatch = Accepted::ProgramMismatch { low: 2, high: 4 };
    vec![
        ("seed-success".into(), NFS3[1].reply(xid, &mut Source::new(3)).to_vec()),
        written("unavailable", &|out| write_accepted(out, xid, Accepted::ProgramUnavailable)),
        written("mismatch", &|out| write_accepted(out, xid, mismatch)),
        written("garbage", &|out| write_accepted(out, xid, Accepted::GarbageArgs)),
        written("rpc-mismatch", &|out| {
            write_denied(out, xid, Denial::RpcMismatch { low: 2, high: 2 });
        }),
        written("auth", &|out| write_denied(out, xid, Denial::Auth(AuthStatus::TooWeak))),
    ]
}

/// Record streams, preceded by the byte that seeds the chunk sizes.
fn records() -> Vec<Seed> {
    let fragment = |last: bool, body: &[u8]| {
        let word = if last { mark(body.len()) } else { body.len() as u32 };
        [&word.to_be_bytes()[..], body].concat()
    };
    let whole = |body: &[u8]| fragment(true, body);
    let streams = [
        ("one", whole(b"one record")),
        ("two", [whole(b"first"), whole(b"second")].concat()),
        ("empty", whole(b"")),
        ("split", [fragment(false, b"in two "), fragment(true, b"pieces")].concat()),
        ("hollow", [fragment(false, b""), fragment(false, b"x"), fragment(true, b"")].concat()),
        ("many", fragment(false, b"..").repeat(4)),
        ("long", whole(&[b'x'; 97])),
        ("full", whole(&[b'x'; 96])),
        ("cut", whole(b"the end is missing")[..12].to_vec()),
    ];
    (1u8..)
        .zip(streams)
        .map(|(chunks, (name, stream))| (format!("seed-{name}"), [&[chunks][..], &stream].concat()))
        .collect()
}

fn file_name(procedure: &str) -> String {
    format!("seed-{}", procedure.replace("::", "-").to_lowercase())
}
