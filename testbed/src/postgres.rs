//! Debian's PostgreSQL in a temporary directory.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::certificates::Certificate;
use crate::packages;
use crate::ports::free_port;
use crate::process::tail;
use crate::wait;

/// Programs that are not in `PATH`, in one directory for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
const USER: &str = "postgres";
const MEMORY: &str = "/dev/shm";

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The data directory; temporary by default.
    pub data: Option<PathBuf>,
    /// The directory of the write-ahead log; in the data directory by default.
    pub wal: Option<PathBuf>,
    /// Listen on a free port of loopback, too.
    pub tcp: bool,
    /// Sync to disk, as in production.
    pub fsync: bool,
    /// More lines for `postgresql.conf`.
    pub config: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Aborts transactions and shuts down cleanly.
    Fast,
    /// Aborts without a checkpoint: the next start recovers from the log.
    Immediate,
}

/// A server; stopped and deleted when dropped.
pub struct Server {
    tools: PathBuf,
    /// Sockets and log.
    home: TempDir,
    data: PathBuf,
    port: Option<u16>,
    /// Keeps the template for the next server.
    _template: Option<Arc<TempDir>>,
}

impl Server {
    pub fn start() -> Result<Self> {
        Self::start_with(&Options::default())
    }

    pub fn start_with(options: &Options) -> Result<Self> {
        let tools = tools()?;
        let home = home_directory()?;
        give(home.path())?;
        let data = options.data.clone().unwrap_or_else(|| home.path().join("data"));
        let template = match &options.wal {
            Some(wal) => {
                initialise(&tools, &data, Some(wal))?;
                None
            }
            None => {
                let template = template(&tools)?;
                let mut copy = as_owner(Path::new("cp"));
                run(copy.arg("-a").arg(template.path().join("data")).arg(&data)).context("cp")?;
                Some(template)
            }
        };
        let port = if options.tcp { Some(free_port()?) } else { None };
        let mut config = vec![
            format!("unix_socket_directories = '{}'", home.path().display()),
            "max_wal_size = 256MB".to_owned(),
            "min_wal_size = 8MB".to_owned(),
            "max_connections = 50".to_owned(),
            "log_min_error_statement = panic".to_owned(),
            "shared_buffers = 64MB".to_owned(),
            format!("fsync = {}", if options.fsync { "on" } else { "off" }),
        ];
        config.push(match port {
            Some(port) => format!("listen_addresses = '127.0.0.1'\nport = {port}"),
            None => "listen_addresses = ''".to_owned(),
        });
        config.extend(options.config.iter().cloned());
        let mut file = OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
        writeln!(file, "{}", config.join("\n"))?;
        let server = Self { tools, home, data, port, _template: template };
        server.start_again()?;
        Ok(server)
    }

    /// A replica that streams from this server, made by `pg_basebackup`; on a port of its own if this
    /// server has one.
    pub fn replica(&self, more: &[&str]) -> Result<Self> {
        let home = home_directory()?;
        give(home.path())?;
        let data = home.path().join("data");
        let mut backup = as_owner(&self.tools.join("pg_basebackup"));
        backup.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"]);
        backup.args(["--no-sync", "--dbname"]).arg(self.url()).arg("--pgdata").arg(&data);
        run(&mut backup).context("pg_basebackup")?;
        let port = if self.port.is_some() { Some(free_port()?) } else { None };
        let mut config = vec![format!("unix_socket_directories = '{}'", home.path().display())];
        config.extend(port.map(|port| format!("port = {port}")));
        config.extend(more.iter().map(|line| (*line).to_owned()));
        let mut file = OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
        writeln!(file, "{}", config.join("\n"))?;
        let replica =
            Self { tools: self.tools.clone(), home, data, port, _template: self._template.clone() };
        replica.start_again()?;
        wait::until_blocking("streaming", || {
            replica
                .psql("SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'")
                .is_ok_and(|count| count == "1")
        });
        Ok(replica)
    }

