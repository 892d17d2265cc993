//! A record as a server receives it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::rpc_call(data));
