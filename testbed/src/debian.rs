//! Debian's NFS daemons (packages `nfs-common`, `rpcbind`), each on a machine of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::namespace::Namespace;
use crate::process::Process;
use crate::{packages, wait};

/// Host name of every [`Machine`].
pub const HOST_NAME: &str = "client7.example.org";
/// Port of [`Machine::statd`].
pub const STATD_PORT: u16 = 662;

/// Hides what belongs to the whole kernel: statd would change the NSM state with which this
/// machine's own mounts lock. Keeps `bindresvport` off [`STATD_PORT`]: statd itself binds a socket
/// for its calls before it listens, on a port derived from its process id, and would lose its UDP
/// port to that one time in 424.
const PREPARE: &str = "set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /run; \
    mkdir /run/rpcbind; \
    cp /etc/bindresvport.blacklist /run/; echo 662 >>/run/bindresvport.blacklist; \
    mount --bind /run/bindresvport.blacklist /etc/bindresvport.blacklist; \
    if [ -d /proc/sys/fs/nfs ]; then mount -t tmpfs tmpfs /proc/sys/fs/nfs; fi; \
    hostname client7.example.org; touch /run/ready; exec sleep infinity";

/// A host name and a `/run` of its own in a network: what rpcbind and statd take for a machine.
/// Daemons on it are the caller's [`Process`]es. It must live until they have started, and may be
/// dropped then.
#[derive(Debug)]
pub struct Machine {
    /// Keeps the mount and UTS namespaces alive.
    holder: Child,
    logs: TempDir,
}

impl Machine {
    pub fn boot(network: &Namespace) -> Result<Self> {
        packages::install(&["nfs-common", "rpcbind"])?;
        let logs = tempfile::tempdir()?;
        let mut holder = network.command("unshare");
        holder.args(["--mount", "--uts", "sh", "-c", PREPARE]).stdin(Stdio::null());
        let holder = holder.spawn().context("unshare, of package util-linux")?;
        let machine = Self { holder, logs };
        let ready = machine.path("run/ready");
        wait::try_until("the machine is ready", || Ok(ready.exists().then_some(())))?;
        Ok(machine)
    }

    /// A file as programs on this machine see it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(path)
    }

    /// A command that runs on this machine.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string()]);
        command.args(["--net", "--mount", "--uts", "--", program]);
        command
    }

    fn start(&self, program: &str, arguments: &[&str], logs: &TempDir) -> Result<Process> {
        let log = logs.path().join(format!("{program}.log"));
        Process::start(self.command(program).args(arguments), &log)
    }

    /// Returns when it listens.
    pub fn rpcbind(&self) -> Result<Process> {
        let mut rpcbind = self.start("rpcbind", &["-f"], &self.logs)?;
        wait::try_until("rpcbind listens", || {
            rpcbind.check()?;
            let mut query = self.command("rpcinfo");
            Ok(query.args(["-p", "127.0.0.1"]).output()?.status.success().then_some(()))
        })?;
        Ok(rpcbind)
    }

    /// `rpc.statd` on [`STATD_PORT`]; it needs an rpcbind. `state` is a [`state_directory`]. Returns
    /// when it listens.
    pub fn statd(&self, state: &TempDir) -> Result<Process> {
        let path = state.path().to_string_lossy();
        let port = STATD_PORT.to_string();
        let arguments = ["-F", "-d", "-L", "-P", &path, "-p", &port];
        let mut statd = self.start("rpc.statd", &arguments, state)?;
        statd.wait_for_output(|log| log.contains("Waiting for client connections"))?;
        Ok(statd)
    }

    /// `sm-notify`, as after a reboot.
    pub fn sm_notify(&self, state: &TempDir) -> Result<Process> {
        let path = state.path().to_string_lossy();
        self.start("sm-notify", &["-d", "-f", "-P", &path], state)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A directory for statd and sm-notify, with this NSM state of their own.
pub fn state_directory(state: u32) -> Result<TempDir> {
    let dir = tempfile::tempdir()?;
    let path: &Path = dir.path();
    for name in ["sm", "sm.bak"] {
        fs::create_dir(path.join(name))?;
    }
    fs::write(path.join("state"), state.to_ne_bytes())?;
    Ok(dir)
}
