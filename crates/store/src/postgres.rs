//! The store in PostgreSQL, for sites with more than one server. The database is the only thing that
//! they share: it keeps the locks, says who serves, and refuses everybody else's writes.
//!
//! ```text
//! state     one row: epoch, token of the last batch, writer, session   written by every batch
//! seat      one row: who serves, its heartbeat and lease               written by the heartbeat
//! nodes     who waits for the seat                                     written by standbys
//! intact    one row that a crash of the database takes away            exact or roster?
//! clients locks shares                                                 the keeper's rows
//! keys      secrets that all nodes share
//! ```
//!
//! A batch is one statement in one round trip (`batch.rs`), on condition that `writer` is ours (I12)
//! and `session` is that of this connection. `writer` counts up when the seat is taken, `session`
//! when the writer connects anew: so what a former holder or a former connection may still deliver
//! changes nothing. That is also how a lost reply is settled: the new session first, then the token.
//!
//! What the database has, it has exactly; unless it acknowledged before it synced (`weak`) and has
//! crashed since (`intact` is empty then), or lacks a batch that we know it had: then the locks are a
//! roster, until a grace period has ended durably.
//!
//! Two connections: the committer's, and that of the heartbeat. No pool: there is one committer, and
//! what a pool does when a connection breaks is exactly what must not be done here.

mod batch;
mod columns;
mod connection;
mod engine;
mod heartbeat;
mod line;
mod load;
mod migrations;
mod process;
mod promises;
mod rows;
mod schema;
mod seat;
mod watch;

use std::time::{Duration, Instant};

use keeper::change::{Change, Snapshot};

use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::{Committed, Store, Token};
use batch::Batch;
use connection::{Address, Backend, CONNECT_MAX};
use engine::Engine;
use heartbeat::Heartbeat;
use line::Line;

use crate::lease::{self, Lease};
pub use process::Process;
pub use seat::{COMMAND, Holder, Seat, Standby};
pub use watch::{Moment, Verdict, Watch};

const LEASE: Duration = Duration::from_secs(3);
const LEASE_MIN: Duration = Duration::from_millis(600);
const LEASE_MAX: Duration = Duration::from_secs(300);

#[derive(Clone)]
pub struct PostgresSettings {
    /// `postgres://user:password@host:port/database`, or `host=/run/postgresql dbname=...`.
    pub url: String,
    /// The schema; without one that of the url's `search_path`, else `lockkeeper`.
    pub schema: Option<String>,
    pub durability: Durability,
    /// The name of this server among those that share the store.
    pub node: String,
    pub lease: Duration,
}

impl PostgresSettings {
    pub fn new(url: &str, node: &str, durability: Durability) -> Self {
        Self { url: url.to_owned(), schema: None, durability, node: node.to_owned(), lease: LEASE }
    }

    fn check(&self) -> Result<(), StoreError> {
        let bad = |what: String| Err(StoreError::BadSettings(what));
        if self.node.is_empty() || self.node.len() > 255 || self.node.contains('\0') {
            return bad(format!("{:?} cannot be the name of a node (1 to 255 bytes)", self.node));
        }
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            let lease = self.lease;
            return bad(format!(
                "a lease of {lease:?} is not within {LEASE_MIN:?} and {LEASE_MAX:?}"
            ));
        }
        Ok(())
    }
}

pub struct Postgres {
    settings: PostgresSettings,
    address: Address,
    line: Option<Line>,
    /// Counts connections.
    opened: u64,
    /// Who served our former connections over there, and may still be at work.
    former: Vec<Backend>,
    /// What makes us the writer, once the seat is taken.
    title: Option<Title>,
    remarks: Vec<String>,
    /// Last: all the others may need it to end.
    engine: Engine,
}

/// What we know as the writer.
struct Title {
    writer: i64,
    lease: Lease,
    /// Ends with the title.
    heartbeat: Option<Heartbeat>,
    /// The last batch that is known to be in the store.
    done: Token,
    /// A batch of which nobody knows.
    unsettled: Option<Token>,
    vouched: Vouched,
    replaced: Option<(String, String)>,
}

/// Whether the store says of itself that it is exact. A roster stays one until its grace has ended
/// durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vouched {
    Given,
    Due,
    Withheld,
}

