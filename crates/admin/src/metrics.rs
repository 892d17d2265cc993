//! `/metrics`: counters of the server and gauges of the keeper in OpenMetrics format. Every metric is
//! named here as it appears in the output. No label value comes from a peer, so the number of series
//! is bounded.

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
use server::metrics::{
    CallOutcome, Count, EvictionReason, Histogram, LockOperation, LockResult, Metrics, Program,
    RefusedCall, RefusedConnection,
};
use server::{Control, ControlError, IoTotals};

use crate::api::{ClientState, Problem};
use crate::caller::Reads;
use crate::problem::Problems;
use crate::{AdminState, clients, display};

#[cfg(test)]
mod tests;

const CLIENT_STATES: [(ClientState, &str); 7] = [
    (ClientState::Fenced, "fenced"),
    (ClientState::RebootPending, "reboot_pending"),
    (ClientState::Crashed, "crashed"),
    (ClientState::Suspect, "suspect"),
    (ClientState::Recovering, "recovering"),
    (ClientState::Active, "active"),
    (ClientState::Idle, "idle"),
];

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics for Prometheus, in the OpenMetrics text format
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"), Problems))]
pub(crate) async fn scrape(
    State(admin): State<Arc<AdminState>>,
    reads: Result<Reads, Problem>,
) -> Result<Response, Problem> {
    let (store, version) = (admin.facts.store.clone(), admin.facts.version.clone());
    let Ok(Reads(control)) = reads else {
        return exposition(Box::new(NotServing { version }));
    };
    if control.metrics().is_none() {
        let detail = "metrics are off";
        return Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
            .hint("set metrics = true in [admin]"));
    }
    let now = control.engine().clock().elapsed();
    // While the store fails the keeper cannot be read; the other metrics are needed then.
    let gauges = Gauges::read(&control, now).await.ok();
    let stalled = control.engine().stalled_for().map_or(0.0, |since| since.as_secs_f64());
    let warnings = control.engine().store_warnings().len() as u64;
    let lacks_standby = admin.facts.is_one_of_pair && !control.engine().has_standby();
    let (served, io) = (control.exports(), control.export_io());
    let exports = served.iter().filter_map(|export| {
        let io = io.get(&export.id)?;
        Some((display::bytes(&export.path), *io))
    });
    let exports = exports.collect();
    let data = ScrapeData { gauges, stalled, warnings, exports, lacks_standby, store, version };
    exposition(Box::new(Scrape { control, data }))
}

fn exposition(collector: Box<dyn Collector>) -> Result<Response, Problem> {
    let mut registry = Registry::default();
    registry.register_collector(collector);
    let mut text = String::with_capacity(64 << 10);
    encode(&mut text, &registry).map_err(|_| Problem::ending())?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

/// Values read from the keeper.
struct Gauges {
    held: u64,
    unconfirmed: u64,
    releasable: u64,
    shares: u64,
    waiters: u64,
    longest_wait: f64,
    /// Clients that are notified of a restart.
    monitored: u64,
    clients: [u64; CLIENT_STATES.len()],
    grace: Option<f64>,
}

impl Gauges {
    async fn read(control: &Control, now: Duration) -> Result<Self, ControlError> {
        let mut gauges = control.read(move |keeper| Self::look(keeper, now)).await?;
        let seen = ([0; CLIENT_STATES.len()], 0);
        (gauges.clients, gauges.monitored) = clients::see_all(control, seen, count_client).await?;
        Ok(gauges)
    }

    /// Everything except the clients.
    fn look(keeper: &Keeper, now: Duration) -> Self {
        let counts = keeper.counts();
        // `counts.unconfirmed` includes shares, which have a gauge of their own.
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
            longest_wait: keeper.longest_wait(now).unwrap_or_default().as_secs_f64(),
            monitored: 0,
            clients: [0; CLIENT_STATES.len()],
            grace: keeper.grace().map(|grace| grace.remaining(now).as_secs_f64()),
        }
    }

    fn write(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let help = "Clients that are notified of a restart: monitored hosts and NSM registrants";
        out.gauge("nsm_clients_registered", help)?.encode_gauge(&self.monitored)?;
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
        out.gauge("lockkeeper_waiters", "Waiting lock requests")?.encode_gauge(&self.waiters)?;
        let help = "How long the oldest waiting lock request has waited";
        out.gauge("lockkeeper_longest_wait_seconds", help)?.encode_gauge(&self.longest_wait)?;
        let mut clients = out.gauge("lockkeeper_clients", "Clients, by state")?;
        for ((_, state), count) in CLIENT_STATES.iter().zip(self.clients) {
            clients.encode_family(&[("state", *state)])?.encode_gauge(&count)?;
        }
        let help = "Whether a grace period is active";
        let active = u64::from(self.grace.is_some());
        out.gauge("lockkeeper_grace_active", help)?.encode_gauge(&active)?;
        let help = "Until the grace period ends at the latest";
        let mut remaining = out.gauge("lockkeeper_grace_remaining_seconds", help)?;
        remaining.encode_gauge(&self.grace.unwrap_or(0.0))
    }
}

