//! Stop of the server: listen no more, unregister, answer what is under way, close the sockets, commit
//! the stop, release the store, give up the file systems.
//!
//! Sockets and store are released by name, not by the end of the process: as long as the kernel holds a
//! thread in a file system that hangs, the process's descriptors stay open (B8.81).

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::{Server, ServerError};
use crate::engine::{End, Engine, Input};
use crate::registrar::RpcbindState;
use crate::roster_copy::refresh_before_stop;
use crate::rpc::workers::Unfinished;
use crate::transport::{ANSWERS_MAX, AnswersMax};

/// How long the last callbacks have before the end. Replies have [`ANSWERS_MAX`].
pub(super) const LAST_CALLBACKS: Duration = Duration::from_millis(200);
/// How long requests under way may still be answered after a failure: lock requests get no answer any
/// more.
const ANSWERS_MAX_FAILED: Duration = Duration::from_secs(1);
/// A call that has not begun this long before its connection is closed is not run: no reply could be sent.
const LAST_START: Duration = Duration::from_millis(200);
/// How long connections have to be closed after the time for answers: their peers must read.
const LAST_REPLIES: Duration = Duration::from_secs(2);
/// How long after the beginning of a clean stop the store must have committed it: the rest of the 15 s
/// that a stop may take (B8.81) is for giving up file systems.
const STOP_COMMITTED_BY: Duration = Duration::from_secs(13);
/// How long a clean stop waits for the store at most.
const LAST_COMMIT: Duration = Duration::from_secs(5);
/// How long a stop waits for file systems that are given up. One that hangs is left to the kernel.
const CLOSING_MAX: Duration = Duration::from_millis(500);

/// Calls that a log line names.
const NAMED_MAX: usize = 8;

impl Server {
    /// Stops cleanly, or after `failure`, which is returned. Takes less than 15 s (B8.81).
    pub(super) async fn stop(mut self, failure: Option<ServerError>) -> Result<(), ServerError> {
        let begun = Instant::now();
        let answers_max = if failure.is_some() { ANSWERS_MAX_FAILED } else { ANSWERS_MAX };
        if failure.is_some() {
            // Ends the lock requests, so that their connections do not wait for them.
            self.engine().abandon();
        }
        self.close_sockets(answers_max).await;
        let ended = match failure {
            Some(failure) => Err(failure),
            None => {
                let left = STOP_COMMITTED_BY.saturating_sub(begun.elapsed());
                stop_engine(self.engine(), self.copy_roster(), left).await
            }
        };
        // Does nothing after a clean stop; otherwise it releases the store.
        self.engine().abandon();
        self.peers.close();
        self.close_files().await;
        ended
    }

    /// Answers what is under way, then closes the sockets that clients use. Calls that were not run by
    /// then are dropped: they could not be answered.
    async fn close_sockets(&mut self, answers_max: Duration) {
        begin(&self.stop, answers_max);
        let registrar = &self.registrar;
        let unregister = async {
            if matches!(self.control.rpcbind(), RpcbindState::System { .. }) {
                registrar.unregister().await;
            }
        };
        let tasks = &mut self.tasks;
        let answers = async { while tasks.join_next().await.is_some() {} };
        {
            let mut closed = pin!(async { tokio::join!(unregister, answers) });
            if timeout(answers_max.saturating_sub(LAST_START), &mut closed).await.is_err() {
                self.workers.drop_queued();
                // The tasks have bounds of their own, a little less than this.
                let _ = timeout(LAST_START + LAST_REPLIES, closed).await;
            }
        }
        self.workers.drop_queued();
        self.tasks.abort_all();
        sleep(LAST_CALLBACKS).await;
        self.datagrams.clear();
    }

    /// Ends the workers and gives up the file systems; names the calls that do not end.
    async fn close_files(self) {
        let Self { workers, files, .. } = self;
        let close = move || {
            let unfinished = workers.stop(CLOSING_MAX / 2);
            report_unfinished(&unfinished);
            let _ = files.close().wait(CLOSING_MAX / 2);
        };
        // Fails only if the runtime is shutting down.
        let _ = tokio::task::spawn_blocking(close).await;
    }

