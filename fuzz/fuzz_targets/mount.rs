//! The messages of MOUNT versions 1 and 3.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::check::mount(data));
