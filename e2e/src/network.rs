//! The network of a lab: a namespace with one bridge between the server and the guests. Nothing
//! leaves it. SIGINT and SIGTERM remove it with everything that runs inside.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use testbed::mounts;
use testbed::namespace::{self, Namespace};
use testbed::process::run;

pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

/// Another address of the same server.
pub const SECOND_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// No resolver answers: a server that waits for DNS waits long.
const RESOLVER: &str = "nameserver 10.77.0.99\n";

pub(crate) const BRIDGE: &str = "wire";
/// A bridge without an address of its own takes the lowest of its ports'. It would change with every
/// guest that comes or goes, and the guests' ARP entries would be stale.
const BRIDGE_MAC: &str = "52:54:00:77:ff:01";

static SIGNALS: Once = Once::new();

#[derive(Debug)]
pub struct Network(Namespace);

impl Network {
    pub fn create() -> Result<Self> {
        SIGNALS.call_once(watch_signals);
        let network = Self(Namespace::new()?);
        network.set_resolver(RESOLVER)?;
        network.ip(&format!("link add {BRIDGE} address {BRIDGE_MAC} type bridge"))?;
        network.ip(&format!("addr add {SERVER_V4}/24 dev {BRIDGE}"))?;
        network.ip(&format!("addr add {SECOND_V4}/24 dev {BRIDGE}"))?;
        network.ip(&format!("addr add {SERVER_V6}/64 dev {BRIDGE} nodad"))?;
        network.ip(&format!("link set {BRIDGE} up"))?;
        Ok(network)
    }

    /// One more host on the bridge, without a kernel of its own: a namespace with this address.
    pub fn add_host(&self, address: Ipv4Addr) -> Result<Namespace> {
        static PORTS: AtomicU32 = AtomicU32::new(0);
        let host = Namespace::new()?;
        // A namespace is gone a moment before its links are, so no name is used twice.
        let port = format!("port{}", PORTS.fetch_add(1, Ordering::Relaxed));
        self.ip(&format!("link add {port} type veth peer name eth0 netns {}", host.name()))?;
        self.ip(&format!("link set {port} master {BRIDGE} up"))?;
        host.ip(&format!("addr add {address}/24 dev eth0"))?;
        host.ip("link set eth0 up")?;
        Ok(host)
    }

    /// Drops incoming packets that match an nftables expression, until the value is dropped.
    pub fn drop_incoming(&self, matching: &str) -> Result<PacketFilter<'_>> {
        let rules = format!(
            "add table inet drill\n\
             add chain inet drill incoming {{ type filter hook input priority 0 ; }}\n\
             add rule inet drill incoming {matching} drop\n"
        );
        let file = self.directory()?.join("drill.nft");
        fs::write(&file, rules).context("cannot write the rules")?;
        run(self.command("nft").arg("-f").arg(&file))?;
        Ok(PacketFilter(self))
    }

    /// Ends every TCP connection with this address, from here, with a reset.
    pub fn reset_connections(&self, peer: IpAddr) -> Result<()> {
        run(self.command("ss").args(["-K", "-t", "dst", &peer.to_string()])).map(drop)
    }

    /// Adds a tap device to the bridge.
    pub fn add_tap(&self, tap: &str) -> Result<()> {
        self.ip(&format!("tuntap add dev {tap} mode tap"))?;
        self.ip(&format!("link set {tap} master {BRIDGE} up"))
    }

    pub fn set_link(&self, tap: &str, up: bool) -> Result<()> {
        self.ip(&format!("link set {tap} {}", if up { "up" } else { "down" }))
    }
}

impl Deref for Network {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.0
    }
}

/// Drops packets while it lives.
#[derive(Debug)]
pub struct PacketFilter<'a>(&'a Network);

impl Drop for PacketFilter<'_> {
    fn drop(&mut self) {
        let mut nft = self.0.command("nft");
        if let Err(error) = run(nft.args(["delete", "table", "inet", "drill"])) {
            eprintln!("packets are still dropped: {error:#}");
        }
    }
}

fn watch_signals() {
    match Signals::new([SIGINT, SIGTERM]) {
        Ok(mut signals) => {
            thread::spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    namespace::remove_all();
                    mounts::remove_all();
                    std::process::exit(128 + signal);
                }
            });
        }
        Err(error) => eprintln!("cannot watch for signals: {error}"),
    }
}
