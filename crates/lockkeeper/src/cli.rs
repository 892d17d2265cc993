//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// An NFSv3 server whose locks survive crashes.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve directories over NFSv3, in the foreground, until SIGTERM
    Serve(Serve),
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Directories to export, in addition to those of the configuration file
    pub dirs: Vec<PathBuf>,

    /// Configuration file [default: /etc/lockkeeper/lockkeeper.toml, if it is there]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Where keys and file-system ids are kept [default: /var/lib/lockkeeper as root, else
    /// $XDG_STATE_HOME/lockkeeper]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Address and port of all programs [default: [::]:2049]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,

    /// How clients find the port [default: auto]
    #[arg(long, value_enum)]
    pub rpcbind: Option<Rpcbind>,

    /// From which source ports requests are taken [default: reserved as root, else any]
    #[arg(long, value_enum)]
    pub ports: Option<Ports>,
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
