//! Registration of our programs with the host's rpcbind, and the table of our own.
//!
//! A Linux client asks port 111 of the server for the lock manager, whatever its mount options say:
//! without rpcbind it cannot lock.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use client::rpcbind::{RpcTransport, Rpcbind};
use client::{CallError, Connection, Options};
use tracing::{info, warn};
use wire::rpc::ProcedureId;
use wire::rpcbind::{Binding, Mapping, Netid, Text, universal, v2, v4};

use crate::engine::batch::DurableEpoch;
use crate::service::rpcbind::{OWNER, Registration, unspecified};
use crate::service_lease::ServiceLease;
use crate::transport::listen::{BoundSockets, ListenError, Listeners};

/// How clients are to find our ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcbindMode {
    /// The host's rpcbind if it answers, else our own, else none with a warning.
    Auto,
    /// The host's rpcbind; the server does not start without it.
    System,
    /// Our own, on port 111, which takes root or CAP_NET_BIND_SERVICE.
    Embedded,
    /// None: clients need the ports as mount options, and `nolock`, as their lock managers do not find
    /// ours.
    Off,
}

/// How clients do find our ports.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the port of rpcbind, and a sentence")]
pub enum RpcbindState {
    /// They ask the host's rpcbind.
    System { port: u16 },
    /// They ask our own.
    Embedded { port: u16 },
    /// Clients need the ports as mount options, and `nolock`.
    Off { reason: String },
}

/// Why a server is not known to rpcbind. The text says how to fix it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    Call(String),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

#[doc(hidden)]
impl From<CallError> for RegisterError {
    fn from(error: CallError) -> Self {
        Self::Call(error.to_string())
    }
}

/// Limit on each call; all go to this machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The (program, version) pairs served at one port, over the transports of the bound families.
#[derive(Debug, Clone)]
pub(crate) struct Registrar {
    programs: Vec<(u32, u32)>,
    netids: Vec<Netid>,
    /// Our own rpcbind is served over UDP also where the programs are not: clients ask it by datagram
    /// for a port that they use over TCP.
    rpcbind_netids: Vec<Netid>,
    port: u16,
    rpcbind_port: u16,
}

impl Registrar {
    pub(crate) fn new(
        programs: Vec<(u32, u32)>,
        addresses: &[SocketAddr],
        udp: bool,
        rpcbind_port: u16,
    ) -> Self {
        let port = addresses.first().map_or(0, SocketAddr::port);
        let served = |netid: &Netid| addresses.iter().any(|a| a.is_ipv6() == netid.is_v6());
        let rpcbind_netids: Vec<Netid> = Netid::ALL.into_iter().filter(served).collect();
        let netids =
            rpcbind_netids.iter().copied().filter(|netid| udp || !netid.is_udp()).collect();
        Self { programs, netids, rpcbind_netids, port, rpcbind_port }
    }

    pub(crate) fn rpcbind_port(&self) -> u16 {
        self.rpcbind_port
    }

    /// The initial table of our own rpcbind, itself included.
    pub(crate) fn table(&self) -> Vec<Registration> {
        let own = [2, 3, 4].map(|version| (wire::rpcbind::PROGRAM, version, self.rpcbind_port));
        let programs =
            self.programs.iter().map(|(program, version)| (*program, *version, self.port));
        let row = |(program, version, port), netid| Registration {
            program,
            version,
            netid,
            port,
            owner: Text::from(OWNER),
        };
        let own = own
            .into_iter()
            .flat_map(|entry| self.rpcbind_netids.iter().map(move |netid| row(entry, *netid)));
        let programs =
            programs.flat_map(|entry| self.netids.iter().map(move |netid| row(entry, *netid)));
        own.chain(programs).collect()
    }

    /// Sockets for our own rpcbind.
    pub(crate) fn listen(
        &self,
        listen: SocketAddr,
        lease: &ServiceLease,
        epoch: DurableEpoch,
    ) -> Result<Listeners, ListenError> {
        let at = SocketAddr::new(listen.ip(), self.rpcbind_port);
        BoundSockets::bind(at, true, lease, epoch)?.listen()
    }

