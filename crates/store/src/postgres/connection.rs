//! One connection to PostgreSQL: opening it, limiting the time of statements, and interpreting their
//! errors.

use std::future::{Future, poll_fn};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, Socket};

use super::PostgresSettings;
use super::passfile::Passfile;
use super::password::PasswordSource;
use super::schema::Schema;
use super::tls::{self, Attempt, TlsSettings};
use super::url::OwnParameters;
use crate::error::StoreError;

/// The limit for opening a connection that accepts statements.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The limit for one host of several, whatever the url says.
const HOST_MAX: Duration = Duration::from_secs(60);
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
    /// One for each host of the url, in its order.
    hosts: Vec<Config>,
    /// The host that accepted the last connection: it is tried first.
    last: Arc<AtomicUsize>,
    /// The url's `connect_timeout`, for each host.
    connect_timeout: Option<Duration>,
    tls: TlsSettings,
    password: PasswordSource,
    pub(super) schema: Schema,
    /// Host, port and database, for error messages.
    pub(super) location: String,
    pub(super) role: String,
}

/// The database's process for a connection. Pids are reused, so the start time is part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) pid: i32,
    pub(super) started: String,
}

pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) backend: Backend,
    /// The database has warned that it did not wait for its synchronous replica.
    cancelled_wait: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Connection {
    /// Whether a transaction since the last call was committed without the synchronous replica, which
    /// the database reports as a warning and not as an error.
    pub(super) fn take_cancelled_wait(&self) -> bool {
        self.cancelled_wait.swap(false, Ordering::Relaxed)
    }
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

/// Why one way to connect failed.
struct AttemptFailure {
    error: StoreError,
    /// A connection with TLS may succeed where one without failed, or the other way round.
    depends_on_tls: bool,
}

impl From<StoreError> for AttemptFailure {
    fn from(error: StoreError) -> Self {
        Self { error, depends_on_tls: false }
    }
}

impl Database {
    pub(super) fn parse(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let home = std::env::home_dir();
        let (own, url) = OwnParameters::take_from(&settings.url)?;
        let tls = TlsSettings::new(&own, home.as_deref())?;
        let mut config = Config::from_str(&url)
            .map_err(|error| StoreError::BadSettings(format!("its url: {}", chain(&error))))?;
        let password = match (&settings.password_file, config.get_password()) {
            (_, Some(_)) => PasswordSource::Url,
            (Some(file), None) => PasswordSource::File(file.clone()),
            (None, None) => {
                PasswordSource::Passfile(Passfile::choose(own.passfile, home.as_deref()))
            }
        };
        let schema = Schema::choose(settings.schema.as_deref(), config.get_options())?;
        let connect_timeout = config.get_connect_timeout().copied();
        let connect_timeout = connect_timeout.filter(|limit| !limit.is_zero());
        config
            .application_name(format!("lockkeeper {}", settings.node))
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3)
            .tcp_user_timeout(STATEMENT_MAX);
        let role = config.get_user().unwrap_or("the server's own user").to_owned();
        let location = location(&config);
        let hosts = each_host(&config);
        let last = Arc::new(AtomicUsize::new(0));
        Ok(Self { hosts, last, connect_timeout, tls, password, schema, location, role })
    }

    /// Reads the files that each connection reads.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        for host in &self.hosts {
            self.password.apply(&mut host.clone())?;
            let attempts = self.tls.attempts(is_unix_socket(host));
            if attempts.iter().any(|attempt| *attempt != Attempt::Plain) {
                self.tls.connector()?;
            }
        }
        Ok(())
    }

    /// Opens a connection to the first host that accepts statements. `limit` is divided among the
    /// hosts, so that a silent one does not keep the others from being tried (B6.64); a
    /// `connect_timeout` of the url is the limit for each host instead.
    pub(super) async fn open(&self, limit: Duration) -> Result<Connection, StoreError> {
        let count = self.hosts.len().max(1);
        let share = limit.min(CONNECT_MAX) / u32::try_from(count).unwrap_or(1);
        let limit = self.connect_timeout.unwrap_or(share).min(HOST_MAX);
        let first = self.last.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for index in (0..count).map(|index| (first + index) % count) {
            let Some(config) = self.hosts.get(index) else { continue };
            let error = match timeout(limit, self.open_host(config)).await {
                Ok(Ok(connection)) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                // Another host may have another certificate.
                Ok(Err(error)) if error.is_transient() || is_tls(&error) => error,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let location = location(config);
                    let why = format!("no answer within {limit:?}");
                    StoreError::Unreachable { location, why }
                }
            };
            failures.push(error);
        }
        Err(match failures.len() {
            1 => failures.remove(0),
            _ => {
                let why = failures.iter().map(|error| match error {
                    StoreError::Unreachable { location, why }
                    | StoreError::Tls { location, why } => format!("{location}: {why}"),
                    other => other.to_string(),
                });
                self.unreachable(why.collect::<Vec<String>>().join("; "))
            }
        })
    }

    /// Tries the ways that `sslmode` allows.
    async fn open_host(&self, host: &Config) -> Result<Connection, StoreError> {
        let attempts = self.tls.attempts(is_unix_socket(host));
        let mut failures = Vec::new();
        for attempt in attempts {
            let failed = match self.open_by(*attempt, host).await {
                Ok(connection) => return Ok(connection),
                Err(failed) => failed,
            };
            failures.push((*attempt, failed.error));
            if !failed.depends_on_tls {
                break;
            }
        }
        Err(combined(failures, location(host)))
    }

    async fn open_by(&self, attempt: Attempt, host: &Config) -> Result<Connection, AttemptFailure> {
        let mut config = host.clone();
        self.password.apply(&mut config)?;
        config.ssl_mode(match attempt {
            Attempt::Plain => SslMode::Disable,
            Attempt::Offered => SslMode::Prefer,
            Attempt::Encrypted => SslMode::Require,
        });
        let cancelled_wait = Arc::new(AtomicBool::new(false));
        let warned = Arc::clone(&cancelled_wait);
        let connected = match attempt {
            Attempt::Plain => driven(config.connect(NoTls).await, warned),
            Attempt::Offered | Attempt::Encrypted => {
                driven(config.connect(self.tls.connector()?).await, warned)
            }
        };
        let (client, task) =
            connected.map_err(|error| self.attempt_failure(attempt, host, &error))?;
        let backend = Backend { pid: 0, started: String::new() };
        let mut connection = Connection { client, backend, cancelled_wait, task };
        let client = &connection.client;
        let failed = |error: Error| AttemptFailure::from(self.failure(&error).error);
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

    fn attempt_failure(&self, attempt: Attempt, host: &Config, error: &Error) -> AttemptFailure {
        let location = location(host);
        let name = match host.get_hosts() {
            [Host::Tcp(name), ..] => name,
            _ => "this host",
        };
        if let Some(why) = tls::refusal(error, &self.tls, name) {
            return AttemptFailure {
                error: StoreError::Tls { location, why },
                depends_on_tls: true,
            };
        }
        if is_password_missing(error) {
            return self.password_missing().into();
        }
        let code = error.code();
        // A rule of pg_hba.conf for connections with TLS, or without.
        let depends_on_tls = code == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        let advice = match attempt {
            Attempt::Plain if depends_on_tls && self.tls.is_disabled() => {
                "; if it demands TLS: sslmode=verify-full in the url".to_owned()
            }
            Attempt::Offered | Attempt::Encrypted if depends_on_tls && !self.tls.has_identity() => {
                "; if it demands a client certificate: sslcert and sslkey in the url".to_owned()
            }
            _ if code == Some(&SqlState::INVALID_PASSWORD) => {
                format!("; the password is from {}", self.password)
            }
            _ => String::new(),
        };
        let error = match self.failure(error).error {
            StoreError::Unreachable { why, .. } => {
                StoreError::Unreachable { location, why: why + &advice }
            }
            other => other,
        };
        AttemptFailure { error, depends_on_tls }
    }

    fn password_missing(&self) -> StoreError {
        let (location, role) = (&self.location, &self.role);
        let problem = self.password.problem();
        let problem = problem.map_or_else(String::new, |problem| format!(" ({problem})"));
        StoreError::BadSettings(format!(
            "{location} demands a password of role {role:?}, and there is none{problem}: write it \
             into a file of mode 600 and name that with password_file under [store], or use a \
             passfile (~/.pgpass)"
        ))
    }

    /// Files that are ignored, and why.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> + use<> {
        self.password.problem().into_iter()
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
        // The statement was prepared on another connection of the pooler.
        if [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(code) {
            return StoreError::Pooled { location };
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

/// Spawns what reads from the connection, and notes the warning about synchronous replicas.
fn driven<T: TlsStream + Unpin + Send + 'static>(
    connected: Result<(Client, tokio_postgres::Connection<Socket, T>), Error>,
    warned: Arc<AtomicBool>,
) -> Result<(Client, JoinHandle<()>), Error> {
    let (client, mut connection) = connected?;
    let task = tokio::spawn(async move {
        // Statements that wait for an answer report its errors.
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message
                && is_cancelled_wait(&notice)
            {
                warned.store(true, Ordering::Relaxed);
            }
        }
    });
    Ok((client, task))
}

/// The error of one way to connect, or of several that failed one after the other.
fn combined(mut failures: Vec<(Attempt, StoreError)>, location: String) -> StoreError {
    if failures.len() == 1 {
        return failures.remove(0).1;
    }
    let is_tls = failures.iter().all(|(_, error)| is_tls(error));
    let told = failures.iter().map(|(attempt, error)| {
        let how = match attempt {
            Attempt::Plain => "without TLS",
            Attempt::Offered | Attempt::Encrypted => "with TLS",
        };
        match error {
            StoreError::Unreachable { why, .. } | StoreError::Tls { why, .. } => {
                format!("{how}: {why}")
            }
            other => format!("{how}: {other}"),
        }
    });
    let why = told.collect::<Vec<String>>().join("; ");
    match is_tls {
        true => StoreError::Tls { location, why },
        false => StoreError::Unreachable { location, why },
    }
}

fn is_tls(error: &StoreError) -> bool {
    matches!(error, StoreError::Tls { .. })
}

/// tokio-postgres looks for it when the server asks.
fn is_password_missing(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|why| why.to_string() == "password missing")
}

