//! TLS: what each `sslmode` makes of each kind of server, and whom a client certificate admits.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_store::{Durability, Postgres, PostgresSettings, StoreError};
use testbed::certificates::{Authority, Certificate, Subject};
use testbed::postgres::{Options, Server};

use crate::driver::taken;

/// A certificate for the address by which the tests connect.
pub const RIGHT: Subject<'_> = Subject {
    common_name: "db.example.com",
    alternative_names: "DNS:localhost,IP:127.0.0.1",
    has_expired: false,
};

pub fn server() -> Server {
    Server::start_with(&Options { tcp: true, ..Options::default() }).unwrap()
}

/// The settings for a url of `server` with these parameters, of a node of its own.
pub fn over_tcp(server: &Server, parameters: &str) -> PostgresSettings {
    let url = format!("{}?{parameters}", server.tcp_url().unwrap());
    PostgresSettings::new(&url, &fresh_node(), Durability::Process)
}

/// A name that no other connection has: the database shows those that were closed a moment ago, too.
pub fn fresh_node() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("node {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Whether the connections of a store use TLS: `t`, `f`, or `f,t` for some.
pub fn encrypted(server: &Server, store: &Postgres) -> String {
    let node = &store.settings().node;
    let sql = "SELECT string_agg(DISTINCT left(ssl::text, 1), ',') FROM pg_stat_ssl \
               JOIN pg_stat_activity USING (pid) WHERE application_name = 'lockkeeper ";
    server.psql(&format!("{sql}{node}'")).unwrap()
}

/// What a mode makes of a server: a connection with TLS, one without, or none, for a reason.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Tls,
    Plain,
    Refused(&'static str),
}

use Outcome::{Plain, Refused, Tls};

const NO_TLS: Outcome = Refused("set ssl = on");
const NAME: Outcome = Refused("is for db.example.com, other.example.com, not for 127.0.0.1");
const ISSUER: Outcome = Refused("set sslrootcert in the url");
const EXPIRED: Outcome = Refused("has expired");
/// A certificate of version 1, which has no names.
const OLD: Outcome = Refused("must be of version 3");

/// The last rows have a root certificate besides.
const MODES: [(&str, bool); 9] = [
    ("disable", false),
    ("allow", false),
    ("prefer", false),
    ("require", false),
    ("allow", true),
    ("prefer", true),
    ("require", true),
    ("verify-ca", true),
    ("verify-full", true),
];

/// B5.90, B5.91
#[test]
fn each_mode_accepts_the_servers_that_libpq_accepts() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let server = server();
    let other_name = Subject {
        alternative_names: "DNS:db.example.com,DNS:other.example.com",
        common_name: "127.0.0.1",
        ..RIGHT
    };
    let expired = Subject { has_expired: true, ..RIGHT };
    let old = Subject { alternative_names: "", ..RIGHT };
    let table: [(&str, Option<Certificate>, [Outcome; 9]); 6] = [
        ("without TLS", None, {
            [Plain, Plain, Plain, NO_TLS, Plain, Plain, NO_TLS, NO_TLS, NO_TLS]
        }),
        ("the right certificate", Some(ours.issue("right", RIGHT).unwrap()), {
            [Plain, Plain, Tls, Tls, Plain, Tls, Tls, Tls, Tls]
        }),
        ("another name", Some(ours.issue("name", other_name).unwrap()), {
            [Plain, Plain, Tls, Tls, Plain, Tls, Tls, Tls, NAME]
        }),
        ("another root", Some(theirs.issue("root", RIGHT).unwrap()), {
            [Plain, Plain, Tls, Tls, Plain, Plain, ISSUER, ISSUER, ISSUER]
        }),
        ("expired", Some(ours.issue("expired", expired).unwrap()), {
            [Plain, Plain, Tls, Tls, Plain, Plain, EXPIRED, EXPIRED, EXPIRED]
        }),
        ("version 1", Some(ours.issue("old", old).unwrap()), {
            [Plain, Plain, Tls, Tls, Plain, Plain, OLD, OLD, OLD]
        }),
    ];
    for (kind, certificate, expected) in table {
        server.set_certificate(certificate.as_ref(), ours.certificate()).unwrap();
        for ((mode, has_root), expected) in MODES.into_iter().zip(expected) {
            let mut parameters = format!("sslmode={mode}");
            if has_root {
                parameters += &format!("&sslrootcert={}", ours.certificate().display());
            }
            let connected = Postgres::connect(over_tcp(&server, &parameters));
            let told = format!("{kind}, {parameters}: expected {expected:?}");
            match (expected, connected) {
                (Tls, Ok(store)) => assert_eq!(encrypted(&server, &store), "t", "{told}"),
                (Plain, Ok(store)) => assert_eq!(encrypted(&server, &store), "f", "{told}"),
                (Refused(why), Err(error)) => {
                    assert!(matches!(error, StoreError::Tls { .. }), "{told}: {error:?}");
                    assert!(!error.is_transient() && !error.is_fatal(), "{told}");
                    assert!(error.to_string().contains(why), "{told}: {error}");
                }
                (_, Ok(store)) => {
                    panic!("{told}, and it connected: {}", encrypted(&server, &store))
                }
                (_, Err(error)) => panic!("{told}: {error}"),
            }
        }
    }
}