    async fn connect(&self) -> Result<Rpcbind, String> {
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.rpcbind_port);
        // rpcbind accepts registrations only from reserved ports.
        let reserved_port = rustix::process::geteuid().is_root();
        let options = Options {
            reserved_port,
            connect_timeout: TIMEOUT,
            timeout: TIMEOUT,
            ..Options::default()
        };
        let mut rpcbind = Rpcbind::connect(at, RpcTransport::Tcp, &options)
            .await
            .map_err(|error| error.to_string())?;
        rpcbind.call::<v2::Null>(&()).await.map_err(|error| error.to_string())?;
        Ok(rpcbind)
    }

    /// Registers everything with the host's rpcbind. Registrations that a dead program left are
    /// replaced; a live program under one of our numbers is an error.
    pub(crate) async fn register(&self) -> Result<(), RegisterError> {
        let port = self.rpcbind_port;
        let mut rpcbind =
            self.connect().await.map_err(|error| RegisterError::NoSystem { port, error })?;
        self.refuse_foreign(&mut rpcbind).await?;
        self.unset(&mut rpcbind).await?;
        for binding in self.bindings() {
            if !rpcbind.call::<v4::Set>(&binding).await? {
                let hint = "run as root, or serve with --rpcbind off";
                let Binding { program, version, .. } = binding;
                return Err(RegisterError::Refused { program, version, hint });
            }
        }
        Ok(())
    }

    /// Checks that everything is still registered, and registers it again if rpcbind has restarted.
    pub(crate) async fn check(&self) {
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
            info!("rpcbind of this host has lost our registrations; registering again");
            if let Err(error) = self.register().await {
                warn!("{error}");
            }
        }
    }

    /// Removes our registrations, on a clean stop.
    pub(crate) async fn unregister(&self) {
        if let Ok(mut rpcbind) = self.connect().await
            && let Err(error) = self.unset(&mut rpcbind).await
        {
            warn!("cannot unregister from rpcbind: {error}");
        }
    }

    async fn unset(&self, rpcbind: &mut Rpcbind) -> Result<(), CallError> {
        // Also those over UDP that an earlier start with other settings left.
        for binding in self.bindings_over(&self.rpcbind_netids) {
            rpcbind.call::<v4::Unset>(&binding).await?;
        }
        Ok(())
    }

    /// One registration for each program version and transport.
    fn bindings(&self) -> impl Iterator<Item = Binding> {
        self.bindings_over(&self.netids)
    }

    fn bindings_over(&self, netids: &[Netid]) -> impl Iterator<Item = Binding> {
        self.programs.iter().flat_map(move |(program, version)| {
            netids.iter().map(move |netid| Binding {
                program: *program,
                version: *version,
                netid: netid.name().into(),
                address: universal(SocketAddr::new(unspecified(*netid), self.port)).into(),
                owner: Text::from(OWNER),
            })
        })
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

/// Whether a registered program answers NULL.
async fn is_alive(mapping: &Mapping) -> bool {
    let Ok(port) = u16::try_from(mapping.port) else { return false };
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let options = Options { connect_timeout: TIMEOUT, timeout: TIMEOUT, ..Options::default() };
    let null = ProcedureId::new(mapping.program, mapping.version, 0);
    let answer = if mapping.protocol == wire::rpcbind::PROTOCOL_UDP {
        match client::Datagram::connect(at, &options).await {
            Ok(mut datagram) => datagram.call_raw(null, &[]).await.map(drop),
            Err(_) => return false,
        }
    } else {
        match Connection::connect(at, &options).await {
            Ok(connection) => connection.call_raw(null, &[]).await.map(drop),
            Err(_) => return false,
        }
    };
    // An RPC error is an answer too.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// B7.99
    #[test]
    fn without_udp_no_rpcbind_names_it() {
        let addresses = ["[::]:2049".parse().unwrap(), "0.0.0.0:2049".parse().unwrap()];
        for udp in [true, false] {
            let served = vec![(wire::nfs3::PROGRAM, 3)];
            let registrar = Registrar::new(served, &addresses, udp, 111);
            let over_udp = |program| {
                let table = registrar.table();
                table.iter().filter(|row| row.program == program && row.netid.is_udp()).count()
            };
            assert_eq!(over_udp(wire::nfs3::PROGRAM), if udp { 2 } else { 0 });
            assert_eq!(over_udp(wire::rpcbind::PROGRAM), 6, "clients ask it over UDP");
            let told = registrar.bindings().filter(|binding| binding.netid.starts_with(b"udp"));
            assert_eq!(told.count(), if udp { 2 } else { 0 });
        }
    }
}
