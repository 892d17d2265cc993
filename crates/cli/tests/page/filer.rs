//! A server with its web page, and clients on several loopback addresses.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use client::nfs::Nfs;
use client::{Locker, Options, mount};
use tempfile::TempDir;
use testbed::peer::{self, Answer, RpcbindKind, script};
use testbed::ports::free_port;
use testbed::server::{Server, serve};
use wire::nfs3::{Handle, NewAttributes};
use wire::nsm;

use crate::PROGRAM;

/// Directories and ports of a server; they outlive its process.
pub struct Home {
    dir: TempDir,
    pub at: SocketAddr,
    web_port: u16,
    rpcbind_port: u16,
}

impl Home {
    /// `config` is added to the configuration file.
    pub fn new(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("share")).unwrap();
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(dir.path().join("share"), everybody).unwrap();
        let [nfs_port, web_port, rpcbind_port] = [(); 3].map(|()| free_port().unwrap());
        let at = ([127, 0, 0, 1], nfs_port).into();
        let home = Self { dir, at, web_port, rpcbind_port };
        // Shown without the token, unless a test says otherwise.
        let admin = if config.contains("[admin]") { "" } else { "[admin]\npaths = 'all'\n" };
        let rpc = format!("{admin}[rpc]\npeer_rpcbind_port = {rpcbind_port}\n{config}");
        fs::write(home.path("lockkeeper.toml"), rpc).unwrap();
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub fn web(&self) -> String {
        format!("http://127.0.0.1:{}/", self.web_port)
    }

    pub fn serve(&self) -> Server {
        let mut command = serve(PROGRAM, &self.path(""), self.at);
        command.args(["--window", "60s", "--node", "filer"]);
        command.args(["--admin", &format!("127.0.0.1:{}", self.web_port), "-c"]);
        command.arg(self.path("lockkeeper.toml")).arg(self.path("share"));
        command.env("LOCKKEEPER_LOG", "error");
        Server::start(&mut command, &self.path("log")).unwrap()
    }

    /// A client at 127.0.0.`number`.
    pub async fn host(&self, name: &str, number: u8) -> Host {
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, number));
        let options = Options { source: Some(source), ..Options::default().user(1, 1, &[]) };
        let locker = Locker::connect(self.at, name, i32::from(number), &options).await.unwrap();
        let share = self.path("share");
        let root = mount::mount(&locker.connection, share.to_str().unwrap()).await.unwrap();
        Host { nfs: Nfs(locker.connection.clone()), locker, root }
    }

    /// A status monitor at 127.0.0.`number` that answers every notice.
    pub async fn monitor(&self, number: u8) -> peer::Host {
        let ip = IpAddr::V4(Ipv4Addr::new(127, 0, 0, number));
        let mut host = peer::Host::bind(ip, self.rpcbind_port, RpcbindKind::Full).await;
        host.tcp(nsm::PROGRAM, nsm::VERSION, script(|_| Answer::results(&()))).await;
        host
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
