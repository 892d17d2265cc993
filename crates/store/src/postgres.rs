//! The store in PostgreSQL, for sites with more than one server. The servers share nothing but the
//! database: it keeps the locks, records which server leads, and refuses the writes of all others.
//!
//! ```text
//! state     one row: epoch, token of the last batch, nonce, session     written by every batch
//! seat      one row: the leader, its timeline, heartbeat and lease      written by the heartbeat
//! nodes     the standbys                                                written by standbys
//! vouched   one row: on which timeline the rows were complete           exact or open?
//! intact    one row, unlogged: a crash of the database removes it       exact or roster?
//! clients locks shares                                                  the keeper's rows
//! keys      secrets that all nodes share
//! ```
//!
//! A batch is one statement in one round trip (`batch.rs`), on condition that `nonce` and `session`
//! are this server's (I12). The nonce is drawn when the leadership is taken, `session` counts up when
//! the leader reconnects: a statement that arrives late from a former leader or over an abandoned
//! connection changes nothing. An unknown commit is settled the same way: a new session first, then
//! the token.
//!
//! What the database has is exact, with three exceptions (`trust.rs`): it acknowledged before it
//! synced (`weak`) and has crashed since (`intact` is empty), so the locks are a roster; it failed over
//! to a replica, which begins a new timeline, and it is not known that the replica had every
//! acknowledged batch; or its rows were restored from a dump. In the last two hosts may be missing as
//! well: the store is open. Either lasts until a grace period has ended durably.
//!
//! After a failover no server leads. A leader that lives compares its last token with that of the
//! promoted replica; it retakes the leadership if nothing is missing, and writes its own state back if
//! batches are missing and no other server can have led meanwhile (`rewrite.rs`).
//!
//! There are two connections, one for commits and one for the heartbeat, and no pool: a pool
//! reconnects silently, without the new session that fencing needs.

mod batch;
mod columns;
mod connection;
mod heartbeat;
mod leader_watch;
mod leadership;
mod load;
mod mark;
mod migrations;
mod passfile;
mod password;
mod process;
mod rewrite;
mod roster;
mod rows;
mod runtime;
mod schema;
mod server_durability;
mod session;
mod tls;
mod trust;
mod url;
mod vouch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};

use keeper::change::{Change, Exactness, Snapshot};

use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::{CommitOutcome, Store, Token};
use batch::BatchRows;
use connection::{Backend, CONNECT_MAX, Database};
use heartbeat::Heartbeat;
use leadership::{Acquisition, Candidate};
use load::LoadedState;
use mark::MarkFile;
use runtime::Runtime;
use session::Session;

use crate::lease::{self, Lease};
pub use leader_watch::{LeaderWatch, QueryTimes, TakeoverDecision};
pub use leadership::{COMMAND_SUFFIX, Fencing, Leader, Leadership, Standby};
pub use process::ProcessIdentity;

const LEASE: Duration = Duration::from_secs(3);
/// The shortest lease: a server that paused for a moment keeps it.
pub const LEASE_MIN: Duration = Duration::from_millis(600);
/// The longest lease, and so the longest wait of a standby.
pub const LEASE_MAX: Duration = Duration::from_secs(300);
const SLOW_AFTER: Duration = Duration::from_secs(300);

/// How to reach the database, and how this server appears in it.
#[derive(Clone)]
pub struct PostgresSettings {
    /// `postgres://user@host:port/database?sslmode=verify-full`, or `host=/run/postgresql dbname=...`.
    pub url: String,
    /// A file that holds the password and nothing else, for a url without one. By default libpq's
    /// passfile is used.
    pub password_file: Option<PathBuf>,
    /// The schema; by default that of the url's `search_path`, else `lockkeeper`.
    pub schema: Option<String>,
    /// What an acknowledged batch survives.
    pub durability: Durability,
    /// The name of this server among those that share the store.
    pub node: String,
    /// How long a leader that does not renew its lease is waited for, 0.6 s to 5 min.
    pub lease: Duration,
    /// To which replicas the database fails over.
    pub failover: Failover,
    /// This server is one of a pair: another one may lead while this one is cut off.
    pub pair: bool,
    /// A directory that a restart of the machine empties; keeps the last acknowledged token, for a
    /// start after a failover of the database.
    pub run_directory: Option<PathBuf>,
    /// Another transaction that has been open for longer is reported by [`Lease::warning`]: it slows
    /// every batch down.
    pub slow_after: Duration,
}

/// To which replicas the database fails over: the operator's promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failover {
    /// To any: acknowledged batches may be missing afterwards.
    #[default]
    Asynchronous,
    /// Only to synchronous ones (`synchronous_standby_names`): nothing is missing afterwards (B6.63).
    Synchronous,
}

