//! What the API says, as types: the server writes them, the command line reads them, and the
//! OpenAPI document is made from them.
//!
//! Ids are short words: `k7f2` is an entry (a lock, a share or a waiter; they are numbered
//! together), `c3` a client. Names and paths are bytes that peers chose: what is not printable is
//! escaped as `\x1b`. Times are RFC 3339 in UTC; ages are seconds, so that no two clocks have to
//! agree.

use keeper::identity::ClientId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// What `GET /v1/status` answers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub version: String,
    /// The host name of the server, or its name among the servers of one store.
    pub node: String,
    pub state: ServerState,
    /// One sentence: what is going on.
    pub summary: String,
    pub started_at: String,
    pub uptime_seconds: f64,
    /// Counts the starts; absent while standing by.
    pub epoch: Option<u64>,
    pub nsm_state: Option<u32>,
    pub store: StoreStatus,
    pub grace: Option<GraceStatus>,
    pub counts: Counts,
    /// What should worry somebody, worst first; empty if nothing should.
    pub health: Vec<Finding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerState {
    Serving,
    /// Serving, and clients are taking their locks back.
    Grace,
    /// The store does not work: locks wait.
    Stalled,
    /// Another server of the same store serves.
    Standby,
    /// Not serving yet.
    Starting,
}

