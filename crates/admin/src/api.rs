//! The types of the API: written by the server, read by the command line, and the source of the OpenAPI
//! document.
//!
//! Ids are short words: `k7f2` is a lock, a share or a waiter (numbered together), `c3` a client. Names
//! and paths are chosen by peers; unprintable bytes are escaped as `\x1b`. Times are RFC 3339 in UTC;
//! ages are in seconds, so that clocks need not agree.

mod exports;
mod io;

use keeper::identity::ClientId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub use exports::{ChangedExport, Export, ExportRule, ExportState, ReloadResult};
pub use io::{ClientIo, ClientIoList, Io, IoQuery};

/// Reply to `GET /v1/status`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub version: String,
    /// The server's host name, or its node name among the servers sharing a store.
    pub node: String,
    pub state: ServerState,
    /// The state in one sentence.
    pub summary: String,
    pub started_at: String,
    pub uptime_seconds: f64,
    /// Increases with every start; absent while standing by.
    pub epoch: Option<u64>,
    pub nsm_state: Option<u32>,
    pub store: StoreStatus,
    pub grace: Option<GraceStatus>,
    pub counts: Counts,
    /// While the store is stalled: how old epoch, grace, counts and findings about clients are.
    /// Absent if they are current; if they are not known at all, so is `epoch`.
    #[serde(default)]
    pub counts_age_seconds: Option<f64>,
    /// The caller is not shown the paths of locked files, which are for operators.
    #[serde(default)]
    pub paths_withheld: bool,
    /// Problems, worst first; empty if there are none.
    pub health: Vec<Finding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerState {
    Serving,
    /// Serving while clients reclaim their locks.
    Grace,
    /// The store is failing: locks wait.
    Stalled,
    /// Another server of the same store is serving.
    Standby,
    /// Not serving yet.
    Starting,
}

