//! One connection to PostgreSQL: how it is opened, how long anything on it may take, and what its
//! failures mean.

use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::{Client, Config, Error, NoTls};

use super::schema::Schema;
use crate::error::StoreError;

/// From the first packet to a connection that takes statements.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// What no statement but a load or a clearing needs; then it is unknown what became of it.
pub const STATEMENT_MAX: Duration = Duration::from_secs(10);

/// The session's own settings. The server gives up on a statement before we do, because then it
/// says so, and nothing is unknown. A scan of a whole table is never what a batch wants, whatever
/// the planner believes of a table that was empty a minute ago; and no plan of ours is worth
/// compiling.
pub const SESSION: &str = "SET statement_timeout = '8s'; SET lock_timeout = '2s'; \
     SET idle_in_transaction_session_timeout = '30s'; SET enable_seqscan = off; SET jit = off; \
     SET plan_cache_mode = force_generic_plan; SET default_transaction_isolation = 'read committed'";

/// Where the database is: all that is needed to open one connection more.
#[derive(Clone)]
pub struct Address {
    config: Config,
    pub schema: Schema,
    pub place: String,
    pub role: String,
}

/// What the server calls the process that serves a connection. The start time is there because pids
/// are used again.
#[derive(Clone, Debug)]
pub struct Backend {
    pub pid: i32,
    pub started: String,
}

pub struct Connection {
    pub client: Client,
    pub backend: Backend,
    task: JoinHandle<()>,
}

/// Why a statement did not end well.
#[derive(Debug)]
pub struct Failure {
    pub error: StoreError,
    /// The server itself says that the statement failed: nothing of it is there, nor will be.
    pub aborted: bool,
    /// It waited in vain for a row that somebody else has locked.
    pub blocked: bool,
}

impl Address {
    pub fn parse(url: &str, schema: Option<&str>, node: &str) -> Result<Self, StoreError> {
        let mut config = Config::from_str(url)
            .map_err(|error| StoreError::BadSettings(format!("its address: {}", chain(&error))))?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(StoreError::BadSettings(
                "its address asks for TLS, which is not supported: use a unix socket, a private \
                 network or a tunnel, and leave sslmode out"
                    .into(),
            ));
        }
        let schema = Schema::choose(schema, config.get_options())?;
        config
            .application_name(format!("lockkeeper {node}"))
            .connect_timeout(CONNECT_MAX)
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3)
            .tcp_user_timeout(STATEMENT_MAX);
        let role = config.get_user().unwrap_or("the server's own user").to_owned();
        let place = place(&config);
        Ok(Self { config, schema, place, role })
    }

    /// Opens a connection, with at most so much time.
    pub async fn open(&self, limit: Duration) -> Result<Connection, StoreError> {
        let limit = limit.min(CONNECT_MAX);
        match timeout(limit, self.open_patiently()).await {
            Ok(opened) => opened,
            Err(_) => Err(self.unreachable(format!("no answer within {limit:?}"))),
        }
    }

    async fn open_patiently(&self) -> Result<Connection, StoreError> {
        let (client, connection) =
            self.config.connect(NoTls).await.map_err(|error| self.failure(&error).error)?;
        let task = tokio::spawn(async move {
            // Its end is seen by whoever waits for an answer.
            let _ = connection.await;
        });
        let backend = Backend { pid: 0, started: String::new() };
        let mut connection = Connection { client, backend, task };
        let client = &connection.client;
        let failed = |error: Error| self.failure(&error).error;
        client.batch_execute(SESSION).await.map_err(failed)?;
        client
            .batch_execute(&format!("SET search_path TO {}", self.schema.quoted()))
            .await
            .map_err(failed)?;
        let sql = "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_stat_activity \
                   WHERE pid = pg_backend_pid()";
        let row = client.query_one(sql, &[]).await.map_err(failed)?;
        connection.backend = Backend { pid: row.get(0), started: row.get(1) };
        Ok(connection)
    }

    /// Does something on a connection, with at most so much time.
    pub async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        match timeout(limit, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failure(&error)),
            Err(_) => {
                let error = self.unreachable(format!("no answer to a statement within {limit:?}"));
                Err(Failure { error, aborted: false, blocked: false })
            }
        }
    }

    pub fn unreachable(&self, why: String) -> StoreError {
        StoreError::Unreachable { place: self.place.clone(), why }
    }

    /// Only an error that ends the statement and not the session proves that nothing was written: a
    /// backend that is told to end while it waits for a replica has committed already.
    pub fn failure(&self, error: &Error) -> Failure {
        let Some(db) = error.as_db_error() else {
            let error = self.unreachable(chain(error));
            return Failure { error, aborted: false, blocked: false };
        };
        let aborted = db.parsed_severity() == Some(Severity::Error);
        let blocked = *db.code() == SqlState::LOCK_NOT_AVAILABLE;
        Failure { error: self.meaning(db, aborted), aborted, blocked }
    }

    fn meaning(&self, db: &DbError, aborted: bool) -> StoreError {
        let place = self.place.clone();
        let said = said(db);
        let code = db.code();
        // A schema that may not be used looks as if it were not there.
        if [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::INVALID_SCHEMA_NAME].contains(code) {
            let fix = self.schema.rights_for(&self.role);
            return StoreError::NotAllowed { place, role: self.role.clone(), said, fix };
        }
        if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN].contains(code) {
            let what = format!("{said}; the tables are not those that this program made");
            return StoreError::Damaged { place, what };
        }
        if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(code) {
            return StoreError::Damaged { place, what: said };
        }
        if aborted {
            StoreError::Unwritable(format!("{place}: {said}"))
        } else {
            StoreError::Unreachable { place, why: said }
        }
    }
}

impl Drop for Connection {
    /// Closes the socket at once: a client that is merely dropped first waits for its answers.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the server said, on one line.
fn said(db: &DbError) -> String {
    let mut text = format!("{} {}: {}", db.severity(), db.code().code(), db.message());
    for more in [db.detail(), db.hint()].into_iter().flatten() {
        text = format!("{text}; {more}");
    }
    text.replace('\n', " ")
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text.replace('\n', " ")
}

/// Host, port and database; never the password.
fn place(config: &Config) -> String {
    let ports = config.get_ports();
    let host = |(index, host): (usize, &Host)| {
        let port = ports.get(index).or(ports.first()).unwrap_or(&5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}/.s.PGSQL.{port}", path.display()),
        }
    };
    let mut hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    if hosts.is_empty() {
        hosts = config.get_hostaddrs().iter().map(ToString::to_string).collect();
    }
    let database = config.get_dbname().or(config.get_user()).unwrap_or("its default");
    format!("PostgreSQL database {database} at {}", hosts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_without_its_password() {
        let url = "postgres://keeper:secret@db.example.com:5433/locks";
        let address = Address::parse(url, None, "a").unwrap();
        assert_eq!(address.place, "PostgreSQL database locks at db.example.com:5433");
        let error = address.unreachable("refused".into()).to_string();
        assert!(error.contains("db.example.com") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn tls_is_refused_and_not_left_out_silently() {
        let asked = Address::parse("postgres://db/locks?sslmode=require", None, "a");
        let error = asked.err().unwrap().to_string();
        assert!(error.contains("TLS"), "{error}");
    }
}
