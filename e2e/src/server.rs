//! The server under test, started, killed and started again on the same state.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::network::{Network, SERVER_V4};
use testbed::process::{Process, run};

const STATE: &str = "state";
/// For files that must not survive a restart of the machine.
const RUN: &str = "run";
/// `ip netns exec` makes a mount namespace for each program: this one sees the lab's directory where
/// others see the machine's. The shell becomes the server, under the same process id.
pub(crate) const WITH_RUN_DIRECTORY: &str =
    r#"mkdir -p /run/lockkeeper && mount --bind "$0" /run/lockkeeper && exec "$@""#;
const NFS_PORT: u16 = 2049;
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// One `[[export]]` of the configuration.
#[derive(Debug, Clone)]
pub struct Export {
    pub path: PathBuf,
    pub clients: Vec<String>,
    /// `rw` or `ro`.
    pub access: &'static str,
    /// `root`, `none` or `all`.
    pub squash: &'static str,
    /// `reserved` or `any`.
    pub ports: &'static str,
}

/// Lock settings of the configuration; `None` leaves a setting out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The recovery window.
    pub window_seconds: Option<u64>,
    /// `strict` or `instant`.
    pub grace: Option<&'static str>,
    /// `on-demand`, `immediate` or `retain`.
    pub unreachable: Option<&'static str>,
    /// `process` or `power`.
    pub durability: Option<&'static str>,
    /// Names that clients know the server by.
    pub names: Vec<&'static str>,
}

/// The program to start, its exports and its flags.
#[derive(Debug, Clone)]
pub struct Setup {
    pub program: PathBuf,
    pub exports: Vec<Export>,
    /// Further command-line arguments.
    pub flags: Vec<String>,
}

#[derive(Debug)]
pub struct Server {
    network: Arc<Network>,
    program: PathBuf,
    arguments: Vec<String>,
    exports: Vec<Export>,
    directory: PathBuf,
    settings: Mutex<Settings>,
    process: Mutex<Option<Process>>,
}

impl Server {
    /// Writes the configuration into `directory`, which also gets the state and the log.
    pub fn new(setup: &Setup, network: &Arc<Network>, directory: &Path) -> Result<Self> {
        let path = |name: &str| directory.join(name).display().to_string();
        let (config, state) = (path("server.toml"), path("state"));
        let mut arguments = vec!["serve".to_owned(), "-c".to_owned(), config];
        arguments.extend(["--state".to_owned(), state]);
        arguments.extend(setup.flags.iter().cloned());
        let server = Self {
            network: Arc::clone(network),
            program: setup.program.clone(),
            arguments,
            exports: setup.exports.clone(),
            directory: directory.to_path_buf(),
            settings: Mutex::default(),
            process: Mutex::new(None),
        };
        server.make_state()?;
        server.configure(&Settings::default())?;
        Ok(server)
    }

    /// Changes the configuration for the next start.
    pub fn configure(&self, settings: &Settings) -> Result<()> {
        let path = self.directory.join("server.toml");
        fs::write(&path, configuration(&self.exports, settings))
            .with_context(|| format!("cannot write {}", path.display()))?;
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings.clone();
        Ok(())
    }

    pub fn settings(&self) -> Settings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes the state of a dead server.
    pub fn wipe(&self) -> Result<()> {
        for name in [STATE, RUN] {
            fs::remove_dir_all(self.directory.join(name)).context("cannot wipe the state")?;
        }
        self.make_state()
    }