/// B5.91
#[test]
fn the_name_in_the_certificate_is_that_of_the_url() {
    let authority = Authority::new("ours").unwrap();
    let server = server();
    let name = |alternative_names| Subject { alternative_names, ..RIGHT };
    let port = server.port().unwrap();
    for (file, names, host, is_accepted) in [
        ("dns", "DNS:db.example.com", "host=db.example.com hostaddr=127.0.0.1", true),
        ("dns", "DNS:db.example.com", "host=127.0.0.1", false),
        ("dns", "DNS:db.example.com", "hostaddr=127.0.0.1", false),
        ("wild", "DNS:*.example.com", "host=db.example.com hostaddr=127.0.0.1", true),
        ("wild", "DNS:*.example.com", "host=a.db.example.com hostaddr=127.0.0.1", false),
        ("wild", "DNS:*.example.com", "host=example.com hostaddr=127.0.0.1", false),
        ("ip", "IP:127.0.0.1", "hostaddr=127.0.0.1", true),
        ("ip", "IP:127.0.0.1", "host=localhost", false),
        // An address is not a name.
        ("fake", "DNS:127.0.0.1", "host=127.0.0.1", false),
    ] {
        let certificate = authority.issue(file, name(names)).unwrap();
        server.set_certificate(Some(&certificate), authority.certificate()).unwrap();
        let root = authority.certificate().display();
        let url = format!(
            "{host} port={port} user=postgres dbname=postgres sslmode=verify-full sslrootcert={root}"
        );
        let connected = Postgres::connect(PostgresSettings::new(&url, "a", Durability::Process));
        match connected {
            Ok(_) => assert!(is_accepted, "{names}, {host}"),
            Err(error) => assert!(!is_accepted, "{names}, {host}: {error}"),
        }
    }
}

/// B5.91
#[test]
fn a_servers_own_certificate_can_be_the_root() {
    let authority = Authority::new("ours").unwrap();
    let server = server();
    let own = authority.self_signed("own", "IP:127.0.0.1").unwrap();
    let root = own.path.display();
    let verified = over_tcp(&server, &format!("sslmode=verify-full&sslrootcert={root}"));
    server.set_certificate(Some(&own), authority.certificate()).unwrap();
    drop(Postgres::connect(verified.clone()).unwrap());
    let other = authority.self_signed("other", "IP:127.0.0.1").unwrap();
    server.set_certificate(Some(&other), authority.certificate()).unwrap();
    let refused = Postgres::connect(verified).err().unwrap().to_string();
    assert!(refused.contains("an authority that is not in"), "{refused}");
}

/// B5.90
#[test]
fn allow_and_prefer_take_what_the_server_admits() {
    let authority = Authority::new("ours").unwrap();
    let server = server();
    let certificate = authority.issue("right", RIGHT).unwrap();
    server.set_certificate(Some(&certificate), authority.certificate()).unwrap();
    let by = |mode: &str| {
        let connected = Postgres::connect(over_tcp(&server, &format!("sslmode={mode}")));
        connected.map(|store| encrypted(&server, &store)).map_err(|error| error.to_string())
    };
    server.admit(&["hostssl all all 127.0.0.1/32 trust"]).unwrap();
    assert_eq!(
        [by("allow"), by("prefer"), by("require")],
        [const { "t" }; 3].map(|t| Ok(t.into()))
    );
    let refused = by("disable").unwrap_err();
    assert!(refused.contains("if it demands TLS: sslmode=verify-full"), "{refused}");
    server.admit(&["hostnossl all all 127.0.0.1/32 trust"]).unwrap();
    assert_eq!([by("allow"), by("prefer")], [const { "f" }; 2].map(|f| Ok(f.into())));
    by("require").unwrap_err();
    server.admit(&[]).unwrap();
    let refused = by("prefer").unwrap_err();
    assert!(refused.contains("with TLS: ") && refused.contains("without TLS: "), "{refused}");
    // A unix socket has no TLS, whatever the mode.
    let url = format!("{} sslmode=verify-full sslrootcert=/nowhere", server.url());
    drop(Postgres::connect(PostgresSettings::new(&url, "a", Durability::Process)).unwrap());
}

