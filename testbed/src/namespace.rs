//! Network namespaces: networks that only one test can see. They need root and `iproute2`.
//!
//! A namespace is named after the process that made it, and deleted when the value is dropped, also
//! by a panic; processes inside belong to their own values, such as [`Process`](crate::process::Process).
//! What a killed test left behind, processes included, the next one that makes a namespace removes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, getpid, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::Runtime;

use crate::process::run;

const PREFIX: &str = "lockkeeper-";

static LIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());
static SWEEP: Once = Once::new();
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A namespace whose loopback is up.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

/// # Panics
/// Without root.
#[track_caller]
pub fn need_root() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test makes network namespaces and needs root: run it with sudo");
}

impl Namespace {
    pub fn new() -> Result<Self> {
        let root = rustix::process::geteuid().is_root();
        ensure!(root, "network namespaces need root: run this with sudo");
        SWEEP.call_once(sweep);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name])).context("cannot add a namespace")?;
        live().push(name.clone());
        let namespace = Self { name };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Two namespaces joined by a veth pair of MTU 1500, `eth0` on both sides: 10.99.0.1 and
    /// fd99::1 in the first, 10.99.0.2 and fd99::2 in the second.
    pub fn pair() -> Result<(Self, Self)> {
        let (a, b) = (Self::new()?, Self::new()?);
        a.ip(&format!("link add eth0 mtu 1500 type veth peer eth0 netns {}", b.name))?;
        for (namespace, number) in [(&a, 1), (&b, 2)] {
            namespace.ip(&format!("addr add 10.99.0.{number}/24 dev eth0"))?;
            namespace.ip(&format!("addr add fd99::{number}/64 dev eth0 nodad"))?;
            namespace.ip("link set eth0 mtu 1500 up")?;
        }
        Ok((a, b))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` with these arguments, separated by spaces, inside.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name]).args(arguments.split(' '))).map(drop)
    }

    /// A directory for sockets, whose paths must be short; deleted with the namespace.
    pub fn directory(&self) -> Result<PathBuf> {
        let directory = directory(&self.name);
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        Ok(directory)
    }

    /// What commands inside find as `/etc/resolv.conf`.
    pub fn set_resolver(&self, text: &str) -> Result<()> {
        let settings = settings(&self.name);
        fs::create_dir_all(&settings)
            .and_then(|()| fs::write(settings.join("resolv.conf"), text))
            .with_context(|| settings.display().to_string())
    }

    /// A command that runs inside. `ip netns exec` becomes the program: its process id is the child's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a program inside to its end.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        self.command(program).args(arguments).output().with_context(|| program.to_owned())
    }

    /// Runs a closure on a thread inside: its sockets are in this network. A panic goes on here.
    ///
    /// # Panics
    /// If the namespace cannot be entered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                join(&self.handle());
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a future on a runtime of its own whose threads are inside.
    ///
    /// # Panics
    /// In the new thread, if the namespace cannot be entered.
    #[allow(clippy::expect_used, reason = "tests fail by panicking")]
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = self.handle();
        thread::spawn(move || {
            join(&namespace);
            Runtime::new().expect("a runtime").block_on(work())
        })
    }

    /// [`Self::spawn`], awaited. A panic goes on here.
    pub fn block_on<T: Send + 'static>(&self, work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
        self.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    #[allow(clippy::panic, reason = "tests fail by panicking")]
    fn handle(&self) -> File {
        let path = format!("/run/netns/{}", self.name);
        File::open(&path).unwrap_or_else(|error| panic!("cannot open {path}: {error}"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        live().retain(|name| *name != self.name);
        delete(&self.name);
    }
}

/// Removes every namespace of this process with all processes inside: for the thread that handles
/// signals, before it exits.
pub fn remove_all() {
    for name in live().iter() {
        remove(name);
    }
}

fn live() -> std::sync::MutexGuard<'static, Vec<String>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(clippy::expect_used, reason = "a thread outside must not run the test")]
fn join(namespace: &File) {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).expect("cannot enter the namespace");
}

fn remove(name: &str) {
    end_processes(name);
    delete(name);
}

/// Ends every process inside, by its id.
fn end_processes(name: &str) {
    let processes = run(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    for id in processes.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)) {
        if id != getpid() {
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

fn directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(name)
}

/// Its files take the place of the host's in `/etc`, for `ip netns exec`.
fn settings(name: &str) -> PathBuf {
    Path::new("/etc/netns").join(name)
}

/// The links of a namespace go with its last process.
fn delete(name: &str) {
    let _ = fs::remove_dir_all(directory(name));
    let _ = fs::remove_dir_all(settings(name));
    if let Err(error) = run(Command::new("ip").args(["netns", "delete", name])) {
        eprintln!("cannot delete namespace {name}: {error:#}");
    }
}

/// Removes namespaces whose process is gone.
fn sweep() {
    let Ok(entries) = fs::read_dir("/run/netns") else { return };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        if owner(&name).is_some_and(|owner| !fs::exists(format!("/proc/{owner}")).unwrap_or(true)) {
            remove(&name);
        }
    }
}

/// The process id in a namespace's name.
fn owner(name: &str) -> Option<u32> {
    let (owner, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    owner.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_namespaces_have_an_owner() {
        assert_eq!(owner("lockkeeper-123-0"), Some(123));
        assert_eq!(owner("lockkeeper-e2e-x"), None);
        assert_eq!(owner("unrelated"), None);
    }
}