    /// Stops the replication to this replica: it lacks whatever its primary commits from here on.
    pub fn stop_streaming(&self) -> Result<()> {
        self.psql("ALTER SYSTEM SET primary_conninfo = ''; SELECT pg_reload_conf()")?;
        wait::until_blocking("the end of the replication", || {
            self.psql("SELECT count(*) FROM pg_stat_wal_receiver").is_ok_and(|count| count == "0")
        });
        Ok(())
    }

    /// Makes a primary of this replica, on a timeline of its own.
    pub fn promote(&self) -> Result<()> {
        run(self.control().args(["--wait", "--timeout=60", "promote"])).context("pg_ctl promote")
    }

    /// The directory of its unix socket.
    pub fn socket_directory(&self) -> &Path {
        self.home.path()
    }

    /// After a [`Server::stop`], or after it ended by itself.
    pub fn start_again(&self) -> Result<()> {
        run(self.control().args(["--wait", "--timeout=60", "start"]))
            .with_context(|| format!("pg_ctl start: {}", self.log()))
    }

    pub fn stop(&self, how: Stop) -> Result<()> {
        let mode = match how {
            Stop::Fast => "--mode=fast",
            Stop::Immediate => "--mode=immediate",
        };
        run(self.control().args(["--wait", "--timeout=60", mode, "stop"])).context("pg_ctl stop")
    }

    /// The administrator's URL, over the unix socket.
    pub fn url(&self) -> String {
        self.url_for(USER)
    }

    pub fn url_for(&self, role: &str) -> String {
        let port = self.port.unwrap_or(5432);
        format!("host={} port={port} user={role} dbname=postgres", self.home.path().display())
    }

    /// The URL over TCP, if [`Options::tcp`] is set.
    pub fn tcp_url(&self) -> Option<String> {
        self.port.map(|port| format!("postgres://{USER}@127.0.0.1:{port}/postgres"))
    }

    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Replaces `pg_hba.conf`: who may connect, and how. Unix sockets stay open to the tests. For new
    /// connections from here on.
    pub fn admit(&self, rules: &[&str]) -> Result<()> {
        let text = format!("local all all trust\n{}\n", rules.join("\n"));
        fs::write(self.data.join("pg_hba.conf"), text)?;
        self.reload(&[])
    }

    /// Certificate and key for TLS, and the authority of client certificates; with TLS off if `None`.
    /// For new connections from here on.
    pub fn set_certificate(
        &self,
        certificate: Option<&Certificate>,
        authority: &Path,
    ) -> Result<()> {
        let Some(certificate) = certificate else { return self.reload(&[("ssl", "off")]) };
        // The server accepts no other owner of its key.
        let mut settings = vec![("ssl", "on".to_owned())];
        for (setting, from) in [
            ("ssl_cert_file", certificate.path.as_path()),
            ("ssl_key_file", certificate.key.as_path()),
            ("ssl_ca_file", authority),
        ] {
            let name = from.file_name().context("a certificate without a name")?;
            let to = self.data.join(name);
            fs::copy(from, &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600))?;
            give_file(&to)?;
            settings.push((setting, to.display().to_string()));
        }
        let settings: Vec<_> = settings.iter().map(|(name, to)| (*name, to.as_str())).collect();
        self.reload(&settings)
    }

    /// Changes settings, and waits until new connections have them.
    fn reload(&self, settings: &[(&str, &str)]) -> Result<()> {
        for (name, value) in settings {
            self.psql(&format!("ALTER SYSTEM SET {name} = '{value}'"))?;
        }
        let before = self.psql("SELECT pg_conf_load_time(), pg_reload_conf()")?;
        let before = before.split('|').next().unwrap_or_default().to_owned();
        wait::until_blocking("the reload of the settings", || {
            self.psql("SELECT pg_conf_load_time()").is_ok_and(|now| now != before)
        });
        Ok(())
    }

    /// The result of statements: rows as lines, columns separated by `|`.
    pub fn psql(&self, sql: &str) -> Result<String> {
        let mut child = as_owner(&self.tools.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"])
            .arg(self.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // If psql ends early, its standard error says why.
            let _ = writeln!(input, "{sql};");
        }
        let output = child.wait_with_output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "psql: {sql}: {errors}");
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// A schema with its rows, as SQL that [`Server::psql`] takes: without owners, comments and
    /// settings, which differ between versions of PostgreSQL.
    pub fn dump(&self, schema: &str) -> Result<String> {
        let mut dump = as_owner(&self.tools.join("pg_dump"));
        dump.args(["--no-owner", "--no-privileges", "--schema", schema, "--dbname"]);
        let output = dump.arg(self.url()).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "pg_dump: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let incidental =
            ["--", "SET ", "SELECT pg_catalog.set_config", "\\restrict", "\\unrestrict"];
        let kept =
            text.lines().filter(|line| !incidental.iter().any(|word| line.starts_with(word)));
        let mut lines: Vec<&str> = kept.collect();
        lines.dedup_by(|next, before| next.is_empty() && before.is_empty());
        Ok(lines.join("\n").trim().to_owned() + "\n")
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        tail(&self.home.path().join("log"), 15)
    }

    fn control(&self) -> Command {
        let mut command = as_owner(&self.tools.join("pg_ctl"));
        command.arg("--silent").arg("--pgdata").arg(&self.data);
        command.arg("--log").arg(self.home.path().join("log"));
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whether or not it runs: a server must not outlive its directory.
        let _ = run(self.control().args(["--wait", "--timeout=20", "--mode=immediate", "stop"]));
    }
}

