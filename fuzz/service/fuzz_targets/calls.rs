//! Calls of several hosts through the dispatcher, the services and the keeper, with crashes between them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sim::fuzz::calls(data));
