//! Stateful fuzz targets. [`world`]: a run of the simulator whose random draws a fuzzer chooses, that is
//! hosts, faults, the order of requests and of their replies; the judges look on as in every run.
//! [`calls()`]: bytes of calls, through the dispatcher and the services, which the simulator leaves out.
#![allow(clippy::panic, reason = "a failed check panics")]

mod calls;

pub use calls::calls;

use crate::{Options, run_chosen};

/// Two bytes for each draw, from the first; the others follow from these.
pub fn world(data: &[u8]) {
    if let Some(violation) = run_chosen(data, Options::default()).violation {
        panic!("violation of {violation}");
    }
}

#[cfg(test)]
mod tests {
    use testbed::corpus;
    use testbed::random::Random;

    use super::*;

    /// Draws of a generator: whole runs with ordinary choices, which a fuzzer then bends.
    fn seed(number: u64, draws: usize) -> Vec<u8> {
        let mut random = Random::new(number);
        (0..draws).flat_map(|_| (random.below(1 << 16) as u16).to_le_bytes()).collect()
    }

    #[test]
    fn the_corpus_passes_and_its_seeds_are_what_is_written_here() {
        corpus::is_seed("world", "empty", &[]);
        corpus::is_seed("world", "low", &[0; 64]);
        corpus::is_seed("world", "high", &[0xff; 64]);
        for number in 0..2 {
            corpus::is_seed("world", &number.to_string(), &seed(number, 400));
        }
        corpus::each("world", world);
    }
}
