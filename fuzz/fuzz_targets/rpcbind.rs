//! The messages of rpcbind versions 2, 3 and 4, and universal addresses.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::rpcbind(data));
