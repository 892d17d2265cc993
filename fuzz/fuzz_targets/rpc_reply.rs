//! A record as a client receives it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::rpc_reply(data));
