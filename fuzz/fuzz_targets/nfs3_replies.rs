//! The replies of the NFSv3 procedures.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::nfs3_replies(data));