impl ServerState {
    /// Whether clients are served, even if locks wait.
    pub fn serves(self) -> bool {
        !matches!(self, Self::Standby | Self::Starting)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StoreStatus {
    /// `embedded`, `memory` or `postgres`.
    pub kind: String,
    /// URL without password.
    pub shown: String,
    /// `process`, `power` or `none`.
    pub durability: String,
    /// Whether the recovered lock table was complete; if not, clients must reclaim.
    pub exact: bool,
    /// How far the recovered state could be trusted; `exact` is true for the first degree only.
    #[serde(default)]
    pub exactness: Exactness,
    /// 99th percentile of commit times; absent before the first commit.
    pub commit_p99_seconds: Option<f64>,
    /// How long commits have been failing.
    pub stalled_seconds: Option<f64>,
    /// Why they fail, if that is known.
    #[serde(default)]
    pub stall_reason: Option<String>,
}

/// How far the state that a start recovered could be trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Exactness {
    /// Every acknowledged lock was there.
    #[default]
    Exact,
    /// Every client was there; locks may have been missing.
    Roster,
    /// Clients may have been missing too: any client may reclaim.
    Open,
}

impl From<keeper::change::Exactness> for Exactness {
    fn from(exactness: keeper::change::Exactness) -> Self {
        match exactness {
            keeper::change::Exactness::Exact => Self::Exact,
            keeper::change::Exactness::Roster => Self::Roster,
            keeper::change::Exactness::Open => Self::Open,
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// Hosts and NSM registrants.
    pub clients: u64,
    /// Held locks, including unconfirmed ones.
    pub locks: u64,
    pub shares: u64,
    pub waiting: u64,
    /// How long the oldest waiter has waited; absent if there is none.
    #[serde(default)]
    pub longest_wait_seconds: Option<f64>,
    /// Locks and shares recovered and not yet reclaimed.
    pub unconfirmed: u64,
    /// Clients in the state `fenced`; likewise the next three.
    pub fenced: u64,
    pub crashed: u64,
    pub suspect: u64,
    pub reboot_pending: u64,
    /// Notices of the server's restart not yet answered.
    pub notices_owed: u64,
}

/// A problem: status, action and documentation, as in `zpool status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// `LK103`: an anchor in docs/messages.md.
    pub code: String,
    pub severity: Severity,
    pub status: String,
    /// The command that helps.
    pub action: String,
    pub see: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    Info,
    Warning,
    Error,
}

/// Reply to `GET /v1/grace`, whether or not there is a grace period.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GraceStatus {
    pub active: bool,
    /// With an exact store, grace ends early when all have reclaimed; otherwise it lasts the window.
    pub exact: bool,
    /// How far the recovered state could be trusted.
    #[serde(default)]
    pub exactness: Exactness,
    /// The full window while `began` is false.
    pub remaining_seconds: f64,
    /// Whether the window has begun: it runs from the first call of a client on another machine.
    pub began: bool,
    /// Locks and shares of monitored clients not yet reclaimed.
    pub missing: u64,
    /// Requests waiting for its end.
    pub parked: u64,
    /// Hosts that have not reclaimed everything, at most 100; with an inexact store, all that may have
    /// held locks.
    pub expected: Vec<ExpectedClient>,
    /// Number of such hosts.
    pub expected_total: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExpectedClient {
    pub client: ClientName,
    pub unconfirmed: u64,
    /// Notices sent to it; `answered` if it answered one.
    pub notices: u32,
    pub answered: bool,
}

/// Identifies a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientName {
    /// `c3`.
    pub id: String,
    pub name: String,
    pub address: String,
}

impl ClientName {
    /// How to name it in a command pasted into a shell: the name if it is a plain word, else the id, as
    /// the name is chosen by the peer.
    pub fn word(&self) -> &str {
        word(&self.id, &self.name)
    }
}

impl Client {
    /// As [`ClientName::word`].
    pub fn word(&self) -> &str {
        word(&self.id, &self.name)
    }
}

fn word<'a>(id: &'a str, name: &'a str) -> &'a str {
    let plain = |letter: u8| letter.is_ascii_alphanumeric() || b"._-".contains(&letter);
    let is_word =
        name.bytes().all(plain) && name.starts_with(|first: char| first.is_alphanumeric());
    // A name that looks like an id would address another client.
    if is_word && name.parse::<ClientId>().is_err() { name } else { id }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Client {
    pub id: String,
    pub name: String,
    pub address: String,
    pub kind: ClientKind,
    /// The protocol by which it registered: `nlm`, `nsm`, or one of the embedding program.
    pub protocol: String,
    pub state: ClientState,
    /// Seconds since its last message; absent if there was none since the server started.
    pub last_seen_seconds: Option<f64>,
    /// Whether its lock manager answers now; only with `probe=true`.
    pub answers: Option<bool>,
    pub registered_at: String,
    /// The server's epoch in which it registered.
    pub epoch: u64,
    /// The machine that is monitored: the client itself, or the one that SM_MON named.
    pub monitored_name: String,
    /// The NSM state of that machine; 0 if unknown.
    pub nsm_state: u32,
    /// What is called when the server restarts, and for SM_MON when the monitored machine reboots;
    /// absent for a client of the embedding program.
    pub callback: Option<Callback>,
    /// The private data of SM_MON, in hexadecimal; only for operators.
    pub private: Option<String>,
    pub locks: u64,
    pub shares: u64,
    pub waiting: u64,
    pub unconfirmed: u64,
    pub monitored: bool,
    /// Its locks are refused, and all locks and writes from its address and under its name.
    pub fenced: bool,
    /// New locks and writes are refused, because it or another client at its address is fenced.
    #[serde(default)]
    pub writes_refused: bool,
    /// Other clients at its address, which a fence keeps from locking and writing, too; absent in
    /// lists.
    #[serde(default)]
    pub same_address: Vec<ClientName>,
    pub crashed: bool,
    pub suspect: bool,
    /// Addresses of the server that it used.
    pub our_addresses: Vec<String>,
    /// A reboot notice that was not accepted.
    pub pending_reboot: Option<PendingReboot>,
    /// The pending notice of the server's restart.
    pub notice: Option<Notice>,
}

/// An RPC procedure of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Callback {
    pub address: String,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// Takes locks.
    Lock,
    /// Asked by SM_MON to be notified of reboots.
    Monitor,
    /// Of a protocol of the program that embeds the server.
    Other,
}

/// The worst state that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientState {
    /// Locks and writes are refused, by an operator's order.
    Fenced,
    /// It reported a reboot that could not be proven.
    RebootPending,
    /// Silent during the whole recovery window.
    Crashed,
    /// It may have rebooted, but there is no proof.
    Suspect,
    /// It has not reclaimed everything yet.
    Recovering,
    /// It holds or waits for locks.
    Active,
    Idle,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PendingReboot {
    pub source: String,
    pub name: String,
    /// The reported state; absent for FREE_ALL, which carries none.
    pub nsm_state: Option<u32>,
    /// Why it was not accepted.
    pub why: String,
    pub repeats: u32,
    pub since: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Notice {
    pub client: ClientName,
    pub attempts: u32,
    pub answered: bool,
    pub next_in_seconds: Option<f64>,
}

/// A held lock, a share reservation, or a waiter.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Lock {
    /// `k7f2`.
    pub id: String,
    pub kind: LockKind,
    pub state: LockState,
    pub client: ClientName,
    /// The client's id of the lock owner: a counter on Linux, a process id on others.
    pub owner: u32,
    /// The client's additional owner identification; empty unless the caller is an operator.
    pub owner_tag: String,
    pub mode: LockMode,
    pub start: u64,
    /// The last byte; absent if the lock extends to the end of the file.
    pub end: Option<u64>,
    pub since: String,
    pub age_seconds: f64,
    pub file: File,
    /// The held lock that blocks a waiter.
    pub blocked_by: Option<String>,
    /// Whether a waiter that does not answer is passed over; it keeps its place in the queue.
    pub passed_over: bool,
    /// What a share denies others: `none`, `read`, `write` or `read-write`.
    pub denies: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    Lock,
    Share,
    Waiter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LockState {
    Held,
    /// Recovered and not yet reclaimed.
    Unconfirmed,
    /// Not reclaimed in the window: released if another client requests it and its host does not
    /// answer.
    Releasable,
    /// Taken before a suspected reboot of its host.
    Suspect,
    /// From an inexact store: listed, but conflicts with nothing.
    Remembered,
    Waiting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LockMode {
    Read,
    Write,
    /// Shares only.
    ReadWrite,
    /// Shares only.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct File {
    /// The export containing it, if served now.
    pub export: Option<String>,
    /// Path relative to the export; absent if unknown, or if the caller is no operator.
    pub path: Option<String>,
    /// For display: the path, `inode N in EXPORT`, or for others than operators `file KEY in EXPORT`.
    pub shown: String,
    /// The same for every lock on one file.
    pub key: String,
}

/// One page of a list. Request the next one with `after=` and the value of `next`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Absent on the last page. With a filter, a page may be short or empty and still have a next one,
    /// as a request examines a limited number of entries.
    pub next: Option<String>,
    /// Number of entries without a filter.
    pub total: u64,
    /// Exports whose file systems did not answer, so that entries on their files may be missing; absent
    /// if the page is complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LockQuery {
    /// A client's id, name or address.
    pub client: Option<String>,
    /// For operators only: a file or directory, relative to an export or absolute on the server; or the end of the path of
    /// one locked file.
    pub path: Option<String>,
    pub state: Option<LockState>,
    /// At most 1,000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// `next` of the previous page.
    #[param(
        pattern = r"^(k[1-9a-hjkmnp-tv-z][0-9a-hjkmnp-tv-z]{0,11}|n[0-9a-f]{1,15}\.[0-3](\.[0-9a-f]{1,15}\.[0-9a-f]{1,15})?)$"
    )]
    pub after: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ClientQuery {
    pub state: Option<ClientState>,
    pub kind: Option<ClientKind>,
    /// A name, full or short: of the client, or of the machine that it monitors.
    pub name: Option<String>,
    /// At most 1,000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// `next` of the previous page.
    #[param(pattern = "^c[1-9a-hjkmnp-tv-z][0-9a-hjkmnp-tv-z]{0,11}$")]
    pub after: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// Number of past events to send first; with `Last-Event-ID`, all events after it are sent.
    #[param(maximum = 10000)]
    pub last: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ProbeQuery {
    /// Check whether the client's lock manager answers; takes up to 5 s.
    #[serde(default)]
    pub probe: bool,
}

/// Whom to notify of the server's last restart.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct NotifyQuery {
    /// An address, or a network of at most 1,024: `10.0.0.9`, `10.0.0.0/24`.
    pub to: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DryRunQuery {
    /// Report what would happen without doing it.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRebootQuery {
    /// Report what would happen without doing it.
    #[serde(default)]
    pub dry_run: bool,
    /// Release everything the client holds if no report of a reboot is pending. Without it such a
    /// request is refused.
    #[serde(default)]
    pub force: bool,
}

/// Reply to `DELETE /v1/locks/{id}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReleaseResult {
    pub dry_run: bool,
    /// The lock before its release.
    pub lock: Lock,
    /// The holder's client.
    pub client: Client,
    /// Locks granted to waiters as a result.
    pub granted: Vec<Lock>,
    /// Present if the holder may be alive and still rely on the lock.
    pub warning: Option<String>,
}

/// Reply to an action on a client.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClientActionResult {
    pub dry_run: bool,
    /// The client after the action, or before it if it was removed.
    pub client: Client,
    /// Number of locks and shares released.
    pub released: u64,
    /// For a fence: whom it hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hits: Option<FenceHits>,
}

