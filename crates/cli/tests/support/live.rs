//! The program as a server with its API, and clients that lock.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use client::nfs::Nfs;
use client::{Connection, Locker, Options};
use serde_json::Value;
use tempfile::TempDir;
use testbed::server::{Server, serve};
use testbed::wait;
use wire::nlm::Range;

use super::PROGRAM;

pub struct Live {
    pub home: TempDir,
    pub nfs: SocketAddr,
    pub web: SocketAddr,
    options: Vec<String>,
    server: Server,
}

/// An answer of the API.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }
}

impl Live {
    pub fn start(options: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("export")).unwrap();
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let server = start(home.path(), &options, None);
        let (nfs, web) = (server.address().unwrap(), server.web_address().unwrap());
        Self { home, nfs, web, options, server }
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("admin.sock")
    }

    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    pub fn token(&self) -> String {
        let path = self.home.path().join("state/admin-token");
        fs::read_to_string(path).unwrap().trim().to_string()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// SIGTERM.
    pub fn stop(&mut self) {
        assert!(self.server.stop(Duration::from_secs(30)).unwrap().success());
    }

    /// Starts it on the same ports, as after a crash.
    pub fn start_again(&mut self) {
        self.start_again_with(&[]);
    }

    /// As [`Self::start_again`], with further options.
    pub fn start_again_with(&mut self, more: &[&str]) {
        let options =
            [self.options.clone(), more.iter().map(ToString::to_string).collect()].concat();
        self.server = start(self.home.path(), &options, Some((self.nfs, self.web)));
    }

    /// Starts it on the same ports; it must end with an error. Returns its code and its output.
    pub fn fail_to_start(&mut self) -> (Option<i32>, String) {
        let mut command = command(self.home.path(), &self.options, Some((self.nfs, self.web)));
        self.server = Server::spawn(&mut command, &self.home.path().join("log")).unwrap();
        wait::until_blocking("the server ends", || !self.server.is_running());
        (self.server.wait().unwrap().code(), self.server.output())
    }

    /// Everything that the present process has written.
    pub fn log(&self) -> String {
        self.server.output()
    }

    /// A client and the handle of a file of the export, which is created if missing.
    pub async fn client(&self, name: &str, file: &str) -> (Locker, Vec<u8>) {
        self.client_from(name, file, Ipv4Addr::LOCALHOST.into()).await
    }

    pub async fn client_from(&self, name: &str, file: &str, source: IpAddr) -> (Locker, Vec<u8>) {
        let options = Options { source: Some(source), ..Options::default() }.user(0, 0, &[]);
        let connection = Connection::connect(self.nfs, &options).await.unwrap();
        let export = self.home.path().join("export");
        let there = fs::File::options().create(true).append(true).open(export.join(file));
        // Root is squashed.
        there.unwrap().set_permissions(fs::Permissions::from_mode(0o666)).unwrap();
        let root = client::mount::mount(&connection, export.to_str().unwrap()).await.unwrap();
        let nfs = Nfs(connection.clone());
        let handle = nfs.lookup_path(&root, file.as_bytes()).await.unwrap();
        (Locker::new(connection, name, 1), handle.0.to_vec())
    }

    /// Over the socket, as the user who runs the test.
    pub fn ask(&self, method: &str, path: &str) -> Answer {
        self.curl(&[], &["-X", method], &format!("http://localhost{path}"), true)
    }

    pub fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    /// Over TCP.
    pub fn ask_web(&self, method: &str, path: &str, options: &[&str]) -> Answer {
        let options = [&["-X", method], options].concat();
        self.curl(&[], &options, &format!("http://{}{path}", self.web), false)
    }

    /// `before` is what runs curl, as in `setpriv`.
    pub fn curl(&self, before: &[&str], options: &[&str], url: &str, socket: bool) -> Answer {
        let mut words: Vec<&str> = before.to_vec();
        words.extend(["curl", "-s", "-m", "20", "-w", "\n%{http_code}"]);
        words.extend(options);
        let path = self.socket();
        if socket {
            words.extend(["--unix-socket", path.to_str().unwrap()]);
        }
        words.push(url);
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{words:?}: {text}"));
        Answer { status: status.parse().unwrap(), body: body.to_string() }
    }

    /// Waits until the document at `path` satisfies a condition.
    pub fn wait_for(&self, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found = wait::try_until(what, || Ok(Some(self.get(path)).filter(&is)));
        found.unwrap_or_else(|error| panic!("{error}: {:#}", self.get(path)))
    }
}

pub fn whole() -> Range {
    Range { offset: 0, length: 0 }
}

pub fn bytes(first: u64, last: u64) -> Range {
    Range { offset: first, length: last - first + 1 }
}

/// On free ports, or on those that it had before.
fn start(home: &Path, options: &[String], ports: Option<(SocketAddr, SocketAddr)>) -> Server {
    Server::start(&mut command(home, options, ports), &home.join("log")).unwrap()
}

fn command(home: &Path, options: &[String], ports: Option<(SocketAddr, SocketAddr)>) -> Command {
    let free: SocketAddr = ([127, 0, 0, 1], 0).into();
    let (nfs, web) = ports.unwrap_or((free, free));
    let mut command = serve(PROGRAM, home, nfs);
    command.arg("--run-directory").arg(home.join("run")).arg(home.join("export"));
    if !options.iter().any(|option| option == "--admin") {
        command.args(["--admin", &web.to_string()]);
    }
    command.args(options);
    command
}
