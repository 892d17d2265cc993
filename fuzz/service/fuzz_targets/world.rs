//! Hosts, faults and the order of requests in the simulator, under its judges.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sim::fuzz::world(data));
