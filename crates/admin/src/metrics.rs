//! The meters of the server and what the keeper holds, written for Prometheus. No label comes from
//! a peer: there are as many series as are named here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use keeper::Keeper;
use keeper::identity::ShareId;
use keeper::view::ClientView;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use server::meters::{Asked, Count, Histogram, Meters, PROCEDURES, Program, Result as Said};
use server::{Control, NotDone};

use crate::api::Problem;
use crate::problem::Problems;
use crate::{Shared, clients};

mod names;
#[cfg(test)]
mod tests;

use names::{CLIENT_STATES, FATES, NSM, OPERATIONS, PROGRAMS, RESULTS};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics for Prometheus, in the OpenMetrics text format
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"), Problems))]
pub async fn scrape(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let control = shared.control()?;
    if control.meters().is_none() {
        let detail = "metrics are switched off";
        return Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
            .hint("set metrics = true in [admin]"));
    }
    let now = control.engine().clock().elapsed();
    // While the store fails the engine waits with it, and that is when metrics are wanted most.
    let gauges = Gauges::read(&control, now).await.ok();
    let stalled = control.engine().stalled_for().map_or(0.0, |since| since.as_secs_f64());
    let (store, version) = (shared.facts.store.clone(), shared.facts.version.clone());
    let mut registry = Registry::default();
    let seen = Seen { gauges, stalled, store, version };
    registry.register_collector(Box::new(Scrape { control, seen }));
    let mut text = String::with_capacity(64 << 10);
    encode(&mut text, &registry).map_err(|_| Problem::ending())?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

/// What is read from the keeper.
struct Gauges {
    held: u64,
    unconfirmed: u64,
    releasable: u64,
    shares: u64,
    waiters: u64,
    clients: [u64; CLIENT_STATES.len()],
    grace: Option<f64>,
}

impl Gauges {
    async fn read(control: &Control, now: Duration) -> Result<Self, NotDone> {
        let mut gauges = control.look(move |keeper| Self::look(keeper, now)).await?;
        let see =
            |clients: &mut [u64; CLIENT_STATES.len()], keeper: &Keeper, view: &ClientView<'_>| {
                let state = clients::state_of(keeper, view);
                if let Some(place) = CLIENT_STATES.iter().position(|(known, _)| *known == state) {
                    clients[place] += 1;
                }
            };
        gauges.clients = clients::see_all(control, gauges.clients, see).await?;
        Ok(gauges)
    }

    /// All but the clients.
    fn look(keeper: &Keeper, now: Duration) -> Self {
        let counts = keeper.counts();
        // Locks alone: shares have a number of their own.
        let missing = match counts.unconfirmed {
            0 => 0,
            _ => keeper.shares(ShareId(0)).filter(|share| !share.confirmed).count(),
        };
        let unconfirmed = counts.unconfirmed.saturating_sub(missing) as u64;
        let (unconfirmed, releasable) =
            if keeper.in_window() { (unconfirmed, 0) } else { (0, unconfirmed) };
        Self {
            held: (counts.locks as u64).saturating_sub(unconfirmed + releasable),
            unconfirmed,
            releasable,
            shares: counts.shares as u64,
            waiters: counts.waiters as u64,
            clients: [0; CLIENT_STATES.len()],
            grace: keeper.grace().map(|grace| grace.remaining(now).as_secs_f64()),
        }
    }

    fn write(&self, out: &mut Out<'_>) -> fmt::Result {
        let registered: u64 = self.clients.iter().sum();
        let help = "Hosts and registrants that are known";
        out.gauge("nsm_clients_registered", help)?.encode_gauge(&registered)?;
        let mut locks = out.gauge("lockkeeper_locks", "Locks, by state")?;
        let states = [
            ("held", self.held),
            ("unconfirmed", self.unconfirmed),
            ("releasable", self.releasable),
        ];
        for (state, count) in states {
            locks.encode_family(&[("state", state)])?.encode_gauge(&count)?;
        }
        out.gauge("lockkeeper_shares", "Share reservations")?.encode_gauge(&self.shares)?;
        out.gauge("lockkeeper_waiters", "Requests that wait")?.encode_gauge(&self.waiters)?;
        let mut clients = out.gauge("lockkeeper_clients", "Clients, by state")?;
        for ((_, state), count) in CLIENT_STATES.iter().zip(self.clients) {
            clients.encode_family(&[("state", *state)])?.encode_gauge(&count)?;
        }
        let help = "Whether a grace period lasts";
        let active = u64::from(self.grace.is_some());
        out.gauge("lockkeeper_grace_active", help)?.encode_gauge(&active)?;
        let help = "Until the grace period ends at the latest";
        let mut remaining = out.measured("lockkeeper_grace_remaining", help, MetricType::Gauge)?;
        remaining.encode_gauge(&self.grace.unwrap_or(0.0))
    }
}

