//! What the keeper wants told to peers, carried out: GRANTED to who waits (R3.3), notices of
//! restarts (R2), and the results of requests that came as messages.
//!
//! Nothing here decides anything. Each attempt is one task with one deadline and ends in exactly
//! one [`Report`]; trying again is the keeper's business. Peers are only ever called at the address
//! that asked (R6.3), at the port that their own rpcbind names.

mod answers;
mod grant;
mod hosts;
mod lines;
mod notice;
mod permitted;
mod ports;
mod posts;
mod result;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use client::{ConnectError, Options};
use keeper::identity::{GrantId, NoticeId};
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{Grant, Notice};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tracing::warn;
use wire::nlm;
use wire::rpc::{Credential, Groups, MachineName, SysCredential};

use crate::meters::Meters;
use crate::rarely::Rarely;
use crate::tenure::Tenure;
use crate::transport::Peer;
use crate::transport::udp::Datagrams;
use answers::Answers;
use hosts::{Hosts, Turn};
use lines::Lines;
use permitted::OwnAddresses;
use ports::Ports;
use posts::Posts;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where peers have their rpcbind: 111 everywhere but in tests.
    pub rpcbind_port: u16,
    /// Speak from ports below 1024, which needs root.
    pub reserved_ports: bool,
    /// All that one attempt may take: looking up the port, connecting, sending, the answer (R2.2).
    pub attempt: Duration,
    /// How long one transport is tried alone before the other is tried too.
    pub alone: Duration,
    /// When GRANTED is said once more over UDP.
    pub repeat: Duration,
    /// Attempts under way or in line; what comes beyond is reported as unsent.
    pub in_flight_max: usize,
    /// Attempts under way, of notices and of callbacks each: about as many descriptors are needed.
    pub at_once_max: usize,
    /// Callbacks to one host that are under way: a silent one must not use up what others need.
    pub at_once_per_host_max: usize,
    /// Connections to lock managers that are kept for the next callback, and for how long.
    pub kept_max: usize,
    pub keep: Duration,
    /// Without it nothing is said.
    pub tenure: Tenure,
    pub meters: Option<Arc<Meters>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rpcbind_port: wire::rpcbind::PORT,
            reserved_ports: false,
            attempt: Duration::from_secs(5),
            alone: Duration::from_secs(1),
            repeat: Duration::from_millis(1_500),
            in_flight_max: 20_000,
            at_once_max: 2_500,
            at_once_per_host_max: 256,
            kept_max: 1_024,
            keep: Duration::from_secs(60),
            tenure: Tenure::default(),
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
    /// Our listening sockets and what they are bound to. Who listens owns them: a server that has
    /// ended must not keep its port.
    sockets: Vec<(SocketAddr, Weak<Datagrams>)>,
    /// In whose name lock managers are called.
    credential: Credential,
    posts: Posts,
    ports: Ports,
    lines: Lines,
    answers: Answers,
    own: OwnAddresses,
    /// One permit for each attempt under way or in line.
    in_flight: Arc<Semaphore>,
    /// Notices after a restart are many; they must not stand in the way of callbacks.
    notices: Semaphore,
    callbacks: Semaphore,
    hosts: Hosts,
}

impl Callbacks {
    /// `sockets` are our listening UDP sockets, each with the address that it is bound to. Must be
    /// called inside a tokio runtime, on which all work is then done.
    pub fn new(
        settings: Settings,
        sockets: Vec<(SocketAddr, Arc<Datagrams>)>,
        report: ReportTo,
    ) -> Self {
        let credential = root_of_this_machine();
        let inner = Arc::new(Inner {
            runtime: Handle::current(),
            posts: Posts::new(&settings, credential.clone()),
            ports: Ports::new(&settings),
            lines: Lines::new(settings.kept_max),
            answers: Answers::default(),
            own: OwnAddresses::default(),
            in_flight: Arc::new(Semaphore::new(settings.in_flight_max)),
            notices: Semaphore::new(settings.at_once_max),
            callbacks: Semaphore::new(settings.at_once_max),
            hosts: Hosts::new(settings.at_once_per_host_max),
            settings,
            report,
            sockets: sockets.iter().map(|(at, socket)| (*at, Arc::downgrade(socket))).collect(),
            credential,
        });
        inner.runtime.spawn(lines::sweep(Arc::downgrade(&inner)));
        Self(inner)
    }

