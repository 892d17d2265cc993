//! Requests to the admin API, through its router to a server without sockets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| admin::fuzz::requests(data));
