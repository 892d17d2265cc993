//! A live server, and clients that lock.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use wire::nfs3::NewAttributes;
use wire::nlm::Range;

use crate::run::{Ended, PROGRAM, run};

pub const PAGE: Range = Range { offset: 0, length: 4096 };
pub const START: Range = Range { offset: 0, length: 100 };

/// A server with an export; killed with the test, whatever way that ends.
pub struct Live {
    dir: TempDir,
    child: Child,
    pub at: SocketAddr,
    pub web: String,
}

impl Live {
    pub fn start() -> Self {
        Self::with(|dir| File::create(dir.join("log")).unwrap().into())
    }

    /// With another place for its log.
    pub fn with(log: impl FnOnce(&Path) -> Stdio) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let share = dir.path().join("share");
        fs::create_dir(&share).unwrap();
        open_for_all(&share, 0o777);
        open_for_all(dir.path(), 0o755);
        let (child, at, web) = serve(dir.path(), 0, log(dir.path()));
        Self { dir, child, at, web }
    }

    /// After `kill -9`: on the same port, with the same state.
    pub fn start_again(&mut self) {
        self.kill();
        let log = File::create(self.dir.path().join("log")).unwrap();
        (self.child, self.at, self.web) = serve(self.dir.path(), self.at.port(), log.into());
    }

    fn kill(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("admin.sock")
    }

    fn share(&self) -> String {
        self.dir.path().join("share").to_str().unwrap().to_owned()
    }

    pub async fn host(&self, name: &str, process: i32) -> Locker {
        let options = Options::default().user(0, 0, &[]);
        Locker::connect(self.at, name, process, &options).await.unwrap()
    }

    pub async fn file(&self, name: &str) -> Vec<u8> {
        let options = Options::default().user(1, 1, &[]);
        let connection = Connection::connect(self.at, &options).await.unwrap();
        let root = mount::mount(&connection, &self.share()).await.unwrap();
        let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
        Nfs(connection).create(&root, name.as_bytes(), new).await.unwrap().0.to_vec()
    }

    pub fn run(&self, arguments: &str) -> Ended {
        run(self.socket(), &arguments.split(' ').collect::<Vec<_>>())
    }

    /// Runs a command that does what it should, and has nothing to say but the data.
    pub fn told(&self, arguments: &str) -> String {
        let ended = self.run(arguments);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments}");
        ended.out
    }

    pub fn json<T: DeserializeOwned>(&self, arguments: &str) -> T {
        serde_json::from_str(&self.told(&format!("{arguments} --json"))).unwrap()
    }

    /// What a command says that is refused: what is wrong, and the hint.
    pub fn refused(&self, arguments: &str) -> (String, String) {
        let ended = self.run(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{arguments}: {}", ended.err);
        let (error, hint) = ended.err.rsplit_once("\nhint: ").unwrap();
        let error = error.rsplit_once("error: ").unwrap().1;
        (error.to_owned(), hint.trim_end().to_owned())
    }

    /// A text with what differs from run to run made equal: paths, ages and times. In tables an
    /// age keeps its width.
    pub fn plain(&self, text: &str) -> String {
        let text = text.replace(&self.share(), "/share");
        let mut plain = String::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = rest.find([' ', '\n', '(', ')', ',', '.']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let number = word.strip_suffix('s').and_then(|number| number.parse::<u32>().ok());
            match (number, after.starts_with("  ")) {
                (Some(_), true) => plain += &format!("{:<1$}", "N", word.len()),
                (Some(_), false) => plain.push('N'),
                _ if word.starts_with("20") && word.contains('T') && word.contains(':') => {
                    plain += "TIME";
                }
                _ => plain += word,
            }
            // Parts of seconds belong to the time.
            let after = match after.strip_prefix('.').and_then(|after| after.split_once('Z')) {
                Some((ms, after)) if plain.ends_with("TIME") && ms.len() == 3 => after,
                _ => after,
            };
            let end = after.chars().next().map_or(0, char::len_utf8);
            plain += &after[..end];
            rest = &after[end..];
        }
        plain
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open_for_all(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

/// The process, its port for clients, and where its web page is.
fn serve(dir: &Path, port: u16, log: Stdio) -> (Child, SocketAddr, String) {
    let banner = dir.join("banner");
    let mut child = Command::new(PROGRAM)
        .args(["serve", "--rpcbind", "off", "--ports", "any", "--window", "60s"])
        .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", "127.0.0.1:0"])
        .args(["--node", "filer", "--admin-socket"])
        .arg(dir.join("admin.sock"))
        .arg("--state")
        .arg(dir.join("state"))
        .arg(dir.join("share"))
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(File::create(&banner).unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let start = Instant::now();
    loop {
        let said = fs::read_to_string(&banner).unwrap();
        let after = |line: &str, word: &str| {
            let found = said.lines().find(|found| found.starts_with(line))?;
            found.split_whitespace().skip_while(|found| *found != word).nth(1).map(str::to_owned)
        };
        if let (Some(port), Some(web)) = (after("rpc", "on"), after("admin", "web"))
            && said.contains("\nmount")
        {
            let at = SocketAddr::new([127, 0, 0, 1].into(), port.parse().unwrap());
            return (child, at, web);
        }
        if child.try_wait().unwrap().is_some() || start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("it did not start: {}", fs::read_to_string(dir.join("log")).unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