/// Adds a client to the numbers by state, and to that of monitored clients.
fn count_client(
    (states, monitored): &mut ([u64; CLIENT_STATES.len()], u64),
    keeper: &Keeper,
    view: &ClientView<'_>,
) {
    let state = clients::state_of(keeper, view);
    if let Some(place) = CLIENT_STATES.iter().position(|(known, _)| *known == state) {
        states[place] += 1;
    }
    *monitored += u64::from(view.client.monitored);
}

/// A server that stands by, or has not started: a target that is up.
#[derive(Debug)]
struct NotServing {
    version: String,
}

impl Collector for NotServing {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricsWriter(encoder);
        server(&mut out, false, &self.version)
    }
}

fn server(out: &mut MetricsWriter<'_>, serves: bool, version: &str) -> fmt::Result {
    let help = "Whether this server serves clients; 0 if it stands by";
    out.gauge("lockkeeper_serving", help)?.encode_gauge(&u64::from(serves))?;
    let mut info = out.gauge("lockkeeper_build_info", "Version of the server")?;
    info.encode_family(&[("version", version)])?.encode_gauge(&1u64)
}

struct Scrape {
    control: Control,
    data: ScrapeData,
}

/// Values read when the scrape began.
struct ScrapeData {
    /// `None` if the keeper could not be read: unknown values are left out.
    gauges: Option<Gauges>,
    stalled: f64,
    /// Standing warnings of the store.
    warnings: u64,
    /// What was done in each export, by its path.
    exports: Vec<(String, IoTotals)>,
    /// This is one of a pair, and no other could take over.
    lacks_standby: bool,
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
        let Some(metrics) = self.control.metrics() else { return Ok(()) };
        self.data.write(metrics, encoder)
    }
}

impl ScrapeData {
    fn write(&self, metrics: &Metrics, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricsWriter(encoder);
        if let Some(gauges) = &self.gauges {
            gauges.write(&mut out)?;
        }
        nsm(metrics, &mut out)?;
        locks(metrics, &mut out)?;
        self.store(metrics, &mut out)?;
        rpc(metrics, &mut out)?;
        exports(&self.exports, &mut out)?;
        let help = "1 if this is one of a pair and knows of no standby";
        let lacks_standby = u64::from(self.lacks_standby);
        out.gauge("lockkeeper_standby_missing", help)?.encode_gauge(&lacks_standby)?;
        server(&mut out, true, &self.version)
    }

    fn store(&self, metrics: &Metrics, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let mut commits =
            out.histogram("lockkeeper_store_commit_seconds", "Duration of commits")?;
        observe_in(&mut commits, &[("store", self.store.as_str())], &metrics.commits)?;
        let help = "Failed commit attempts";
        out.plain_counter("lockkeeper_store_errors_total", help, &metrics.store_errors)?;
        let help = "How long commits have been failing";
        let mut stalled = out.gauge("lockkeeper_store_stalled_seconds", help)?;
        stalled.encode_gauge(&self.stalled)?;
        let help = "Standing warnings of a store that works";
        let mut warnings = out.gauge("lockkeeper_store_warnings", help)?;
        warnings.encode_gauge(&self.warnings)
    }
}

