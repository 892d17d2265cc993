//! A configuration file with one key changed, and servers that use it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use serde_json::Value as Json;
use tempfile::TempDir;
use testbed::ports::free_port;
use testbed::server::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toml::{Table, Value};
use wire::nfs3::{Handle, NewAttributes};

use crate::support::PROGRAM;

/// What every trial has unless its key says otherwise: no port of the machine is used, and no
/// lock manager answers at the clients.
const BASE: &str = "
[rpc]
listen = '127.0.0.1:0'
rpcbind = 'off'
peer_rpcbind_port = FREE
[admin]
socket = 'HOME/admin.sock'
listen = '127.0.0.1:0'
[[export]]
path = 'HOME/export'
squash = 'none'
ports = 'any'
";

/// An address that no other client of a trial uses.
pub const HOLDER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

pub struct Setup {
    pub home: TempDir,
    table: Table,
}

impl Setup {
    pub fn new(key: &str, value: Option<&str>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let export = home.path().join("export");
        fs::create_dir(&export).unwrap();
        for path in [home.path(), &export] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut setup = Self { home, table: Table::new() };
        setup.table = setup.filled(BASE).parse().unwrap();
        if let Some(value) = value {
            setup.set(key, value);
        }
        setup
    }

    fn filled(&self, text: &str) -> String {
        let home = self.home.path().canonicalize().unwrap();
        text.replace("HOME", home.to_str().unwrap())
            .replace("FREE", &free_port().unwrap().to_string())
    }

    /// Sets a key to a value as in the file.
    pub fn set(&mut self, key: &str, value: &str) {
        let parsed: Table = self.filled(&format!("value = {value}")).parse().unwrap();
        let (tables, name) = key.rsplit_once('.').unwrap();
        let mut table = &mut self.table;
        for part in tables.split('.') {
            let next = table.entry(part).or_insert_with(|| Table::new().into());
            table = match next {
                Value::Array(all) => all[0].as_table_mut().unwrap(),
                one => one.as_table_mut().unwrap(),
            };
        }
        table.insert(name.into(), parsed["value"].clone());
    }

    pub fn value(&self, key: &str) -> &Value {
        find(&self.table, key)
    }

    pub fn text(&self, key: &str) -> &str {
        self.value(key).as_str().unwrap()
    }

    pub fn number(&self, key: &str) -> u16 {
        self.value(key).as_integer().unwrap().try_into().unwrap()
    }

    /// Writes the file.
    pub fn write(&self) -> PathBuf {
        let file = self.home.path().join("lockkeeper.toml");
        fs::write(&file, toml::to_string(&self.table).unwrap()).unwrap();
        file
    }

    /// `serve` with this file; nothing that a key says is an option.
    pub fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg("-c").arg(self.write());
        command.arg("--state").arg(self.home.path().join("state"));
        command.arg("--run-directory").arg(self.home.path().join("run"));
        command.env_remove("NOTIFY_SOCKET");
        command
    }

    pub fn start(&self) -> Running {
        let log = self.home.path().join("log");
        Running { server: Server::start(&mut self.command(), &log).unwrap() }
    }

    /// A client at [`HOLDER`] that locks a byte, and a server that was killed and started again since.
    pub async fn restarted(&self) -> Running {
        let mut first = self.start();
        let file = first.file(self, "a").await;
        let alice = first.locker_at(HOLDER, "alice").await;
        let lock = alice.lock(&file, byte(0)).await.unwrap();
        assert_eq!(lock, wire::nlm::Status::Granted);
        first.server.kill();
        drop(first);
        self.start()
    }
}

pub fn find<'a>(table: &'a Table, key: &str) -> &'a Value {
    let (tables, name) = key.rsplit_once('.').unwrap();
    let mut table = table;
    for part in tables.split('.') {
        table = match &table[part] {
            Value::Array(all) => all[0].as_table().unwrap(),
            one => one.as_table().unwrap(),
        };
    }
    &table[name]
}

pub fn byte(offset: u64) -> wire::nlm::Range {
    wire::nlm::Range { offset, length: 1 }
}

pub struct Running {
    pub server: Server,
}

impl Running {
    pub fn address(&self) -> SocketAddr {
        self.server.address().unwrap()
    }

    /// The part of a banner line after `begin`, up to the next gap.
    pub fn banner(&self, begin: &str) -> String {
        let banner = self.server.banner().join("\n");
        let rest = banner.split(begin).nth(1).unwrap_or_default();
        rest.split("   ").next().unwrap().lines().next().unwrap_or_default().to_owned()
    }

    pub async fn connect(&self, uid: u32, gid: u32) -> Connection {
        let options = Options::default().user(uid, gid, &[]);
        Connection::connect(self.address(), &options).await.unwrap()
    }

    /// From a reserved port if this is root's: the server then demands it of status monitors.
    pub async fn monitor(&self) -> Connection {
        let reserved_port = rustix::process::geteuid().is_root();
        let options = Options { reserved_port, ..Options::default() };
        Connection::connect(self.address(), &options).await.unwrap()
    }

    pub async fn locker(&self, name: &str) -> Locker {
        Locker::new(self.connect(0, 0).await, name, 1)
    }

    pub async fn locker_at(&self, address: Ipv4Addr, name: &str) -> Locker {
        let options = Options { source: Some(address.into()), ..Options::default() };
        Locker::connect(self.address(), name, 1, &options).await.unwrap()
    }

    /// A file of the export that everybody may read and write, created if it is missing.
    pub async fn file(&self, setup: &Setup, name: &str) -> Handle {
        let nfs = Nfs(self.connect(0, 0).await);
        let path = setup.text("export.path");
        let path = path.strip_prefix("memory:").unwrap_or(path);
        let root = mount::mount(&nfs.0, path).await.unwrap();
        let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
        match nfs.create(&root, name.as_bytes(), new).await {
            Ok(file) => file,
            Err(_) => nfs.lookup_path(&root, name.as_bytes()).await.unwrap(),
        }
    }

    /// Status and body of a document of the API, over TCP.
    pub async fn get(&self, path: &str) -> (String, String) {
        get(&self.server.web_address().unwrap().to_string(), path).await
    }

    pub async fn json(&self, path: &str) -> Json {
        let (status, body) = self.get(path).await;
        assert_eq!(status, "200", "{path}: {body}");
        let begin = body.find(['{', '[']).unwrap();
        let mut documents = serde_json::Deserializer::from_str(&body[begin..]).into_iter();
        documents.next().unwrap().unwrap()
    }
}

/// Status and body of a document at this address.
pub async fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}