    async fn copy_roster(&self) {
        if let Some((file, health)) = &self.roster_copy {
            refresh_before_stop(self.engine(), self.epoch, file, health).await;
        }
    }
}

/// Begins a stop, or shortens one.
pub(super) fn begin(stop: &watch::Sender<AnswersMax>, answers_max: Duration) {
    stop.send_if_modified(|stopped| {
        let shortens = stopped.is_none_or(|before| before > answers_max);
        if shortens {
            *stopped = Some(answers_max);
        }
        shortens
    });
}

/// Stops the engine cleanly within `left`. The last copy of the roster may take half of it, so that the
/// store is asked in any case.
async fn stop_engine(
    engine: &Engine,
    last_copy: impl Future<Output = ()>,
    left: Duration,
) -> Result<(), ServerError> {
    let by = Instant::now() + left;
    let _ = timeout(left / 2, last_copy).await;
    engine.report(Input::Stop);
    let left = by.saturating_duration_since(Instant::now()).min(LAST_COMMIT);
    match timeout(left, engine.ended()).await {
        Ok(End::Stopped | End::Abandoned) => Ok(()),
        Ok(End::Failed(why)) => Err(ServerError(why)),
        Err(_) => Err(ServerError(
            "the store did not commit the clean stop; the next start begins with a grace period"
                .into(),
        )),
    }
}

/// Names the calls that did not end, one line for each file system.
fn report_unfinished(unfinished: &[Unfinished]) {
    let mut by_export: BTreeMap<&str, Vec<&Unfinished>> = BTreeMap::new();
    for call in unfinished {
        by_export.entry(&call.exports).or_default().push(call);
    }
    for (exports, calls) in by_export {
        warn!("{}", describe(exports, &calls));
    }
}

fn describe(exports: &str, calls: &[&Unfinished]) -> String {
    let count = calls.len();
    let noun = if count == 1 { "call" } else { "calls" };
    let place = if calls.iter().all(|call| call.file_system.is_none()) {
        String::new()
    } else {
        format!(" on {exports}")
    };
    let named = calls.iter().take(NAMED_MAX).map(|call| {
        let Unfinished { procedure, peer, age, running, .. } = call;
        let begun = if *running { "" } else { ", not begun" };
        format!("{procedure} from {peer} ({} s{begun})", age.as_secs())
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = if count > NAMED_MAX { ", ..." } else { "" };
    format!("{count} {noun}{place} did not end: {named}{more}")
}

#[cfg(test)]
mod tests {
    use vfs::FileSystemId;

    use super::*;
    use crate::engine::tests::begun_with;

    #[tokio::test]
    async fn a_copy_that_hangs_leaves_the_store_its_time() {
        let engine = begun_with(Box::new(store::Memory::new()));
        let left = Duration::from_secs(2);
        let stopped = stop_engine(&engine, std::future::pending(), left).await;
        assert!(stopped.is_ok(), "{stopped:?}");
        assert_eq!(engine.ended().await, End::Stopped);
    }

    #[test]
    fn calls_that_do_not_end_are_named_with_their_export() {
        let call = Unfinished {
            file_system: Some(FileSystemId(1)),
            exports: "/srv/b".into(),
            procedure: "WRITE".into(),
            peer: [10, 0, 0, 5].into(),
            age: Duration::from_millis(14_200),
            running: true,
        };
        assert_eq!(
            describe("/srv/b", &[&call]),
            "1 call on /srv/b did not end: WRITE from 10.0.0.5 (14 s)"
        );
        let queued = Unfinished { procedure: "REMOVE".into(), running: false, ..call.clone() };
        assert_eq!(
            describe("/srv/b", &[&call, &queued]),
            "2 calls on /srv/b did not end: WRITE from 10.0.0.5 (14 s), \
             REMOVE from 10.0.0.5 (14 s, not begun)"
        );
        let call = Unfinished { file_system: None, ..call };
        let many = describe("no export", &[&call; 9]);
        assert!(
            many.starts_with("9 calls did not end: WRITE") && many.ends_with(", ..."),
            "{many}"
        );
    }
}