impl Postgres {
    /// Connects and brings the tables up to date. Not the writer yet: that is [`Postgres::take`].
    pub fn connect(settings: PostgresSettings) -> Result<Self, StoreError> {
        settings.check()?;
        let address = Address::parse(&settings.url, settings.schema.as_deref(), &settings.node)?;
        let engine = Engine::start("lockkeeper-postgres")
            .map_err(|error| StoreError::Unreadable(format!("no thread for it: {error}")))?;
        engine.wait(async {
            let mut connection = address.open(CONNECT_MAX).await?;
            address.schema.prepare(&mut connection.client, &address).await
        })?;
        let mut store = Self {
            settings,
            address,
            line: None,
            opened: 0,
            former: Vec::new(),
            title: None,
            remarks: Vec::new(),
            engine,
        };
        store.line()?;
        Ok(store)
    }

    pub fn settings(&self) -> &PostgresSettings {
        &self.settings
    }

    /// What a person should know of the server's settings.
    pub fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    /// Who serves, and who waits.
    pub fn seat(&mut self) -> Result<Seat, StoreError> {
        self.line()?;
        let number = self.opened;
        self.ask(async |line: &Line| Seat::read(&line.connection, number).await)
    }

    /// One look at the seat for a watch, which says whether it may be taken as it was seen.
    pub fn watch(&mut self, watch: &mut Watch) -> Result<(Seat, Verdict), StoreError> {
        let asked = Instant::now();
        let seat = self.seat();
        let moment = Moment { asked, answered: Instant::now() };
        let verdict = watch.look(moment, seat.as_ref().ok());
        seat.map(|seat| (seat, verdict))
    }

    /// Becomes the writer, whoever was: the former one's writes are refused from here on.
    pub fn take(&mut self) -> Result<Lease, StoreError> {
        match self.take_if(None)? {
            Some(lease) => Ok(lease),
            None => Err(StoreError::NoSeat),
        }
    }

    /// Becomes the writer if nothing has happened since this look at the seat: a holder that shows
    /// life again keeps it, and of two takers one gets it. One that is not certain to have ended is
    /// remembered as [`Seat::unfenced`] until [`Postgres::fenced`].
    pub fn take_as_seen(&mut self, seat: &Seat) -> Result<Option<Lease>, StoreError> {
        let holder = seat.holder.as_ref();
        let process = holder.and_then(|holder| holder.process.as_ref());
        let seen = seat::Seen {
            writer: rows::signed(holder.map_or(0, |holder| holder.writer)),
            heartbeat: rows::signed(holder.map_or(0, |holder| holder.heartbeat)),
            is_gone: process.is_some_and(Process::is_gone),
        };
        self.take_if(Some(&seen))
    }

    /// Whoever was taken to be dead has been made harmless.
    pub fn fenced(&mut self) -> Result<(), StoreError> {
        let Some(title) = &self.title else { return Err(StoreError::NoSeat) };
        let writer = title.writer;
        self.line()?;
        self.ask(async |line: &Line| seat::fenced(&line.connection, writer).await)
    }

    fn take_if(&mut self, seen: Option<&seat::Seen>) -> Result<Option<Lease>, StoreError> {
        self.title = None;
        self.line()?;
        let (node, term) = (self.settings.node.clone(), self.settings.lease);
        let sent = lease::boottime();
        let taken = self.ask_even_if_blocked(async |line: &Line| {
            let synchronous = line.promises.synchronous(true);
            seat::take(&line.connection, &node, term, synchronous, seen).await
        })?;
        let Some(taken) = taken else { return Ok(None) };
        let (pen, done) = (taken.pen, taken.token);
        let vouched = if taken.roster { Vouched::Withheld } else { Vouched::Due };
        self.write_with(pen, vouched)?;
        let lease = Lease::new(term, sent);
        let heartbeat = Heartbeat::start(self.address.clone(), pen.writer, lease.clone())
            .map_err(|error| StoreError::Unwritable(format!("no heartbeat: {error}")))?;
        self.title = Some(Title {
            writer: pen.writer,
            lease: lease.clone(),
            heartbeat: Some(heartbeat),
            done,
            unsettled: None,
            vouched: if taken.roster { Vouched::Withheld } else { Vouched::Given },
            replaced: None,
        });
        Ok(Some(lease))
    }

