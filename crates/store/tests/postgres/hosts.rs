//! URLs with several hosts, and a pooler between.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_store::{Durability, Postgres, PostgresSettings, StoreError};
use testbed::ports::free_port;
use testbed::postgres::{Options, Server};
use testbed::{packages, wait};

use crate::driver::{settings, taken};

/// A host that accepts connections, and never answers.
fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// B6.64
#[test]
fn a_silent_host_does_not_keep_the_next_one_from_being_tried() {
    let server = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let (_listener, first) = silent();
    let second = server.port().unwrap();
    let url = |more: &str| {
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres{more}")
    };
    let began = Instant::now();
    let settings = PostgresSettings {
        lease: Duration::from_secs(2),
        ..PostgresSettings::new(&url("?connect_timeout=1"), "a", Durability::Process)
    };
    let (_store, lease) = taken(&settings);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    wait::until_blocking("the heartbeat", || !lease.has_standby());
    assert!(lease.is_fresh(), "{:?}", lease.last_error());
    // Without a limit of its own each host gets its share.
    let began = Instant::now();
    let settings = PostgresSettings::new(&url(""), "b", Durability::Process);
    drop(Postgres::connect(settings).unwrap());
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

/// A replica is passed over: it accepts no writes.
#[test]
fn a_replica_in_the_url_is_passed_over() {
    let server = Server::start().unwrap();
    let replica = server.replica(&[]).unwrap();
    let [first, second] = [&replica, &server].map(|one| one.socket_directory().display());
    let url = format!("host={first},{second} user=postgres dbname=postgres");
    let (_store, _) = taken(&PostgresSettings { url, ..settings(&server, "a") });
    assert_eq!(server.psql("SELECT node FROM lockkeeper.seat").unwrap(), "a");
    let only = format!("host={first} user=postgres dbname=postgres");
    let refused = Postgres::connect(PostgresSettings { url: only, ..settings(&server, "a") });
    let error = refused.err().unwrap();
    assert!(error.is_transient(), "{error}");
}

struct Pooler(Child);

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// B6.66
#[test]
fn a_pooler_in_transaction_mode_is_named() {
    packages::install(&["pgbouncer"]).unwrap();
    let server = Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap();
    let home = tempfile::tempdir().unwrap();
    testbed::postgres::give(home.path()).unwrap();
    let (port, database) = (free_port().unwrap(), server.port().unwrap());
    let at = |name: &str| home.path().join(name);
    let start = |mode: &str| {
        let ini = format!(
            "[databases]\npostgres = host=127.0.0.1 port={database}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\n[users]\n"
        );
        let ini = ini.replace("port=", "user=postgres port=");
        fs::write(at("pgbouncer.ini"), ini).unwrap();
        let log = fs::File::create(at("log")).unwrap();
        // Replaced by the pooler, which refuses to run as root.
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]);
        command.arg("/usr/sbin/pgbouncer").arg(at("pgbouncer.ini"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        wait::until_blocking("pgbouncer", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Pooler(child)
    };
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    let settings = PostgresSettings { url, ..settings(&server, "a") };
    let pooler = start("transaction");
    let error = Postgres::connect(settings.clone()).err().unwrap();
    assert!(matches!(error, StoreError::Pooled { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("PgBouncer") && text.contains("pool_mode = session"), "{text}");
    drop(pooler);
    wait::until_blocking("its end", || std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    let _pooler = start("session");
    taken(&settings);
}
