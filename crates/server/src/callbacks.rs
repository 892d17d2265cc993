//! Callbacks: GRANTED to waiters (B2.11), reboot notices, and the results of requests in message
//! form.
//!
//! No decisions are made here. Each grant or notice is one attempt, run as one task with one
//! deadline, and ends in exactly one [`Report`]; the keeper decides whether to try again. `peer/`
//! decides which addresses may be called, and makes the calls.

mod grant;
mod notice;
mod pending_grants;
mod result;
#[cfg(test)]
pub(crate) mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keeper::identity::{GrantId, NoticeId};
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{Grant, Notice};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tracing::warn;
use wire::nlm;

use crate::log_rate_limit::LogRateLimit;
use crate::metrics::Metrics;
use crate::peer::{HostPermit, Peers};
use crate::transport::Peer;
use pending_grants::PendingGrants;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Limit on one attempt, from port lookup to answer (B4.3).
    pub attempt_max: Duration,
    /// Attempts running or queued; further ones are reported as unsent.
    pub in_flight_max: usize,
    /// Running attempts, for notices and for callbacks each. Each needs about one descriptor.
    pub running_max: usize,
    pub metrics: Option<Arc<Metrics>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            attempt_max: Duration::from_secs(5),
            in_flight_max: 20_000,
            running_max: 2_500,
            metrics: None,
        }
    }
}

impl Settings {
    /// How long an attempt may be queued: long enough for notices to 10,000 dead hosts, and shorter
    /// than the time after which the keeper considers the attempt lost.
    fn queued_max(&self) -> Duration {
        self.attempt_max * 4
    }
}

/// The outcome of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
}

/// Receives reports, on a runtime thread. Must not block.
pub(crate) type OnReport = Arc<dyn Fn(Report) + Send + Sync>;

/// Sends callbacks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Callbacks(Arc<Inner>);

struct Inner {
    settings: Settings,
    runtime: Handle,
    on_report: OnReport,
    peers: Peers,
    pending_grants: PendingGrants,
    /// One permit for each attempt, running or queued.
    in_flight: Arc<Semaphore>,
    /// Separate from `callbacks`: the many notices after a restart must not delay callbacks.
    notices: Semaphore,
    callbacks: Semaphore,
}

impl Callbacks {
    /// Must be called inside a tokio runtime, which then runs all attempts.
    pub(crate) fn new(settings: Settings, peers: Peers, on_report: OnReport) -> Self {
        Self(Arc::new(Inner {
            runtime: Handle::current(),
            peers,
            pending_grants: PendingGrants::default(),
            in_flight: Arc::new(Semaphore::new(settings.in_flight_max)),
            notices: Semaphore::new(settings.running_max),
            callbacks: Semaphore::new(settings.running_max),
            settings,
            on_report,
        }))
    }

    /// Starts one attempt. Never blocks; exactly one report follows, never from within this call.
    pub(crate) fn send_grant(&self, grant: Grant) {
        // If the task panics or is dropped, GRANTED may have been sent.
        let unclear = Report::Granted(grant.id, GrantAnswer::Unclear);
        let unsent = Report::Granted(grant.id, GrantAnswer::Unsent);
        self.spawn(PendingReport::new(&self.0.on_report, unclear), unsent, |inner| async move {
            let id = grant.id;
            Report::Granted(id, inner.grant(grant).await)
        });
    }

    /// Starts one attempt. Never blocks; exactly one report follows, never from within this call.
    pub(crate) fn send_notice(&self, notice: Notice) {
        // If the task panics or is dropped, report `Unsent`, which never counts against the host.
        let unsent = Report::Noticed(notice.id, NoticeResult::Unsent);
        self.spawn(PendingReport::new(&self.0.on_report, unsent), unsent, |inner| async move {
            let id = notice.id;
            let queued_max = inner.settings.queued_max();
            let Ok(Ok(_permit)) = timeout(queued_max, inner.notices.acquire()).await else {
                return unsent;
            };
            let since = Instant::now();
            let result = Box::pin(inner.notice(notice)).await;
            if let Some(metrics) = &inner.settings.metrics {
                metrics.count_notice(result, since.elapsed());
            }
            Report::Noticed(id, result)
        });
    }

    /// Delivers a GRANTED_RES that arrived from this address.
    pub(crate) fn granted_res(&self, from: IpAddr, cookie: &[u8], status: nlm::Status) {
        self.0.pending_grants.deliver(from.to_canonical(), cookie, status);
    }

    /// Sends a `*_RES` to a client that used the `*_MSG` form. It is sent at most once; a client that
    /// does not receive it repeats its request.
    pub(crate) fn send_result(
        &self,
        to: &Peer,
        version: nlm::Version,
        procedure: u32,
        body: Bytes,
    ) {
        let Ok(permit) = self.0.in_flight.clone().try_acquire_owned() else {
            return warn_full(&self.0.settings);
        };
        let (inner, to) = (self.0.clone(), *to);
        self.0.runtime.spawn(async move {
            inner.result(&to, version, procedure, &body).await;
            drop(permit);
        });
    }

    /// Runs `work` as a task and reports its outcome; reports `unsent` if too many are in flight.
    fn spawn<F>(&self, pending: PendingReport, unsent: Report, work: impl FnOnce(Arc<Inner>) -> F)
    where
        F: Future<Output = Report> + Send + 'static,
    {
        let Ok(permit) = self.0.in_flight.clone().try_acquire_owned() else {
            warn_full(&self.0.settings);
            self.0.runtime.spawn(async move { pending.done(unsent) });
            return;
        };
        let work = work(self.0.clone());
        self.0.runtime.spawn(async move {
            let report = work.await;
            drop(permit);
            pending.done(report);
        });
    }
}

impl Inner {
    /// Permits to run one callback to a host; `None` if none is free in time.
    async fn permit(&self, host: IpAddr) -> Option<(HostPermit<'_>, SemaphorePermit<'_>)> {
        let both = async {
            let of_host = self.peers.permit(host).await;
            Some((of_host, self.callbacks.acquire().await.ok()?))
        };
        timeout(self.settings.attempt_max, both).await.ok()?
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.settings.attempt_max
    }
}

/// Makes exactly one report when dropped: the one passed to `done`, or else the initial one.
struct PendingReport {
    on_report: OnReport,
    report: Report,
}

impl PendingReport {
    fn new(on_report: &OnReport, initial: Report) -> Self {
        Self { on_report: on_report.clone(), report: initial }
    }

    fn done(mut self, report: Report) {
        self.report = report;
    }
}

impl Drop for PendingReport {
    fn drop(&mut self) {
        (self.on_report)(self.report);
    }
}

fn warn_full(settings: &Settings) {
    static FULL: LogRateLimit = LogRateLimit::new();
    if FULL.due() {
        warn!(
            "{} calls to clients are in flight; further ones are postponed. Are most clients down, \
             or is the network of this host?",
            settings.in_flight_max
        );
    }
}