struct Scrape {
    control: Control,
    seen: Seen,
}

/// What was seen when the scrape began.
struct Seen {
    /// `None` if the keeper could not be looked at: numbers that are not known are left out.
    gauges: Option<Gauges>,
    stalled: f64,
    store: String,
    version: String,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(meters) = self.control.meters() else { return Ok(()) };
        self.seen.write(meters, encoder)
    }
}

impl Seen {
    fn write(&self, meters: &Meters, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        if let Some(gauges) = &self.gauges {
            gauges.write(&mut out)?;
        }
        nsm(meters, &mut out)?;
        locks(meters, &mut out)?;
        self.store(meters, &mut out)?;
        rpc(meters, &mut out)?;
        let mut info = out.gauge("lockkeeper_build_info", "Which version runs")?;
        info.encode_family(&[("version", self.version.as_str())])?.encode_gauge(&1u64)
    }

    fn store(&self, meters: &Meters, out: &mut Out<'_>) -> fmt::Result {
        let mut commits = out.seconds("lockkeeper_store_commit", "How long commits took")?;
        observe_in(&mut commits, &[("store", self.store.as_str())], &meters.commits)?;
        let help = "Attempts to commit that failed";
        out.plain_counter("lockkeeper_store_errors", help, &meters.store_errors)?;
        let help = "Since when the store has not worked";
        let mut stalled = out.measured("lockkeeper_store_stalled", help, MetricType::Gauge)?;
        stalled.encode_gauge(&self.stalled)
    }
}

/// The names that are agreed upon (R8.2).
fn nsm(meters: &Meters, out: &mut Out<'_>) -> fmt::Result {
    let mut requests = out.counter("nsm_requests", "Calls of the status monitor")?;
    for (number, procedure) in NSM.iter().enumerate() {
        for (fate, result) in FATES {
            let count = meters.calls(Program::Nsm, number, fate);
            let labels = [("procedure", *procedure), ("result", result)];
            count_in(&mut requests, &labels, count)?;
        }
    }
    let mut durations = out.seconds("nsm_request_duration", "How long those calls took")?;
    for (number, procedure) in NSM.iter().enumerate() {
        if let Some(histogram) = meters.nsm_duration(number) {
            observe_in(&mut durations, &[("procedure", *procedure)], histogram)?;
        }
    }
    let mut notices =
        out.counter("nsm_notifications", "Notices to clients, by what became of them")?;
    let results = [
        ("started", &meters.notices_started),
        ("success", &meters.notices_answered),
        ("failed", &meters.notices_failed),
    ];
    for (result, count) in results {
        count_in(&mut notices, &[("result", result)], count.get())?;
    }
    let help = "How long an attempt to notify took";
    plain(&mut out.seconds("nsm_notification_duration", help)?, &meters.notice_duration)?;
    let help = "Hosts that rebooted or were not heard of in the recovery window";
    out.plain_counter("nsm_crashes_detected", help, &meters.crashes)?;
    let help = "Times that locks of a host were cleaned up";
    out.plain_counter("nsm_crash_cleanups", help, &meters.clean_ups)?;
    let help = "Locks and shares that went in those";
    out.plain_counter("nsm_locks_cleaned_on_crash", help, &meters.locks_cleaned)
}

