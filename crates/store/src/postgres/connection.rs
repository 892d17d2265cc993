//! One connection to PostgreSQL: opening it, limiting the time of statements, and interpreting their
//! errors.

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

/// The limit for opening a connection that accepts statements.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The limit for a statement other than a load or a clearing. Past it the outcome is unknown.
pub(super) const STATEMENT_MAX: Duration = Duration::from_secs(10);

/// The session's settings. The database times out first, because its error leaves no outcome
/// unknown. Sequential scans are never right for a batch, although the planner prefers them for a
/// table that was empty a minute ago; and no plan is worth compiling.
pub(super) const SESSION_SETTINGS: &str = "SET statement_timeout = '8s'; SET lock_timeout = '2s'; \
     SET idle_in_transaction_session_timeout = '30s'; SET enable_seqscan = off; SET jit = off; \
     SET plan_cache_mode = force_generic_plan; SET default_transaction_isolation = 'read committed'";

/// How to reach the database: everything that opening a connection needs.
#[derive(Clone)]
pub(super) struct Database {
    config: Config,
    pub(super) schema: Schema,
    /// Host, port and database, for error messages.
    pub(super) location: String,
    pub(super) role: String,
}

/// The database's process for a connection. Pids are reused, so the start time is part of it.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    pub(super) pid: i32,
    pub(super) started: String,
}

pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) backend: Backend,
    task: JoinHandle<()>,
}

/// Why a statement failed.
#[derive(Debug)]
pub(super) struct StatementFailure {
    pub(super) error: StoreError,
    /// The database reported that the statement failed: it has no effect, and never will.
    pub(super) aborted: bool,
    /// It timed out waiting for a row lock.
    pub(super) blocked: bool,
}

impl Database {
    pub(super) fn parse(url: &str, schema: Option<&str>, node: &str) -> Result<Self, StoreError> {
        let mut config = Config::from_str(url)
            .map_err(|error| StoreError::BadSettings(format!("its url: {}", chain(&error))))?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(StoreError::BadSettings(
                "its url requires TLS, which is not supported: use a unix socket, a private \
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
        let location = location(&config);
        Ok(Self { config, schema, location, role })
    }

    /// Opens a connection within `limit`.
    pub(super) async fn open(&self, limit: Duration) -> Result<Connection, StoreError> {
        let limit = limit.min(CONNECT_MAX);
        match timeout(limit, self.open_untimed()).await {
            Ok(opened) => opened,
            Err(_) => Err(self.unreachable(format!("no answer within {limit:?}"))),
        }
    }

    async fn open_untimed(&self) -> Result<Connection, StoreError> {
        let (client, connection) =
            self.config.connect(NoTls).await.map_err(|error| self.failure(&error).error)?;
        let task = tokio::spawn(async move {
            // Statements that wait for an answer report its error.
            let _ = connection.await;
        });
        let backend = Backend { pid: 0, started: String::new() };
        let mut connection = Connection { client, backend, task };
        let client = &connection.client;
        let failed = |error: Error| self.failure(&error).error;
        client.batch_execute(SESSION_SETTINGS).await.map_err(failed)?;
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

    /// Runs `work` on a connection within `limit`.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StatementFailure> {
        match timeout(limit, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failure(&error)),
            Err(_) => {
                let error = self.unreachable(format!("no answer to a statement within {limit:?}"));
                Err(StatementFailure { error, aborted: false, blocked: false })
            }
        }
    }

    pub(super) fn unreachable(&self, why: String) -> StoreError {
        StoreError::Unreachable { location: self.location.clone(), why }
    }

    /// Only an error that ends the statement, not the session, proves that nothing was written: a
    /// backend that is terminated while it waits for a replica has committed already.
    pub(super) fn failure(&self, error: &Error) -> StatementFailure {
        let Some(db) = error.as_db_error() else {
            let error = self.unreachable(chain(error));
            return StatementFailure { error, aborted: false, blocked: false };
        };
        let aborted = db.parsed_severity() == Some(Severity::Error);
        let blocked = *db.code() == SqlState::LOCK_NOT_AVAILABLE;
        StatementFailure { error: self.interpret(db, aborted), aborted, blocked }
    }

    fn interpret(&self, db: &DbError, aborted: bool) -> StoreError {
        let location = self.location.clone();
        let message = message(db);
        let code = db.code();
        // A schema without the privilege to use it looks as if it did not exist.
        if [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::INVALID_SCHEMA_NAME].contains(code) {
            let fix = self.schema.grants_for(&self.role);
            return StoreError::NotAllowed { location, role: self.role.clone(), message, fix };
        }
        if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN].contains(code) {
            let what = format!("{message}; the tables are not those that this program creates");
            return StoreError::Damaged { location, what };
        }
        if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(code) {
            return StoreError::Damaged { location, what: message };
        }
        if aborted {
            StoreError::Unwritable(format!("{location}: {message}"))
        } else {
            StoreError::Unreachable { location, why: message }
        }
    }
}

impl Drop for Connection {
    /// Closes the socket at once; a client that is dropped would wait for its answers first.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The database's message on one line.
fn message(db: &DbError) -> String {
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
fn location(config: &Config) -> String {
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
    fn a_location_is_shown_without_the_password() {
        let url = "postgres://keeper:secret@db.example.com:5433/locks";
        let database = Database::parse(url, None, "a").unwrap();
        assert_eq!(database.location, "PostgreSQL database locks at db.example.com:5433");
        let error = database.unreachable("refused".into()).to_string();
        assert!(error.contains("db.example.com") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn tls_is_refused_rather_than_omitted() {
        let parsed = Database::parse("postgres://db/locks?sslmode=require", None, "a");
        let error = parsed.err().unwrap().to_string();
        assert!(error.contains("TLS"), "{error}");
    }
}
