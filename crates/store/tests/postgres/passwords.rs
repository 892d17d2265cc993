//! Passwords out of files, with SCRAM, and bound to the TLS channel.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use lockkeeper_store::{Durability, Postgres, PostgresSettings, StoreError};
use testbed::certificates::Authority;
use testbed::postgres::Server;

use crate::tls::{RIGHT, encrypted, fresh_node, server};

const PASSWORD: &str = r"s3:cr\et";

/// A server that demands the password of `keeper`, with TLS or without.
fn guarded(authority: &Authority) -> Server {
    let server = server();
    let sql = format!(
        "CREATE ROLE keeper LOGIN PASSWORD '{PASSWORD}'; GRANT CREATE ON DATABASE postgres TO keeper"
    );
    server.psql(&sql).unwrap();
    server.admit(&["host all all 127.0.0.1/32 scram-sha-256"]).unwrap();
    let certificate = authority.issue("right", RIGHT).unwrap();
    server.set_certificate(Some(&certificate), authority.certificate()).unwrap();
    server
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// B5.95, B5.96
#[test]
fn a_password_comes_from_a_file_or_a_passfile() {
    let authority = Authority::new("ours").unwrap();
    let server = guarded(&authority);
    let directory = tempfile::tempdir().unwrap();
    let (file, passfile) = (directory.path().join("password"), directory.path().join("passfile"));
    let port = server.port().unwrap();
    let root = authority.certificate().display();
    let connect = |file: Option<&Path>, passfile: &Path, parameters: &str| {
        let passfile = passfile.display();
        let url =
            format!("postgres://keeper@127.0.0.1:{port}/postgres?passfile={passfile}&{parameters}");
        let settings = PostgresSettings::new(&url, &fresh_node(), Durability::Process);
        let password_file = file.map(Path::to_owned);
        let connected = Postgres::connect(PostgresSettings { password_file, ..settings });
        connected.map(|store| {
            let warnings = store.warnings().into_iter();
            let ignored = warnings.filter(|warning| warning.contains("is ignored"));
            (encrypted(&server, &store), ignored.collect::<Vec<String>>())
        })
    };
    let verified = format!("sslmode=verify-full&sslrootcert={root}");
    let bound = format!("{verified}&channel_binding=require");
    let nothing = Path::new("/nowhere");

    // None at all: the next step is named.
    let error = connect(None, nothing, "sslmode=disable").unwrap_err();
    assert!(matches!(error, StoreError::BadSettings(_)), "{error:?}");
    assert!(error.to_string().contains("password_file under [store]"), "{error}");

    write(&file, &format!("{PASSWORD}\n"), 0o600);
    assert_eq!(connect(Some(&file), nothing, "sslmode=disable").unwrap().0, "f");
    assert_eq!(connect(Some(&file), nothing, &verified).unwrap().0, "t");
    // SCRAM-SHA-256-PLUS: the server compares the hash of its certificate.
    assert_eq!(connect(Some(&file), nothing, &bound).unwrap().0, "t");
    assert_eq!(
        connect(Some(&file), nothing, &format!("{verified}&channel_binding=disable")).unwrap().0,
        "t"
    );
    connect(Some(&file), nothing, "sslmode=disable&channel_binding=require").unwrap_err();

    write(&passfile, "*:*:*:keeper:s3\\:cr\\\\et\n*:*:*:*:wrong\n", 0o600);
    assert_eq!(connect(None, &passfile, &bound).unwrap(), ("t".to_owned(), vec![]));
    // The file wins over the passfile, and is read for each connection.
    write(&file, "wrong", 0o600);
    let error = connect(Some(&file), &passfile, &verified).unwrap_err();
    let told = error.to_string();
    assert!(told.contains(&format!("the password is from {}", file.display())), "{told}");

    // One that others can read is not used, and the error says so.
    fs::set_permissions(&passfile, fs::Permissions::from_mode(0o644)).unwrap();
    let error = connect(None, &passfile, &verified).unwrap_err().to_string();
    assert!(error.contains("is ignored") && error.contains("chmod 600"), "{error}");
    // It draws a warning even if no password is needed.
    server.admit(&["host all all 127.0.0.1/32 trust"]).unwrap();
    let (_, warnings) = connect(None, &passfile, &verified).unwrap();
    assert!(warnings.len() == 1, "{warnings:?}");
}

/// B5.97
#[test]
fn a_wrong_password_is_in_no_error() {
    let authority = Authority::new("ours").unwrap();
    let server = guarded(&authority);
    let port = server.port().unwrap();
    for (password, more) in [
        ("hush", ""),
        ("hush", "?sslmode=hush2"),
        ("hush", "?sslmode=require&sslrootcert=/nowhere"),
        ("hu?sh", "?sslmode=require"),
        ("hush", "?unknown=1"),
        ("hush", "?connect_timeout=x"),
    ] {
        let url = format!("postgres://keeper:{password}@127.0.0.1:{port}/postgres{more}");
        let settings = PostgresSettings::new(&url, "a", Durability::Process);
        let error = Postgres::connect(settings).err().unwrap();
        let shown = format!("{error} {error:?}").replace("hush2", "");
        assert!(!shown.contains(password), "{shown}");
    }
}
