//! Carries out what the keeper decided besides replies: callbacks, notices, probes; and records its
//! events in the log, the event log and the metrics.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use keeper::Keeper;
use keeper::change::{Change, Client, Exactness};
use keeper::event::Event;
use keeper::identity::{ClientId, HostKey};
use keeper::request::Question;
use keeper::step::{Grant, Notice};
use tracing::debug;

use crate::callbacks::Callbacks;
use crate::engine::{Clock, Effects, Input, Reporter};
use crate::event_log::EventLog;
use crate::event_text;
use crate::files::Files;
use crate::liveness::{Inquiry, Liveness};
use crate::lock_events::{self, LockHook};
use crate::metrics::{Metrics, RefusalReason, RefusedCall};
use crate::refusals::{Refusals, RefusedCaller};
use crate::rpc::dispatch::Dispatcher;

/// The server's implementation of [`Effects`]. It holds the engine and the dispatcher weakly, since
/// both own it.
pub(crate) struct ServerEffects {
    pub(crate) reporter: Reporter,
    pub(crate) callbacks: Callbacks,
    pub(crate) liveness: Liveness,
    pub(crate) files: Arc<Files>,
    pub(crate) dispatcher: Weak<Dispatcher>,
    pub(crate) event_log: Arc<EventLog>,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) metrics: Option<Arc<Metrics>>,
    pub(crate) clock: Clock,
    pub(crate) lock_hook: Option<LockHook>,
}

impl Effects for ServerEffects {
    fn grant(&self, grant: Grant) {
        if let Some(metrics) = &self.metrics
            && grant.attempt == 1
        {
            metrics.lock_wait.observe(self.clock.elapsed().saturating_sub(grant.since));
        }
        self.callbacks.send_grant(grant);
    }

    fn notice(&self, notice: Notice) {
        self.callbacks.send_notice(notice);
    }

    fn probe(&self, keeper: &Keeper, client: ClientId, question: Question) {
        let Some(view) = keeper.client(client) else { return };
        let inquiry = Inquiry { host: view.client.key(), question, asked: Instant::now() };
        let (liveness, reporter) = (self.liveness.clone(), self.reporter.clone());
        tokio::spawn(async move {
            let answer = liveness.probe(&inquiry).await;
            debug!("probe {:?} of {:?}: {answer:?}", question, inquiry.host);
            reporter.report(Input::Probed(client, question, answer));
        });
    }

    fn event(&self, keeper: &Keeper, event: Event) {
        match &event {
            Event::Rebooted { client, .. } => {
                if let Some(view) = keeper.client(*client)
                    && let Some(dispatcher) = self.dispatcher.upgrade()
                {
                    dispatcher.forget_host(view.client.address, view.client.name.bytes());
                }
            }
            Event::Fenced { client, .. }
            | Event::FenceExtended { client }
            | Event::Unfenced { client, .. } => {
                if let Some(view) = keeper.client(*client) {
                    let (fences, row) = (&self.files.fences, view.client);
                    fences.update(keeper, row.address, &row.name);
                    if row.fenced {
                        self.report_appearances(fences.mounted_from(&row.name));
                    }
                }
            }
            Event::Started { exactness: Exactness::Open, .. } => {
                self.files.mounted.begin(self.reporter.clone());
            }
            Event::GraceEnded { .. } => self.files.mounted.end(),
            Event::MonitorRefused { source, watched, why } => {
                let (call, from, name) = (RefusedCall::Monitor, *source, watched);
                self.refusals.note(RefusedCaller { call, from, name }, (*why).into());
            }
            Event::FreeAllRefused { source, name } => {
                let (call, from) = (RefusedCall::FreeAll, *source);
                let caller = RefusedCaller { call, from, name };
                self.refusals.note(caller, RefusalReason::UnknownHost);
            }
            Event::FreeAllPending { why, .. } => {
                self.refusals.count(RefusedCall::FreeAll, (*why).into());
            }
            _ => {}
        }
        if let Some(metrics) = &self.metrics {
            metrics.count_event(&event);
        }
        if let Some(text) = event_text::describe(keeper, &event) {
            text.log();
            self.event_log.write(self.clock.now().wall_ms, text);
        }
    }

    fn client_written(&self, row: &Client) {
        self.liveness.record_state(row);
    }

    fn lock_changed(&self, change: &Change) {
        if let Some(hook) = &self.lock_hook {
            lock_events::pass(change, hook);
        }
    }
}

impl ServerEffects {
    /// A fence holds at the addresses from which the machine has mounted as well.
    fn report_appearances(&self, mounted: Vec<(HostKey, IpAddr)>) {
        if mounted.is_empty() {
            return;
        }
        let reporter = self.reporter.clone();
        tokio::spawn(async move {
            for (host, ours) in mounted {
                reporter.report(Input::Appeared { host, ours });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keeper::change::Snapshot;
    use keeper::identity::{Epoch, RequestId};
    use keeper::request::{LockRequest, UnlockRequest};
    use keeper::step::Message;
    use keeper::time::Time;

    use super::*;
    use crate::engine::tests::lock_request;

    /// The wall clock may be set at any time; the measured wait must not depend on it (I13).
    #[test]
    fn a_grant_says_since_when_by_the_clock_that_nobody_sets() {
        let at = |seconds, wall_ms| Time { mono: Duration::from_secs(seconds), wall_ms };
        let config = keeper::config::Config::default();
        let mut keeper = Keeper::restore(Snapshot::default(), Epoch(1), config, at(0, 1_000));
        let alice = lock_request(1, "alice", "10.0.0.1");
        keeper.handle_lock(alice.clone(), at(5, 6_000));
        keeper.handle_lock(lock_request(2, "bob", "10.0.0.2"), at(10, 11_000));
        let LockRequest { caller, owner, file, range, .. } = alice;
        let unlock = UnlockRequest { id: RequestId(3), caller, owner, file, range };
        keeper.handle_unlock(unlock, at(12, 3_600_000));
        let mut grants = Vec::new();
        while let Some(step) = keeper.poll_step() {
            grants.extend(step.messages.into_iter().filter_map(|message| match message {
                Message::Grant(grant) => Some(grant.since),
                _ => None,
            }));
        }
        assert_eq!(grants, [Duration::from_secs(10)]);
    }
}
