//! SM_STAT: asks a host's status monitor for its NSM state (C702 chapter 11).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use client::Connection;
use keeper::identity::Transport;
use tokio::time::{Instant, timeout, timeout_at};
use wire::nsm::{self, Name, Stat, StatReply};
use wire::rpc::ProcedureId;
use wire::{Decode, Encode};

use super::ports::PeerService;
use super::udp::Purpose;
use super::{Failure, Peers, remaining};

/// Limit on the whole query: both lookups and both transports.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The monitor resolves the name in SM_STAT before it answers, one call at a time; this one needs no
/// name server.
const MON_NAME: &str = "127.0.0.1";

impl Peers {
    /// The current NSM state of `host`, asked from `ours`; `None` if its status monitor does not
    /// answer by `until` or within five seconds.
    ///
    /// Uses UDP, and TCP if UDP is not registered or does not answer soon. The outcome field of the
    /// reply concerns the name in the question; Linux and the BSDs return their state with either.
    pub(crate) async fn nsm_state(
        &self,
        host: IpAddr,
        ours: IpAddr,
        until: Instant,
    ) -> Option<u32> {
        let until = until.min(Instant::now() + ANSWER_MAX);
        timeout_at(until, self.ask_state(host, ours, until)).await.ok()?
    }

    async fn ask_state(&self, host: IpAddr, ours: IpAddr, until: Instant) -> Option<u32> {
        let mut by_udp = Box::pin(self.state_by_udp(host, ours, until));
        let fallback = self.0.settings.fallback_after.min(remaining(until));
        let answered = timeout(fallback, &mut by_udp).await;
        if let Ok(Ok(state)) = answered {
            return Some(state);
        }
        let mut by_tcp = Box::pin(self.state_by_tcp(host, ours, until));
        let state = match answered {
            Ok(_) => by_tcp.await,
            Err(_) => tokio::select! {
                udp = &mut by_udp => match udp {
                    Err(_) => by_tcp.await,
                    state => state,
                },
                tcp = &mut by_tcp => match tcp {
                    Err(_) => by_udp.await,
                    state => state,
                },
            },
        };
        state.ok()
    }

    async fn state_by_udp(
        &self,
        host: IpAddr,
        ours: IpAddr,
        until: Instant,
    ) -> Result<u32, Failure> {
        let at = self.status_monitor(host, Transport::Udp, ours, until).await?;
        let procedure = ProcedureId::of::<Stat>();
        let args = Name::from(MON_NAME).to_bytes();
        let answered = self.call_udp(at, ours, Purpose::Status, procedure, &args, until).await?;
        state_of(StatReply::from_bytes(answered.results).ok())
    }

    pub(super) async fn state_by_tcp(
        &self,
        host: IpAddr,
        ours: IpAddr,
        until: Instant,
    ) -> Result<u32, Failure> {
        let at = self.status_monitor(host, Transport::Tcp, ours, until).await?;
        let options = self.stream_options(ours, until);
        let connection = Connection::over(self.open(at, ours, &options).await?, at, &options);
        self.0.gate.pass(host, ours)?;
        state_of(connection.call::<Stat>(&Name::from(MON_NAME)).await.ok())
    }

    async fn status_monitor(
        &self,
        host: IpAddr,
        transport: Transport,
        ours: IpAddr,
        until: Instant,
    ) -> Result<SocketAddr, Failure> {
        let service = PeerService { host, program: nsm::PROGRAM, version: nsm::VERSION, transport };
        self.find_address(service, ours, until).await
    }
}

/// Zero is not a state: it is what a monitor leaves in a reply that it did not fill in.
fn state_of(reply: Option<StatReply>) -> Result<u32, Failure> {
    let state = reply.map(|reply| reply.state.cast_unsigned());
    state.filter(|state| *state != 0).ok_or(Failure::NoAnswer)
}