/// Whom a fence hits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FenceHits {
    /// The clients of the fenced machine, by its name: they lose what they hold.
    pub machine: Vec<ClientName>,
    /// Its addresses: locks and writes from there are refused.
    pub addresses: Vec<String>,
    /// Other clients at these addresses: they keep what they hold, and can neither lock nor write.
    pub neighbours: Vec<ClientName>,
}

/// Reply to an action on the server.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ActionResult {
    /// What was done, in one sentence.
    pub done: String,
}

/// An event, streamed by `GET /v1/events` as `event: news`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Epoch and sequence number: `3617842-17`.
    pub id: String,
    pub at: String,
    pub level: Level,
    /// `grace-started`, `rebooted`, `released`, ...; listed in docs/operate.md.
    pub kind: String,
    /// The text of the log line.
    pub text: String,
    pub client: Option<ClientName>,
    /// The operator who caused it.
    pub by: Option<String>,
    /// Number of locks concerned.
    pub locks: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Debug,
    Info,
    Warn,
}

/// Streamed as `event: locks` at most four times a second while counts change; has no id and is not
/// replayed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LockCounts {
    pub locks: u64,
    pub shares: u64,
    pub waiting: u64,
    pub unconfirmed: u64,
    pub clients: u64,
}

/// An error, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    pub title: String,
    pub status: u16,
    /// For programs: `no-such-lock`, `no-such-client`, `no-such-path`, `ambiguous-lock`,
    /// `ambiguous-client`, `waiting`, `wrong-cursor`, `not-in-grace`, `busy`, `not-reloaded`,
    /// `forbidden`, `bad-request`, `not-found`, `method-not-allowed`, `standby`, `unavailable`,
    /// `unanswered`, `too-many`.
    pub code: String,
    /// What is wrong.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
}