/// B5.92
#[test]
fn a_client_certificate_is_presented() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let server = server();
    let right = ours.issue("right", RIGHT).unwrap();
    server.set_certificate(Some(&right), ours.certificate()).unwrap();
    server.admit(&["hostssl all all 127.0.0.1/32 cert"]).unwrap();
    let client = Subject { common_name: "postgres", alternative_names: "DNS:client", ..RIGHT };
    let connect = |identity: Option<(&Path, &Path)>| {
        let root = ours.certificate().display();
        let mut parameters = format!("sslmode=verify-full&sslrootcert={root}");
        if let Some((certificate, key)) = identity {
            parameters += &format!("&sslcert={}&sslkey={}", certificate.display(), key.display());
        }
        let connected = Postgres::connect(over_tcp(&server, &parameters));
        connected.map(drop).map_err(|error| error.to_string())
    };
    let issued = ours.issue("client", client).unwrap();
    connect(Some((&issued.path, &issued.key))).unwrap();
    let refused = connect(None).unwrap_err();
    assert!(refused.contains("valid client certificate"), "{refused}");
    assert!(refused.contains("sslcert and sslkey in the url"), "{refused}");
    let foreign = theirs.issue("client", client).unwrap();
    let refused = connect(Some((&foreign.path, &foreign.key))).unwrap_err();
    assert!(refused.contains("ssl_ca_file has issued"), "{refused}");
    // Files that cannot be right are found before connecting.
    let refused = connect(Some((&issued.path, &foreign.key))).unwrap_err();
    assert!(refused.contains("client.key"), "{refused}");
    let refused = connect(Some((Path::new("/nowhere.crt"), &issued.key))).unwrap_err();
    assert!(refused.contains("/nowhere.crt: No such file"), "{refused}");
    let refused = connect(Some((&issued.key, &issued.key))).unwrap_err();
    assert!(refused.contains("no certificate in PEM form"), "{refused}");
    fs::set_permissions(&issued.key, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = connect(Some((&issued.path, &issued.key))).unwrap_err();
    assert!(refused.contains("others can read this key: chmod 600"), "{refused}");
}

/// B5.91
#[test]
fn settings_that_verify_nothing_are_refused() {
    let refused = |parameters: &str| {
        let url = format!("postgres://127.0.0.1:1/x?{parameters}");
        let error = Postgres::connect(PostgresSettings::new(&url, "a", Durability::Process));
        error.err().unwrap().to_string()
    };
    let text = refused("sslmode=verify-full");
    assert!(text.contains("sslrootcert=/PATH"), "{text}");
    let text = refused("sslmode=verify-ca&sslrootcert=system");
    assert!(text.contains("system needs sslmode=verify-full"), "{text}");
    let text = refused("sslmode=require&sslcert=/c");
    assert!(text.contains("sslcert needs its key"), "{text}");
    let text = refused("sslmode=require&sslcrl=/c");
    assert!(text.contains("sslcrl"), "{text}");
}

/// B5.93
#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let server = server();
    server.set_certificate(Some(&ours.issue("one", RIGHT).unwrap()), ours.certificate()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root.crt");
    fs::copy(ours.certificate(), &root).unwrap();
    let parameters = format!("sslmode=verify-full&sslrootcert={}", root.display());
    let lease = Duration::from_secs(2);
    let (mut store, _lease) = taken(&PostgresSettings { lease, ..over_tcp(&server, &parameters) });
    let next = theirs.issue("two", RIGHT).unwrap();
    server.set_certificate(Some(&next), theirs.certificate()).unwrap();
    let ours = format!(
        "FROM pg_stat_activity WHERE application_name = 'lockkeeper {}'",
        store.settings().node
    );
    server.psql(&format!("SELECT pg_terminate_backend(pid) {ours}")).unwrap();
    let error = store.leadership().and_then(|_| store.leadership()).unwrap_err();
    assert!(matches!(error, StoreError::Tls { .. } | StoreError::Unreachable { .. }), "{error}");
    fs::copy(theirs.certificate(), &root).unwrap();
    store.leadership().unwrap();
    // Commits and heartbeat.
    testbed::wait::until_blocking("the heartbeat", || {
        server.psql(&format!("SELECT count(*) {ours}")).is_ok_and(|count| count == "2")
    });
    assert_eq!(encrypted(&server, &store), "t");
}
