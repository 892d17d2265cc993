//! The suite for all stores, and what only this one has: keys, schemas, privileges, versions.

use std::thread;
use std::time::Duration;

use keeper::change::Change;
use keeper::identity::Epoch;
use lockkeeper_store::conformance::{self, POWER_LOSS, TestBed, client, lock};
use lockkeeper_store::{CommitOutcome, Postgres, PostgresSettings, Store, StoreError, Token};
use testbed::postgres::{Options, Server};

use crate::driver::{fresh_schema, settings, taken};
use crate::proxy::Proxy;

/// Stores behind a proxy, each in a schema of its own. The lease is long, so that the proxy sees no
/// heartbeat before the next batch.
struct PostgresBed<'a> {
    server: &'a Server,
    proxy: Proxy,
}

impl PostgresBed<'_> {
    /// Fails statements that write to a table of this store, or lets them succeed again.
    fn set_read_only(&self, store: &Postgres, read_only: bool) {
        let schema = store.settings().schema.clone().unwrap().replace('"', "\"\"");
        let sql = match read_only {
            true => "REVOKE UPDATE, INSERT, DELETE ON",
            false => "GRANT UPDATE, INSERT, DELETE ON",
        };
        let to = if read_only { "FROM" } else { "TO" };
        let tables = ["state", "clients", "locks", "shares"];
        let tables = tables.map(|table| format!("\"{schema}\".{table}")).join(", ");
        self.server.psql(&format!("{sql} {tables} {to} keeper")).unwrap();
    }

    fn open(&self, settings: &PostgresSettings) -> Postgres {
        let (store, lease) = taken(settings);
        while lease.has_standby() {
            thread::sleep(Duration::from_millis(1));
        }
        store
    }
}

impl TestBed for PostgresBed<'_> {
    type Store = Postgres;

    fn fresh(&mut self) -> Postgres {
        let url = format!("postgres://keeper@127.0.0.1:{}/postgres", self.proxy.port);
        let (schema, lease) = (Some(fresh_schema()), Duration::from_secs(120));
        self.open(&PostgresSettings { url, schema, lease, ..settings(self.server, "a") })
    }

    fn reopen_after_kill(&mut self, store: Postgres) -> Postgres {
        let settings = store.settings().clone();
        drop(store);
        self.open(&settings)
    }

    fn fail_writes(&mut self, store: &mut Postgres) -> bool {
        self.set_read_only(store, true);
        true
    }

    fn repair(&mut self, store: &mut Postgres) {
        self.set_read_only(store, false);
    }

    fn lose_next_reply(&mut self, _: &mut Postgres, stored: bool) -> bool {
        match stored {
            true => self.proxy.disconnect_after_next(),
            false => self.proxy.withhold_next(),
        }
        true
    }

    fn second_writer(&mut self, first: &mut Postgres) -> Option<Result<Postgres, StoreError>> {
        let settings = PostgresSettings { node: "b".to_owned(), ..first.settings().clone() };
        Some(Ok(self.open(&settings)))
    }
}

#[test]
fn the_postgres_store_conforms() {
    let server = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    server.psql("CREATE ROLE keeper LOGIN; GRANT CREATE ON DATABASE postgres TO keeper").unwrap();
    let proxy = Proxy::to(server.port().unwrap());
    match conformance::check(&mut PostgresBed { server: &server, proxy }) {
        // Never quick; what a power loss takes is a matter of the database (`faults.rs`).
        Ok(unchecked) => assert_eq!(unchecked.0, [POWER_LOSS]),
        Err(broken) => panic!("{broken:.2000}"),
    }
    let url = server.tcp_url().unwrap();
    let mut store = Postgres::connect(PostgresSettings { url, ..settings(&server, "a") }).unwrap();
    assert_eq!(store.load().unwrap().epoch, Epoch(0));
}

#[test]
fn a_thread_of_another_runtime_may_call_the_store() {
    let server = Server::start().unwrap();
    let settings = settings(&server, "a");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let saved = runtime.block_on(async move {
        let (mut store, _) = taken(&settings);
        assert!(matches!(store.commit(&[client(1), lock(2, 1)], Token(1)), CommitOutcome::Done));
        store.release_leadership().unwrap();
        store.load().unwrap()
    });
    assert_eq!(saved.locks.len(), 1);
}

#[test]
fn a_key_is_the_same_for_every_node() {
    let server = Server::start().unwrap();
    let mut a = Postgres::connect(settings(&server, "a")).unwrap();
    let mut b = Postgres::connect(settings(&server, "b")).unwrap();
    assert_eq!(a.key_or_insert("handles", b"first").unwrap(), b"first");
    assert_eq!(b.key_or_insert("handles", b"second").unwrap(), b"first");
    assert_eq!(b.key_or_insert("others", b"").unwrap(), b"");
}

