//! The journal of an embedded store.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::embedded::fuzz::journal(data));
