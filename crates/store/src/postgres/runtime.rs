//! The thread that drives connections to PostgreSQL. A store may be called on a thread of another
//! async runtime, where blocking on a runtime of one's own panics; so sockets and timers are driven
//! here, and the caller only parks.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

pub(super) struct Runtime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
            // A plain drop would wait for a name lookup that does not answer.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Blocks until the future is ready. The future must bound its own time, and create its timers
    /// and sockets inside, in this runtime's context.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _context = self.handle.enter();
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_of_another_runtime_may_block() {
        let inner = Runtime::start("inner").unwrap();
        let outer = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let waited = outer.block_on(async {
            tokio::spawn(async move {
                inner.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
                drop(inner);
                true
            })
            .await
        });
        assert!(waited.unwrap());
    }
}