#[test]
fn a_store_that_does_not_lead_only_reads() {
    let server = Server::start().unwrap();
    let mut store = Postgres::connect(settings(&server, "a")).unwrap();
    assert!(store.load().unwrap().locks.is_empty());
    let committed = store.commit(&[lock(1, 1)], Token(1));
    assert!(matches!(committed, CommitOutcome::NotWritten(StoreError::NotLeader)), "{committed:?}");
    assert!(matches!(store.clear(true), Err(StoreError::NotLeader)));
}

#[test]
fn the_schema_may_be_named_by_the_url() {
    let server = Server::start().unwrap();
    let url = format!("{} options='-csearch_path=site'", server.url());
    let (mut store, _) = taken(&PostgresSettings { url, ..settings(&server, "a") });
    let started = [Change::Started { epoch: Epoch(5), grace: None }];
    assert!(matches!(store.commit(&started, Token(1)), CommitOutcome::Done));
    assert_eq!(server.psql("SELECT epoch FROM site.state").unwrap(), "5");
}

#[test]
fn tables_of_a_newer_program_are_refused() {
    let server = Server::start().unwrap();
    drop(Postgres::connect(settings(&server, "a")).unwrap());
    let newer = |sql| {
        server.psql(sql).unwrap();
        match Postgres::connect(settings(&server, "a")).err() {
            Some(StoreError::Newer { found, known, .. }) => assert_eq!(found, known + 1),
            other => panic!("{other:?}"),
        }
    };
    newer("UPDATE lockkeeper.state SET format = 2");
    newer(
        "UPDATE lockkeeper.state SET format = 1; INSERT INTO lockkeeper.refinery_schema_history \
         SELECT version + 1, 'next', applied_on, checksum FROM lockkeeper.refinery_schema_history \
         ORDER BY version DESC LIMIT 1",
    );
}

/// The error has the SQL that grants what is missing.
#[test]
fn missing_privileges_are_reported_with_the_sql_that_grants_them() {
    let server = Server::start().unwrap();
    server.psql("CREATE ROLE \"Odd one\" LOGIN").unwrap();
    let url = server.url_for("'Odd one'");
    let poor = PostgresSettings { url, ..settings(&server, "a") };
    let fix = |poor: &PostgresSettings| match Postgres::connect(poor.clone()).err() {
        Some(StoreError::NotAllowed { fix, .. }) => fix,
        other => panic!("{other:?}"),
    };
    server.psql(&fix(&poor)).unwrap();
    taken(&poor);
    // A schema that another role created.
    server.psql("DROP SCHEMA lockkeeper CASCADE").unwrap();
    drop(Postgres::connect(settings(&server, "a")).unwrap());
    server.psql(&fix(&poor)).unwrap();
    let (mut store, _) = taken(&poor);
    assert!(matches!(store.commit(&[lock(1, 1)], Token(1)), CommitOutcome::Done));
}

#[test]
fn the_down_migrations_leave_nothing_and_the_tables_can_be_created_again() {
    let server = Server::start().unwrap();
    let (mut store, _) = taken(&settings(&server, "a"));
    assert!(matches!(store.commit(&[client(1), client(3)], Token(1)), CommitOutcome::Done));
    drop(store);
    let protocols = "SELECT string_agg(protocol, ' ' ORDER BY protocol) FROM lockkeeper.clients";
    assert_eq!(server.psql(protocols).unwrap(), "lease nlm");
    let down = |sql| server.psql(&format!("SET search_path TO lockkeeper; {sql}")).unwrap();
    down(include_str!("../../migrations/V4__timelines.down.sql"));
    down(include_str!("../../migrations/V3__protocols.down.sql"));
    assert_eq!(server.psql(protocols).unwrap(), "nlm");
    assert!(server.psql("UPDATE lockkeeper.clients SET protocol = 'lease'").is_err());
    down(include_str!("../../migrations/V2__fencings.down.sql"));
    down(include_str!("../../migrations/V1__tables.down.sql"));
    let left = "SELECT count(*) FROM pg_tables WHERE schemaname = 'lockkeeper'";
    assert_eq!(server.psql(left).unwrap(), "1");
    taken(&settings(&server, "a"));
}

#[test]
fn several_nodes_may_create_the_tables_at_once() {
    let server = Server::start().unwrap();
    std::thread::scope(|scope| {
        let connect = || Postgres::connect(settings(&server, "a")).map(|_| ());
        let all: Vec<_> = (0..6).map(|_| scope.spawn(connect)).collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
}
