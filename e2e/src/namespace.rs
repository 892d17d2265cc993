//! A network namespace with one bridge: the wire between server and guests. Nothing leaves it.
//!
//! Everything the lab starts runs inside one, so the namespace is also the list of what must be
//! ended: when it is dropped, on SIGINT and SIGTERM, and, after a SIGKILL, by the next lab.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command;
use crate::process::signal;

pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

/// Another address of the same server.
pub const SECOND_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Names resolve by nobody: a server that waits for DNS waits long.
const RESOLVER: &str = "nameserver 10.77.0.99\n";

const PREFIX: &str = "lockkeeper-e2e-";
pub(crate) const BRIDGE: &str = "wire";
/// A bridge without one of its own takes the lowest of its ports': whenever a machine came or went,
/// the guests would lose the server for as long as they believe in the old one.
const BRIDGE_MAC: &str = "52:54:00:77:ff:01";

static LIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();
static COUNT: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn create() -> Result<Self> {
        WATCH.call_once(|| {
            sweep();
            watch_signals();
        });
        let namespace = Self::bare()?;
        fs::create_dir_all(namespace.sockets()).context("cannot make a place for sockets")?;
        // `ip netns exec` puts this in the place of the host's.
        let settings = settings(&namespace.name);
        fs::create_dir_all(&settings)
            .and_then(|()| fs::write(settings.join("resolv.conf"), RESOLVER))
            .with_context(|| format!("cannot write {}", settings.display()))?;
        namespace.ip(&format!("link add {BRIDGE} address {BRIDGE_MAC} type bridge"))?;
        namespace.ip(&format!("addr add {SERVER_V4}/24 dev {BRIDGE}"))?;
        namespace.ip(&format!("addr add {SECOND_V4}/24 dev {BRIDGE}"))?;
        namespace.ip(&format!("addr add {SERVER_V6}/64 dev {BRIDGE} nodad"))?;
        namespace.ip(&format!("link set {BRIDGE} up"))?;
        Ok(namespace)
    }

    fn bare() -> Result<Self> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        command::output("ip", &["netns", "add", &name]).context("cannot make a namespace")?;
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        let namespace = Self { name };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// One more machine on the wire, without a kernel of its own: a namespace with this address.
    pub fn outpost(&self, address: Ipv4Addr) -> Result<Self> {
        let outpost = Self::bare()?;
        // A namespace is gone a moment before its links are, so no name is used twice.
        let port = format!("port{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.ip(&format!("link add {port} type veth peer name eth0 netns {}", outpost.name))?;
        self.ip(&format!("link set {port} master {BRIDGE} up"))?;
        outpost.ip(&format!("addr add {address}/24 dev eth0"))?;
        outpost.ip("link set eth0 up")?;
        Ok(outpost)
    }

    /// Drops what comes in and matches, in the words of nftables, until the value is dropped.
    pub fn deafen(&self, matching: &str) -> Result<Deaf<'_>> {
        let rules = format!(
            "add table inet deaf\n\
             add chain inet deaf hear {{ type filter hook input priority 0 ; }}\n\
             add rule inet deaf hear {matching} drop\n"
        );
        let file = self.sockets().join("deaf.nft");
        fs::write(&file, rules).context("cannot write the rules")?;
        command::finish(self.command("nft").arg("-f").arg(&file))?;
        Ok(Deaf(self))
    }

    /// Ends every TCP connection with this address, from here, with a reset.
    pub fn cut(&self, peer: IpAddr) -> Result<()> {
        let mut ss = self.command("ss");
        command::finish(ss.args(["-K", "-t", "dst", &peer.to_string()])).map(drop)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Plugs a tap device into the bridge.
    pub fn add_tap(&self, tap: &str) -> Result<()> {
        self.ip(&format!("tuntap add dev {tap} mode tap"))?;
        self.ip(&format!("link set {tap} master {BRIDGE} up"))
    }

    /// Pulls the cable of a tap, or plugs it in again.
    pub fn set_link(&self, tap: &str, up: bool) -> Result<()> {
        self.ip(&format!("link set {tap} {}", if up { "up" } else { "down" }))
    }

    /// For sockets: their paths have room for about a hundred bytes, so they cannot lie just anywhere.
    pub fn sockets(&self) -> PathBuf {
        sockets(&self.name)
    }

    /// A command that will run inside. `ip netns exec` becomes the program: the process id is its own.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a closure on a thread inside: its sockets are on the wire.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = format!("/run/netns/{}", self.name);
        let handle = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&handle)?;
                work()
            });
            thread.join().map_err(|_| anyhow!("the thread inside the namespace panicked"))?
        })
    }

    fn ip(&self, arguments: &str) -> Result<()> {
        let mut words = vec!["-n", &self.name];
        words.extend(arguments.split(' '));
        command::output("ip", &words).map(drop)
    }
}

/// While it lives, some packets are not heard.
#[derive(Debug)]
pub struct Deaf<'a>(&'a Namespace);

impl Drop for Deaf<'_> {
    fn drop(&mut self) {
        let mut nft = self.0.command("nft");
        if let Err(error) = command::finish(nft.args(["delete", "table", "inet", "deaf"])) {
            eprintln!("packets are still dropped: {error:#}");
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).retain(|name| *name != self.name);
        tear_down(&self.name);
    }
}

fn sockets(name: &str) -> PathBuf {
    std::env::temp_dir().join(name)
}

fn settings(name: &str) -> PathBuf {
    PathBuf::from("/etc/netns").join(name)
}

#[allow(unsafe_code)]
fn enter(namespace: &File) -> Result<()> {
    // SAFETY: setns takes a descriptor that is open and changes only the calling thread.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
        bail!("cannot enter the namespace: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// Ends every process inside by its id and removes the namespace; the taps go with it.
fn tear_down(name: &str) {
    let inside = command::output("ip", &["netns", "pids", name]).unwrap_or_default();
    for id in inside.lines().filter_map(|line| line.trim().parse::<i32>().ok()) {
        if id != std::process::id() as i32 {
            let _ = signal(id, libc::SIGKILL);
        }
    }
    let _ = fs::remove_dir_all(sockets(name));
    let _ = fs::remove_dir_all(settings(name));
    if let Err(error) = command::output("ip", &["netns", "delete", name]) {
        eprintln!("cannot remove namespace {name}: {error:#}");
    }
}

/// Removes namespaces of labs that were killed before they could do it themselves.
fn sweep() {
    let Ok(entries) = fs::read_dir("/run/netns") else { return };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        if owner(&name).is_some_and(|owner| !fs::exists(format!("/proc/{owner}")).unwrap_or(true)) {
            tear_down(&name);
        }
    }
}

/// The process id in a namespace's name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

fn watch_signals() {
    match Signals::new([SIGINT, SIGTERM]) {
        Ok(mut signals) => {
            thread::spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    for name in LIVE.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                        tear_down(name);
                    }
                    std::process::exit(128 + signal);
                }
            });
        }
        Err(error) => eprintln!("cannot watch for signals: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_namespaces_have_an_owner() {
        assert_eq!(owner("lockkeeper-e2e-123-0"), Some(123));
        assert_eq!(owner("lockkeeper-e2e-x"), None);
        assert_eq!(owner("somebody-elses"), None);
    }
}
