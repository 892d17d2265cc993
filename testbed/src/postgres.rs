//! Debian's PostgreSQL in a directory of its own, for as long as a test wants it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::packages;

/// Where Debian puts what is not for everybody's path, one directory for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
const USER: &str = "postgres";

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where its data goes; a temporary directory if nothing is said.
    pub data: Option<PathBuf>,
    /// Where its log of changes goes; with the data if nothing is said.
    pub wal: Option<PathBuf>,
    /// Also on a free port of loopback.
    pub tcp: bool,
    /// Syncs to the disk, as a real one does.
    pub fsync: bool,
    /// Lines for its configuration.
    pub config: Vec<String>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Transactions are broken off, and what is committed is put in order.
    Fast,
    /// As if the power had gone: the next start recovers from the log.
    Immediate,
}

/// A server, and with it everything that it wrote, gone when dropped.
pub struct Server {
    tools: PathBuf,
    /// Sockets and log; removed with it.
    home: TempDir,
    data: PathBuf,
    port: Option<u16>,
    /// Kept for the next one.
    _template: Option<Arc<TempDir>>,
}

impl Server {
    pub fn start() -> Result<Self> {
        Self::start_with(&Options::default())
    }

    pub fn start_with(options: &Options) -> Result<Self> {
        let tools = tools()?;
        let home = tempfile::Builder::new().prefix("postgres.").tempdir()?;
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

    /// After a [`Server::stop`], or after it died by itself.
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

    /// As the administrator, over the unix socket.
    pub fn url(&self) -> String {
        self.url_for(USER)
    }

    pub fn url_for(&self, role: &str) -> String {
        let port = self.port.unwrap_or(5432);
        format!("host={} port={port} user={role} dbname=postgres", self.home.path().display())
    }

    /// Over TCP, if it was started so.
    pub fn tcp_url(&self) -> Option<String> {
        self.port.map(|port| format!("postgres://{USER}@127.0.0.1:{port}/postgres"))
    }

    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// What statements give back: rows as lines, columns apart by `|`.
    pub fn psql(&self, sql: &str) -> Result<String> {
        let mut child = as_owner(&self.tools.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"])
            .arg(self.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // If it ends early it says why.
            let _ = writeln!(input, "{sql};");
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "psql: {sql}: {said}");
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

    /// The end of what it has logged.
    pub fn log(&self) -> String {
        let text = fs::read(self.home.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
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
        // Also where nobody knows whether it runs: a server must not outlive its directory.
        let _ = run(self.control().args(["--wait", "--timeout=20", "--mode=immediate", "stop"]));
    }
}

/// A data directory that others are copied from, because making one takes seconds. Gone with the last
/// server that came of it.
fn template(tools: &Path) -> Result<Arc<TempDir>> {
    static TEMPLATE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut template = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(template) = template.upgrade() {
        return Ok(template);
    }
    let home = tempfile::Builder::new().prefix("postgres.").tempdir()?;
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

/// Makes a directory the server's own.
pub fn give(directory: &Path) -> Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    if is_root()? {
        chown(directory, Some(number(&["-u", USER])?), Some(number(&["-g", USER])?))?;
    }
    Ok(())
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

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn run(command: &mut Command) -> Result<()> {
    // Into nowhere, not into pipes: what the server inherits stays open as long as it runs.
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
