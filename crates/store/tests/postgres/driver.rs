//! Common to the tests: a database server, stores on it, and a driver that commits as the engine does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use keeper::change::{Change, Snapshot};
use lockkeeper_store::Lease;
use lockkeeper_store::{
    CommitOutcome, Durability, Postgres, PostgresSettings, Store, StoreError, Token,
};
use testbed::postgres::Server;

/// Whether the long form was asked for.
pub fn long() -> bool {
    std::env::var_os("LOCKKEEPER_LONG").is_some()
}

pub fn settings(server: &Server, node: &str) -> PostgresSettings {
    PostgresSettings::new(&server.url(), node, Durability::Process)
}

/// The name of a schema that no other test uses.
pub fn fresh_schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("fresh \"{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A store that leads.
pub fn taken(settings: &PostgresSettings) -> (Postgres, Lease) {
    let mut store = Postgres::connect(settings.clone()).unwrap();
    let lease = store.take_leadership().unwrap();
    (store, lease)
}

/// A store and a model of what it should contain. Commits as the engine does: a batch is retried until
/// it is known to be stored, and never undone.
pub struct DrivenStore {
    pub store: Postgres,
    pub expected: Snapshot,
    pub token: Token,
    /// How often a batch was not written, was unknown, and was unknown but stored.
    pub not_written: u64,
    pub unknown: u64,
    pub stored: u64,
}

impl DrivenStore {
    pub fn new(mut store: Postgres) -> Self {
        let expected = store.load().unwrap();
        let token = store.last_token().unwrap();
        Self { store, expected, token, not_written: 0, unknown: 0, stored: 0 }
    }

    /// Retries for at most `limit`; returns a fatal error.
    pub fn commit_within(&mut self, limit: Duration, changes: &[Change]) -> Result<(), StoreError> {
        let deadline = Instant::now() + limit;
        self.token.0 += 1;
        'again: loop {
            let error = match self.store.commit(changes, self.token) {
                CommitOutcome::Done => break,
                CommitOutcome::NotWritten(error) => {
                    self.not_written += 1;
                    error
                }
                CommitOutcome::Unknown(error) => {
                    self.unknown += 1;
                    let mut error = error;
                    loop {
                        assert!(Instant::now() < deadline, "not settled in {limit:?}: {error}");
                        match self.store.last_token() {
                            Ok(token) if token == self.token => {
                                self.stored += 1;
                                break 'again;
                            }
                            Ok(token) => {
                                assert_eq!(token.0, self.token.0 - 1);
                                break;
                            }
                            Err(next) if next.is_fatal() => return Err(next),
                            Err(next) => error = next,
                        }
                        thread::sleep(Duration::from_millis(20));
                    }
                    error
                }
            };
            if error.is_fatal() {
                return Err(error);
            }
            assert!(Instant::now() < deadline, "not committed in {limit:?}: {error}");
            thread::sleep(Duration::from_millis(20));
        }
        for change in changes {
            self.expected.apply(change.clone());
        }
        Ok(())
    }

    pub fn commit(&mut self, changes: &[Change]) {
        self.commit_within(Duration::from_secs(60), changes).unwrap();
    }

    /// Compares the store with the model, over another connection.
    pub fn compare(&self, settings: &PostgresSettings) {
        let mut reader = Postgres::connect(settings.clone()).unwrap();
        assert_eq!(reader.load().unwrap(), self.expected);
        assert_eq!(reader.last_token().unwrap(), self.token);
    }
}
