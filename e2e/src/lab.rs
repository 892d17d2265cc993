//! One run of the lab: its network, its guests, and a directory for their files. All of it ends
//! with the value; the logs stay.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::guest::Guest;
use crate::image::Image;
use crate::network::{Network, SERVER_V4, SERVER_V6};
use crate::server::{Server, Setup};
use testbed::process::Process;

/// The server's name in every guest, and the guests' names for each other.
pub const HOSTS: &str = "127.0.0.1 localhost
::1 localhost
10.77.0.1 filer.lab.example filer dual
fd77::1 filer6 dual
10.77.0.2 second
10.77.0.11 alice
10.77.0.12 bob
fd77::11 alice
fd77::12 bob
";

#[derive(Debug)]
pub struct Lab {
    // Guests go before the network that they run in.
    guests: Vec<Guest>,
    network: Arc<Network>,
    directory: PathBuf,
    /// Held while the lab lives: two labs in one directory would empty each other.
    _claim: File,
}

impl Lab {
    /// A network with powered-off guests of these names, numbered from 1. `directory` is emptied.
    pub fn new(image: &Image, directory: &Path, names: &[&str]) -> Result<Self> {
        let claim = claim(directory)?;
        if directory.exists() {
            fs::remove_dir_all(directory)
                .with_context(|| format!("cannot empty {}", directory.display()))?;
        }
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = directory.canonicalize().context("cannot find the lab's directory")?;
        let network = Arc::new(Network::create()?);
        let mut lab = Self { guests: Vec::new(), network, directory, _claim: claim };
        for (number, name) in (1..).zip(names) {
            let (network, files) = (&lab.network, &lab.directory);
            let guest = Guest::new(name, number, image, network, files);
            lab.guests.push(guest.with_context(|| format!("guest {name}"))?);
        }
        Ok(lab)
    }

    /// Boots every guest that is not running, all at the same time.
    pub fn boot(&self) -> Result<()> {
        let off = self.guests.iter().filter(|guest| !guest.is_running());
        thread::scope(|scope| {
            let boots: Vec<_> = off.map(|guest| scope.spawn(|| guest.boot())).collect();
            boots.into_iter().try_for_each(|boot| {
                boot.join().map_err(|_| anyhow!("a thread that boots a guest panicked"))?
            })
        })
    }

    pub fn guest(&self, name: &str) -> Result<&Guest> {
        let guest = self.guests.iter().find(|guest| guest.name() == name);
        guest.with_context(|| format!("there is no guest {name}"))
    }

    pub fn guests(&self) -> &[Guest] {
        &self.guests
    }

    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Where disks, logs, exports and server state are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn server(&self, setup: &Setup) -> Result<Server> {
        Server::new(setup, &self.network, &self.directory)
    }

    /// A command that runs in the network namespace of the server.
    pub fn command(&self, program: &str) -> Command {
        self.network.command(program)
    }

    /// Starts such a command, its output in `<name>.log`.
    pub fn spawn(&self, name: &str, command: &mut Command) -> Result<Process> {
        Process::start(command, &self.directory.join(format!("{name}.log")))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for guest in &self.guests {
            guest.crash();
        }
    }
}

fn claim(directory: &Path) -> Result<File> {
    let path = directory.with_extension("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    file.try_lock().with_context(|| format!("another lab works in {}", directory.display()))?;
    Ok(file)
}

/// The two addresses of the server, as a mount command wants them.
pub fn server_addresses() -> [String; 2] {
    [SERVER_V4.to_string(), format!("[{SERVER_V6}]")]
}
