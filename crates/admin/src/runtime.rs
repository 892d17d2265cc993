//! The API's own thread, so that requests to it take no worker from the NFS service.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Its tasks end when dropped.
pub(crate) struct AdminRuntime {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl AdminRuntime {
    pub(crate) fn start() -> io::Result<Self> {
        let mut thread = Builder::new_multi_thread();
        let runtime = thread.worker_threads(1).thread_name("admin").enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub(crate) fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.handle.spawn(work)
    }
}

impl AdminRuntime {
    /// Ends all tasks, which closes their sockets. Does not wait longer for one that hangs.
    pub(crate) async fn close(mut self, limit: Duration) {
        if let Some(runtime) = self.runtime.take() {
            let close = move || runtime.shutdown_timeout(limit);
            // Fails only if the caller's runtime is shutting down.
            let _ = tokio::task::spawn_blocking(close).await;
        }
    }
}

impl Drop for AdminRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Do not block the dropping thread, which may be an async worker.
            runtime.shutdown_background();
        }
    }
}
