//! Callbacks: what the keeper wants told to clients. GRANTED to waiters (R3.3), notices of restarts
//! (R2), and the results of requests that came as messages.
//!
//! Nothing here decides anything. Each attempt is one task with one deadline and ends in exactly
//! one [`Report`]; trying again is up to the keeper. Whom to call and how is `peer/`'s.

mod answers;
mod grant;
mod notice;
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

use crate::meters::Meters;
use crate::peer::{Peers, Turn};
use crate::rarely::Rarely;
use crate::transport::Peer;
use answers::Answers;

#[derive(Debug, Clone)]
pub struct Settings {
    /// All that one attempt may take: looking up the port, connecting, sending, the answer (R2.2).
    pub attempt: Duration,
    /// Attempts under way or in line; what comes beyond is reported as unsent.
    pub in_flight_max: usize,
    /// Attempts under way, of notices and of callbacks each: about as many descriptors are needed.
    pub at_once_max: usize,
    pub meters: Option<Arc<Meters>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            attempt: Duration::from_secs(5),
            in_flight_max: 20_000,
            at_once_max: 2_500,
            meters: None,
        }
    }
}

impl Settings {
    /// How long an attempt may stand in line. All of 10,000 hosts, even dead ones, have their turn
    /// in that time; and it is over before the keeper takes the attempt for lost.
    fn in_line(&self) -> Duration {
        self.attempt * 4
    }
}

/// What became of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
}

pub type ReportTo = Arc<dyn Fn(Report) + Send + Sync>;

#[derive(Clone)]
pub struct Callbacks(Arc<Inner>);

struct Inner {
    settings: Settings,
    runtime: Handle,
    report: ReportTo,
    peers: Peers,
    answers: Answers,
    /// One permit for each attempt under way or in line.
    in_flight: Arc<Semaphore>,
    /// Notices after a restart are many; they must not stand in the way of callbacks.
    notices: Semaphore,
    callbacks: Semaphore,
}

impl Callbacks {
    /// Must be called inside a tokio runtime, on which all work is then done.
    pub fn new(settings: Settings, peers: Peers, report: ReportTo) -> Self {
        Self(Arc::new(Inner {
            runtime: Handle::current(),
            peers,
            answers: Answers::default(),
            in_flight: Arc::new(Semaphore::new(settings.in_flight_max)),
            notices: Semaphore::new(settings.at_once_max),
            callbacks: Semaphore::new(settings.at_once_max),
            settings,
            report,
        }))
    }

    /// Makes one attempt. Never blocks; one report follows, never from within this call.
    pub fn send_grant(&self, grant: Grant) {
        let unclear = Report::Granted(grant.id, GrantAnswer::Unclear);
        let unsent = Report::Granted(grant.id, GrantAnswer::Unsent);
        self.spawn(PendingReport::new(&self.0.report, unclear), unsent, |inner| async move {
            let id = grant.id;
            Report::Granted(id, inner.grant_in_turn(grant).await)
        });
    }

    /// Makes one attempt. Never blocks; one report follows, never from within this call.
    pub fn send_notice(&self, notice: Notice) {
        // If the task panics or is dropped, report `Unsent`, which never counts against the host.
        let unsent = Report::Noticed(notice.id, NoticeResult::Unsent);
        self.spawn(PendingReport::new(&self.0.report, unsent), unsent, |inner| async move {
            let id = notice.id;
            let in_line = inner.settings.in_line();
            let Ok(Ok(_turn)) = timeout(in_line, inner.notices.acquire()).await else {
                return unsent;
            };
            let since = Instant::now();
            let result = Box::pin(inner.notice(notice)).await;
            if let Some(meters) = &inner.settings.meters {
                meters.noticed(result, since.elapsed());
            }
            Report::Noticed(id, result)
        });
    }

    /// GRANTED_RES came in from this address with this cookie.
    pub fn granted_res(&self, from: IpAddr, cookie: &[u8], status: nlm::Status) {
        self.0.answers.hear(from.to_canonical(), cookie, status);
    }

    /// A `*_RES` to a client that used a `*_MSG` form. It is sent at most once; a client that does
    /// not get it asks again.
    pub fn send_result(&self, to: &Peer, version: nlm::Version, procedure: u32, body: Bytes) {
        let Ok(place) = self.0.in_flight.clone().try_acquire_owned() else {
            return warn_full(&self.0.settings);
        };
        let (inner, to) = (self.0.clone(), *to);
        self.0.runtime.spawn(async move {
            inner.result_in_turn(&to, version, procedure, &body).await;
            drop(place);
        });
    }

    /// Does `work` in the background if there is room for it, and reports what it says.
    fn spawn<F>(&self, pending: PendingReport, unsent: Report, work: impl FnOnce(Arc<Inner>) -> F)
    where
        F: Future<Output = Report> + Send + 'static,
    {
        let Ok(place) = self.0.in_flight.clone().try_acquire_owned() else {
            warn_full(&self.0.settings);
            self.0.runtime.spawn(async move { pending.done(unsent) });
            return;
        };
        let work = work(self.0.clone());
        self.0.runtime.spawn(async move {
            let report = work.await;
            drop(place);
            pending.done(report);
        });
    }
}

impl Inner {
    /// The right to call a host, for as long as it is kept; none if it takes too long to get.
    async fn turn(&self, host: IpAddr) -> Option<(Turn<'_>, SemaphorePermit<'_>)> {
        let both = async {
            let of_host = self.peers.turn(host).await;
            Some((of_host, self.callbacks.acquire().await.ok()?))
        };
        timeout(self.settings.attempt, both).await.ok()?
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.settings.attempt
    }
}

/// One report is owed: the one that is given to `done`, or else the one it was made with.
struct PendingReport {
    report: ReportTo,
    owed: Report,
}

impl PendingReport {
    fn new(report: &ReportTo, owed: Report) -> Self {
        Self { report: report.clone(), owed }
    }

    fn done(mut self, report: Report) {
        self.owed = report;
    }
}

impl Drop for PendingReport {
    fn drop(&mut self) {
        (self.report)(self.owed);
    }
}

fn warn_full(settings: &Settings) {
    static FULL: Rarely = Rarely::new();
    if FULL.due() {
        warn!(
            "{} calls to clients are under way already; more are put off. Are most clients down, \
             or is this host's network?",
            settings.in_flight_max
        );
    }
}
