//! What holds for every message of every program, walked through the table of procedures.

use bytes::Bytes;
use judge::{Source, programs};

const SEEDS: std::ops::Range<u64> = 0..100;

/// Every message form with its name.
fn forms() -> impl Iterator<Item = (String, programs::Form)> {
    programs::all().flat_map(|procedure| {
        let name = procedure.name;
        [(format!("{name} call"), procedure.args), (format!("{name} reply"), procedure.reply)]
    })
}

#[test]
fn every_message_comes_back_as_it_was_said() {
    for (_, form) in forms() {
        for seed in SEEDS {
            (form.comes_back)(&mut Source::new(seed));
        }
    }
}

#[test]
fn every_strict_prefix_of_a_message_is_refused() {
    for (name, form) in forms() {
        for seed in SEEDS {
            let bytes = (form.sample)(&mut Source::new(seed));
            for length in 0..bytes.len() {
                let prefix = bytes.slice(..length);
                assert!((form.decode)(prefix).is_err(), "{name}, seed {seed}, {length} bytes");
            }
        }
    }
}

#[test]
fn bytes_after_a_message_are_refused() {
    for (name, form) in forms() {
        for seed in SEEDS {
            let bytes = (form.sample)(&mut Source::new(seed));
            for extra in 1..=8 {
                let longer: Bytes = [&bytes[..], &[0; 8][..extra]].concat().into();
                assert!((form.decode)(longer).is_err(), "{name}, seed {seed}, {extra} bytes");
            }
        }
    }
}

#[test]
fn every_message_is_whole_words() {
    for (name, form) in forms() {
        for seed in SEEDS {
            assert_eq!((form.sample)(&mut Source::new(seed)).len() % 4, 0, "{name}, seed {seed}");
        }
    }
}

#[test]
fn flipped_bits_are_refused_or_understood_and_never_worse() {
    for (_, form) in forms() {
        for seed in SEEDS {
            let source = &mut Source::new(seed);
            let mut bytes = (form.sample)(source).to_vec();
            if !bytes.is_empty() {
                let at = source.below(bytes.len());
                bytes[at] ^= 1 << source.below(8);
            }
            let _ = (form.check)(bytes.into());
        }
    }
}