/// A data directory to copy, because initdb takes seconds. Deleted with the last server that uses it.
fn template(tools: &Path) -> Result<Arc<TempDir>> {
    static TEMPLATE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut template = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(template) = template.upgrade() {
        return Ok(template);
    }
    let home = home_directory()?;
    give(home.path())?;
    initialise(tools, &home.path().join("data"), None)?;
    let home = Arc::new(home);
    *template = Arc::downgrade(&home);
    Ok(home)
}

fn initialise(tools: &Path, data: &Path, wal: Option<&Path>) -> Result<()> {
    let mut initdb = as_owner(&tools.join("initdb"));
    initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]);
    initdb.args(["--no-sync", "--wal-segsize=1"]).arg("--pgdata").arg(data);
    if let Some(wal) = wal {
        initdb.arg("--waldir").arg(wal);
    }
    run(&mut initdb).context("initdb")
}

/// Makes the server's user the owner of a directory.
pub fn give(directory: &Path) -> Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    give_file(directory)
}

fn give_file(file: &Path) -> Result<()> {
    if is_root()? {
        chown(file, Some(number(&["-u", USER])?), Some(number(&["-g", USER])?))?;
    }
    Ok(())
}

/// In memory if there is space: clusters are copied and synced all the time.
fn home_directory() -> Result<TempDir> {
    const ENOUGH: u64 = 4 << 30;
    let mut builder = tempfile::Builder::new();
    builder.prefix("postgres.");
    let free = rustix::fs::statvfs(MEMORY).map_or(0, |found| found.f_bavail * found.f_frsize);
    Ok(if free > ENOUGH { builder.tempdir_in(MEMORY)? } else { builder.tempdir()? })
}

fn tools() -> Result<PathBuf> {
    packages::install(&["postgresql"])?;
    let mut versions: Vec<PathBuf> = fs::read_dir(VERSIONS)
        .context(VERSIONS)?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|path| path.join("initdb").exists())
        .collect();
    versions.sort();
    match versions.pop() {
        Some(newest) => Ok(newest),
        None => {
            bail!("{VERSIONS} has no version with initdb: apt-get install --reinstall postgresql")
        }
    }
}

/// PostgreSQL refuses to run as root.
fn as_owner(program: &Path) -> Command {
    if is_root().unwrap_or(false) {
        let mut command = Command::new("runuser");
        command.args(["-u", USER, "--"]).arg(program).current_dir("/");
        command
    } else {
        Command::new(program)
    }
}

fn is_root() -> Result<bool> {
    Ok(number(&["-u"])? == 0)
}

fn number(arguments: &[&str]) -> Result<u32> {
    let output = Command::new("id").args(arguments).output()?;
    ensure!(output.status.success(), "there is no user {USER}: apt-get install postgresql");
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

fn run(command: &mut Command) -> Result<()> {
    // Not into pipes: the server inherits them, and they would stay open.
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
