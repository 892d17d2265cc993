//! The program and the password of its database: where it comes from, and that it is shown nowhere.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::Signal;
use support::PROGRAM;
use tempfile::TempDir;
use testbed::certificates::{Authority, Subject};
use testbed::postgres::{Options, Server as Database};
use testbed::server::{Server, serve};

const PASSWORD: &str = "hush-hush";

/// A database that demands TLS and the password of `keeper`, and a home for a server of it.
struct Site {
    database: Database,
    authority: Authority,
    home: TempDir,
}

impl Site {
    fn new() -> Self {
        let options = Options { tcp: true, ..Options::default() };
        let database = Database::start_with(&options).unwrap();
        let sql = format!(
            "CREATE ROLE keeper LOGIN PASSWORD '{PASSWORD}'; \
             GRANT CREATE ON DATABASE postgres TO keeper"
        );
        database.psql(&sql).unwrap();
        database.admit(&["hostssl all all 127.0.0.1/32 scram-sha-256"]).unwrap();
        let authority = Authority::new("ours").unwrap();
        let subject =
            Subject { common_name: "db", alternative_names: "IP:127.0.0.1", has_expired: false };
        let certificate = authority.issue("db", subject).unwrap();
        database.set_certificate(Some(&certificate), authority.certificate()).unwrap();
        Self { database, authority, home: tempfile::tempdir().unwrap() }
    }

    fn url(&self, password: &str, more: &str) -> String {
        let (port, root) = (self.database.port().unwrap(), self.authority.certificate().display());
        format!(
            "postgres://keeper{password}@127.0.0.1:{port}/postgres?sslmode=verify-full\
             &sslrootcert={root}{more}"
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// The file of a server whose store has this url, and these lines besides.
    fn config(&self, url: &str, more: &str) -> PathBuf {
        let text = format!(
            "[store]\nurl = '{url}'\n{more}\n[[export]]\npath = 'memory:'\nclients = ['127.0.0.1']\n\
             [admin]\nlisten = 'off'\n"
        );
        self.write("lockkeeper.toml", &text, 0o640)
    }

    fn serve(&self, config: &Path) -> Command {
        let mut command = serve(PROGRAM, self.home.path(), "127.0.0.1:0".parse().unwrap());
        command.arg("-c").arg(config).arg("--run-directory").arg(self.path("run"));
        alone(&mut command, self.home.path());
        command
    }

    /// Starts a server, stops it, and returns all that it said.
    fn served(&self, command: &mut Command) -> String {
        let log = self.path("log");
        let mut server = Server::start(command, &log).unwrap();
        server.signal(Signal::TERM).unwrap();
        assert!(server.wait().unwrap().success());
        let said = server.output();
        assert!(!said.contains(PASSWORD), "{said}");
        said
    }
}

/// Without passwords of the user that runs the test.
fn alone(command: &mut Command, home: &Path) {
    command.env("HOME", home).env_remove("PGPASSFILE").env_remove("CREDENTIALS_DIRECTORY");
}

/// What a command says, which is never the password.
fn said(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(!said.contains(PASSWORD), "{said}");
    said
}

fn run(site: &Site, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(PROGRAM);
    alone(&mut command, site.home.path());
    let output = command.args(arguments).output().unwrap();
    (output.status.code(), said(&output))
}

/// B5.93, B5.96, B5.97
#[test]
fn a_server_its_doctor_and_its_commands_read_the_password_from_a_file() {
    testbed::namespace::need_root();
    let site = Site::new();
    let file = site.write("password", &format!("{PASSWORD}\n"), 0o600);
    let url = site.url("", "");
    let config = site.config(&url, &format!("password_file = {file:?}"));
    let text = site.served(&mut site.serve(&config));
    assert!(text.contains(&url), "the banner shows how the database is reached: {text}");
    assert!(!text.contains("any user can read"), "{text}");

    let config = config.to_str().unwrap();
    let (code, text) = run(&site, &["config", "show", "-c", config]);
    assert!(code == Some(0) && text.contains("password_file = "), "{text}");
    let state = site.path("state");
    let doctor = ["doctor", "-c", config, "--state", state.to_str().unwrap()];
    let (_, text) = run(&site, &doctor);
    assert!(text.contains("stopped cleanly") && !text.contains("LK255"), "{text}");

    // The url that the program shows, in /etc: a command finds the password by it.
    let script = "mount -t tmpfs none /etc; mkdir /etc/lockkeeper; \
                  cp \"$1\" /etc/lockkeeper/lockkeeper.toml; exec \"$2\" store check \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh", config, PROGRAM, &url]);
    alone(&mut command, site.home.path());
    let output = command.output().unwrap();
    let text = said(&output);
    assert!(output.status.success() && text.contains("verdict    sound"), "{text}");
    let (code, text) = run(&site, &["store", "check", &url]);
    assert!(code == Some(78) && text.contains("password_file under [store]"), "{text}");
}

