//! File handles, as a client may bend them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::handle(data));
