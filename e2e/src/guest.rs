//! A guest: an emulated machine with a real Linux kernel as NFS client. A crash is a SIGKILL to the
//! emulator; the next boot finds the same disk with the state of rpc.statd.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::agent::{Agent, Output, Task};
use crate::image::Image;
use crate::network::Network;
use testbed::process::{Process, run, tail};

const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// The timeout of commands for which a step gives none.
pub const TIMEOUT: Duration = Duration::from_secs(60);
const MEMORY_MIB: u32 = 512;
/// Prints the kernel stacks of processes that wait for the network, and all TCP connections.
const STUCK: &str = "for process in /proc/[0-9]*; do \
     grep -qE 'rpc|nfs|nlm|connect' $process/stack 2>/dev/null && { \
     tr '\\0' ' ' < $process/cmdline; cat $process/comm $process/stack; }; done; \
     cat /proc/net/tcp /proc/net/tcp6";

#[derive(Debug)]
pub struct Guest {
    name: String,
    number: u8,
    image: Image,
    network: Arc<Network>,
    directory: PathBuf,
    machine: Mutex<Option<Machine>>,
}

/// In which order a guest starts its NSM daemons. Both occur in distributions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// rpc.statd, then sm-notify: until it is started again, statd tells the kernel the old state.
    #[default]
    StatdFirst,
    /// sm-notify, then rpc.statd: the kernel's first lock carries the new state.
    NotifyFirst,
}

#[derive(Debug)]
struct Machine {
    process: Process,
    agent: Arc<Agent>,
}

impl Guest {
    /// Makes the disk and the tap of guest `number`; it is not yet running. Its files go to
    /// `directory`.
    pub fn new(
        name: &str,
        number: u8,
        image: &Image,
        network: &Arc<Network>,
        directory: &Path,
    ) -> Result<Self> {
        let guest = Self {
            name: name.to_owned(),
            number,
            image: image.clone(),
            network: Arc::clone(network),
            directory: directory.to_path_buf(),
            machine: Mutex::new(None),
        };
        guest.format_disk()?;
        network.add_tap(&guest.tap())?;
        Ok(guest)
    }

