//! How clients find the port: registration with the host's rpcbind, or being it ourselves.
//!
//! A Linux client asks port 111 of the address it mounted for the lock manager, whatever its
//! mount options say, so a server that is not found there cannot be locked with.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use client::rpcbind::{Over, Rpcbind};
use client::{CallError, Connection, Options};
use tracing::{info, warn};
use wire::rpcbind::{Binding, Mapping, Netid, Text, universal, v2, v4};

use crate::engine::batch::DurableEpoch;
use crate::service::rpcbind::{OWN, Registered};
use crate::tenure::Tenure;
use crate::transport::listen::{ListenError, Listeners, Listening};

/// What the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcbindMode {
    /// The host's if it answers, else our own, else none with a warning.
    Auto,
    System,
    Embedded,
    Off,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RpcbindState {
    System {
        port: u16,
    },
    Embedded {
        port: u16,
    },
    /// Clients must be told the ports: why, and how.
    Off {
        reason: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error(
        "no rpcbind answers on port {port} of this host ({error}); start it, or serve with --rpcbind embedded"
    )]
    NoSystem { port: u16, error: String },
    #[error(
        "{name} (program {program}) of this host is served by another program on port {port}; \
         stop it first: {fix}"
    )]
    Foreign { program: u32, name: &'static str, port: u32, fix: &'static str },
    #[error("rpcbind of this host refused to register program {program} version {version}; {hint}")]
    Refused { program: u32, version: u32, hint: &'static str },
    #[error("rpcbind of this host: {0}")]
    Call(#[from] CallError),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// How long the host's rpcbind may take: it is on this machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is registered: programs and versions at one port, for the families that are served.
#[derive(Debug, Clone)]
pub struct Registrar {
    programs: Vec<(u32, u32)>,
    netids: Vec<Netid>,
    port: u16,
    rpcbind_port: u16,
}

impl Registrar {
    pub fn new(
        programs: Vec<(u32, u32)>,
        addresses: &[SocketAddr],
        port: u16,
        rpcbind_port: u16,
    ) -> Self {
        let served = |netid: &Netid| addresses.iter().any(|a| a.is_ipv6() == netid.is_v6());
        let netids = Netid::ALL.into_iter().filter(served).collect();
        Self { programs, netids, port, rpcbind_port }
    }

    pub fn rpcbind_port(&self) -> u16 {
        self.rpcbind_port
    }

    /// What our own rpcbind tells, itself included.
    pub fn table(&self) -> Vec<Registered> {
        let own = [2, 3, 4].map(|version| (wire::rpcbind::PROGRAM, version, self.rpcbind_port));
        let programs =
            self.programs.iter().map(|(program, version)| (*program, *version, self.port));
        let row = |(program, version, port), netid| Registered {
            program,
            version,
            netid,
            port,
            owner: Text::from(OWN),
        };
        own.into_iter()
            .chain(programs)
            .flat_map(|entry| self.netids.iter().map(move |netid| row(entry, *netid)))
            .collect()
    }

    /// Sockets for our own rpcbind.
    pub fn listen(
        &self,
        listen: SocketAddr,
        tenure: &Tenure,
        epoch: DurableEpoch,
    ) -> Result<Listening, ListenError> {
        let at = SocketAddr::new(listen.ip(), self.rpcbind_port);
        Listeners::bind(at, tenure, epoch)?.listen()
    }

    async fn connect(&self) -> Result<Rpcbind, String> {
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.rpcbind_port);
        // rpcbind takes registrations only from an administrator's port.
        let reserved_port = rustix::process::geteuid().is_root();
        let options = Options {
            reserved_port,
            connect_timeout: PATIENCE,
            timeout: PATIENCE,
            ..Options::default()
        };
        let mut rpcbind =
            Rpcbind::connect(at, Over::Tcp, &options).await.map_err(|error| error.to_string())?;
        rpcbind.call::<v2::Null>(&()).await.map_err(|error| error.to_string())?;
        Ok(rpcbind)
    }

    /// Registers everything with the host's rpcbind. A living program that has our place is an
    /// error; what a dead one left behind is replaced.
    pub async fn register(&self) -> Result<(), RegisterError> {
        let port = self.rpcbind_port;
        let mut rpcbind =
            self.connect().await.map_err(|error| RegisterError::NoSystem { port, error })?;
        self.refuse_foreign(&mut rpcbind).await?;
        self.unset(&mut rpcbind).await?;
        for (program, version) in &self.programs {
            for netid in &self.netids {
                let binding = self.binding(*program, *version, *netid);
                if !rpcbind.call::<v4::Set>(&binding).await? {
                    let hint = "run as root, or serve with --rpcbind off";
                    let (program, version) = (*program, *version);
                    return Err(RegisterError::Refused { program, version, hint });
                }
            }
        }
        Ok(())
    }

    /// Looks whether all is still registered, and registers again what a restarted rpcbind has
    /// forgotten.
    pub async fn check(&self) {
        let Ok(mut rpcbind) = self.connect().await else {
            warn!("rpcbind of this host does not answer; new clients will not find this server");
            return;
        };
        let known = match rpcbind.call::<v4::Dump>(&()).await {
            Ok(known) => known.0,
            Err(error) => return warn!("rpcbind of this host: {error}"),
        };
        let is_known = |ours: Binding| {
            known.iter().any(|b| {
                (b.program, b.version) == (ours.program, ours.version)
                    && (&b.netid, &b.address) == (&ours.netid, &ours.address)
            })
        };
        if !self.bindings().all(is_known) {
            info!("rpcbind of this host has forgotten us; registering again");
            if let Err(error) = self.register().await {
                warn!("{error}");
            }
        }
    }

    /// On a clean stop nobody shall be sent to a port where nobody listens.
    pub async fn unregister(&self) {
        if let Ok(mut rpcbind) = self.connect().await
            && let Err(error) = self.unset(&mut rpcbind).await
        {
            warn!("could not unregister: {error}");
        }
    }

    async fn unset(&self, rpcbind: &mut Rpcbind) -> Result<(), CallError> {
        for (program, version) in &self.programs {
            for netid in &self.netids {
                rpcbind.call::<v4::Unset>(&self.binding(*program, *version, *netid)).await?;
            }
        }
        Ok(())
    }

    fn bindings(&self) -> impl Iterator<Item = Binding> {
        let netids = || self.netids.iter().copied();
        self.programs
            .iter()
            .flat_map(move |(program, version)| netids().map(|n| (*program, *version, n)))
            .map(|(program, version, netid)| self.binding(program, version, netid))
    }

    fn binding(&self, program: u32, version: u32, netid: Netid) -> Binding {
        let ip =
            if netid.is_v6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        Binding {
            program,
            version,
            netid: netid.name().into(),
            address: universal(SocketAddr::new(ip, self.port)).into(),
            owner: Text::from(OWN),
        }
    }

    async fn refuse_foreign(&self, rpcbind: &mut Rpcbind) -> Result<(), RegisterError> {
        for mapping in rpcbind.call::<v2::Dump>(&()).await?.0 {
            let ours = self.programs.iter().any(|(program, _)| *program == mapping.program);
            if ours && mapping.port != u32::from(self.port) && is_alive(&mapping).await {
                let (name, fix) = program_name(mapping.program);
                let (program, port) = (mapping.program, mapping.port);
                return Err(RegisterError::Foreign { program, name, port, fix });
            }
        }
        Ok(())
    }
}

/// Whether somebody answers for a registration.
async fn is_alive(mapping: &Mapping) -> bool {
    let Ok(port) = u16::try_from(mapping.port) else { return false };
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let options = Options { connect_timeout: PATIENCE, timeout: PATIENCE, ..Options::default() };
    let answer = if mapping.protocol == wire::rpcbind::PROTOCOL_UDP {
        match client::Datagram::connect(at, &options).await {
            Ok(mut datagram) => {
                datagram.call_raw(mapping.program, mapping.version, 0, &[]).await.map(drop)
            }
            Err(_) => return false,
        }
    } else {
        match Connection::connect(at, &options).await {
            Ok(connection) => {
                connection.call_raw(mapping.program, mapping.version, 0, &[]).await.map(drop)
            }
            Err(_) => return false,
        }
    };
    // A refusal is an answer too.
    matches!(answer, Ok(()) | Err(CallError::Refused(_)))
}

fn program_name(program: u32) -> (&'static str, &'static str) {
    match program {
        wire::nfs3::PROGRAM => ("an NFS server", "systemctl disable --now nfs-server"),
        wire::mount::PROGRAM => ("a mount server", "systemctl disable --now nfs-mountd nfs-server"),
        wire::nlm::PROGRAM => (
            "the lock manager of the kernel",
            "unmount what this host mounts by NFS version 3, or mount it with nolock; and systemctl \
             disable --now nfs-server",
        ),
        wire::nsm::PROGRAM => ("a status monitor", "systemctl disable --now rpc-statd"),
        _ => ("another RPC server", "see `rpcinfo -p`"),
    }
}
