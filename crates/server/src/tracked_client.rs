//! Clients of a protocol that the embedding program serves (B9.80): the program registers them, the
//! tracker keeps them across restarts beside lock hosts and registrants, and tells which of them came
//! back in the recovery window of their protocol.

use std::net::IpAddr;
use std::time::Duration;

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::change::Protocol;
use keeper::identity::{ClientId, HostKey, Incarnation};
use keeper::request::{RegisterRequest, UnregisterRequest};
use keeper::step::{Refusal, Reply};

use crate::control::{Control, ControlError};
use crate::engine::request::Request;

/// A client of a protocol of the embedding program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrackedClient {
    pub address: IpAddr,
    /// Its name for itself; any bytes.
    pub name: Vec<u8>,
    /// Its state, as it was last registered.
    pub incarnation: u32,
    /// Milliseconds since 1970.
    pub registered_at_ms: u64,
    /// It registered in this run of the server.
    pub present: bool,
    /// It did not register again by the end of the recovery window.
    pub crashed: bool,
}

/// Why a client was not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrackError {
    #[error("there are too many clients; allow more with `Limits::clients`")]
    TooManyClients,
    #[error("the server itself registers clients of NLM and NSM")]
    OwnProtocol,
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl Control {
    /// Registers a client, or notes that it is there again. Durable on return.
    pub async fn register_client(
        &self,
        protocol: &Protocol,
        address: IpAddr,
        name: &[u8],
        incarnation: u32,
    ) -> Result<(), TrackError> {
        let request = RegisterRequest {
            id: self.engine.new_id(),
            protocol: protocol.clone(),
            client: HostKey::new(address, Name::new(name)),
            incarnation: Incarnation(incarnation),
        };
        match self.ask(Request::Register(request)).await? {
            Reply::Registered(Ok(_)) => Ok(()),
            Reply::Registered(Err(Refusal::OwnProtocol)) => Err(TrackError::OwnProtocol),
            _ => Err(TrackError::TooManyClients),
        }
    }

    /// Removes a client; false if there was none. Durable on return.
    pub async fn unregister_client(
        &self,
        protocol: &Protocol,
        address: IpAddr,
        name: &[u8],
    ) -> Result<bool, TrackError> {
        let request = UnregisterRequest {
            id: self.engine.new_id(),
            protocol: protocol.clone(),
            client: HostKey::new(address, Name::new(name)),
        };
        Ok(self.ask(Request::Unregister(request)).await? == Reply::Unregistered(true))
    }

    /// The clients of a protocol, in the order of their registration.
    pub async fn clients_of(&self, protocol: &Protocol) -> Result<Vec<TrackedClient>, TrackError> {
        let protocol = protocol.clone();
        let read = move |keeper: &Keeper| {
            let all = keeper.clients(ClientId(0));
            let of_protocol = all.filter(|view| view.client.protocol == protocol);
            let shown = of_protocol.map(|view| TrackedClient {
                address: view.client.address,
                name: view.client.name.bytes().to_vec(),
                incarnation: view.client.incarnation.0,
                registered_at_ms: view.client.registered_at_ms,
                present: view.last_seen.is_some(),
                crashed: view.crashed,
            });
            shown.collect()
        };
        Ok(self.read(read).await?)
    }

    /// The rest of the recovery window of a protocol; its whole length before the first call after a
    /// start, `None` if it is over or no client was to come back.
    pub async fn awaits_clients(
        &self,
        protocol: &Protocol,
    ) -> Result<Option<Duration>, TrackError> {
        let (protocol, now) = (protocol.clone(), self.engine.clock().now());
        Ok(self.read(move |keeper| keeper.awaits(&protocol, now)).await?)
    }
}