impl PostgresSettings {
    /// Settings with the default schema and a lease of 3 s.
    pub fn new(url: &str, node: &str, durability: Durability) -> Self {
        Self {
            url: url.to_owned(),
            password_file: None,
            schema: None,
            durability,
            node: node.to_owned(),
            lease: LEASE,
            failover: Failover::default(),
            pair: false,
            run_directory: None,
            slow_after: SLOW_AFTER,
        }
    }

    /// Whether they can be used, as far as that can be known without the database: the url, and the
    /// files of passwords and certificates that each connection reads.
    pub fn verify(&self) -> Result<(), StoreError> {
        self.check()?;
        Database::parse(self)?.verify()
    }

    fn check(&self) -> Result<(), StoreError> {
        let bad = |what: String| Err(StoreError::BadSettings(what));
        if self.node.is_empty() || self.node.len() > 255 || self.node.contains('\0') {
            return bad(format!("{:?} cannot be the name of a node (1 to 255 bytes)", self.node));
        }
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            let lease = self.lease;
            return bad(format!(
                "a lease of {lease:?} is not between {LEASE_MIN:?} and {LEASE_MAX:?}"
            ));
        }
        Ok(())
    }
}

/// A connection to the store in PostgreSQL: of a reader at first, of the leader after
/// [`Postgres::take_leadership`]. Dropping it releases the leadership.
pub struct Postgres {
    settings: PostgresSettings,
    database: Database,
    session: Option<Session>,
    connections_opened: u64,
    /// Backends of connections that were given up; they may still be running a statement.
    abandoned: Vec<Backend>,
    /// Present while this server leads.
    writer: Option<Writer>,
    warnings: Vec<String>,
    /// Dropped last: the other fields may need it to end.
    runtime: Runtime,
}

/// The state of a leader.
struct Writer {
    /// `state.nonce` while this server leads.
    nonce: i64,
    /// A nonce with which this server tries to retake the leadership, and may have succeeded; 0 if it
    /// does not. Shared with the heartbeat.
    candidate: Arc<AtomicI64>,
    /// `state.writer` while this server leads.
    number: i64,
    /// `state.id`
    store: String,
    lease: Lease,
    /// Stops when the writer is dropped.
    heartbeat: Option<Heartbeat>,
    /// The last batch that is known to be in the store.
    done: Token,
    /// The same, for the heartbeat.
    acknowledged: Arc<AtomicU64>,
    mark: Option<MarkFile>,
    /// A batch whose outcome is unknown.
    unsettled: Option<Token>,
    /// How far the rows can be trusted, until `intact` is written.
    exactness: Exactness,
    intact: IntactRow,
    replaced: Option<(String, String)>,
}

/// The rows of `intact` and `vouched`, by which a leader says that the store is exact. One that is not
/// gets them when a grace period has ended durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntactRow {
    Written,
    Due,
    Withheld,
}

impl Postgres {
    /// Connects, and creates or migrates the tables. The result may only read, until
    /// [`Postgres::take_leadership`].
    pub fn connect(settings: PostgresSettings) -> Result<Self, StoreError> {
        settings.check()?;
        let database = Database::parse(&settings)?;
        let runtime = Runtime::start("lockkeeper-postgres")
            .map_err(|error| StoreError::Unreadable(format!("cannot start a thread: {error}")))?;
        let first = runtime.block_on(async {
            let mut connection = database.open(CONNECT_MAX).await?;
            database.schema.prepare(&mut connection.client, &database).await?;
            Ok::<_, StoreError>(connection)
        })?;
        let mut store = Self {
            settings,
            database,
            session: None,
            connections_opened: 0,
            abandoned: Vec::new(),
            writer: None,
            warnings: Vec::new(),
            runtime,
        };
        store.ensure_session()?;
        // Two open connections have two backends, unless a pooler shares one among them.
        if store.session.as_ref().is_some_and(|second| second.connection.backend == first.backend) {
            return Err(StoreError::Pooled { location: store.database.location.clone() });
        }
        store.runtime.block_on(async { drop(first) });
        Ok(store)
    }

    /// The settings of this connection.
    pub fn settings(&self) -> &PostgresSettings {
        &self.settings
    }