/// The source file tells it in any language.
fn is_cancelled_wait(notice: &DbError) -> bool {
    notice.parsed_severity() == Some(Severity::Warning) && notice.file() == Some("syncrep.c")
}

/// There is no TLS over unix sockets.
fn is_unix_socket(host: &Config) -> bool {
    matches!(host.get_hosts(), [Host::Unix(_)])
}

/// The same configuration for each host alone. `Config::connect` would try them in turn as well, but
/// limits only the time of the TCP handshake.
fn each_host(config: &Config) -> Vec<Config> {
    let hosts = config.get_hosts();
    let addresses = config.get_hostaddrs();
    let count = hosts.len().max(addresses.len());
    let host = |index: usize| {
        let mut one = Config::new();
        match (hosts.get(index), addresses.get(index)) {
            (Some(Host::Tcp(name)), _) => drop(one.host(name)),
            (Some(Host::Unix(path)), _) => drop(one.host_path(path)),
            // The name in the server's certificate, then.
            (None, Some(address)) => drop(one.host(address.to_string())),
            (None, None) => {}
        }
        addresses.get(index).map(|address| one.hostaddr(*address));
        let ports = config.get_ports();
        ports.get(index).or(ports.first()).map(|port| one.port(*port));
        config.get_user().map(|user| one.user(user));
        config.get_password().map(|password| one.password(password));
        config.get_dbname().map(|name| one.dbname(name));
        config.get_options().map(|options| one.options(options));
        config.get_application_name().map(|name| one.application_name(name));
        one.ssl_negotiation(config.get_ssl_negotiation());
        one.channel_binding(config.get_channel_binding());
        one.target_session_attrs(config.get_target_session_attrs());
        one.keepalives(config.get_keepalives()).keepalives_idle(config.get_keepalives_idle());
        config.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
        config.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
        config.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
        one
    };
    (0..count.max(1)).map(host).collect()
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
    use crate::durability::Durability;

    fn database(url: &str) -> Database {
        Database::parse(&PostgresSettings::new(url, "a", Durability::Process)).unwrap()
    }

    #[test]
    fn a_location_is_shown_without_the_password() {
        let url = "postgres://keeper:secret@db.example.com:5433/locks";
        let database = database(url);
        assert_eq!(database.location, "PostgreSQL database locks at db.example.com:5433");
        let error = database.unreachable("refused".into()).to_string();
        assert!(error.contains("db.example.com") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn each_host_of_a_url_is_tried_alone() {
        let url = "postgres://keeper:secret@one:5433,two:5434/locks?connect_timeout=2";
        let database = database(url);
        let locations: Vec<String> = database.hosts.iter().map(location).collect();
        let expected =
            ["one:5433", "two:5434"].map(|at| format!("PostgreSQL database locks at {at}"));
        assert_eq!(locations, expected);
        assert_eq!(database.connect_timeout, Some(Duration::from_secs(2)));
        for host in &database.hosts {
            assert_eq!(
                (host.get_user(), host.get_password()),
                (Some("keeper"), Some(&b"secret"[..]))
            );
            assert_eq!(host.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        }
    }
}
