//! What lies between client and servers: loopback, or a cable of 1500-byte packets.
//!
//! The cable is a veth pair whose other end is in a network namespace of the servers'. Loopback hands
//! over segments of 64 KiB and never divides them; on the cable each packet is made, checked and put
//! together by itself, as between two machines.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use testbed::process::run;

const NAMESPACE: &str = "servers";
const CLIENT_END: &str = "client";
const SERVER_END: &str = "server";
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    #[default]
    Loopback,
    /// A veth pair with an MTU of 1500, without segmentation offload
    Veth,
}

impl Link {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "a veth pair with an MTU of 1500",
        }
    }

    /// Of the files that are served over it.
    pub(crate) fn name_of_directory(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
        }
    }

    /// Where the servers are reached.
    pub(crate) fn server(self) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Veth => SERVER,
        }
    }

    /// Makes the link. Only inside namespaces of our own; it ends with them.
    pub(crate) fn set_up(self) -> Result<()> {
        run(&mut tuning())?;
        if self == Self::Loopback {
            return Ok(());
        }
        // `ip netns` keeps its names below /run, which is private.
        let ip = |arguments: &str| run(Command::new("ip").args(arguments.split(' '))).map(drop);
        ip(&format!("netns add {NAMESPACE}"))?;
        ip(&format!("link add {CLIENT_END} type veth peer name {SERVER_END} netns {NAMESPACE}"))?;
        ip(&format!("addr add {CLIENT}/24 dev {CLIENT_END}"))?;
        ip(&format!("link set {CLIENT_END} mtu 1500 up"))?;
        ip(&format!("-n {NAMESPACE} addr add {SERVER}/24 dev {SERVER_END}"))?;
        ip(&format!("-n {NAMESPACE} link set {SERVER_END} mtu 1500 up"))?;
        ip(&format!("-n {NAMESPACE} link set lo up"))?;
        let offloads = ["tso", "off", "gso", "off", "gro", "off"];
        let mut ethtool = Command::new("ethtool");
        run(ethtool.args(["-K", CLIENT_END]).args(offloads))?;
        let mut ethtool = Command::new("ethtool");
        ethtool.args(["-K", SERVER_END]).args(offloads);
        run(&mut self.beyond(ethtool))?;
        run(&mut self.beyond(tuning())).map(drop)
    }

    /// The same command, run where the servers are. It keeps its process id.
    pub(crate) fn beyond(self, command: Command) -> Command {
        if self == Self::Loopback {
            return command;
        }
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", Path::new("/run/netns").join(NAMESPACE).display()));
        inside.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

/// Settings of a network namespace.
fn tuning() -> Command {
    // The kernel's default, whatever this machine uses: with BBR, its pacing would be measured. Where
    // there is no cubic, the machine's choice stays.
    let congestion = "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control";
    // For locks, nfs-ganesha makes thousands of connections from reserved ports, each for one call.
    // In TIME_WAIT for a minute each, they would use up the ports.
    let waiting = "echo 0 > /proc/sys/net/ipv4/tcp_max_tw_buckets";
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{congestion}; {waiting}; true")]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_keeps_its_arguments_and_environment_beyond_the_link() {
        let command = || {
            let mut command = Command::new("server");
            command.args(["--flag", "value"]).env("A", "1").env_remove("TMPDIR");
            command
        };
        let beyond = Link::Veth.beyond(command());
        let arguments: Vec<_> = beyond.get_args().collect();
        assert_eq!(beyond.get_program(), "nsenter");
        assert_eq!(arguments, ["--net=/run/netns/servers", "--", "server", "--flag", "value"]);
        assert!(beyond.get_envs().eq(command().get_envs()));
        assert_eq!(Link::Loopback.beyond(command()).get_program(), "server");
    }
}
