//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench::Bench;
use crate::command;
use crate::config::{AdminListen, Durability, Grace, parse_duration};
use crate::demo::Demo;
use crate::terminal::Colour;

/// An NFSv3 server whose locks survive crashes.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
pub struct Globals {
    /// The daemon: its socket, or http://ADDR:PORT [default: $LOCKKEEPER_ADMIN, else
    /// /run/lockkeeper/admin.sock, else that of $XDG_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "SOCKET_OR_URL", help_heading = "Global options")]
    pub server: Option<String>,

    /// The file with the token that changes over http:// need [default: $LOCKKEEPER_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub token_file: Option<PathBuf>,

    /// When to use colours: by itself on a terminal, unless NO_COLOR is set
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
pub enum Command {
    /// Serve directories over NFSv3, in the foreground, until SIGTERM
    Serve(Box<Serve>),
    #[command(flatten)]
    Operate(command::Command),
    /// Look into a store of locks, move its state to another, or empty it
    #[command(subcommand)]
    Store(StoreCommand),
    /// Watch a lock survive the death of its server: no root, nothing to set up, some seconds
    Demo(Demo),
    /// Measure an NFSv3 server: locks per second, latencies, file operations
    Bench(Bench),
    /// Look for what stands between clients and their locks, and say how to mend it
    Doctor(Doctor),
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// A client to look at as well: its id, name or address
    #[arg(long, value_name = "CLIENT")]
    pub client: Option<String>,

    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,

    /// Configuration file [default: the running server's, or /etc/lockkeeper/lockkeeper.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// State directory [default: the running server's, or that of `serve`]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy the state of one store into another that is empty
    Copy {
        /// embedded:/PATH or postgres://USER@HOST/DATABASE
        from: String,
        to: String,
    },
    /// Say what is in a store, and whether it contradicts itself
    Check {
        /// embedded:/PATH or postgres://USER@HOST/DATABASE
        url: String,
    },
    /// Take the locks of a PostgreSQL store for incomplete, after a backup was restored or a replica
    /// took over that lagged behind: the next start lets clients reclaim theirs
    Distrust {
        /// postgres://USER@HOST/DATABASE
        url: String,
    },
    /// Forget all locks, shares and registrations; refused while locks are held
    Clear {
        /// embedded:/PATH or postgres://USER@HOST/DATABASE
        url: String,
        /// Even if clients rely on them
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Directories to export, in addition to those of the configuration file
    pub dirs: Vec<PathBuf>,

    /// Configuration file [default: /etc/lockkeeper/lockkeeper.toml, if it is there]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Where keys, file-system ids and locks are kept [default: /var/lib/lockkeeper as root, else
    /// $XDG_STATE_HOME/lockkeeper]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Where locks are kept: embedded:/PATH, memory: or postgres://USER@HOST/DATABASE [default: in
    /// the state directory]
    // Text here: a parser's error would repeat it, and it may have a password in it.
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,

    /// What locks survive without being reclaimed [default: process]
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,

    /// Wait until the server that uses this PostgreSQL store ends, then take over
    #[arg(long)]
    pub standby: bool,

    /// The name of this server among those of one PostgreSQL store [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,

    /// How long clients may take to get their locks back after a restart [default: 90s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,

    /// Whether new locks wait until all old ones are back [default: strict]
    #[arg(long, value_enum)]
    pub grace: Option<Grace>,

    /// Another name that clients mount this server by
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,

    /// Address and port of all programs [default: [::]:2049]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,

    /// How clients find the port [default: auto]
    #[arg(long, value_enum)]
    pub rpcbind: Option<Rpcbind>,

    /// Where the web page, metrics and the API are served, or off [default: 127.0.0.1:9049]
    #[arg(long, value_name = "ADDR:PORT")]
    pub admin: Option<AdminListen>,

    /// The socket that commands talk to [default: /run/lockkeeper/admin.sock as root]
    #[arg(long, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,

    /// From which source ports requests are taken [default: reserved as root, else any]
    #[arg(long, value_enum)]
    pub ports: Option<Ports>,

    /// End when this process, which started us, does
    #[arg(long, value_name = "PROCESS", hide = true)]
    pub end_with_parent: Option<u32>,

    /// Where an embedded store notes how far it came since the machine started. Not for stores that
    /// are to stay: other commands look for the note where it usually is
    #[arg(long, value_name = "DIR", hide = true)]
    pub run_directory: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rpcbind {
    /// The host's rpcbind if it answers, else our own on port 111
    Auto,
    /// The host's rpcbind
    System,
    /// Our own on port 111
    Embedded,
    /// None: clients must name the ports
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ports {
    /// Below 1024, which only root of the client can use
    Reserved,
    /// All: users of a client can then claim to be others
    Any,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that one command and all commands use for different things shows only when it is used.
    #[test]
    fn every_command_can_be_typed() {
        let typed = [
            "serve /srv --admin off",
            "status",
            "clients alice",
            "locks --waiting",
            "events --last 5",
            "notify alice",
            "confirm-reboot alice --dry-run",
            "release k7f2 --yes",
            "fence alice --dry-run",
            "unfence alice",
            "grace end --yes",
            "store check memory:",
            "doctor --client alice",
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
