//! [`block_on`]: futures in a synchronous file system.

use std::future::Future;

use tokio::runtime::Handle;
use vfs::{Error, Result};

/// Runs a future to its end on the calling thread, a worker, for a
/// [`FileSystem`](vfs::FileSystem) with an asynchronous back end. `runtime` is one of the program,
/// usually that which runs the server; its threads do the input and output of the future.
///
/// On a thread that belongs to a runtime, such as a network thread of the server, it drops the future
/// and returns [`Error::WouldBlock`], where [`Handle::block_on`] would panic. Returned from a call with
/// [`BlockingMode::Nonblocking`](vfs::BlockingMode::Nonblocking), that has the server repeat the call on
/// a worker.
///
/// A worker is occupied until the future ends: give it a time limit, and return
/// [`Error::TryLater`] when that has passed.
pub fn block_on<F: Future>(runtime: &Handle, future: F) -> Result<F::Output> {
    match Handle::try_current() {
        Ok(_) => Err(Error::WouldBlock),
        Err(_) => Ok(runtime.block_on(future)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test runs on a thread of its runtime, as a call on a network thread does.
    #[tokio::test]
    async fn block_on_says_that_it_cannot_where_the_handle_of_the_runtime_would_panic() {
        let runtime = Handle::current();
        assert_eq!(block_on(&runtime, async { 7 }), Err(Error::WouldBlock));
        let elsewhere = std::thread::spawn(move || block_on(&runtime, async { 7 }));
        let joined = tokio::task::spawn_blocking(|| elsewhere.join().unwrap());
        assert_eq!(joined.await.unwrap(), Ok(7));
    }
}