fn locks(meters: &Meters, out: &mut Out<'_>) -> fmt::Result {
    let mut requests = out.counter("lockkeeper_lock_requests", "Lock requests decided")?;
    for (asked, op) in Asked::ALL.into_iter().zip(OPERATIONS) {
        for (said, result) in Said::ALL.into_iter().zip(RESULTS) {
            let count = meters.lock_requests(asked, said);
            count_in(&mut requests, &[("op", op), ("result", result)], count)?;
        }
    }
    let mut reclaims = out.counter("lockkeeper_reclaims", "Reclaims decided")?;
    for (said, result) in Said::ALL.into_iter().zip(RESULTS) {
        count_in(&mut reclaims, &[("result", result)], meters.reclaims(said))?;
    }
    let help = "How long those waited who were granted a lock later";
    plain(&mut out.seconds("lockkeeper_lock_wait", help)?, &meters.lock_wait)?;
    let mut callbacks =
        out.counter("lockkeeper_granted_callbacks", "Attempts to tell a waiter of its lock")?;
    let results = ["accepted", "denied", "unclear", "unsent"];
    for (result, count) in results.into_iter().zip(&meters.callbacks) {
        count_in(&mut callbacks, &[("result", result)], count.get())?;
    }
    Ok(())
}

fn rpc(meters: &Meters, out: &mut Out<'_>) -> fmt::Result {
    let mut requests = out.counter("lockkeeper_rpc_requests", "Calls, by what became of them")?;
    for (program, (name, procedures)) in Program::ALL.into_iter().zip(PROGRAMS) {
        // Several numbers are none of the program's: one series for all of them.
        let of = |number| procedures.get(number).copied().unwrap_or("other");
        let known = procedures.iter().copied().filter(|procedure| *procedure != "other");
        for procedure in known.chain(["other"]) {
            for (fate, status) in FATES {
                let numbers = (0..PROCEDURES).filter(|number| of(*number) == procedure);
                let count: u64 = numbers.map(|number| meters.calls(program, number, fate)).sum();
                if count > 0 {
                    let labels = [("program", name), ("procedure", procedure), ("status", status)];
                    count_in(&mut requests, &labels, count)?;
                }
            }
        }
    }
    let mut durations = out.seconds("lockkeeper_rpc_duration", "How long calls took")?;
    for (program, (name, _)) in Program::ALL.into_iter().zip(PROGRAMS) {
        observe_in(&mut durations, &[("program", name)], meters.duration(program))?;
    }
    Ok(())
}

struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn counter<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, MetricType::Counter)
    }

    fn plain_counter(&mut self, name: &str, help: &str, count: &Count) -> fmt::Result {
        self.counter(name, help)?.encode_counter::<[(&str, &str); 0], u64, u64>(&count.get(), None)
    }

    fn gauge<'s>(&'s mut self, name: &'s str, help: &str) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)
    }

    fn seconds<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.measured(name, help, MetricType::Histogram)
    }

    fn measured<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, Some(&Unit::Seconds), kind)
    }
}

fn count_in(
    family: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    count: u64,
) -> fmt::Result {
    family.encode_family(labels)?.encode_counter::<[(&str, &str); 0], u64, u64>(&count, None)
}

fn observe_in(
    family: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    histogram: &Histogram,
) -> fmt::Result {
    plain(&mut family.encode_family(labels)?, histogram)
}

fn plain(out: &mut MetricEncoder<'_>, histogram: &Histogram) -> fmt::Result {
    let (counts, sum) = histogram.read();
    let buckets: Vec<(f64, u64)> = counts
        .iter()
        .enumerate()
        .map(|(bucket, count)| match bucket < Histogram::BOUNDS {
            true => (Histogram::bound(bucket).as_secs_f64(), *count),
            false => (f64::INFINITY, *count),
        })
        .collect();
    let all = counts.iter().sum();
    out.encode_histogram::<[(&str, &str); 0]>(sum, all, &buckets, None)
}
