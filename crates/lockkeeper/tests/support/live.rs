//! A server of the real program with its API, and userspace clients that lock in it.

#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::nfs::Nfs;
use client::{Connection, Locker, Options};
use serde_json::Value;
use tempfile::TempDir;
use wire::nlm::Range;

pub struct Live {
    pub home: TempDir,
    pub nfs: SocketAddr,
    pub web: SocketAddr,
    options: Vec<String>,
    child: Child,
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
        let (child, nfs, web) = spawn(home.path(), &options, None);
        Self { home, nfs, web, options, child }
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("admin.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn token(&self) -> String {
        let path = self.home.path().join("state/admin-token");
        fs::read_to_string(path).unwrap().trim().to_string()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Again on the same ports, as after a crash.
    pub fn start_again(&mut self) {
        let ports = Some((self.nfs, self.web));
        (self.child, self.nfs, self.web) = spawn(self.home.path(), &self.options, ports);
    }

    /// Somebody who locks in one file of the export, which is made if it is not there.
    pub async fn client(&self, name: &str, file: &str) -> (Locker, Vec<u8>) {
        self.client_from(name, file, Ipv4Addr::LOCALHOST.into()).await
    }

    pub async fn client_from(&self, name: &str, file: &str, source: IpAddr) -> (Locker, Vec<u8>) {
        let options = Options { source: Some(source), ..Options::default() }.user(0, 0, &[]);
        let connection = Connection::connect(self.nfs, &options).await.unwrap();
        let export = self.home.path().join("export");
        let there = fs::File::options().create(true).append(true).open(export.join(file));
        // Root is squashed: everybody may write it.
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

    /// Waits until the API says so.
    pub fn wait_for(&self, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let found = self.get(path);
            if is(&found) {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "never {what}: {found:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn whole() -> Range {
    Range { offset: 0, length: 0 }
}

pub fn bytes(first: u64, last: u64) -> Range {
    Range { offset: first, length: last - first + 1 }
}

/// The program, and where it says that it listens.
fn spawn(
    home: &Path,
    options: &[String],
    ports: Option<(SocketAddr, SocketAddr)>,
) -> (Child, SocketAddr, SocketAddr) {
    let free: SocketAddr = ([127, 0, 0, 1], 0).into();
    let (nfs, web) = ports.unwrap_or((free, free));
    let web = web.to_string();
    let own = options.iter().any(|option| option == "--admin");
    let admin: &[&str] = if own { &[] } else { &["--admin", &web] };
    let log = fs::File::options().create(true).append(true).open(home.join("log")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .arg("serve")
        .arg(home.join("export"))
        .args(["--rpcbind", "off", "--ports", "any"])
        .args(["--listen", &nfs.to_string(), "--admin-socket"])
        .arg(home.join("admin.sock"))
        .arg("--state")
        .arg(home.join("state"))
        .arg("--run-directory")
        .arg(home.join("run"))
        .args(admin)
        .args(options)
        .env_remove("NOTIFY_SOCKET")
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut port, mut web) = (None, None);
    while port.is_none() || web.is_none() {
        let Some(Ok(line)) = lines.next() else {
            let _ = child.kill();
            panic!("it did not start: {}", fs::read_to_string(home.join("log")).unwrap());
        };
        if let Some((_, rest)) = line.split_once(" nfs mount nlm nsm on ") {
            port = rest.split(' ').next().map(|port| port.parse().unwrap());
        }
        if let Some((_, address)) = line.split_once("web http://") {
            web = Some(address.trim().parse().unwrap());
        }
    }
    // Whatever more it says is not to stop it.
    std::thread::spawn(move || lines.for_each(drop));
    let nfs = SocketAddr::new([127, 0, 0, 1].into(), port.unwrap_or_default());
    (child, nfs, web.unwrap_or(free))
}