/// Metrics whose names are prescribed (B8.8).
fn nsm(metrics: &Metrics, out: &mut MetricsWriter<'_>) -> fmt::Result {
    let mut requests = out.counter("nsm_requests_total", "Calls to the status monitor")?;
    for (number, procedure) in Program::Nsm.procedures() {
        let (success, error) = metrics.nsm_requests(*number);
        for (result, count) in [("success", success), ("error", error)] {
            let labels = [("procedure", *procedure), ("result", result)];
            count_in(&mut requests, &labels, count)?;
        }
    }
    let mut durations =
        out.histogram("nsm_request_duration_seconds", "Duration of calls to the status monitor")?;
    for (number, procedure) in Program::Nsm.procedures() {
        if let Some(histogram) = metrics.nsm_duration(*number) {
            observe_in(&mut durations, &[("procedure", *procedure)], histogram)?;
        }
    }
    let mut notices = out.counter("nsm_notifications_total", "Notices to clients, by result")?;
    let results = [
        ("started", &metrics.notices_started),
        ("success", &metrics.notices_answered),
        ("failed", &metrics.notices_failed),
    ];
    for (result, count) in results {
        count_in(&mut notices, &[("result", result)], count.get())?;
    }
    let help = "Duration of notification attempts";
    plain(
        &mut out.histogram("nsm_notification_duration_seconds", help)?,
        &metrics.notice_duration,
    )?;
    let help = "Reboots of clients and watched hosts, and clients silent in the recovery window";
    out.plain_counter("nsm_crashes_detected_total", help, &metrics.crashes)?;
    let help = "Cleanups of a host's locks after a reboot or crash";
    out.plain_counter("nsm_crash_cleanups_total", help, &metrics.clean_ups)?;
    let help = "Locks and shares released by those cleanups";
    out.plain_counter("nsm_locks_cleaned_on_crash_total", help, &metrics.locks_cleaned)?;
    let mut refusals =
        out.counter("lockkeeper_refusals_total", "Refused SM_MON and FREE_ALL calls, by reason")?;
    for (call, request) in RefusedCall::LABELS {
        for reason in call.reasons() {
            let labels = [("request", request), ("reason", reason.label())];
            count_in(&mut refusals, &labels, metrics.refusals(call, *reason))?;
        }
    }
    Ok(())
}

fn locks(metrics: &Metrics, out: &mut MetricsWriter<'_>) -> fmt::Result {
    let mut requests = out.counter("lockkeeper_lock_requests_total", "Lock requests, by result")?;
    for (operation, op) in LockOperation::LABELS {
        for (result, label) in LockResult::LABELS {
            let count = metrics.lock_requests(operation, result);
            count_in(&mut requests, &[("op", op), ("result", label)], count)?;
        }
    }
    let mut reclaims = out.counter("lockkeeper_reclaims_total", "Reclaims, by result")?;
    for (result, label) in LockResult::LABELS {
        count_in(&mut reclaims, &[("result", label)], metrics.reclaims(result))?;
    }
    let help = "Wait time of lock requests that were granted later";
    plain(&mut out.histogram("lockkeeper_lock_wait_seconds", help)?, &metrics.lock_wait)?;
    let mut callbacks =
        out.counter("lockkeeper_granted_callbacks_total", "GRANTED callbacks, by result")?;
    let results = [
        ("accepted", &metrics.callbacks_accepted),
        ("denied", &metrics.callbacks_denied),
        ("unclear", &metrics.callbacks_unclear),
        ("unsent", &metrics.callbacks_unsent),
    ];
    for (result, count) in results {
        count_in(&mut callbacks, &[("result", result)], count.get())?;
    }
    Ok(())
}

