//! NLM and NSM, said by us and by C that rpcgen made: from definitions written for this test, and
//! from those that Debian ships.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod nlm;

use judge::Source;
use judge::programs::{NLM1, NLM3, NLM4, NSM, NSM_CALLBACK};
use lockkeeper_wire::nlm::{
    CallerName, Cookie, FileHandle, LockArgs, OwnerHandle, Version, Versioned,
};
use lockkeeper_wire::nsm::{Name, NotifyArgs, StatusArgs};
use lockkeeper_wire::rpc::Procedure;
use lockkeeper_wire::{Decode, Encode};
use nlm::fields::hex;
use nlm::speaker::{Definitions, Speaker};
use nlm::walk::{Sample, Visitor, walk};

/// Enough that every status, length and padding comes many times.
const SEEDS: std::ops::Range<u64> = 0..150;

/// Judges an answer of the C program.
type Check = Box<dyn Fn(&str)>;

/// Requests to the C program, each with what its answer must be.
struct Dialogue<'a> {
    speaker: &'a Speaker,
    requests: Vec<String>,
    checks: Vec<Check>,
    procedures: Vec<(u32, u32, u32)>,
}

/// Both messages of a procedure, if the definitions have it.
impl Visitor for Dialogue<'_> {
    fn visit<P: Procedure>(&mut self)
    where
        P::Args: Sample,
        P::Reply: Sample,
    {
        let number = (P::PROGRAM, P::VERSION, P::NUMBER);
        if let Some((args, reply)) = self.speaker.signatures.get(&number) {
            self.procedures.push(number);
            SEEDS.for_each(|seed| self.message::<P::Args>(args, seed));
            SEEDS.for_each(|seed| self.message::<P::Reply>(reply, seed));
        }
    }
}

impl<'a> Dialogue<'a> {
    fn new(speaker: &'a Speaker) -> Self {
        Self { speaker, requests: Vec::new(), checks: Vec::new(), procedures: Vec::new() }
    }

    /// Both give the same bytes, we understand theirs, and they understand ours.
    fn message<T: Sample + Encode + Decode>(&mut self, c_type: &str, seed: u64) {
        let ours: T = Source::new(seed).any();
        let bytes = ours.to_bytes();
        let mut fields = ours.fields();
        self.requests.push(format!("decode {c_type} {}", hex(&bytes)));
        self.requests.push(format!("encode {c_type} {}", fields.join(" ")));
        fields.sort();
        let (said, name) = (format!("{ours:?}"), c_type.to_owned());
        self.checks.push(Box::new(move |answer| {
            let mut understood: Vec<&str> = answer.split_whitespace().collect();
            understood.sort_unstable();
            assert_eq!(understood, fields, "{name} understands {said}");
        }));
        let name = c_type.to_owned();
        self.checks.push(Box::new(move |answer| {
            assert_eq!(answer, hex(&bytes), "{name} says {ours:?}");
            assert_eq!(T::from_bytes(from_hex(answer).into()).as_ref(), Ok(&ours));
        }));
    }

    /// How many messages agree.
    fn finish(self) -> usize {
        for (answer, check) in self.speaker.ask(&self.requests).iter().zip(&self.checks) {
            check(answer);
        }
        self.checks.len() / 2
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_message_agrees_with_c_made_from_the_specification() {
    let speaker = Speaker::build(Definitions::Ours);
    let mut dialogue = Dialogue::new(&speaker);
    walk(&mut dialogue);
    let tables = [NLM1, NLM3, NLM4, NSM, NSM_CALLBACK];
    let known: Vec<_> =
        tables.into_iter().flatten().map(|p| (p.program, p.version, p.number)).collect();
    assert_eq!(dialogue.procedures, known);
    assert_eq!(speaker.signatures.len(), known.len());
    assert_eq!(dialogue.finish(), 2 * known.len() * SEEDS.count());
}

#[test]
fn every_message_agrees_with_c_made_from_debians_definitions() {
    let speaker = Speaker::build(Definitions::Debian);
    let mut dialogue = Dialogue::new(&speaker);
    walk(&mut dialogue);
    // Fifteen of NLM version 1, four of version 3 and five of NSM.
    assert_eq!((dialogue.procedures.len(), speaker.signatures.len()), (24, 24));
    SEEDS.for_each(|seed| dialogue.message::<StatusArgs>("status", seed));
    assert_eq!(dialogue.finish(), (2 * 24 + 1) * SEEDS.count());
}

#[test]
fn both_take_1024_bytes_and_refuse_one_more() {
    let speaker = Speaker::build(Definitions::Ours);
    let types = [(Version::V3, "nlm_lockargs"), (Version::V4, "nlm4_lockargs")];
    let mut cases = Vec::new();
    for (length, fits) in [(1_024, true), (1_025, false), (65_536, false)] {
        let long = || vec![b'x'; length];
        for (version, name) in types {
            let plain = || -> LockArgs { Source::new(1).any() };
            let [mut cookie, mut caller, mut file, mut owner] =
                [plain(), plain(), plain(), plain()];
            cookie.cookie = Cookie::from(long());
            caller.lock.caller_name = CallerName::from(long());
            file.lock.file = FileHandle::from(long());
            owner.lock.owner = OwnerHandle::from(long());
            for args in [cookie, caller, file, owner] {
                let bytes = args.to_bytes_as(version);
                let ours = LockArgs::from_bytes_as(version, bytes.clone()).is_ok();
                cases.push((format!("decode {name} {}", hex(&bytes)), fits, ours));
            }
        }
        let notice = NotifyArgs { mon_name: Name::from(long()), state: 3 };
        let bytes = notice.to_bytes();
        let ours = NotifyArgs::from_bytes(bytes.clone()).is_ok();
        cases.push((format!("decode stat_chge {}", hex(&bytes)), fits, ours));
    }
    let requests: Vec<String> = cases.iter().map(|case| case.0.clone()).collect();
    for (answer, (request, fits, ours)) in speaker.ask(&requests).iter().zip(cases) {
        let theirs = !answer.starts_with("error:");
        assert_eq!((theirs, ours), (fits, fits), "{}...: {answer}", &request[..60]);
    }
}

#[test]
fn the_c_program_can_say_no() {
    let speaker = Speaker::build(Definitions::Ours);
    let requests = [
        "decode nlm4_res 0000000000000007ff",
        "decode nlm4_res 00000000",
        "encode nlm4_res cookie=",
        "encode nlm4_res cookie= stat=1 state=1",
        "encode no_such_type",
    ];
    for answer in speaker.ask(&requests.map(str::to_owned)) {
        assert!(answer.starts_with("error:"), "{answer}");
    }
}