    /// An empty disk; only while it is off.
    pub fn format_disk(&self) -> Result<()> {
        let disk = fs::File::create(self.disk()).context("cannot make the guest's disk")?;
        disk.set_len(16 << 20).context("cannot size the guest's disk")?;
        let mut format = Command::new("mkfs.ext4");
        run(format.args(["-q", "-F"]).arg(self.disk())).map(drop)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 10 + self.number)
    }

    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x10 + u16::from(self.number))
    }

    /// Starts the machine and waits until it takes commands: the network is up, rpcbind and
    /// rpc.statd run, and sm-notify has been started.
    pub fn boot(&self) -> Result<()> {
        self.boot_in(Order::default())
    }

    pub fn boot_in(&self, order: Order) -> Result<()> {
        let mut machine = self.machine();
        if machine.as_mut().is_some_and(|machine| machine.process.is_running()) {
            bail!("{} is already running", self.name);
        }
        let socket = self.network.directory()?.join(&self.name);
        let _ = fs::remove_file(&socket);
        let mut process = Process::start(&mut self.emulator(&socket, order), &self.console())?;
        let agent = Agent::connect(&socket, Duration::from_secs(10))
            .and_then(|agent| agent.wait_until_ready(BOOT_TIMEOUT).map(|()| agent));
        let agent = match agent {
            Ok(agent) => agent,
            Err(error) => {
                process.check().with_context(|| format!("{} did not boot", self.name))?;
                let console = tail(&self.console(), 20);
                return Err(error.context(format!("{} did not boot:\n{console}", self.name)));
            }
        };
        *machine = Some(Machine { process, agent });
        Ok(())
    }

    /// Pulls the network cable; the guest keeps running.
    pub fn unplug(&self) -> Result<()> {
        self.network.set_link(&self.tap(), false)
    }

    pub fn plug(&self) -> Result<()> {
        self.network.set_link(&self.tap(), true)
    }

    /// Power off without warning.
    pub fn crash(&self) {
        *self.machine() = None;
    }

    /// When its last boot had started rpc.statd.
    pub fn statd_started(&self) -> Result<Instant> {
        let agent = self.machine().as_ref().map(|machine| Arc::clone(&machine.agent));
        agent.and_then(|agent| agent.mark("statd")).context("the boot did not tell when")
    }

    pub fn is_running(&self) -> bool {
        self.machine().as_mut().is_some_and(|machine| machine.process.is_running())
    }

    /// Runs a shell command to its end.
    pub fn run(&self, command: &str) -> Result<Output> {
        self.run_for(command, TIMEOUT)
    }

    pub fn run_for(&self, command: &str, timeout: Duration) -> Result<Output> {
        self.spawn(command)?.wait(timeout).with_context(|| self.name.clone())
    }

    /// Runs a command that must succeed; returns its standard output.
    pub fn succeed(&self, command: &str) -> Result<String> {
        self.succeed_for(command, TIMEOUT)
    }

    pub fn succeed_for(&self, command: &str, timeout: Duration) -> Result<String> {
        let output = self.run_for(command, timeout)?;
        if output.status != 0 {
            let (said, errors) = (output.text(), output.errors());
            bail!("{}: {command}: status {}: {said}{errors}", self.name, output.status);
        }
        Ok(output.text())
    }

    /// Runs a command that must fail; returns its error output.
    pub fn fail(&self, command: &str) -> Result<String> {
        let output = self.run(command)?;
        if output.status == 0 {
            bail!("{}: this should have failed: {command}: {}", self.name, output.text());
        }
        Ok(output.errors())
    }

    /// Starts a command in the background.
    pub fn spawn(&self, command: &str) -> Result<Task> {
        let agent = self.machine().as_ref().map(|machine| Arc::clone(&machine.agent));
        let agent = agent.with_context(|| format!("{} is not running", self.name))?;
        agent.spawn(command)
    }

    /// What in it waits for the network, for the report of a failed step.
    pub fn stuck(&self) -> String {
        let output = self.run_for(STUCK, Duration::from_secs(10));
        output.map_or_else(|error| format!("{error:#}"), |output| output.text())
    }

    /// Where kernel and start-up messages go.
    pub fn console(&self) -> PathBuf {
        self.directory.join(format!("{}.console", self.name))
    }

    fn machine(&self) -> MutexGuard<'_, Option<Machine>> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disk(&self) -> PathBuf {
        self.directory.join(format!("{}.disk", self.name))
    }

    fn tap(&self) -> String {
        format!("tap{}", self.number)
    }

    fn emulator(&self, socket: &Path, order: Order) -> Command {
        let first = if order == Order::NotifyFirst { "notify" } else { "statd" };
        let kernel_line = format!(
            "console=ttyS0 loglevel=5 mitigations=off panic=-1 lab.name={} lab.ip4={} lab.ip6={} \
             lab.first={first}",
            self.name,
            self.ipv4(),
            self.ipv6()
        );
        let mut qemu = self.network.command("qemu-system-x86_64");
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            // /dev/kvm may exist and still hang a guest where machines are nested. Newer kernels panic
            // on the emulation of cmpxchg16b and of five-level page tables.
            .args(["-accel", "tcg,thread=multi", "-cpu", "max,-cx16,-la57", "-smp", "1", "-m"])
            .arg(MEMORY_MIB.to_string())
            .arg("-kernel")
            .arg(&self.image.kernel)
            .arg("-initrd")
            .arg(&self.image.initramfs)
            .args(["-append", &kernel_line])
            .arg("-chardev")
            .arg(format!("file,id=console,append=on,path={}", self.console().display()))
            .args(["-serial", "chardev:console"])
            .arg("-chardev")
            .arg(format!("socket,id=agent,server=on,wait=off,path={}", socket.display()))
            .args(["-device", "virtio-serial-pci"])
            .args(["-device", "virtserialport,chardev=agent,name=agent"])
            .arg("-netdev")
            .arg(format!("tap,id=wire,ifname={},script=no,downscript=no", self.tap()))
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:77:00:{:02x}",
                self.number
            ))
            .arg("-drive")
            .arg(format!("if=virtio,format=raw,cache=writethrough,file={}", self.disk().display()));
        qemu
    }
}