    /// A clean stop: whoever waits may have the seat at once. Without it the seat is free when the
    /// lease has run out.
    pub fn release(&mut self) -> Result<(), StoreError> {
        let Some(title) = &mut self.title else { return Ok(()) };
        title.lease.end();
        title.heartbeat = None;
        let writer = title.writer;
        self.line()?;
        // Nothing to say if it is another's: then that one has it already.
        self.ask(async |line: &Line| seat::release(&line.connection, writer).await)?;
        self.title = None;
        if let Some(line) = &mut self.line {
            line.pen = None;
        }
        Ok(())
    }

    /// Says that this node waits for the seat; to be repeated about every sixth of a lease.
    pub fn stand_by(&mut self) -> Result<(), StoreError> {
        self.line()?;
        let node = self.settings.node.clone();
        self.ask(async |line: &Line| seat::stand_by(&line.connection, &node).await)
    }

    pub fn stop_standing_by(&mut self) -> Result<(), StoreError> {
        self.line()?;
        let node = self.settings.node.clone();
        self.ask(async |line: &Line| seat::stop_standing_by(&line.connection, &node).await)
    }

    /// The secret of this name, if there is one.
    pub fn key(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT value FROM keys WHERE name = $1";
        self.line()?;
        let row =
            self.ask(async |line: &Line| line.connection.client.query_opt(sql, &[&name]).await);
        Ok(row?.map(|row| row.get(0)))
    }

    /// The secret of this name; `fresh` becomes it if there is none yet.
    pub fn key_or_insert(&mut self, name: &str, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let insert = "INSERT INTO keys (name, value) SELECT $1, $2 \
             WHERE set_config('synchronous_commit', $3::text, true) <> '' \
             ON CONFLICT DO NOTHING";
        self.line()?;
        self.ask(async |line: &Line| {
            let client = &line.connection.client;
            client.execute(insert, &[&name, &fresh, &line.promises.synchronous(true)]).await?;
            let row = client.query_one("SELECT value FROM keys WHERE name = $1", &[&name]).await?;
            row.try_get(0)
        })
    }
}

/// One that ends without a clean stop leaves the seat too, if it still can: nobody needs to wait for
/// it, or to fence it.
impl Drop for Postgres {
    fn drop(&mut self) {
        let replaced = self.title.as_ref().is_none_or(|title| title.replaced.is_some());
        if !replaced {
            let _ = self.release();
        }
    }
}

impl Store for Postgres {
    fn leave(&mut self) {
        // If it fails, whoever waits has the seat when the lease has run out.
        let _ = self.release();
    }

    fn load(&mut self) -> Result<Snapshot, StoreError> {
        if self.title.as_ref().is_some_and(|title| title.unsettled.is_some()) {
            self.last_token()?;
        }
        let loaded = self.load_all()?;
        match &self.title {
            Some(title) if title.writer != loaded.writer => Err(self.refused()),
            _ => Ok(loaded.snapshot),
        }
    }

    fn commit(&mut self, changes: &[Change], token: Token) -> Committed {
        if let Err(error) = self.may_write().and_then(|()| self.line()) {
            return Committed::NotWritten(error);
        }
        let batch = Batch::of(changes);
        let must_sync = self.settings.durability.must_sync(changes);
        let written = self.try_ask_for(batch.patience(), async |line: &Line| {
            batch.write(line, token, must_sync).await
        });
        match written {
            Ok(true) => {
                self.committed(changes, token);
                Committed::Done
            }
            Ok(false) => Committed::NotWritten(self.refused()),
            Err(failure) if failure.aborted => Committed::NotWritten(failure.error),
            Err(failure) => {
                if let Some(title) = &mut self.title {
                    title.unsettled = Some(token);
                }
                Committed::Unknown(failure.error)
            }
        }
    }

    /// After an `Unknown` the connection is gone, so `line` opens a session of which the lost
    /// statement knows nothing: what is read then stays true.
    fn last_token(&mut self) -> Result<Token, StoreError> {
        self.line()?;
        let (token, writer) = self.ask(async |line: &Line| line.last_token().await)?;
        if self.title.as_ref().is_some_and(|title| title.writer != writer) {
            return Err(self.refused());
        }
        self.expects(token)?;
        if let Some(title) = &mut self.title {
            (title.done, title.unsettled) = (token, None);
        }
        Ok(token)
    }

    fn clear(&mut self, force: bool) -> Result<(), StoreError> {
        self.may_write()?;
        self.line()?;
        if self.clear_all(force)? { Ok(()) } else { Err(self.refused()) }
    }
}
