//! Record marking against a plain reading of the whole stream, in chunks of every size.

use judge::{Source, check};
use lockkeeper_wire::record::mark;

/// Fragments around both limits of the check, with a cut somewhere and now and then noise.
fn stream(source: &mut Source) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..source.below(12) {
        let length = match source.below(8) {
            0 => 0,
            1 => check::RECORD_LIMITS.record_bytes_max - 1 + source.below(3),
            _ => source.below(40),
        };
        let word = if source.one_in(3) { length as u32 } else { mark(length) };
        stream.extend(word.to_be_bytes());
        stream.extend((0..length).map(|n| n as u8));
    }
    if source.one_in(4) && !stream.is_empty() {
        let at = source.below(stream.len());
        stream[at] ^= 1 << source.below(8);
    }
    stream.truncate(stream.len() - source.below(stream.len().min(20)));
    stream
}

#[test]
fn records_are_cut_as_a_plain_reading_cuts_them_whatever_the_chunks() {
    for seed in 0..4_000 {
        let mut data = vec![seed as u8];
        data.extend(stream(&mut Source::new(seed)));
        check::record(&data);
    }
}