    /// Settings of the database that weaken durability, and files that are ignored; each with how to
    /// change it.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.iter().cloned().chain(self.database.warnings()).collect()
    }

    /// Reads which server leads and which stand by.
    pub fn leadership(&mut self) -> Result<Leadership, StoreError> {
        self.ensure_session()?;
        let number = self.connections_opened;
        self.run(async |session: &Session| Leadership::read(&session.connection, number).await)
    }

    /// Reads the leadership for `watch`, which decides whether it may be taken with
    /// [`Postgres::take_leadership_if_unchanged`].
    pub fn observe_leader(
        &mut self,
        watch: &mut LeaderWatch,
    ) -> Result<(Leadership, TakeoverDecision), StoreError> {
        let sent = Instant::now();
        let leadership = self.leadership();
        let times = QueryTimes { sent, answered: Instant::now() };
        let decision = watch.observe(times, leadership.as_ref().ok());
        leadership.map(|leadership| (leadership, decision))
    }

    /// Becomes the leader unconditionally. The writes of the previous leader are refused from here
    /// on.
    pub fn take_leadership(&mut self) -> Result<Lease, StoreError> {
        self.acquire(None)?.ok_or(StoreError::NotLeader)
    }

    /// Becomes the leader, unless the leader has made progress since `observed` was read or another
    /// node was faster: then `None`. A previous leader that may still run is listed in
    /// [`Leadership::unfenced`] until [`Postgres::set_fenced`].
    pub fn take_leadership_if_unchanged(
        &mut self,
        observed: &Leadership,
    ) -> Result<Option<Lease>, StoreError> {
        let leader = observed.leader.as_ref();
        let process = leader.and_then(|leader| leader.process.as_ref());
        let expected = leadership::ExpectedLeader {
            nonce: rows::signed(leader.map_or(0, |leader| leader.nonce)),
            heartbeat: Some(rows::signed(leader.map_or(0, |leader| leader.heartbeat))),
            has_exited: process.is_some_and(ProcessIdentity::has_exited),
        };
        self.acquire(Some(&expected))
    }

    /// Removes a node from [`Leadership::unfenced`], as it can do no more harm, and records `author`,
    /// who said so. False if it was not listed. Does not require the leadership.
    pub fn set_fenced(&mut self, node: &str, author: &str) -> Result<bool, StoreError> {
        self.ensure_session()?;
        self.run(async |session: &Session| {
            leadership::set_fenced(&session.connection, node, author).await
        })
    }

    /// The last nodes that were removed from [`Leadership::unfenced`].
    pub fn fencings(&mut self) -> Result<Vec<Fencing>, StoreError> {
        self.ensure_session()?;
        self.run(async |session: &Session| leadership::fencings(&session.connection).await)
    }

    fn acquire(
        &mut self,
        expected: Option<&leadership::ExpectedLeader>,
    ) -> Result<Option<Lease>, StoreError> {
        self.writer = None;
        self.ensure_session()?;
        let (node, term) = (self.settings.node.clone(), self.settings.lease);
        let candidate = Candidate { node: &node, lease: term, nonce: fresh_nonce()?, after: 0 };
        let sent = lease::boottime();
        let acquired = self.run_unblocking(async |session: &Session| {
            let synchronous = session.server_durability.synchronous_commit(true);
            leadership::acquire(&session.connection, &candidate, synchronous, expected).await
        })?;
        let Some(Acquisition { fencing, writer: number }) = acquired else {
            return Ok(None);
        };
        let promises = self.promises();
        let found =
            self.run(async |session: &Session| vouch::find(&session.connection, promises).await)?;
        let vouch::Found { mut evidence, store, former, pair } = found;
        if let Some(directory) = &self.settings.run_directory {
            if !pair && !self.settings.pair {
                evidence.known = MarkFile::read(directory, &store, former);
            }
            // It must not outlive the batches that follow.
            mark::remove(directory, &store);
        }
        let exactness = evidence.exactness();
        let exact = exactness.is_exact();
        self.adopt_fencing(fencing, if exact { IntactRow::Due } else { IntactRow::Withheld })?;
        self.writer = Some(Writer {
            nonce: fencing.nonce,
            candidate: Arc::default(),
            number,
            store,
            lease: Lease::new(term, sent),
            heartbeat: None,
            done: evidence.token,
            acknowledged: Arc::new(AtomicU64::new(evidence.token.0)),
            mark: None,
            unsettled: None,
            exactness,
            intact: if exact { IntactRow::Written } else { IntactRow::Withheld },
            replaced: None,
        });
        self.start_heartbeat()?;
        Ok(self.writer.as_ref().map(|writer| writer.lease.clone()))
    }

    /// Gives the leadership up, so that a standby need not wait for the lease. Does nothing if this
    /// server does not lead.
    pub fn release_leadership(&mut self) -> Result<(), StoreError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.lease.end();
        writer.heartbeat = None;
        let nonce = writer.nonce;
        self.ensure_session()?;
        // Changes nothing if another node leads already.
        self.run(async |session: &Session| leadership::release(&session.connection, nonce).await)?;
        self.writer = None;
        if let Some(session) = &mut self.session {
            session.fencing = None;
        }
        Ok(())
    }

    /// Registers this node as a standby. Must be repeated about every sixth of a lease.
    pub fn stand_by(&mut self) -> Result<(), StoreError> {
        self.ensure_session()?;
        let node = self.settings.node.clone();
        self.run(async |session: &Session| leadership::stand_by(&session.connection, &node).await)
    }

    /// Removes this node from the standbys.
    pub fn stop_standing_by(&mut self) -> Result<(), StoreError> {
        self.ensure_session()?;
        let node = self.settings.node.clone();
        self.run(async |session: &Session| {
            leadership::stop_standing_by(&session.connection, &node).await
        })
    }

    /// The secret of this name, if there is one.
    pub fn key(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT value FROM keys WHERE name = $1";
        self.ensure_session()?;
        let row = self.run(async |session: &Session| {
            session.connection.client.query_opt(sql, &[&name]).await
        });
        Ok(row?.map(|row| row.get(0)))
    }

    /// The secret of this name; `fresh`, durably, if there was none.
    pub fn key_or_insert(&mut self, name: &str, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let insert = "INSERT INTO keys (name, value) SELECT $1, $2 \
             WHERE set_config('synchronous_commit', $3::text, true) <> '' \
             ON CONFLICT DO NOTHING";
        self.ensure_session()?;
        self.run(async |session: &Session| {
            let client = &session.connection.client;
            let synchronous = session.server_durability.synchronous_commit(true);
            client.execute(insert, &[&name, &fresh, &synchronous]).await?;
            let row = client.query_one("SELECT value FROM keys WHERE name = $1", &[&name]).await?;
            row.try_get(0)
        })
    }
}