    /// Makes one attempt. Never blocks; one report follows, never from within this call.
    pub fn send_grant(&self, grant: Grant) {
        let unclear = Report::Granted(grant.id, GrantAnswer::Unclear);
        let unsent = Report::Granted(grant.id, GrantAnswer::Unsent);
        self.spawn(Duty::new(&self.0.report, unclear), unsent, |inner| async move {
            let id = grant.id;
            Report::Granted(id, inner.grant_in_turn(grant).await)
        });
    }

    /// Makes one attempt. Never blocks; one report follows, never from within this call.
    pub fn send_notice(&self, notice: Notice) {
        // Should an attempt end in a way that nobody thought of, nobody has been called dead.
        let unsent = Report::Noticed(notice.id, NoticeResult::Unsent);
        self.spawn(Duty::new(&self.0.report, unsent), unsent, |inner| async move {
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
    fn spawn<F>(&self, duty: Duty, unsent: Report, work: impl FnOnce(Arc<Inner>) -> F)
    where
        F: Future<Output = Report> + Send + 'static,
    {
        let Ok(place) = self.0.in_flight.clone().try_acquire_owned() else {
            warn_full(&self.0.settings);
            self.0.runtime.spawn(async move { duty.done(unsent) });
            return;
        };
        let work = work(self.0.clone());
        self.0.runtime.spawn(async move {
            let report = work.await;
            drop(place);
            duty.done(report);
        });
    }
}

impl Inner {
    /// The right to call a host, for as long as it is kept; none if it takes too long to get.
    async fn turn(&self, host: IpAddr) -> Option<(Turn<'_>, SemaphorePermit<'_>)> {
        let both = async {
            let of_host = self.hosts.turn(host).await;
            Some((of_host, self.callbacks.acquire().await.ok()?))
        };
        timeout(self.settings.attempt, both).await.ok()?
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.settings.attempt
    }

    /// The listening socket through which datagrams leave from `ours`.
    fn listening_on(&self, ours: IpAddr) -> Option<Arc<Datagrams>> {
        let fits = |bound: IpAddr| {
            bound == ours || (bound.is_unspecified() && bound.is_ipv4() == ours.is_ipv4())
        };
        let (_, socket) = self.sockets.iter().find(|(bound, _)| fits(bound.ip()))?;
        socket.upgrade()
    }
}

/// One report is owed: the one that is given to `done`, or else the one it was made with.
struct Duty {
    report: ReportTo,
    owed: Report,
}

impl Duty {
    fn new(report: &ReportTo, owed: Report) -> Self {
        Self { report: report.clone(), owed }
    }

    fn done(mut self, report: Report) {
        self.owed = report;
    }
}

impl Drop for Duty {
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

/// What time is left.
fn rest(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Whether any other port would do: most peers do not look at it, and none can be reached from a
/// port that we do not get (all are taken, or we are not allowed to).
fn lacks_reserved_port(error: &ConnectError) -> bool {
    match error {
        ConnectError::NoReservedPort => true,
        ConnectError::Bind(error) => error.kind() == io::ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// For streams: no answer that we wait for is long, and a peer must not make us hold more.
fn short_replies() -> Options {
    Options { record_bytes_max: 4096, read_bytes: 1024, fragments_max: 8, ..Options::default() }
}

fn root_of_this_machine() -> Credential {
    let name = rustix::system::uname();
    let name = name.nodename().to_bytes();
    Credential::Sys(SysCredential {
        stamp: 0,
        machine: MachineName::from(name[..name.len().min(255)].to_vec()),
        uid: 0,
        gid: 0,
        groups: Groups::default(),
    })
}
