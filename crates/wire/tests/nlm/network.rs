//! A network of its own for Debian's daemons: they see their own loopback, their own `/run`, and
//! end with the test. Needs root, and of Debian the packages `nfs-common`, `rpcbind`, `iproute2`
//! and `util-linux`; without them these tests fail.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Network {
    holder: Child,
}

/// Prepares the namespaces and keeps them. What belongs to the whole kernel is hidden: statd would
/// change the state with which this machine's own mounts lock.
const HOLDER: &str = "set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /run; \
    if [ -d /proc/sys/fs/nfs ]; then mount -t tmpfs tmpfs /proc/sys/fs/nfs; fi; \
    hostname client7.example.org; ip link set lo up; echo ready >/run/ready; \
    exec sleep infinity";

impl Network {
    pub(crate) fn new() -> Self {
        let root = rustix::process::geteuid().is_root();
        assert!(root, "this test makes network namespaces and needs root: run it with sudo");
        let holder = Command::new("unshare")
            .args(["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", HOLDER])
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("unshare: {error}; install package util-linux"));
        let network = Self { holder };
        let ready = network.inside("run/ready");
        eventually("the namespaces are ready", || ready.exists());
        network
    }

    /// A file as the programs in here see it.
    pub(crate) fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(path)
    }

    /// A program of the host, run in here until it ends.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) {
        let status = self.command(program, arguments).status().unwrap();
        assert!(status.success(), "{program} {}: {status}", arguments.join(" "));
    }

    /// A program of the host that stays in here as long as this lives.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Ending {
        Ending(self.command(program, arguments).spawn().unwrap())
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.holder.id().to_string();
        command.args(["--target", &target, "--net", "--mount", "--uts", "--", program]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs `work` on a thread whose sockets are in here.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.holder.id())).unwrap();
        std::thread::scope(|scope| {
            let entered = scope.spawn(move || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                work()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A process that is ended with the test.
pub(crate) struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The directory in which statd and sm-notify keep what they know, with this state of their own.
pub(crate) fn state_directory(state: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["sm", "sm.bak"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("state"), state.to_ne_bytes()).unwrap();
    dir
}
