//! The messages of NLM versions 1, 3 and 4.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::nlm(data));
