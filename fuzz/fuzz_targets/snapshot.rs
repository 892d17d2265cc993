//! The snapshot of an embedded store.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::embedded::fuzz::snapshot(data));
