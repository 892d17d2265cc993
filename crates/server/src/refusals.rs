//! Refused SM_MON and FREE_ALL calls, whichever layer refuses them: counted by reason, and written to
//! the log and the event log, each combination at most every ten seconds (B7.60).

use std::net::IpAddr;
use std::sync::Arc;

use keeper::bytes::Name;
use keeper::event::Rejection;
use keeper::step::Refusal;

use crate::engine::Clock;
use crate::event_log::EventLog;
use crate::event_text::EventText;
use crate::log_rate_limit::LogRateLimit;
use crate::metrics::{Metrics, RefusalReason, RefusedCall};
use crate::rpc::admission::NotAdmitted;

pub(crate) struct Refusals {
    event_log: Arc<EventLog>,
    metrics: Option<Arc<Metrics>>,
    clock: Clock,
    limits: [[LogRateLimit; RefusalReason::LABELS.len()]; RefusedCall::LABELS.len()],
}

/// A refused call.
pub(crate) struct RefusedCaller<'a> {
    pub call: RefusedCall,
    pub from: IpAddr,
    /// The machine that the call names.
    pub name: &'a Name,
}

impl Refusals {
    pub(crate) fn new(
        event_log: Arc<EventLog>,
        metrics: Option<Arc<Metrics>>,
        clock: Clock,
    ) -> Self {
        let limits = std::array::from_fn(|_| std::array::from_fn(|_| LogRateLimit::new()));
        Self { event_log, metrics, clock, limits }
    }

    /// Only counts the refusal: it has an event of its own.
    pub(crate) fn count(&self, call: RefusedCall, reason: RefusalReason) {
        if let Some(metrics) = &self.metrics {
            metrics.count_refusal(call, reason);
        }
    }

    pub(crate) fn note(&self, caller: RefusedCaller<'_>, reason: RefusalReason) {
        let RefusedCaller { call, from, name } = caller;
        self.count(call, reason);
        if !self.limits[call as usize][reason as usize].due() {
            return;
        }
        let what = match call {
            RefusedCall::Monitor => format!("SM_MON of {from} for {name}"),
            RefusedCall::FreeAll => format!("FREE_ALL of {from} for {name}"),
        };
        let event = EventText::refused(format!("{what} refused: {}", explain(reason)));
        event.log();
        self.event_log.write(self.clock.now().wall_ms, event);
    }
}

fn explain(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Address => "no export admits its address",
        RefusalReason::Port => "its source port is not a reserved one",
        RefusalReason::Transport => "it came as a datagram from another machine",
        RefusalReason::Program => "only a lock manager or a transient program may be called back",
        RefusalReason::TooManyRegistrations => "its address has too many registrations",
        RefusalReason::TooManyClients => "too many clients; allow more with `clients` in [limits]",
        RefusalReason::Store => "the store does not commit",
        RefusalReason::UnknownHost => "no such host is known here",
        RefusalReason::Alive => "the kernel that took the locks still answers",
        RefusalReason::Unproven => "nothing proves that the host rebooted",
    }
}

impl From<NotAdmitted> for RefusalReason {
    fn from(why: NotAdmitted) -> Self {
        match why {
            NotAdmitted::Address => Self::Address,
            NotAdmitted::Port => Self::Port,
            NotAdmitted::Transport => Self::Transport,
        }
    }
}

impl From<Refusal> for RefusalReason {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::TooManyRegistrations => Self::TooManyRegistrations,
            // No other limit applies to a registration.
            _ => Self::TooManyClients,
        }
    }
}

impl From<Rejection> for RefusalReason {
    fn from(why: Rejection) -> Self {
        match why {
            Rejection::Alive => Self::Alive,
            Rejection::Unproven
            | Rejection::Unreclaimed
            | Rejection::Unverified
            | Rejection::Elsewhere => Self::Unproven,
        }
    }
}
