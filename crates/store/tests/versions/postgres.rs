//! Stores in PostgreSQL: dumps of their schemas, loaded into a database of the test's own.

use keeper::change::{Change, Exactness};
use lockkeeper_store::{
    CommitOutcome, Durability, Postgres, PostgresSettings, Store, StoreError, Token,
};
use testbed::fixtures::Fixture;
use testbed::postgres::Server;

use super::listing::{Listing, hex};

fn restore(server: &Server, fixture: &Fixture) {
    server.psql("DROP SCHEMA IF EXISTS lockkeeper CASCADE").unwrap();
    server.psql(&fixture.text("dump.sql").unwrap()).unwrap();
}

fn connect(server: &Server) -> Postgres {
    let settings = PostgresSettings::new(&server.url(), "later", Durability::Process);
    Postgres::connect(settings).unwrap()
}

#[test]
fn every_dump_opens_completely_and_can_be_written() {
    let server = Server::start().unwrap();
    for fixture in Fixture::postgres().unwrap() {
        restore(&server, &fixture);
        let what = format!("{} {}", fixture.version, fixture.name);
        let listing = Listing::of(&fixture);
        let mut store = connect(&server);
        let saved = store.load().unwrap();
        listing.assert_is(&saved, &what);
        assert_eq!(saved.exactness, listing.exactness("exactness"), "{what}");
        let token = store.last_token().unwrap();
        assert_eq!(token.0.to_string(), listing.fact("token"), "{what}");
        let leader = store.leadership().unwrap().leader.unwrap();
        let fact = format!("seat writer {} node {} left", leader.writer, leader.node);
        assert_eq!(leader.has_released.to_string(), listing.fact(&fact), "{what}");
        let key = hex(&store.key("handle").unwrap().unwrap());
        assert!(
            fixture.text("handles.txt").unwrap().starts_with(&format!("key {key}\n")),
            "{what}"
        );

        store.take_leadership().unwrap();
        let gone = Change::LockGone(*saved.locks.keys().next().unwrap());
        let committed = store.commit(std::slice::from_ref(&gone), Token(token.0 + 1));
        assert!(matches!(committed, CommitOutcome::Done), "{what}: {committed:?}");
        drop(store);
        let mut expected = saved;
        expected.apply(gone);
        assert_eq!(connect(&server).load().unwrap(), expected, "{what}");
    }
}

/// A released migration is not edited: new tables have the history of old ones.
#[test]
fn new_tables_begin_with_the_migrations_of_every_dump() {
    let server = Server::start().unwrap();
    let history = "SELECT version, name, checksum FROM lockkeeper.refinery_schema_history \
         ORDER BY version";
    drop(connect(&server));
    let today = server.psql(history).unwrap();
    for fixture in Fixture::postgres().unwrap() {
        restore(&server, &fixture);
        let then = server.psql(history).unwrap();
        assert!(!then.is_empty() && today.starts_with(&then), "{then}\nbut today\n{today}");
    }
}

/// A crash of PostgreSQL removes the row of `intact`, and perhaps batches.
#[test]
fn a_dump_of_a_database_that_crashed_is_a_roster() {
    let server = Server::start().unwrap();
    for fixture in Fixture::postgres().unwrap() {
        restore(&server, &fixture);
        server.psql("DELETE FROM lockkeeper.intact").unwrap();
        let saved = connect(&server).load().unwrap();
        Listing::of(&fixture).assert_is(&saved, &fixture.version);
        assert_eq!(saved.exactness, Exactness::Roster);
    }
}

#[test]
fn a_row_that_no_server_wrote_is_refused() {
    let server = Server::start().unwrap();
    let wrong = [
        ("UPDATE clients SET private = '\\x01' WHERE private IS NOT NULL", "private bytes"),
        ("UPDATE clients SET reboot_to = NULL WHERE reboot_to = 77", "columns missing"),
        (
            "ALTER TABLE clients DROP CONSTRAINT clients_protocol_check; \
             UPDATE clients SET protocol = 'no such' WHERE id = 1",
            "the protocol \"no such\"",
        ),
        ("UPDATE clients SET incarnation = 4294967296 WHERE id = 1", "4294967296"),
        ("UPDATE locks SET number = -1 WHERE number = 7", "-1 as its number"),
        ("UPDATE locks SET first = 10 WHERE last = 9", "the range from 10 to 9"),
        ("UPDATE shares SET version = 256", "256 as its version"),
    ];
    for fixture in Fixture::postgres().unwrap() {
        for (sql, expected) in wrong {
            restore(&server, &fixture);
            // Today's tables: connecting has migrated them.
            drop(connect(&server));
            server.psql(&format!("SET search_path TO lockkeeper; {sql}")).unwrap();
            match connect(&server).load() {
                Err(error @ StoreError::Damaged { .. }) => {
                    let text = error.to_string();
                    assert!(text.contains(expected), "{sql}: {text}");
                    assert!(text.contains("Restore the store from a backup"), "{sql}: {text}");
                }
                other => panic!("{sql}: {other:?}"),
            }
        }
    }
}
