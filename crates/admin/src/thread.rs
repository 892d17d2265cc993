//! The thread of the API: whoever looks, and however much, takes none from the network.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// What runs on it ends when this is dropped.
pub struct Thread {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Thread {
    pub fn start() -> io::Result<Self> {
        let mut thread = Builder::new_multi_thread();
        let runtime = thread.worker_threads(1).thread_name("admin").enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.handle.spawn(work)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not waited for: whoever drops it may be at work for others.
            runtime.shutdown_background();
        }
    }
}
