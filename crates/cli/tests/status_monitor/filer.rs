//! `lockkeeper serve` in a network of its own.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use client::nfs::Nfs;
use serde_json::Value;
use tempfile::TempDir;
use testbed::namespace::Namespace;
use testbed::server::Server;
use testbed::wait::until;

use super::{CLIENT, connect};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// The first address of [`Namespace::pair`].
pub const ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)), 2049);

pub struct Filer {
    network: Namespace,
    home: TempDir,
    window: String,
    server: Server,
}

impl Filer {
    pub fn start(network: Namespace, window: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("export")).unwrap();
        let server = serve(&network, home.path(), window);
        Self { network, home, window: window.to_owned(), server }
    }

    /// `kill -9`, and a new start. With `forget_run` as after a power cut, which the store does not
    /// survive completely.
    pub fn crash(&mut self, forget_run: bool) {
        self.server.kill();
        if forget_run {
            fs::remove_dir_all(self.home.path().join("run")).unwrap();
        }
        self.server = serve(&self.network, self.home.path(), &self.window);
    }

    pub fn log(&self) -> String {
        self.server.output()
    }

    /// The handle of a file that everybody may write; it is created if missing.
    pub async fn file(&self, name: &str) -> Vec<u8> {
        let export = self.home.path().join("export");
        let there = fs::File::options().create(true).append(true).open(export.join(name)).unwrap();
        there.set_permissions(fs::Permissions::from_mode(0o666)).unwrap();
        let connection = connect(CLIENT).await;
        let root = client::mount::mount(&connection, export.to_str().unwrap()).await.unwrap();
        Nfs(connection).lookup_path(&root, name.as_bytes()).await.unwrap().0.to_vec()
    }

    /// One scrape.
    pub fn scrape(&self) -> Scrape {
        let text = self.ask("/metrics").1;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| line.rsplit_once(' '));
        Scrape(samples.map(|(series, value)| (series.to_owned(), value.parse().unwrap())).collect())
    }

    /// Waits until a series has this value.
    pub async fn wait_for(&self, series: &str, value: f64) {
        until(&format!("{series} is {value}"), || self.scrape().value(series) == value).await;
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Status and body.
    pub fn ask(&self, path: &str) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "20", "-w", "\n%{http_code}", "--unix-socket"]);
        curl.arg(self.home.path().join("admin.sock")).arg(format!("http://localhost{path}"));
        let output = String::from_utf8(curl.output().unwrap().stdout).unwrap();
        let (body, status) = output.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// What a command prints.
    pub fn command(&self, arguments: &[&str]) -> String {
        let socket = self.home.path().join("admin.sock");
        let output =
            Command::new(PROGRAM).arg("--server").arg(socket).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn serve(network: &Namespace, home: &Path, window: &str) -> Server {
    let mut command = network.command(PROGRAM);
    command.args(["serve", "--rpcbind", "off", "--ports", "reserved", "--window", window]);
    command.args(["--listen", "[::]:2049", "--state"]).arg(home.join("state"));
    command.arg("--admin-socket").arg(home.join("admin.sock"));
    command.arg("--run-directory").arg(home.join("run")).arg(home.join("export"));
    command.env_remove("NOTIFY_SOCKET");
    Server::start(&mut command, &home.join("log")).unwrap()
}

pub struct Scrape(HashMap<String, f64>);

impl Scrape {
    pub fn value(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no {series} in {:?}", self.0))
    }

    /// Asserts the value of each series.
    #[track_caller]
    pub fn has(&self, expected: &[(&str, f64)]) {
        for (series, value) in expected {
            assert_eq!(self.value(series), *value, "{series}");
        }
    }
}
