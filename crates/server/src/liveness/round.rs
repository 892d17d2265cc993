//! One round of probes: all connections of a host are probed at once and polled until each has
//! responded or the time is up. No I/O and no clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{EndCause, ProbeGuard, TrackedConnection};
use super::registry::ProbeCandidate;
use super::socket::{SocketStatus, TcpState};
use super::verdict::{Observation, Response};

/// The kernel's timestamps of acknowledgements are up to 10 ms off.
const ACK_GRANULARITY: Duration = Duration::from_millis(20);
/// So many unanswered probes are silence.
const UNANSWERED_MAX: u32 = 3;

pub struct Round {
    /// Acknowledgements after this are responses.
    started: Instant,
    connections: Vec<ProbedConnection>,
}

/// Called for each connection that is found to have ended, with whether by a reset. Must call
/// [`TrackedConnection::set_ended`].
pub type OnEnded<'a> = &'a mut dyn FnMut(&Arc<TrackedConnection>, bool);

struct ProbedConnection {
    guard: ProbeGuard,
    is_named: bool,
    /// The last acknowledgement before the round.
    ack_before: Instant,
    response: Option<Response>,
}

impl Round {
    /// Starts probing. Not to be called with the registry locked: if the owner of a connection has
    /// just dropped it, this ends it.
    pub fn new(candidates: Vec<ProbeCandidate>, started: Instant, for_proof: bool) -> Self {
        let probe = |ProbeCandidate { connection, is_named }| {
            let ack_before = connection.status().map_or(started, |status| status.last_ack);
            let guard = ProbeGuard::new(connection, for_proof);
            ProbedConnection { guard, is_named, ack_before, response: None }
        };
        let connections = candidates.into_iter().map(probe).collect();
        Self { started, connections }
    }

    /// Collects the responses that have arrived by now.
    pub fn poll(&mut self, ended: OnEnded<'_>) {
        for probed in self.connections.iter_mut().filter(|probed| probed.response.is_none()) {
            probed.response = probed.poll(self.started, ended);
        }
    }

    /// Every connection has responded.
    pub fn is_complete(&self) -> bool {
        self.connections.iter().all(|probed| probed.response.is_some())
    }

    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged().next().is_some()
    }

    /// A kernel that was up at `then` has acknowledged: nothing else matters.
    pub fn is_acknowledged_since(&self, then: Instant) -> bool {
        self.acknowledged().any(|it| it.guard.connection().kernel_since() <= then)
    }

    /// What each connection says by now.
    pub fn observations(&self) -> impl Iterator<Item = Observation> + '_ {
        self.connections.iter().map(|probed| probed.observation())
    }

    fn acknowledged(&self) -> impl Iterator<Item = &ProbedConnection> {
        self.connections.iter().filter(|it| it.response == Some(Response::Acknowledged))
    }
}

impl ProbedConnection {
    fn poll(&self, started: Instant, ended: OnEnded<'_>) -> Option<Response> {
        let connection = self.guard.connection();
        if let Some(end) = connection.end() {
            return Some(end.cause.into());
        }
        let socket = connection.socket()?;
        let Some(status) = socket.status() else { return Some(Response::Inconclusive) };
        match status.state {
            TcpState::Established => {
                let acknowledged = status.last_ack > started + ACK_GRANULARITY
                    || status.last_ack > self.ack_before + ACK_GRANULARITY;
                acknowledged.then_some(Response::Acknowledged)
            }
            TcpState::Closing => Some(Response::Inconclusive),
            TcpState::Closed => {
                // The task that reads the socket may be busy. If it has taken the error, it reports
                // the end itself.
                ended(connection, socket.take_end()?);
                connection.end().map(|end| end.cause.into())
            }
        }
    }

    fn observation(&self) -> Observation {
        let connection = self.guard.connection();
        let status = connection.status();
        let end_ack = connection.end().map(|end| end.last_ack);
        let last_ack = end_ack.or(status.map(|status| status.last_ack));
        let response = self.response.unwrap_or(match status {
            Some(SocketStatus { state: TcpState::Established, unanswered, .. }) => match unanswered
            {
                0..UNANSWERED_MAX => Response::NotProbed,
                _ => Response::Unanswered,
            },
            _ => Response::Inconclusive,
        });
        let counts = self.is_named && connection.end_is_evidence();
        let counts = counts || response == Response::Acknowledged;
        let response = if counts { response } else { Response::Inconclusive };
        Observation {
            kernel_since: connection.kernel_since(),
            last_ack: last_ack.unwrap_or(connection.opened),
            response,
        }
    }
}

/// What a connection that was reset some time ago says.
pub fn observation_of_reset(connection: &Arc<TrackedConnection>) -> Option<Observation> {
    let end = connection.end()?;
    let (kernel_since, response) = (connection.kernel_since(), end.cause.into());
    Some(Observation { kernel_since, last_ack: end.last_ack, response })
}

impl From<EndCause> for Response {
    fn from(cause: EndCause) -> Self {
        match cause {
            EndCause::ResetByProbe => Self::ResetByProbe,
            EndCause::ResetUnprompted => Self::ResetUnprompted,
            EndCause::Other => Self::Inconclusive,
        }
    }
}
