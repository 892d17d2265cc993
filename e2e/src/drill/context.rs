//! The context of a step: two guests, a running server, six exports, and a fresh directory.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::Guest;
use crate::image::Image;
use crate::lab::Lab;
use crate::server::{Export, Server, Settings, Setup};
use testbed::process::tail;

/// Amounts and durations, for the full and the short form.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub tree_files: u64,
    pub listed_entries: u64,
    pub exercise_rounds: u64,
    pub exercise_operations: u64,
    /// On each kind of file system.
    pub kind_tree_files: u64,
    pub kind_rounds: u64,
    pub churn_seconds: u64,
    pub races: u64,
    /// How long to watch that nothing happens.
    pub stillness_seconds: u64,
    pub increment_seconds: u64,
    pub increment_kills: u64,
    /// How often a server is paused and replaced.
    pub pauses: usize,
    /// Factor for time limits: machines in CI are slow.
    pub slack: u32,
}

impl Size {
    pub const FULL: Self = Self {
        tree_files: 5_000,
        listed_entries: 100_000,
        exercise_rounds: 24,
        exercise_operations: 60,
        kind_tree_files: 1_000,
        kind_rounds: 8,
        churn_seconds: 8,
        races: 200,
        stillness_seconds: 8,
        increment_seconds: 60,
        increment_kills: 10,
        pauses: 10,
        slack: 1,
    };

    pub const SHORT: Self = Self {
        tree_files: 1_000,
        listed_entries: 20_000,
        exercise_rounds: 10,
        exercise_operations: 50,
        kind_tree_files: 60,
        kind_rounds: 2,
        churn_seconds: 4,
        races: 60,
        stillness_seconds: 3,
        increment_seconds: 20,
        increment_kills: 4,
        pauses: 2,
        slack: 3,
    };
}

#[derive(Debug)]
pub struct Drill {
    // Processes go before the lab that they run in.
    pub server: Server,
    pub lab: Lab,
    pub size: Size,
    notes: Mutex<Vec<String>>,
}

/// A directory of one step, seen from both sides.
#[derive(Debug)]
pub struct StepDir {
    /// On the server's disk.
    pub host: PathBuf,
    /// In both guests.
    pub guest: String,
}

impl Drill {
    /// Boots the guests and starts the server.
    pub fn start(image: &Image, directory: &Path, program: &Path, size: Size) -> Result<Self> {
        let lab = Lab::new(image, directory, &["alice", "bob"])?;
        let exports = exports(lab.directory());
        for export in &exports {
            fs::create_dir_all(&export.path).context("cannot make an export")?;
            fs::set_permissions(&export.path, fs::Permissions::from_mode(0o755))?;
        }
        let setup = Setup { program: program.to_path_buf(), exports, flags: Vec::new() };
        let server = lab.server(&setup)?;
        let drill = Self { server, lab, size, notes: Mutex::default() };
        drill.server.start()?;
        drill.lab.boot()?;
        Ok(drill)
    }

    pub fn alice(&self) -> Result<&Guest> {
        self.lab.guest("alice")
    }

    pub fn bob(&self) -> Result<&Guest> {
        self.lab.guest("bob")
    }

    /// The directory that an export serves: `open` and, within, `open/inner` (no squash), `home` (root squash),
    /// `public` (all squash), `archive` (read-only) or `foreign` (for another network).
    pub fn export(&self, name: &str) -> PathBuf {
        self.lab.directory().join(name)
    }

    /// What to mount an export from, by the name of the server.
    pub fn source(&self, name: &str) -> String {
        format!("filer:{}", self.export(name).display())
    }

    /// Mounts an export on /mnt/NAME of a guest unless it is there; the mount point.
    pub fn mount(&self, guest: &Guest, name: &str) -> Result<String> {
        let point = format!("/mnt/{name}");
        self.mount_at(guest, &self.source(name), "vers=3", &point)?;
        Ok(point)
    }

    pub fn mount_at(
        &self,
        guest: &Guest,
        source: &str,
        options: &str,
        point: &str,
    ) -> Result<String> {
        guest.succeed(&format!(
            "grep -q ' {point} ' /proc/mounts || \
             {{ mkdir -p {point} && mount -t nfs -o {options} {source} {point}; }}"
        ))
    }

    /// A fresh world-writable directory, in an export that both guests have mounted.
    pub fn step_dir(&self, export: &str, name: &str) -> Result<StepDir> {
        let host = self.export(export).join(name);
        if host.exists() {
            fs::remove_dir_all(&host).with_context(|| host.display().to_string())?;
        }
        fs::create_dir(&host).with_context(|| host.display().to_string())?;
        fs::set_permissions(&host, fs::Permissions::from_mode(0o777))?;
        for guest in self.lab.guests() {
            self.mount(guest, export)?;
        }
        Ok(StepDir { host, guest: format!("/mnt/{export}/{name}") })
    }

