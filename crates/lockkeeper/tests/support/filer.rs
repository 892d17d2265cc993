//! A server with its web page, and machines that lock files of it from addresses of loopback.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use bytes::{Bytes, BytesMut};
use client::nfs::Nfs;
use client::{Locker, Options, mount};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use wire::nfs3::{Handle, NewAttributes};
use wire::record::{Limits, Next, Records, mark};
use wire::rpc::{Accepted, Call, write_accepted};
use wire::rpcbind::{self, Mapping};
use wire::{Decode, Encode, Writer, nsm};

/// What stays when the server is killed: its directories and its ports.
pub struct Home {
    dir: TempDir,
    pub at: SocketAddr,
    web_port: u16,
    pub monitor_port: u16,
}

impl Home {
    /// `config` is added to the configuration file.
    pub fn new(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("share")).unwrap();
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(dir.path().join("share"), everybody).unwrap();
        let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let home = Self { dir, at: port(), web_port: port().port(), monitor_port: port().port() };
        let rpc = format!("[rpc]\npeer_rpcbind_port = {}\n{config}", home.monitor_port);
        fs::write(home.path("lockkeeper.toml"), rpc).unwrap();
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub fn web(&self) -> String {
        format!("http://127.0.0.1:{}/", self.web_port)
    }

    pub fn serve(&self) -> Filer {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
            .args(["serve", "--rpcbind", "off", "--ports", "any", "--window", "60s"])
            .args(["--listen", &self.at.to_string(), "--node", "filer"])
            .args(["--admin", &format!("127.0.0.1:{}", self.web_port)])
            .arg("--admin-socket")
            .arg(self.path("admin.sock"))
            .arg("--state")
            .arg(self.path("state"))
            .arg("-c")
            .arg(self.path("lockkeeper.toml"))
            .arg(self.path("share"))
            .env("LOCKKEEPER_LOG", "error")
            .env_remove("NOTIFY_SOCKET")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("mount") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "it did not start");
        }
        Filer { child, _said: said }
    }

    /// A machine at 127.0.0.`number`.
    pub async fn host(&self, name: &str, number: u8) -> Host {
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, number));
        let options = Options { source: Some(source), ..Options::default().user(1, 1, &[]) };
        let locker = Locker::connect(self.at, name, i32::from(number), &options).await.unwrap();
        let share = self.path("share");
        let root = mount::mount(&locker.connection, share.to_str().unwrap()).await.unwrap();
        Host { nfs: Nfs(locker.connection.clone()), locker, root }
    }

    /// A status monitor at 127.0.0.`number` that answers every notice.
    pub async fn monitor(&self, number: u8) {
        let ip = IpAddr::V4(Ipv4Addr::new(127, 0, 0, number));
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let directory = UdpSocket::bind((ip, self.monitor_port)).await.unwrap();
        tokio::spawn(tell_port(directory, port));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_notices(stream));
            }
        });
    }
}

/// The running server; killed without a warning when it is dropped.
pub struct Filer {
    child: Child,
    /// Kept, so that it can say something.
    _said: BufReader<ChildStdout>,
}

impl Drop for Filer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Host {
    pub locker: Locker,
    pub nfs: Nfs,
    pub root: Handle,
}

impl Host {
    pub async fn create(&self, name: &str) -> Handle {
        let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
        self.nfs.create(&self.root, name.as_bytes(), new).await.unwrap()
    }

    pub async fn make_dir(&self, name: &str) -> Handle {
        let new = NewAttributes { mode: Some(0o777), ..NewAttributes::default() };
        self.nfs.make_dir(&self.root, name.as_bytes(), new).await.unwrap()
    }

    pub async fn create_in(&self, dir: &Handle, name: &str) -> Handle {
        let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
        self.nfs.create(dir, name.as_bytes(), new).await.unwrap()
    }
}

/// Says where the status monitor is, as rpcbind does.
async fn tell_port(socket: UdpSocket, port: u16) {
    let mut buffer = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let Ok(call) = Call::parse(Bytes::copy_from_slice(&buffer[..length])) else { continue };
        let asked = Mapping::from_bytes(call.args).unwrap();
        let known = asked.program == nsm::PROGRAM && asked.protocol == rpcbind::PROTOCOL_TCP;
        let mut out = Writer::new();
        write_accepted(&mut out, call.xid, Accepted::Success);
        u32::from(if known { port } else { 0 }).encode(&mut out);
        let _ = socket.send_to(&out.finish().to_bytes(), from).await;
    }
}

async fn answer_notices(mut stream: TcpStream) {
    let mut records = Records::new(Limits { record_bytes_max: 8192, fragments_max: 8 });
    let mut received = BytesMut::new();
    while stream.read_buf(&mut received).await.unwrap_or(0) > 0 {
        while let Ok(Next::Record(record)) = records.next(&mut received) {
            let Ok(call) = Call::parse(record) else { return };
            let mut out = Writer::new();
            write_accepted(&mut out, call.xid, Accepted::Success);
            let bytes = out.finish().to_bytes();
            let mark = mark(bytes.len()).to_be_bytes();
            if stream.write_all(&[&mark[..], &bytes].concat()).await.is_err() {
                return;
            }
        }
    }
}