fn rpc(metrics: &Metrics, out: &mut MetricsWriter<'_>) -> fmt::Result {
    let mut requests = out.counter("lockkeeper_rpc_requests_total", "RPC calls, by status")?;
    for (program, name) in Program::LABELS {
        let procedures = program.procedures().iter().map(|(number, label)| (Some(*number), *label));
        for (number, procedure) in procedures.chain([(None, "other")]) {
            for (outcome, status) in CallOutcome::LABELS {
                let count = match number {
                    Some(number) => metrics.calls(program, number, outcome),
                    None => metrics.other_calls(program, outcome),
                };
                if count > 0 {
                    let labels = [("program", name), ("procedure", procedure), ("status", status)];
                    count_in(&mut requests, &labels, count)?;
                }
            }
        }
    }
    let mut durations =
        out.histogram("lockkeeper_rpc_duration_seconds", "Duration of RPC calls")?;
    for (program, name) in Program::LABELS {
        observe_in(&mut durations, &[("program", name)], metrics.duration(program))?;
    }
    let help = "Connections closed when they were accepted, by reason";
    let mut refused = out.counter("lockkeeper_connections_refused_total", help)?;
    for (reason, label) in RefusedConnection::LABELS {
        count_in(&mut refused, &[("reason", label)], metrics.refused_connections(reason))?;
    }
    let help = "Open connections closed for the sake of others, by reason";
    let mut evicted = out.counter("lockkeeper_connections_evicted_total", help)?;
    for (reason, label) in EvictionReason::LABELS {
        count_in(&mut evicted, &[("reason", label)], metrics.evicted_connections(reason))?;
    }
    let help = "Datagrams from addresses that no export admits";
    out.plain_counter("lockkeeper_datagrams_dropped_total", help, &metrics.dropped_datagrams)?;
    let help = "File systems that have answered no call for seconds";
    let mut stalled = out.gauge("lockkeeper_stalled_file_systems", help)?;
    stalled.encode_gauge(&metrics.stalled_file_systems.get())
}

/// One series for each export: the configuration bounds them.
fn exports(exports: &[(String, IoTotals)], out: &mut MetricsWriter<'_>) -> fmt::Result {
    let mut calls = out.counter("lockkeeper_export_operations_total", "NFS calls, by export")?;
    for (path, io) in exports {
        for (op, count) in [("read", io.reads), ("write", io.writes), ("other", io.others)] {
            count_in(&mut calls, &[("export", path.as_str()), ("op", op)], count)?;
        }
    }
    let help = "Bytes of file contents, by export";
    let mut bytes = out.counter("lockkeeper_export_bytes_total", help)?;
    for (path, io) in exports {
        for (op, count) in [("read", io.bytes_read), ("write", io.bytes_written)] {
            count_in(&mut bytes, &[("export", path.as_str()), ("op", op)], count)?;
        }
    }
    let help = "NFS calls answered with an error, by export";
    let mut errors = out.counter("lockkeeper_export_errors_total", help)?;
    for (path, io) in exports {
        count_in(&mut errors, &[("export", path.as_str())], io.errors)?;
    }
    Ok(())
}

type Family<'a> = Result<MetricEncoder<'a>, fmt::Error>;

struct MetricsWriter<'a>(DescriptorEncoder<'a>);

impl MetricsWriter<'_> {
    /// `name` is the full name, whose suffix the encoder appends.
    fn family<'s>(&'s mut self, name: &'s str, help: &str, kind: MetricType) -> Family<'s> {
        let (name, unit) = match name.strip_suffix("_seconds") {
            Some(name) => (name, Some(&Unit::Seconds)),
            None => (name.strip_suffix("_total").unwrap_or(name), None),
        };
        self.0.encode_descriptor(name, help, unit, kind)
    }

    fn counter<'s>(&'s mut self, name: &'s str, help: &str) -> Family<'s> {
        self.family(name, help, MetricType::Counter)
    }

    fn plain_counter(&mut self, name: &str, help: &str, count: &Count) -> fmt::Result {
        self.counter(name, help)?.encode_counter::<[(&str, &str); 0], u64, u64>(&count.get(), None)
    }

    fn gauge<'s>(&'s mut self, name: &'s str, help: &str) -> Family<'s> {
        self.family(name, help, MetricType::Gauge)
    }

    fn histogram<'s>(&'s mut self, name: &'s str, help: &str) -> Family<'s> {
        self.family(name, help, MetricType::Histogram)
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