    /// Boots guests that are down, and restarts the server unless it runs with these settings. Its state
    /// is kept.
    pub fn stage(&self, settings: &Settings) -> Result<()> {
        self.lab.boot()?;
        if self.server.settings() != *settings || !self.server.is_running() {
            // Lets the unlocks of the last step's programs reach the server.
            thread::sleep(Duration::from_millis(500));
            self.server.stop()?;
            self.server.configure(settings)?;
            self.server.start()?;
        }
        Ok(())
    }

    /// After a failed step: restarts the server and the guests without any state.
    pub fn recover(&self) -> Result<()> {
        self.server.kill();
        self.server.wipe()?;
        for guest in self.lab.guests() {
            guest.crash();
            guest.plug()?;
            guest.format_disk()?;
        }
        self.server.start()?;
        self.lab.boot()
    }

    /// A measurement, printed with the step.
    pub fn note(&self, text: impl Into<String>) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text.into());
    }

    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes how long something took, and fails if that is too long.
    pub fn within(&self, what: &str, took: Duration, most: Duration) -> Result<()> {
        self.note(format!("{what} {:.2} s", took.as_secs_f64()));
        ensure!(took <= most * self.size.slack, "{what}: {took:?}, and {most:?} are allowed");
        Ok(())
    }

    /// How long to watch that nothing happens.
    pub fn stillness(&self) -> Duration {
        Duration::from_secs(self.size.stillness_seconds)
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let mut text = format!("--- server ---\n{}\n", tail(&self.server.log(), 40));
        for guest in self.lab.guests() {
            let console = tail(&guest.console(), 15);
            text.push_str(&format!("--- console of {} ---\n{console}\n", guest.name()));
            if guest.is_running() {
                text.push_str(&format!("--- {} waits ---\n{}\n", guest.name(), guest.stuck()));
            }
        }
        text
    }
}

impl StepDir {
    pub fn file(&self, name: &str) -> PathBuf {
        self.host.join(name)
    }

    /// The path of a file in a guest.
    pub fn file_in_guest(&self, name: &str) -> String {
        format!("{}/{name}", self.guest)
    }

    /// Permission bits of a file as the server's disk has them.
    pub fn mode(&self, name: &str) -> Result<u32> {
        Ok(self.metadata(name)?.mode() & 0o7777)
    }

    pub fn metadata(&self, name: &str) -> Result<fs::Metadata> {
        let path = self.file(name);
        fs::symlink_metadata(&path).with_context(|| path.display().to_string())
    }

    pub fn text(&self, name: &str) -> Result<String> {
        let path = self.file(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    pub fn expect_mode(&self, name: &str, mode: u32) -> Result<()> {
        let found = self.mode(name)?;
        ensure!(found == mode, "{name} has mode {found:o} instead of {mode:o}");
        Ok(())
    }

    pub fn expect_owner(&self, name: &str, uid: u32, gid: u32) -> Result<()> {
        let metadata = self.metadata(name)?;
        let found = (metadata.uid(), metadata.gid());
        ensure!(found == (uid, gid), "{name} belongs to {found:?} instead of {:?}", (uid, gid));
        Ok(())
    }

    pub fn expect_text(&self, name: &str, text: &str) -> Result<()> {
        let found = self.text(name)?;
        ensure!(found == text, "{name} contains {found:?} instead of {text:?}");
        Ok(())
    }
}

fn exports(directory: &Path) -> Vec<Export> {
    let ours = ["10.77.0.0/24", "fd77::/64"];
    let export = |name: &str, clients: &[&str], access, squash| Export {
        path: directory.join(name),
        clients: clients.iter().map(|client| (*client).to_owned()).collect(),
        access,
        squash,
        ports: "reserved",
    };
    vec![
        export("open", &ours, "rw", "none"),
        export("open/inner", &ours, "rw", "none"),
        export("home", &ours, "rw", "root"),
        export("public", &ours, "rw", "all"),
        export("archive", &ours, "ro", "root"),
        export("foreign", &["10.99.0.0/16"], "rw", "root"),
    ]
}

/// A command line that runs `script` as another user in `directory`.
pub fn as_user(who: &str, directory: &str, script: &str) -> String {
    let script = script.replace('\'', r"'\''");
    format!("cd {directory} && lockkeeper-guest as {who} sh -c '{script}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_a_change_of_user() {
        let line = as_user("1:1", "/tmp", "printf 'a b'");
        assert_eq!(line, r"cd /tmp && lockkeeper-guest as 1:1 sh -c 'printf '\''a b'\'''");
    }
}
