//! Network namespaces: networks that only the test can see. They need root.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::Runtime;

/// A namespace with a loopback that is up; it is removed when this is dropped.
pub struct Network {
    pub name: String,
}

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Ends the test with a sentence that says what is missing.
pub fn need_root() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test makes network namespaces and needs root: run it with sudo");
}

impl Network {
    pub fn new() -> Self {
        need_root();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Self { name: format!("lk{}-{number}", std::process::id()) };
        ip(&["netns", "add", &network.name]);
        network.ip(&["link", "set", "lo", "up"]);
        network
    }

    /// Two networks with a cable of MTU 1500 between them: 10.99.0.1 and fd99::1 here,
    /// 10.99.0.2 and fd99::2 there.
    pub fn pair() -> (Self, Self) {
        let (a, b) = (Self::new(), Self::new());
        a.ip(&[
            "link", "add", "cable", "mtu", "1500", "type", "veth", "peer", "cable", "netns",
            &b.name,
        ]);
        for (network, number) in [(&a, 1), (&b, 2)] {
            network.ip(&["addr", "add", &format!("10.99.0.{number}/24"), "dev", "cable"]);
            network.ip(&["addr", "add", &format!("fd99::{number}/64"), "dev", "cable", "nodad"]);
            network.ip(&["link", "set", "cable", "mtu", "1500", "up"]);
        }
        (a, b)
    }

    pub fn ip(&self, args: &[&str]) {
        ip(&[&["-n", &self.name], args].concat());
    }

    /// A program of the host, run in here.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap()
    }

    /// Runs a future on a runtime whose threads, and so whose sockets, are in here.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = File::open(format!("/run/netns/{}", self.name)).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            Runtime::new().unwrap().block_on(work())
        })
    }

    pub fn block_on<T: Send + 'static>(&self, work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
        match self.spawn(work).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn ip(args: &[&str]) {
    let output =
        Command::new("ip").args(args).output().expect("`ip` of package iproute2 is needed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {said}", args.join(" "));
}
