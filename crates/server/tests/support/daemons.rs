//! Debian's own daemons, in a network of the test: they see their own `/run` and host name, and end
//! with the test. Needs the packages `nfs-common` and `rpcbind`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};

use tempfile::TempDir;

use super::network::Network;

/// What the daemons of a machine call it.
pub const MACHINE: &str = "client7.example.org";

/// What belongs to the whole kernel is hidden: statd would change the state with which this
/// machine's own mounts lock.
const ALONE: &str = "set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /run; \
    if [ -d /proc/sys/fs/nfs ]; then mount -t tmpfs tmpfs /proc/sys/fs/nfs; fi; \
    hostname client7.example.org; ";
const STATD: &str = "rpcbind -f & until [ -S /run/rpcbind.sock ]; do sleep 0.05; done; \
    exec rpc.statd -F -d -L -P \"$1\" -p 662";
const SM_NOTIFY: &str = "exec sm-notify -d -f -P \"$1\"";

/// A daemon that ends with the test.
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// rpcbind, and `rpc.statd` on port 662.
    pub fn statd(network: &Network, state: &TempDir) -> Self {
        Self::start(network, STATD, state.path())
    }

    /// `sm-notify`, as after a reboot.
    pub fn sm_notify(network: &Network, state: &TempDir) -> Self {
        Self::start(network, SM_NOTIFY, state.path())
    }

    fn start(network: &Network, what: &str, state: &Path) -> Self {
        let log = state.join("log");
        let into = File::create(&log).unwrap();
        let child = network
            .command("unshare")
            .args(["--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c"])
            .arg(format!("{ALONE}{what}"))
            .arg("sh")
            .arg(state)
            .stdin(Stdio::null())
            .stdout(into.try_clone().unwrap())
            .stderr(into)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directory in which statd and sm-notify keep what they know, with this state of their own.
pub fn state_directory(state: u32) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["sm", "sm.bak"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("state"), state.to_ne_bytes()).unwrap();
    dir
}
