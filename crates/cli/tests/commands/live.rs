//! A server for the commands, and clients that lock.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use testbed::server::{Server, serve};
use wire::nfs3::{Handle, NewAttributes, Stability};
use wire::nlm::Range;

use crate::run::{Ended, PROGRAM, run};

pub const PAGE: Range = Range { offset: 0, length: 4096 };
pub const START: Range = Range { offset: 0, length: 100 };

const CONFIG: &str = "lockkeeper.toml";

/// A server with an export.
pub struct Live {
    dir: TempDir,
    server: Server,
    pub at: SocketAddr,
    pub web: String,
}

impl Live {
    pub fn start() -> Self {
        Self::with(|dir| File::create(dir.join("log")).unwrap().into())
    }

    /// With this configuration file.
    pub fn configured(config: &str) -> Self {
        Self::with(|dir| {
            fs::write(dir.join(CONFIG), config).unwrap();
            File::create(dir.join("log")).unwrap().into()
        })
    }

    /// Changes the configuration file, for a reload.
    pub fn configure(&self, config: &str) {
        fs::write(self.dir.path().join(CONFIG), config).unwrap();
    }

    /// With its log elsewhere.
    pub fn with(log: impl FnOnce(&Path) -> Stdio) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let share = dir.path().join("share");
        fs::create_dir(&share).unwrap();
        set_mode(&share, 0o777);
        set_mode(dir.path(), 0o755);
        let (banner, log) = (dir.path().join("banner"), log(dir.path()));
        let server = Server::start_with_log(&mut command(dir.path(), 0), &banner, log).unwrap();
        let at = server.address().unwrap();
        let web = format!("http://{}", server.web_address().unwrap());
        Self { dir, server, at, web }
    }

    /// After `kill -9`: on the same port, with the same state.
    pub fn start_again(&mut self) {
        self.server.kill();
        let mut command = command(self.dir.path(), self.at.port());
        self.server = Server::start(&mut command, &self.dir.path().join("log")).unwrap();
        self.web = format!("http://{}", self.server.web_address().unwrap());
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

    /// Whether a client at the address of this test may write to a file.
    pub async fn writes(&self, file: &[u8]) -> bool {
        let options = Options::default().user(1, 1, &[]);
        let connection = Connection::connect(self.at, &options).await.unwrap();
        let file = Handle(file.to_vec().into());
        Nfs(connection).write(&file, 0, b"x".to_vec().into(), Stability::FileSync).await.is_ok()
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

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

fn command(dir: &Path, port: u16) -> Command {
    let mut command = serve(PROGRAM, dir, ([127, 0, 0, 1], port).into());
    command.args(["--window", "60s", "--admin", "127.0.0.1:0", "--node", "filer"]);
    command.arg(dir.join("share"));
    if dir.join(CONFIG).exists() {
        command.arg("-c").arg(dir.join(CONFIG));
    }
    command
}
