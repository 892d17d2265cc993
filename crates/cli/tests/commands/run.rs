//! The program, run on a pipe or on a terminal.

use std::ffi::OsStr;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run ended with.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A command with no environment variable that affects it, and no input.
pub fn command(server: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    for name in ["NO_COLOR", "LOCKKEEPER_ADMIN", "LOCKKEEPER_TOKEN_FILE", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    command.arg("--server").arg(server).args(arguments).stdin(Stdio::null());
    command
}

pub fn run(server: impl AsRef<OsStr>, arguments: &[&str]) -> Ended {
    ended(&mut command(server, arguments))
}

/// As a user without any rights, with a copy of the program that such a one can read; root alone
/// can do that.
pub fn as_nobody(dir: &Path, server: &Path, arguments: &str) -> Ended {
    let copy = dir.join("lockkeeper");
    if !copy.exists() {
        testbed::process::install_program(PROGRAM.as_ref(), &copy).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(copy);
    ended(command.arg("--server").arg(server).args(arguments.split(' ')))
}

/// Runs it to its end, which it must come to.
pub fn ended(command: &mut Command) -> Ended {
    ended_on(command, Stdio::piped())
}

/// With another place for its output.
pub fn ended_on(command: &mut Command, out: Stdio) -> Ended {
    let mut child = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().map(Heard::from);
    let err = Heard::from(child.stderr.take().unwrap());
    let code = wait(&mut child).code();
    Ended { code, out: out.map(Heard::all).unwrap_or_default(), err: err.all() }
}

/// Run with standard output, input and error on a terminal of this size; what is typed there when
/// it asks. What it wrote, with plain line ends.
pub fn on_terminal(server: &Path, arguments: &str, columns: usize, typed: &str) -> Ended {
    let line = format!(
        "stty cols {columns} rows 20; TERM=xterm exec {PROGRAM} --server {} {arguments}",
        server.display()
    );
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let screen = Heard::from(child.stdout.take().unwrap());
    if !typed.is_empty() {
        let start = Instant::now();
        while !screen.so_far().contains("[y/N] ")
            && child.try_wait().unwrap().is_none()
            && start.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = keys.write_all(typed.as_bytes());
    }
    let code = wait(&mut child).code();
    drop(keys);
    Ended { code, out: screen.all().replace("\r\n", "\n"), err: String::new() }
}

/// What comes out of a pipe, while it comes.
struct Heard {
    so_far: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Heard {
    fn from(mut pipe: impl Read + Send + 'static) -> Self {
        let so_far = Arc::<Mutex<Vec<u8>>>::default();
        let heard = so_far.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                heard.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { so_far, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.so_far.lock().unwrap()).into_owned()
    }

    /// Waits for the end.
    fn all(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8_lossy(&self.so_far.lock().unwrap()).into_owned()
    }
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A command that runs until it is stopped; killed when the test ends, also if it fails.
pub struct Running {
    child: Child,
    out: Option<Heard>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = Heard::from(child.stdout.take().unwrap());
        Self { child, out: Some(out) }
    }

    /// Waits until it has written this so often.
    pub fn writes(&mut self, text: &str, times: usize) {
        let start = Instant::now();
        loop {
            let so_far = self.out.as_ref().unwrap().so_far();
            if so_far.matches(text).count() >= times {
                return;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended without {text:?}: {so_far}");
            assert!(start.elapsed() < PATIENCE, "no {text:?} in {so_far}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// As Ctrl-C does.
    pub fn interrupt(mut self) -> Ended {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let code = wait(&mut self.child).code();
        let out = self.out.take().unwrap().all();
        let mut err = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Ended { code, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
