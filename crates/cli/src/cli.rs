//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench::Bench;
use crate::commands;
use crate::commands::terminal::Colour;
use crate::config::{AdminListen, Durability, Grace, Unreachable, parse_some_time};
use crate::demo::Demo;
use crate::logging::LogFormat;

/// An NFSv3 server whose locks survive crashes.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct Globals {
    /// Admin socket or http://ADDR:PORT of the server [default: $LOCKKEEPER_ADMIN, else
    /// /run/lockkeeper/admin.sock, else the socket in $XDG_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "SOCKET_OR_URL", help_heading = "Global options")]
    pub server: Option<String>,

    /// File with the bearer token, required to make changes over http:// [default:
    /// $LOCKKEEPER_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub token_file: Option<PathBuf>,

    /// When to use colours; `auto` means on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        help_heading = "Global options"
    )]
    pub color: Colour,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve directories over NFSv3 in the foreground until SIGTERM
    Serve(Box<Serve>),
    #[command(flatten)]
    Operate(commands::Command),
    /// Check, copy, distrust or clear a lock store, or record a fenced server
    #[command(subcommand)]
    Store(StoreCommand),
    /// Show a lock surviving a server crash; needs no root and no setup
    Demo(Demo),
    /// Measure an NFSv3 server: lock rate, latencies, file operations
    Bench(Bench),
    /// Diagnose why clients cannot lock, and show how to fix it
    Doctor(Doctor),
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also check this client (id, name or address)
    #[arg(long, value_name = "CLIENT")]
    pub client: Option<String>,

    /// On a client, as root: check the way to a server instead, for translated addresses
    #[arg(long, value_name = "SERVER:/EXPORT", conflicts_with_all = ["client", "config", "state"])]
    pub mount: Option<String>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// Configuration file [default: the running server's, or /etc/lockkeeper/lockkeeper.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// State directory [default: the running server's, or the default of `serve`]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy the contents of a store to an empty store. Of an embedded store that a server uses, the
    /// copy is a backup
    Copy {
        /// Source store: embedded:/PATH or postgres://USER@HOST/DATABASE
        from: String,
        /// Destination store, in the same form
        to: String,
    },
    /// Show what a store contains and check its consistency
    Check {
        /// embedded:/PATH or postgres://USER@HOST/DATABASE
        url: String,
    },
    /// Record that a server presumed dead is off or cut off from the files, so that takeover hooks are
    /// no longer told to fence it
    Fenced {
        /// Its node name, as shown by `store check`
        node: String,
        /// postgres://USER@HOST/DATABASE [default: that of the configuration file]
        // Parsed later: a clap parse error would print the value, which may contain a password.
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        /// Configuration file [default: /etc/lockkeeper/lockkeeper.toml, if it exists]
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Mark a store as possibly incomplete, so that clients reclaim their locks after the next start.
    /// Needed after restoring a backup, or failing over to a lagging replica
    Distrust {
        /// embedded:/PATH or postgres://USER@HOST/DATABASE
        url: String,
        /// Clients may be missing too: let any client reclaim
        #[arg(long)]
        open: bool,
    },
    /// Delete all locks, shares and registrations; refused while locks are held
    Clear {
        /// embedded:/PATH or postgres://USER@HOST/DATABASE
        url: String,
        /// Delete locks that are held
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Directories to export, in addition to those in the configuration file; `memory:` is an empty
    /// file system in memory, mounted as /memory, and `memory:/PATH` one that is mounted as /PATH
    pub dirs: Vec<PathBuf>,

    /// Configuration file [default: /etc/lockkeeper/lockkeeper.toml, if it exists]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// State directory: keys, file system ids and locks [default: /var/lib/lockkeeper as root, else
    /// $XDG_STATE_HOME/lockkeeper]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Lock store: embedded:/PATH, memory: or postgres://USER@HOST/DATABASE [default: embedded, in
    /// the state directory]
    // Parsed later: a clap parse error would print the value, which may contain a password.
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,

    /// Start although the lock store is lost or was restored from a backup: notify the clients known
    /// from the copy of the roster in the state directory, and let any client reclaim its locks. For
    /// one start; see docs/recover.md
    #[arg(long)]
    pub store_lost: bool,

    /// Kind of crash that locks survive without a reclaim [default: process]
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,

    /// Wait until the server using this PostgreSQL store ends, then take over
    #[arg(long)]
    pub standby: bool,

    /// Name of this server among those sharing a PostgreSQL store [default: the host name]
    #[arg(long, value_name = "NAME", value_parser = crate::config::node_name::parse)]
    pub node: Option<String>,

    /// Time clients have to reclaim their locks after a restart, for every protocol [default: 90s]
    #[arg(long, value_name = "TIME", value_parser = parse_some_time)]
    pub window: Option<Duration>,

    /// Which new locks wait until clients have reclaimed theirs [default: strict]
    #[arg(long, value_enum)]
    pub grace: Option<Grace>,

    /// When the locks of a client that does not return after a restart are released [default:
    /// on-demand]
    #[arg(long, value_enum)]
    pub unreachable: Option<Unreachable>,

    /// Additional name by which clients mount this server; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,

    // Not a doc comment: rustdoc takes the address for a link.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        help = "Address and port of NFS, MOUNT, NLM and NSM [default: [::]:2049]"
    )]
    pub listen: Option<SocketAddr>,

    /// Which rpcbind tells clients the port [default: auto]
    #[arg(long, value_enum)]
    pub rpcbind: Option<Rpcbind>,

    /// Address and port of the web page, metrics and API, or off [default: 127.0.0.1:9049]
    #[arg(long, value_name = "ADDR:PORT")]
    pub admin: Option<AdminListen>,

    /// Unix socket of the admin API [default: /run/lockkeeper/admin.sock as root]
    #[arg(long, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,

    /// Source ports from which requests are accepted, for every export [default: reserved as root,
    /// else any]
    #[arg(long, value_enum)]
    pub ports: Option<Ports>,

    /// Format of the log [default: journald if systemd has connected standard error to the journal,
    /// else text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Exit when this process, the parent, exits
    #[arg(long, value_name = "PROCESS", hide = true)]
    pub end_with_parent: Option<u32>,

    /// Directory of the embedded store's mark. Only for temporary stores: other commands look for
    /// the mark in the default directory
    #[arg(long, value_name = "DIR", hide = true)]
    pub run_directory: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rpcbind {
    /// The host's rpcbind if it answers, else the built-in one on port 111
    Auto,
    /// The host's rpcbind
    System,
    /// The built-in rpcbind on port 111
    Embedded,
    /// None; clients must specify the ports
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ports {
    /// Only ports below 1024, which on a client require root
    Reserved,
    /// All ports; any user of a client can then impersonate others
    Any,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Argument ids of a command and of the global options share a namespace; clap reports a clash only
    /// when the command is parsed.
    #[test]
    fn every_command_can_be_typed() {
        let typed = [
            "serve /srv --admin off",
            "serve /srv --store-lost",
            "status",
            "clients alice",
            "clients --io --watch",
            "exports /srv",
            "forget alice --dry-run",
            "reload",
            "locks --waiting",
            "events --last 5",
            "notify alice",
            "confirm-reboot alice --dry-run",
            "release k7f2 --yes",
            "fence alice --dry-run",
            "unfence alice",
            "grace end --yes",
            "store check memory:",
            "store fenced filer1 --store postgres://db/x",
            "doctor --client alice",
            "doctor --mount filer:/srv",
            "bench filer:/srv --seconds 1",
            "demo",
            "config check",
            "completions bash",
        ];
        for line in typed {
            for more in ["", "--server /run/x.sock", "--color never"] {
                let words = ["lockkeeper"].into_iter().chain(line.split(' '));
                let parsed = Cli::try_parse_from(words.chain(more.split_whitespace()));
                assert!(parsed.is_ok(), "{line} {more}: {}", parsed.unwrap_err());
            }
        }
    }
}
