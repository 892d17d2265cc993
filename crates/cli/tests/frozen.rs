//! A stop while the disk of one export hangs, and a start beside the process that the kernel keeps
//! (B8.81). The disk is an ext4 image that is frozen. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs::{self, File};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::nfs::Nfs;
use client::{Connection, Locker, Options, UdpClient, mount};
use rustix::fs::{FlockOperation, flock};
use support::PROGRAM;
use testbed::ports::free_port;
use testbed::process::{Signal, run};
use testbed::server::{Server, serve};
use testbed::wait::{LIMIT, until};
use wire::nfs3::{Handle, NewAttributes, Stability, Write, WriteArgs};
use wire::nlm::{Range, Status};

const DIRECTORY: &str = "LOCKKEEPER_FROZEN_DISK";

/// Runs the other test in a mount namespace with an ext4 on `$1/disk`. Whatever becomes of the test, the
/// disk is thawed: threads that wait for it cannot be killed.
const SCRIPT: &str = r#"
    home=$1; shift
    mount -t tmpfs -o size=64m none "$home" && mkdir "$home/disk" || exit 1
    truncate -s 32m "$home/image" && mkfs.ext4 -q "$home/image" || exit 1
    mount -o loop "$home/image" "$home/disk" || exit 1
    thaw() { fsfreeze -u "$home/disk" 2>/dev/null; }
    trap thaw EXIT INT TERM
    (sleep 150 & nap=$!; trap 'kill $nap; exit' TERM; wait $nap; thaw) >/dev/null 2>&1 & watch=$!
    "$@"; code=$?
    thaw; kill $watch; wait $watch; umount "$home/disk"
    exit $code
"#;

#[test]
fn a_stop_beside_a_hung_disk_frees_everything_that_a_new_server_needs() {
    let home = tempfile::tempdir().unwrap();
    let name = "inside";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", SCRIPT, "sh"])
        .arg(home.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(DIRECTORY, home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "this test needs root: {said}");
}

/// Frozen until it is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(disk: &Path) -> Self {
        run(Command::new("fsfreeze").arg("-f").arg(disk)).unwrap();
        Self(disk.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = run(Command::new("fsfreeze").arg("-u").arg(&self.0));
    }
}

struct World {
    home: PathBuf,
    at: SocketAddr,
    admin: SocketAddr,
}

impl World {
    fn exports(&self) -> [PathBuf; 2] {
        [self.home.join("healthy"), self.home.join("disk")]
    }

    fn start(&self, log: &str) -> Server {
        let mut command = serve(PROGRAM, &self.home, self.at);
        command.args(["--admin", &self.admin.to_string()]).args(self.exports());
        Server::start(&mut command, &self.home.join(log)).unwrap()
    }

    async fn connect(&self) -> Connection {
        Connection::connect(self.at, &root()).await.unwrap()
    }

    async fn roots(&self) -> [Handle; 2] {
        let connection = self.connect().await;
        let [healthy, disk] = self.exports();
        let root = async |path: &Path| mount::mount(&connection, path.to_str().unwrap()).await;
        [root(&healthy).await.unwrap(), root(&disk).await.unwrap()]
    }

    /// What a new server would find taken.
    fn taken(&self) -> Vec<&'static str> {
        let refused = |at: SocketAddr| {
            let tried = std::net::TcpStream::connect_timeout(&at, Duration::from_secs(1));
            tried.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        let unlocked = |path: &str| {
            let Ok(file) = File::open(self.home.join("state").join(path)) else { return true };
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        let free = [
            ("TCP port", refused(self.at)),
            ("UDP port", UdpSocket::bind(self.at).is_ok()),
            ("admin port", refused(self.admin)),
            ("admin socket", !self.home.join("admin.sock").exists()),
            ("state directory", unlocked("lock")),
            ("store", unlocked("store/lock")),
        ];
        free.iter().filter(|(_, free)| !free).map(|(name, _)| *name).collect()
    }
}

fn root() -> Options {
    Options { timeout: LIMIT, ..Options::default().user(0, 0, &[]) }
}

fn write_args(file: &Handle, data: &'static [u8]) -> WriteArgs {
    let data = Bytes::from_static(data);
    let count = data.len() as u32;
    WriteArgs { file: file.clone(), offset: 0, count, stability: Stability::Unstable, data }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs inside the namespace that the other test makes"]
async fn inside() {
    let home = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let local = || SocketAddr::new([127, 0, 0, 1].into(), free_port().unwrap());
    let world = World { home: home.clone(), at: local(), admin: local() };
    let [healthy, disk] = world.exports();
    fs::create_dir(&healthy).unwrap();
    let config = home.join("lockkeeper.toml");
    fs::write(&config, "").unwrap();

    let mut first = world.start("first");
    let nfs = Nfs(world.connect().await);
    let [healthy_root, disk_root] = world.roots().await;
    // Clients' root is squashed.
    for directory in [&healthy, &disk] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
    let files = [
        nfs.create(&healthy_root, b"f", new).await.unwrap(),
        nfs.create(&disk_root, b"f", new).await.unwrap(),
        nfs.create(&disk_root, b"g", new).await.unwrap(),
    ];

    // Declared after `first`, so that it thaws the disk before the process is waited for.
    let frozen = Frozen::new(&disk);
    let by_tcp = tokio::spawn({
        let (nfs, args) = (Nfs(world.connect().await), write_args(&files[1], b"tcp"));
        async move { nfs.0.call::<Write>(&args).await.is_ok() }
    });
    let by_udp = UdpClient::open([127, 0, 0, 1].into(), &root()).await.unwrap();
    let (at, args) = (world.at, write_args(&files[2], b"udp"));
    tokio::spawn(async move { by_udp.call::<Write>(at, &args, LIMIT).await.is_ok() });
    let hangs = || threads(first.id()).iter().filter(|state| **state == 'D').count() >= 2;
    until("two writes hang in the kernel", hangs).await;

    first.signal(Signal::TERM).unwrap();
    let begun = Instant::now();
    let mut taken = world.taken();
    while !taken.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "still taken: {taken:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        taken = world.taken();
    }
    println!("everything was free {:.1} s after SIGTERM", begun.elapsed().as_secs_f64());
    assert!(first.is_running(), "nothing hung: {}", first.output());
    assert!(!by_tcp.await.unwrap());

    let second = world.start("second");
    println!("the second serves {:.1} s after SIGTERM", begun.elapsed().as_secs_f64());
    let locker = Locker::connect(world.at, "client", 1, &root()).await.unwrap();
    for file in &files {
        let range = Range { offset: 0, length: 1 };
        assert_eq!(locker.lock(file, range).await.unwrap(), Status::Granted);
    }
    let written =
        Nfs(world.connect().await).call::<Write, _, _>(&write_args(&files[0], b"x")).await;
    assert_eq!(written.unwrap().count, 1);

    drop(frozen);
    assert_eq!(first.wait().unwrap().code(), Some(0), "{}", first.output());
    let said = first.output();
    assert!(said.contains("did not end: WRITE from 127.0.0.1 ("), "{said}");
    assert!(said.contains(&format!("on {}", disk.display())), "{said}");
    drop(second);
}

/// The states of a process's threads, as in `ps`.
fn threads(process: u32) -> Vec<char> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let state = |path: PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    };
    tasks.flatten().filter_map(|task| state(task.path())).collect()
}