impl ServerState {
    /// Whether clients are served, well or badly.
    pub fn serves(self) -> bool {
        !matches!(self, Self::Standby | Self::Starting)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StoreStatus {
    /// `embedded`, `memory` or `postgres`.
    pub kind: String,
    /// As the operator is shown it, without a password.
    pub shown: String,
    /// `process`, `power` or `none`.
    pub durability: String,
    /// Whether the recovered lock set was complete; if not, clients must reclaim.
    pub exact: bool,
    /// Seconds in which 99 of 100 commits were done; absent before the first.
    pub commit_p99_seconds: Option<f64>,
    /// Since when it has not worked.
    pub stalled_seconds: Option<f64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// Hosts and registrants.
    pub clients: u64,
    /// Held locks, unconfirmed ones too.
    pub locks: u64,
    pub shares: u64,
    pub waiting: u64,
    /// Locks and shares recovered, not yet reclaimed.
    pub unconfirmed: u64,
    /// Clients by what should worry somebody.
    pub fenced: u64,
    pub crashed: u64,
    pub suspect: u64,
    pub reboot_pending: u64,
    /// Notices of our restart that are not answered yet.
    pub notices_owed: u64,
}

/// As in `zpool status`: what is wrong, what to do, where to read on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// `LK103`: an anchor in docs/messages.md.
    pub code: String,
    pub severity: Severity,
    pub status: String,
    /// The command to run next.
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

/// What `GET /v1/grace` answers, also when there is none.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GraceStatus {
    pub active: bool,
    /// It ends early when all have reclaimed; with an inexact store it lasts the whole window.
    pub exact: bool,
    /// The whole window as long as `began` is false.
    pub remaining_seconds: f64,
    /// The window runs from the first call of a client that is not this machine.
    pub began: bool,
    /// Monitored locks and shares that are still missing.
    pub missing: u64,
    /// Requests that wait for its end.
    pub parked: u64,
    /// Hosts that have not reclaimed all they held, at most 100 of them; of an incomplete store, all
    /// who may have held something.
    pub expected: Vec<Expected>,
    /// How many such hosts there are.
    pub expected_total: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Expected {
    pub client: ClientName,
    pub unconfirmed: u64,
    /// How many notices it has been sent, and whether it answered one.
    pub notices: u32,
    pub answered: bool,
}

/// Enough to name a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientName {
    /// `c3`.
    pub id: String,
    pub name: String,
    pub address: String,
}

impl ClientName {
    /// What to call it in a command that people paste into a shell: a peer chose the name, so only
    /// a plain word will do; else the id.
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
    // One that calls itself as another's id is would have the other fenced.
    if is_word && name.parse::<ClientId>().is_err() { name } else { id }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Client {
    pub id: String,
    pub name: String,
    pub address: String,
    pub kind: ClientKind,
    pub state: ClientState,
    /// When it was last heard of since the server started.
    pub last_seen_seconds: Option<f64>,
    /// Only when asked for with `probe=true`: whether its lock manager answers now.
    pub answers: Option<bool>,
    pub registered_at: String,
    /// Its own NSM state; 0 if it never said.
    pub nsm_state: u32,
    pub locks: u64,
    pub shares: u64,
    pub waiting: u64,
    pub unconfirmed: u64,
    pub monitored: bool,
    pub fenced: bool,
    pub crashed: bool,
    pub suspect: bool,
    /// Those of our addresses that it used.
    pub our_addresses: Vec<String>,
    /// A reboot notice that was not believed.
    pub pending_reboot: Option<PendingReboot>,
    /// The notice of our restart that it is being sent.
    pub notice: Option<Notice>,
    /// Whom a registrant watches.
    pub watches: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// It takes locks.
    Host,
    /// It asked by SM_MON to be told of reboots.
    Registrant,
}

/// The first that applies, from the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientState {
    /// Shut out by an operator.
    Fenced,
    /// It is said to have rebooted, and that could not be proven.
    RebootPending,
    /// Not heard of in the whole recovery window.
    Crashed,
    /// Signs of a reboot without proof.
    Suspect,
    /// It has not reclaimed everything it held.
    Recovering,
    /// It holds or awaits something.
    Active,
    Idle,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PendingReboot {
    pub source: String,
    pub name: String,
    pub nsm_state: u32,
    /// Why it was not believed.
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

/// A held lock, a share reservation, or somebody who waits for a lock.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Lock {
    /// `k7f2`.
    pub id: String,
    pub kind: LockKind,
    pub state: LockState,
    pub client: ClientName,
    /// The client's number for who on it holds the lock: Linux counts them, others use process ids.
    pub owner: u32,
    /// What the client adds to tell its owners apart.
    pub owner_tag: String,
    pub mode: LockMode,
    pub start: u64,
    /// The last byte; absent if it reaches to the end of the file, however that grows.
    pub end: Option<u64>,
    pub since: String,
    pub age_seconds: f64,
    pub file: File,
    /// What a waiter waits for, if a held lock is in its way.
    pub blocked_by: Option<String>,
    /// A waiter that does not answer is passed over; it keeps its place.
    pub passed_over: bool,
    /// What a share denies to others: `none`, `read`, `write` or `read-write`.
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
    /// Recovered, not yet reclaimed.
    Unconfirmed,
    /// Not reclaimed in the window: goes if somebody wants it and its host does not answer.
    Releasable,
    /// Taken before its host seems to have rebooted.
    Suspect,
    /// Of an incomplete store: shown, denies nobody.
    Remembered,
    Waiting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LockMode {
    Read,
    Write,
    /// Only shares.
    ReadWrite,
    /// Only shares.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct File {
    /// The export it was reached by, if it is served now.
    pub export: Option<String>,
    /// Below the export; absent if it was never seen by name.
    pub path: Option<String>,
    /// What to print: the path, or `inode N in EXPORT`.
    pub shown: String,
    /// The same for every lock on one file.
    pub key: String,
}

/// One page of a list. The next one is asked for with `after=` and the value of `next`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Absent on the last page. With a filter a page may be short, even empty, and have a next one:
    /// only so many are looked at for one question.
    pub next: Option<String>,
    /// How many there are without a filter.
    pub total: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LockQuery {
    /// A client's id, name or address.
    pub client: Option<String>,
    /// A file or directory: below an export, or absolute on the server.
    pub path: Option<String>,
    pub state: Option<LockState>,
    /// At most 1,000; 100 if not given.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// `next` of the page before.
    #[param(pattern = "^(k[1-9a-hjkmnp-tv-z][0-9a-hjkmnp-tv-z]{0,11}|n[0-9]{1,9})$")]
    pub after: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ClientQuery {
    pub state: Option<ClientState>,
    /// At most 1,000; 100 if not given.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// `next` of the page before.
    #[param(pattern = "^c[1-9a-hjkmnp-tv-z][0-9a-hjkmnp-tv-z]{0,11}$")]
    pub after: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// How many of the kept events to send first; all that came after `Last-Event-ID` if that is
    /// given.
    #[param(maximum = 10000)]
    pub last: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ProbeQuery {
    /// Ask the client's lock manager whether it answers; takes up to 5 s.
    #[serde(default)]
    pub probe: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DryRunQuery {
    /// Say what would happen, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What `DELETE /v1/locks/{id}` answers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Released {
    pub dry_run: bool,
    /// As it was.
    pub lock: Lock,
    /// What the holder's client is, as far as is known.
    pub client: Client,
    /// Who has it now, or would have.
    pub granted: Vec<Lock>,
    /// If the holder may still believe in its lock.
    pub warning: Option<String>,
}

/// What an action on a client answers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClientDone {
    pub dry_run: bool,
    /// As it is now; as it was if it is gone.
    pub client: Client,
    /// Locks and shares that went, or would go.
    pub released: u64,
}

/// What an action on the server answers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// One sentence: what was done.
    pub done: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Export {
    pub path: String,
    /// `rw` or `ro`.
    pub access: String,
    pub clients: Vec<String>,
    /// `none`, `root` or `all`.
    pub squash: String,
    pub reserved_ports: bool,
}

/// Something that happened, as `GET /v1/events` streams it (`event: news`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Epoch and number in it: `3617842-17`.
    pub id: String,
    pub at: String,
    pub level: Level,
    /// `grace-started`, `rebooted`, `released`, ...: docs/operate.md lists them.
    pub kind: String,
    /// The sentence that is in the log.
    pub text: String,
    pub client: Option<ClientName>,
    /// Who did it, if an operator did.
    pub by: Option<String>,
    /// How many locks it concerns, where it concerns any.
    pub locks: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Debug,
    Info,
    Warn,
}

/// Streamed at most four times a second while locks come and go (`event: locks`; it has no id and
/// is not kept).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tally {
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
    /// `too-many`.
    pub code: String,
    /// What is wrong.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
}
