//! The indexes of the client tracker (B5.80): by callback host, registration time and monitored name.

use lockkeeper_store::Postgres;
use testbed::postgres::Server;

use crate::driver::settings;

/// Columns, with a condition by which one row of many is looked up.
const LOOKUPS: [(&str, &str); 3] = [
    ("address", "address = '10.1.2.3'"),
    ("registered_at_ms", "registered_at_ms < 3"),
    ("watched", "watched = '\\x6e37'"),
];

const ROWS: &str = "INSERT INTO lockkeeper.clients (id, protocol, address, name, incarnation, \
     monitored, fenced, used, registered_at_ms, epoch, watched) \
     SELECT n, 'nsm', '10.0.0.0'::inet + n, 'name', 1, true, false, '{}', n, 1, \
     convert_to('n' || n, 'UTF8') FROM generate_series(1, 20000) AS n";

/// The valid indexes whose first column this is.
fn indexes_on(server: &Server, column: &str) -> Vec<String> {
    let sql = format!(
        "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_attribute a \
         ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
         WHERE i.indrelid = 'lockkeeper.clients'::regclass AND i.indisvalid AND i.indpred IS NULL \
         AND a.attname = '{column}'"
    );
    server.psql(&sql).unwrap().lines().map(str::to_owned).collect()
}

fn plan(server: &Server, condition: &str) -> String {
    server.psql(&format!("EXPLAIN SELECT id FROM lockkeeper.clients WHERE {condition}")).unwrap()
}

#[test]
fn look_ups_of_clients_use_an_index() {
    let server = Server::start().unwrap();
    drop(Postgres::connect(settings(&server, "a")).unwrap());
    server.psql(ROWS).unwrap();
    server.psql("ANALYZE lockkeeper.clients").unwrap();
    for (column, condition) in LOOKUPS {
        let indexes = indexes_on(&server, column);
        let [index] = &indexes[..] else { panic!("{column} has the indexes {indexes:?}") };
        let name = index.trim_start_matches("lockkeeper.");
        let used = plan(&server, condition);
        assert!(used.contains(name), "{column}: {used}");
        // Without it, every row would be read.
        server.psql(&format!("DROP INDEX {index}")).unwrap();
        let unused = plan(&server, condition);
        assert!(unused.contains("Seq Scan on clients"), "{column}: {unused}");
    }
}
