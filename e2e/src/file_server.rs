//! A server of its own for one step, with an address, exports and a state of its own: it starts and
//! stops while the guests stay up, as root or as another user.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use testbed::namespace::Namespace;
use testbed::process::{Signal, install_program, tail};
use testbed::server::Server;

use crate::network::Network;
use crate::server::{Export, Settings, WITH_RUN_DIRECTORY, configuration};

const STOP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct FileServer {
    // Processes go before the namespace that they run in.
    process: Option<Server>,
    machine: Namespace,
    address: Ipv4Addr,
    directory: PathBuf,
    log: PathBuf,
    /// Whose rights it has, if not those of root.
    user: Option<u32>,
}

impl FileServer {
    /// Not yet started. Its log goes to `logs`.
    pub fn new(
        network: &Network,
        program: &Path,
        logs: &Path,
        user: Option<u32>,
        exports: &[Export],
    ) -> Result<Self> {
        // The guests remember which machine had an address, so none is used twice.
        static HOSTS: AtomicU8 = AtomicU8::new(100);
        let host = HOSTS.fetch_add(1, Ordering::Relaxed);
        let address = Ipv4Addr::new(10, 77, 0, host);
        let machine = network.add_host(address)?;
        let directory = machine.directory()?;
        let log = logs.join(format!("file-server-{host}.log"));
        let server = Self { process: None, machine, address, directory, log, user };
        for name in ["state", "run"] {
            fs::create_dir_all(server.path(name))?;
            chown(server.path(name), user, user)?;
        }
        // Where it is built may be closed to other users.
        install_program(program, &server.path("lockkeeper"))?;
        let settings = Settings { window_seconds: Some(5), ..Settings::default() };
        fs::write(server.path("server.toml"), configuration(exports, &settings))?;
        Ok(server)
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns when it serves.
    pub fn start(&mut self) -> Result<()> {
        let mut command = self.machine.command("sh");
        command.args(["-c", WITH_RUN_DIRECTORY]).arg(self.path("run"));
        if let Some(user) = self.user {
            command.args(["setpriv", &format!("--reuid={user}"), &format!("--regid={user}")]);
            // Port 111 is below 1024.
            command.args(["--clear-groups", "--bounding-set=-all,+net_bind_service"]);
            command.args(["--inh-caps=-all,+net_bind_service"]);
            command.args(["--ambient-caps=+net_bind_service", "--"]);
        }
        command.arg(self.path("lockkeeper")).args(["serve", "-c"]).arg(self.path("server.toml"));
        command.arg("--state").arg(self.path("state"));
        self.process = Some(Server::start(&mut command, &self.log)?);
        Ok(())
    }

    /// SIGTERM, and wait for the end.
    pub fn stop(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.stop(STOP_TIMEOUT).map(drop))
    }

    /// SIGHUP; returns when it has read its configuration again.
    pub fn reload(&mut self) -> Result<()> {
        const DONE: &str = "reload";
        let process = self.process.as_mut().context("it is not running")?;
        let before = process.output().matches(DONE).count();
        process.signal(Signal::HUP)?;
        process.wait_for_output(|output| output.matches(DONE).count() > before)
    }

    /// The end of its log.
    pub fn said(&self) -> String {
        tail(&self.log, 30)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
