//! Drops what may wait for a disk, such as file systems, without waiting for it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Values that are being dropped, each on a thread of its own: one that hangs delays no other.
pub struct Closing(Receiver<()>);

impl Closing {
    /// Begins to drop the values. Where no thread can be started, the value is dropped here.
    pub fn begin<T: Send + 'static>(values: impl IntoIterator<Item = T>) -> Self {
        let (done, all_done) = channel();
        for value in values {
            let done: Sender<()> = done.clone();
            let close = move || {
                drop(value);
                drop(done);
            };
            // A failed `spawn` drops the closure, and so the value.
            drop(thread::Builder::new().name("closing".into()).spawn(close));
        }
        Self(all_done)
    }

    /// Waits until all are dropped; false if some are not by then. Their threads go on.
    pub fn wait(self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            match self.0.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Hanging(Receiver<()>);

    impl Drop for Hanging {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn what_hangs_delays_neither_the_others_nor_the_caller() {
        let (release, held) = channel();
        let (other, free) = channel();
        drop(other);
        let begun = Instant::now();
        assert!(Closing::begin([Hanging(free)]).wait(Duration::from_secs(30)));
        assert!(!Closing::begin([Hanging(held)]).wait(Duration::from_millis(50)));
        assert!(begun.elapsed() < Duration::from_secs(10));
        drop(release);
    }
}