/// B5.96
#[test]
fn a_credential_of_systemd_is_the_password() {
    let site = Site::new();
    site.write("credentials/store-password", PASSWORD, 0o400);
    let config = site.config(&site.url("", ""), "");
    let mut command = site.serve(&config);
    site.served(command.env("CREDENTIALS_DIRECTORY", site.path("credentials")));
    // Without one the start fails for good: a restart does not help.
    let output = site.serve(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(said(&output).contains("demands a password of role \"keeper\""));
}

/// B5.91, B5.95
#[test]
fn a_passfile_and_a_root_certificate_are_found_at_home() {
    let site = Site::new();
    let port = site.database.port().unwrap();
    let passfile = format!("127.0.0.1:{port}:postgres:keeper:{PASSWORD}\n");
    let url = format!("postgres://keeper@127.0.0.1:{port}/postgres?sslmode=verify-full");
    let (code, text) = run(&site, &["store", "check", &url]);
    assert!(code == Some(78) && text.contains("~/.postgresql/root.crt"), "{text}");
    let root = fs::read_to_string(site.authority.certificate()).unwrap();
    site.write(".postgresql/root.crt", &root, 0o644);
    site.write(".pgpass", &passfile, 0o600);
    let (code, text) = run(&site, &["store", "check", &url]);
    assert!(code == Some(0) && text.contains("verdict    sound"), "{text}");
    // Elsewhere, by the environment or the url.
    let elsewhere = site.path("elsewhere");
    fs::rename(site.path(".pgpass"), &elsewhere).unwrap();
    let (code, text) = run(&site, &["store", "check", &url]);
    assert!(code == Some(78) && text.contains("passfile"), "{text}");
    let named = format!("{url}&passfile={}", elsewhere.display());
    let (code, text) = run(&site, &["store", "check", &named]);
    assert_eq!(code, Some(0), "{text}");
    let mut command = Command::new(PROGRAM);
    alone(&mut command, site.home.path());
    let command = command.env("PGPASSFILE", &elsewhere).args(["store", "check", &url]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// B5.97
#[test]
fn a_password_that_others_can_see_draws_a_warning() {
    let site = Site::new();
    let url = site.url(&format!(":{PASSWORD}"), "");
    let (code, text) = run(&site, &["store", "check", &url]);
    assert!(code == Some(0) && text.contains("warning: the command line contains"), "{text}");
    let nothing = site.write("empty.toml", "[admin]\nlisten = 'off'\n", 0o644);
    let mut command = site.serve(&nothing);
    let text = site.served(command.args(["--store", &url, "memory:"]));
    assert!(text.contains("the command line contains the password"), "{text}");

    let config = site.config(&url, "");
    let shown = config.to_str().unwrap();
    for (mode, is_warned) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
        fs::set_permissions(&config, fs::Permissions::from_mode(mode)).unwrap();
        let (code, text) = run(&site, &["config", "check", "-c", shown]);
        let warned = text.contains("contains the password of the store, and any user can read it");
        assert!(code == Some(0) && warned == is_warned, "{mode:o}: {text}");
    }
    let text = site.served(&mut site.serve(&config));
    assert!(text.contains(&format!("chmod 640 {shown}")), "{text}");
    let (_, text) = run(&site, &["config", "show", "-c", shown]);
    assert!(text.contains("postgres://keeper@127.0.0.1"), "{text}");

    // Without a password in it, anyone may read it; but not the file that has it.
    let file = site.write("password", PASSWORD, 0o644);
    let config = site.config(&site.url("", ""), &format!("password_file = {file:?}"));
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    let (_, text) = run(&site, &["config", "check", "-c", shown]);
    assert_eq!(text.matches("any user can read").count(), 1, "{text}");
    assert!(text.contains("password_file: any user"), "{text}");
    // One password too many.
    let config = site.config(&url, &format!("password_file = {file:?}"));
    let (code, text) = run(&site, &["config", "check", "-c", config.to_str().unwrap()]);
    assert!(code == Some(78) && text.contains("the url has a password as well"), "{text}");
    // Errors that quote what is wrong with a url do not quote the password.
    for wrong in [
        format!("postgres://keeper:{PASSWORD}@x@127.0.0.1/db"),
        format!("postgres://keeper:{PASSWORD}@127.0.0.1:x/db"),
        format!("postgres:keeper:{PASSWORD}@127.0.0.1/db"),
        format!("postgres://keeper:{PASSWORD}@127.0.0.1/db?sslmode=x"),
        format!("postgres://127.0.0.1/db?{PASSWORD}=1&password={PASSWORD}")
            .replacen(PASSWORD, "x", 1),
    ] {
        let config = site.config(&wrong, "");
        run(&site, &["config", "check", "-c", config.to_str().unwrap()]);
        let output = site.serve(&config).output().unwrap();
        assert_eq!(output.status.code(), Some(78), "{}", said(&output));
        let (code, text) = run(&site, &["store", "check", &wrong]);
        assert_ne!(code, Some(0), "{text}");
    }
}

/// B5.94
#[test]
fn a_server_does_not_start_with_a_database_that_it_does_not_trust() {
    let site = Site::new();
    let theirs = Authority::new("theirs").unwrap();
    let port = site.database.port().unwrap();
    let root = theirs.certificate().display();
    let url = format!(
        "postgres://keeper:{PASSWORD}@127.0.0.1:{port}/postgres?sslmode=verify-ca&sslrootcert={root}"
    );
    let config = site.config(&url, "");
    // A standby waits for its database, but not for another certificate.
    for more in [&[][..], &["--standby"]] {
        let mut command = site.serve(&config);
        let mut server = Server::spawn(command.args(more), &site.path("log")).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(1), "{}", server.output());
        let text = server.output();
        assert!(!text.contains(PASSWORD), "{text}");
        assert!(text.contains(&format!("an authority that is not in {root}")), "{text}");
        assert!(text.contains("set sslrootcert in the url"), "{text}");
    }
}
