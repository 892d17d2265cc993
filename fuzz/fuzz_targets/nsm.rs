//! The messages of NSM version 1, and the call to who registered.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::nsm(data));