/// A fencing token that no leader had before.
fn fresh_nonce() -> Result<i64, StoreError> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        // 0 is that of tables in which no server has led.
        Ok(8) => Ok(i64::from_ne_bytes(bytes) | 1),
        _ => Err(StoreError::Unwritable("the kernel has no random numbers".into())),
    }
}

impl Drop for Postgres {
    /// Releases the leadership even without a clean stop, if possible: the next leader then need
    /// neither wait for this one nor fence it.
    fn drop(&mut self) {
        if self.writer.as_ref().is_some_and(|writer| writer.replaced.is_none()) {
            let _ = self.release_leadership();
        }
    }
}

impl Store for Postgres {
    fn release(&mut self) {
        // If it fails, a standby takes over when the lease has expired.
        let _ = self.release_leadership();
    }

    fn load(&mut self) -> Result<Snapshot, StoreError> {
        if self.writer.as_ref().is_some_and(|writer| writer.unsettled.is_some()) {
            self.last_token()?;
        }
        let LoadedState { mut snapshot, nonce } = self.load_all()?;
        match &self.writer {
            Some(writer) if writer.nonce != nonce => Err(self.explain_refusal()),
            Some(writer) => {
                snapshot.exactness = snapshot.exactness.max(writer.exactness);
                Ok(snapshot)
            }
            None => Ok(snapshot),
        }
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> CommitOutcome {
        if let Err(error) = self.may_write().and_then(|()| self.ensure_session()) {
            return CommitOutcome::NotWritten(error);
        }
        let rows = BatchRows::of(changes);
        let must_sync = self.settings.durability.must_sync(changes);
        let written =
            self.try_run_within(rows.time_limit(), async |session: &Session| {
                match session.fencing {
                    Some(fencing) => rows.write(session, fencing, token, must_sync).await,
                    None => Ok(false),
                }
            });
        match written {
            Ok(true) => {
                self.committed(changes, token);
                CommitOutcome::Done
            }
            Ok(false) => CommitOutcome::NotWritten(self.explain_refusal()),
            Err(failure) if failure.aborted => CommitOutcome::NotWritten(failure.error),
            Err(failure) => {
                if let Some(writer) = &mut self.writer {
                    writer.unsettled = Some(token);
                }
                CommitOutcome::Unknown(failure.error)
            }
        }
    }

    /// An unknown commit has closed its connection, so `ensure_session` begins a new session, which
    /// fences the lost statement: the token that is read then stays true.
    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.ensure_session()?;
        let (token, nonce) = self.run(async |session: &Session| session.last_token().await)?;
        if self.writer.as_ref().is_some_and(|own| own.nonce != nonce) {
            return Err(self.explain_refusal());
        }
        self.check_last_token(token)?;
        self.acknowledge(token);
        Ok(token)
    }

    fn rewrite(&mut self, saved: &Snapshot, token: Token) -> CommitOutcome {
        self.write_back(saved, token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.may_write()?;
        self.ensure_session()?;
        if self.clear_all(force)? { Ok(()) } else { Err(self.explain_refusal()) }
    }
}