    /// What a restart of the whole machine does to a dead server: the mark in memory is gone, and
    /// with it the proof that no lock is missing.
    pub fn forget_mark(&self) -> Result<()> {
        let mut marks = 0;
        for entry in fs::read_dir(self.directory.join(RUN)).context("no run directory")? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "mark") {
                fs::remove_file(&path)?;
                marks += 1;
            }
        }
        if marks == 0 {
            bail!("the server left no mark in its run directory");
        }
        Ok(())
    }

    /// Removes the store of a dead server; the rest of its state directory stays.
    pub fn lose_store(&self) -> Result<()> {
        fs::remove_dir_all(self.directory.join(STATE).join("store")).context("no store")
    }

    /// Removes the copy of the roster, and with it all that knows of clients.
    pub fn lose_roster_copy(&self) -> Result<()> {
        fs::remove_file(self.directory.join(STATE).join("roster")).context("no copy of the roster")
    }

    fn make_state(&self) -> Result<()> {
        for name in [STATE, RUN] {
            let path = self.directory.join(name);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(())
    }

    /// Starts it and waits until it answers; when it first accepted a connection.
    pub fn start(&self) -> Result<Instant> {
        self.start_with(&[])
    }

    /// The same, with further arguments for this start alone.
    pub fn start_with(&self, flags: &[&str]) -> Result<Instant> {
        {
            let mut process = self.process();
            if process.is_some() {
                bail!("the server is already running");
            }
            let mut command = self.command();
            command.args(&self.arguments).args(flags);
            *process = Some(Process::start(&mut command, &self.log())?);
        }
        let accepted = self.wait_until_accepting(START_TIMEOUT)?;
        self.wait_until_ready(START_TIMEOUT)?;
        Ok(accepted)
    }

    /// SIGKILL: the server gets no chance to tidy up.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// SIGTERM, and wait for the end.
    pub fn stop(&self) -> Result<()> {
        match self.process().take() {
            Some(mut process) => process.stop(STOP_TIMEOUT).map(drop),
            None => Ok(()),
        }
    }

    /// SIGKILL and start again; when it first accepted a connection.
    pub fn restart(&self) -> Result<Instant> {
        self.kill();
        self.start()
    }

    /// What a command of the program (`status`, `clients`) prints about the running server.
    pub fn says(&self, arguments: &[&str]) -> Result<String> {
        run(self.command().args(arguments))
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(Process::is_running)
    }

    pub fn id(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// The program, where it finds the run directory of the lab.
    fn command(&self) -> Command {
        let mut command = self.network.command("sh");
        command.args(["-c", WITH_RUN_DIRECTORY]).arg(self.directory.join(RUN)).arg(&self.program);
        command
    }

    fn wait_until_accepting(&self, timeout: Duration) -> Result<Instant> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(process) = self.process().as_mut() {
                process.check().context("the server did not start")?;
            }
            let accepted = self.network.enter(|| {
                for _ in 0..50 {
                    if TcpStream::connect(SocketAddr::from((SERVER_V4, NFS_PORT))).is_ok() {
                        return Some(Instant::now());
                    }
                    thread::sleep(Duration::from_millis(4));
                }
                None
            });
            match accepted {
                Some(at) => return Ok(at),
                None if Instant::now() > end => bail!("nobody accepts on port {NFS_PORT}"),
                None => {}
            }
        }
    }

    /// Until NFS and the port mapper both answer NULL.
    pub fn wait_until_ready(&self, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(process) = self.process().as_mut() {
                process.check().context("the server did not start")?;
            }
            let answer = self.network.enter(|| {
                call_null(NFS_PORT, NFS, 3).context("NFS")?;
                call_null(111, PORT_MAPPER, 2).context("port mapper")
            });
            match answer {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > end => {
                    return Err(error.context(format!("no answer from the server in {timeout:?}")));
                }
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn configuration(exports: &[Export], settings: &Settings) -> String {
    let mut text = String::new();
    let Settings { window_seconds, grace, unreachable, durability, names } = settings;
    if !names.is_empty() {
        let _ = write!(text, "[rpc]\nnames = {names:?}\n\n");
    }
    if let Some(durability) = durability {
        let _ = write!(text, "[store]\ndurability = {durability:?}\n\n");
    }
    let window = window_seconds.map(|seconds| format!("{seconds}s"));
    let recovery =
        [("window", window.as_deref()), ("grace", *grace), ("unreachable", *unreachable)];
    if recovery.iter().any(|(_, value)| value.is_some()) {
        text.push_str("[recovery]\n");
        for (key, value) in recovery {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = {value:?}");
            }
        }
        text.push('\n');
    }
    for export in exports {
        let Export { path, clients, access, squash, ports } = export;
        // A Debug string is also a TOML basic string for the plain names that a lab uses.
        let _ = write!(
            text,
            "[[export]]\npath = {path:?}\nclients = {clients:?}\naccess = {access:?}\n\
             squash = {squash:?}\nports = {ports:?}\n\n"
        );
    }
    text
}

const NFS: u32 = 100_003;
const PORT_MAPPER: u32 = 100_000;

/// Procedure 0 over TCP (RFC 5531): is the program there, and does it accept this version?
fn call_null(port: u16, program: u32, version: u32) -> Result<()> {
    let timeout = Duration::from_secs(2);
    let address = SocketAddr::from((SERVER_V4, port));
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    const XID: u32 = 0x6c61_6221;
    let call = [XID, 0, 2, program, version, 0, 0, 0, 0, 0];
    let mut record = (0x8000_0000 | (call.len() as u32 * 4)).to_be_bytes().to_vec();
    record.extend(call.iter().flat_map(|word| word.to_be_bytes()));
    stream.write_all(&record)?;
    let mut reply = [0; 28];
    stream.read_exact(&mut reply)?;
    let word =
        |at: usize| u32::from_be_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
    // Record mark, xid, REPLY, MSG_ACCEPTED, null verifier (two words), SUCCESS.
    if (word(4), word(8), word(12), word(24)) != (XID, 1, 0, 0) {
        bail!("program {program} version {version} is not served");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_becomes_a_table() {
        let export = Export {
            path: "/srv/x".into(),
            clients: vec!["10.77.0.0/24".into(), "fd77::/64".into()],
            access: "rw",
            squash: "none",
            ports: "any",
        };
        let text = configuration(&[export], &Settings::default());
        assert!(text.starts_with("[[export]]\npath = \"/srv/x\"\n"));
        assert!(text.contains("clients = [\"10.77.0.0/24\", \"fd77::/64\"]\n"));
    }

    #[test]
    fn only_what_is_set_is_written() {
        let settings =
            Settings { window_seconds: Some(20), grace: Some("instant"), ..Settings::default() };
        let text = configuration(&[], &settings);
        assert_eq!(text, "[recovery]\nwindow = \"20s\"\ngrace = \"instant\"\n\n");
    }
}
