//! The server under test: a program that is started, killed and started again on the same state.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::namespace::{Namespace, SERVER_V4};
use crate::process::Process;

const START_PATIENCE: Duration = Duration::from_secs(30);
const STOP_PATIENCE: Duration = Duration::from_secs(10);

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

/// What to start, and with what.
#[derive(Debug, Clone)]
pub struct Setup {
    pub program: PathBuf,
    pub exports: Vec<Export>,
    /// What else to put on the command line.
    pub flags: Vec<String>,
}

#[derive(Debug)]
pub struct Server {
    namespace: Arc<Namespace>,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    process: Mutex<Option<Process>>,
}

impl Server {
    /// Writes the configuration into `directory`, which also gets the state and the log.
    pub fn new(setup: &Setup, namespace: &Arc<Namespace>, directory: &Path) -> Result<Self> {
        let (config, state) = (directory.join("server.toml"), directory.join("state"));
        fs::write(&config, configuration(&setup.exports))
            .with_context(|| format!("cannot write {}", config.display()))?;
        fs::create_dir_all(&state).with_context(|| format!("cannot make {}", state.display()))?;
        let (config, state) = (config.display().to_string(), state.display().to_string());
        let mut arguments = vec!["serve".to_owned(), "-c".to_owned(), config];
        arguments.extend(["--state".to_owned(), state]);
        arguments.extend(setup.flags.iter().cloned());
        Ok(Self {
            namespace: Arc::clone(namespace),
            program: setup.program.clone(),
            arguments,
            log: directory.join("server.log"),
            process: Mutex::new(None),
        })
    }

    /// Starts it and waits until it answers.
    pub fn start(&self) -> Result<()> {
        {
            let mut process = self.process();
            if process.is_some() {
                bail!("the server is already running");
            }
            let mut command = self.namespace.command(&self.program);
            *process = Some(Process::start(command.args(&self.arguments), &self.log)?);
        }
        self.wait_until_ready(START_PATIENCE)
    }

    /// SIGKILL: the server gets no chance to tidy up.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// SIGTERM, and wait for the end.
    pub fn stop(&self) -> Result<()> {
        match self.process().take() {
            Some(mut process) => process.stop(STOP_PATIENCE),
            None => Ok(()),
        }
    }

    /// SIGKILL and start again.
    pub fn restart(&self) -> Result<()> {
        self.kill();
        self.start()
    }

    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(Process::is_running)
    }

    pub fn id(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Until NFS and the port mapper both answer NULL.
    pub fn wait_until_ready(&self, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        loop {
            if let Some(process) = self.process().as_mut() {
                process.check().context("the server did not start")?;
            }
            let answer = self.namespace.inside(|| {
                call_null(2049, NFS, 3).context("NFS")?;
                call_null(111, PORT_MAPPER, 2).context("port mapper")
            });
            match answer {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > end => {
                    return Err(error.context(format!("no answer from the server in {patience:?}")));
                }
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn configuration(exports: &[Export]) -> String {
    let mut text = String::new();
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
        let text = configuration(&[export]);
        assert!(text.starts_with("[[export]]\npath = \"/srv/x\"\n"));
        assert!(text.contains("clients = [\"10.77.0.0/24\", \"fd77::/64\"]\n"));
    }
}
