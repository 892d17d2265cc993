//! SM_MON, SM_UNMON and SM_UNMON_ALL (B3.3): registrants that ask to be notified. No known
//! lock client does so over the network; the server monitors lock clients itself (B3.1).

use std::net::IpAddr;

use crate::change::{Client, Protocol, Registrant};
use crate::event::Event;
use crate::identity::{ClientId, Incarnation};
use crate::keeper::Keeper;
use crate::request::{MonitorRequest, UnmonitorRequest};
use crate::step::{Refusal, Reply};
use crate::time::Time;

impl Keeper {
    pub(crate) fn decide_monitor(&mut self, request: MonitorRequest, now: Time) {
        self.hear_call(request.source.local, now);
        let MonitorRequest { id, source, callback, watched, private } = request;
        let source = source.address.to_canonical();
        let key = (source, callback.clone(), watched.clone());
        if let Some(known) = self.clients.find_registrant(&key) {
            self.hear_client(known, now);
            if self.private(known) != Some(private) {
                self.update_client(known, |row| {
                    if let Some(registrant) = &mut row.registrant {
                        registrant.private = private;
                    }
                });
            }
            return self.reply(id, Reply::Monitor(Ok(())));
        }
        if let Err(why) = self.admit_registration(source) {
            self.event(Event::Refused { client: None, why });
            return self.reply(id, Reply::Monitor(Err(why)));
        }
        let row = Client {
            id: ClientId(self.ids.take()),
            protocol: Protocol::Nsm,
            address: source,
            name: callback.name.clone(),
            incarnation: Incarnation::UNKNOWN,
            reboot: None,
            monitored: true,
            fenced: false,
            used: Vec::new(),
            registered_at_ms: now.wall_ms,
            epoch: self.epoch,
            registrant: Some(Registrant { callback, watched, private }),
        };
        self.insert_client(row, now);
        self.reply(id, Reply::Monitor(Ok(())));
    }

    /// Whether one more registration fits, for this address and in all (B7.8).
    fn admit_registration(&mut self, source: IpAddr) -> Result<(), Refusal> {
        let most = self.config.limits.registrations_per_address;
        let known = self.clients.registrants().filter(|tracked| tracked.row.address == source);
        if known.count() >= most {
            return Err(Refusal::TooManyRegistrations);
        }
        self.make_room(Protocol::Nsm)
    }

    fn private(&self, client: ClientId) -> Option<[u8; 16]> {
        let registrant = self.clients.get(client)?.row.registrant.as_ref()?;
        Some(registrant.private)
    }

    /// One registration, or all of one registrant.
    pub(crate) fn registrations(&self, request: &UnmonitorRequest) -> Vec<ClientId> {
        let source: IpAddr = request.source.address.to_canonical();
        if let Some(watched) = &request.watched {
            let key = (source, request.callback.clone(), watched.clone());
            return self.clients.find_registrant(&key).into_iter().collect();
        }
        let of_source = self.clients.registrants().filter(|tracked| {
            let registrant = tracked.row.registrant.as_ref();
            tracked.row.address == source
                && registrant.is_some_and(|registrant| registrant.callback == request.callback)
        });
        of_source.map(|tracked| tracked.row.id).collect()
    }
}
