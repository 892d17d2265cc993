//! A stream, cut into records as it arrives in chunks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::record(data));
