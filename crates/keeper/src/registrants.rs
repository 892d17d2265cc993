//! SM_MON, SM_UNMON and SM_UNMON_ALL (B3.3): registrants that ask to be notified, and what they are
//! told (B3.4). No known lock client registers over the network; the server monitors lock clients
//! itself (B3.1).

use std::net::IpAddr;

use crate::bytes::Name;
use crate::change::{Client, Protocol, Reboot, Registrant};
use crate::config::Config;
use crate::event::Event;
use crate::identity::{ClientId, Incarnation, LockId};
use crate::keeper::Keeper;
use crate::notices::NoticeSubject;
use crate::registration::add_used;
use crate::request::{MonitorRequest, UnmonitorRequest};
use crate::step::{Refusal, Reply};
use crate::time::Time;

impl Keeper {
    pub(crate) fn decide_monitor(&mut self, request: MonitorRequest, now: Time) {
        self.hear_call(request.source.local, now);
        let MonitorRequest { id, source, ours, callback, watched, private } = request;
        let (source, ours) = (source.address.to_canonical(), ours.to_canonical());
        let key = (source, callback.clone(), watched.clone());
        if let Some(known) = self.clients.find_registrant(&key) {
            self.hear_client(known, now);
            if self.is_news(known, ours, private) {
                self.update_client(known, |row| {
                    add_used(row, ours);
                    if let Some(registrant) = &mut row.registrant {
                        registrant.private = private;
                    }
                });
            }
            return self.reply(id, Reply::Monitor(Ok(())));
        }
        if let Err(why) = self.admit_registration(source, now) {
            self.event(Event::MonitorRefused { source, watched, why });
            return self.reply(id, Reply::Monitor(Err(why)));
        }
        let row = Client {
            id: ClientId(self.ids.take()),
            protocol: Protocol::NSM,
            address: source,
            name: callback.name.clone(),
            incarnation: Incarnation::UNKNOWN,
            reboot: None,
            monitored: true,
            fenced: false,
            used: vec![ours],
            registered_at_ms: now.wall_ms,
            epoch: self.epoch,
            registrant: Some(Registrant { callback, watched, private }),
        };
        self.insert_client(row, now);
        self.reply(id, Reply::Monitor(Ok(())));
    }

    /// Whether one more registration fits, for this address and in all (B7.8).
    fn admit_registration(&mut self, source: IpAddr, now: Time) -> Result<(), Refusal> {
        let most = self.config.limits.registrations_per_address;
        if self.clients.count_registrants_at(source) >= most {
            return Err(Refusal::TooManyRegistrations);
        }
        self.make_room(&Protocol::NSM, now)
    }

    /// Whether a repeated registration changes its row.
    fn is_news(&self, client: ClientId, ours: IpAddr, private: [u8; 16]) -> bool {
        let Some(row) = self.clients.get(client).map(|tracked| &tracked.row) else { return false };
        let recorded = row.registrant.as_ref().map(|registrant| registrant.private);
        recorded != Some(private) || !row.used.contains(&ours)
    }

    /// One registration, or all of one registrant.
    pub(crate) fn registrations(&self, request: &UnmonitorRequest) -> Vec<ClientId> {
        let source: IpAddr = request.source.address.to_canonical();
        if let Some(watched) = &request.watched {
            let key = (source, request.callback.clone(), watched.clone());
            return self.clients.find_registrant(&key).into_iter().collect();
        }
        let of_source = self.clients.registrants_at(source).filter(|tracked| {
            let registrant = tracked.row.registrant.as_ref();
            registrant.is_some_and(|registrant| registrant.callback == request.callback)
        });
        of_source.map(|tracked| tracked.row.id).collect()
    }

    /// B3.60: relays a notice about a machine that is no lock host. False if no registrant watches
    /// that machine.
    pub(crate) fn relay_unrecorded(
        &mut self,
        source: IpAddr,
        name: &Name,
        by_address: bool,
        to: Incarnation,
        now: Time,
    ) -> bool {
        let watchers = self.watchers(name, by_address.then_some(source));
        if watchers.is_empty() {
            return false;
        }
        let registrants = self.relay(watchers, to, now);
        if registrants > 0 {
            let name = name.clone();
            self.event(Event::WatchedRebooted { source, name, to, registrants });
        }
        true
    }

    /// B3.4: notifies the registrants that watch a lock host that rebooted.
    pub(crate) fn relay_reboot(&mut self, host: ClientId, to: Incarnation, now: Time) {
        let Some(row) = self.clients.get(host).map(|tracked| tracked.row.clone()) else { return };
        let watchers = self.watchers(&row.name, Some(row.address));
        self.relay(watchers, to, now);
    }

    /// The registrants that watch a machine of this name or address. A registrant that watches the
    /// server hears of its restarts from the server alone.
    fn watchers(&self, name: &Name, address: Option<IpAddr>) -> Vec<ClientId> {
        let watchers = self.clients.watchers(name, address).into_iter();
        let watching = watchers.filter(|id| {
            let row = self.clients.get(*id).map(|tracked| &tracked.row);
            let registrant = row.and_then(|row| Some((row, row.registrant.as_ref()?)));
            registrant
                .is_some_and(|(row, registrant)| !names_us(row, &registrant.watched, &self.config))
        });
        watching.collect()
    }

    /// Notifies each of them unless it was told of this state before. The state and the unfinished
    /// notice are recorded in its row, so that a restart repeats the notice. Returns how many are
    /// notified.
    fn relay(&mut self, watchers: Vec<ClientId>, to: Incarnation, now: Time) -> u64 {
        let mut told = 0;
        for watcher in watchers {
            let from = self.clients.incarnation(watcher);
            if from != to {
                self.update_client(watcher, |row| {
                    row.incarnation = to;
                    row.reboot = Some(Reboot { from, to, before: LockId(0) });
                });
                self.queue_notice(watcher, NoticeSubject::HostReboot, to.0, now);
                told += 1;
            }
        }
        told
    }

    /// After a restart: repeats a relay that the last run did not finish.
    pub(crate) fn resume_relay(&mut self, client: ClientId, now: Time) {
        let Some(tracked) = self.clients.get(client) else { return };
        if let (Some(reboot), true) = (tracked.row.reboot, tracked.row.registrant.is_some()) {
            self.queue_notice(client, NoticeSubject::HostReboot, reboot.to.0, now);
        }
    }

    /// The relay was answered or given up.
    pub(crate) fn end_relay(&mut self, client: Option<ClientId>, subject: NoticeSubject) {
        if let Some(client) = client
            && subject == NoticeSubject::HostReboot
        {
            self.update_client(client, |row| row.reboot = None);
        }
    }
}

/// B4.60: the name under which a registrant is told of the server's restart: the one by which it
/// watches the server, else the host name. Any other name would report the crash of another host.
pub(crate) fn our_name(row: &Client, watched: &Name, config: &Config) -> Name {
    if names_us(row, watched, config) { watched.clone() } else { config.host_name.clone() }
}

/// Whether a name that a registrant watches is one of the server's. A full name must be equal to one
/// of ours, if any of ours is a full name.
fn names_us(row: &Client, watched: &Name, config: &Config) -> bool {
    if let Some(address) = watched.as_address() {
        return row.used.contains(&address) || config.reverse_names.contains_key(&address);
    }
    let is_full = |name: &Name| name.bytes().contains(&b'.');
    let ours =
        || config.names.iter().chain(config.reverse_names.values()).chain([&config.host_name]);
    let by_label = !is_full(watched) || !ours().any(is_full);
    ours().any(|ours| {
        watched.bytes().eq_ignore_ascii_case(ours.bytes())
            || (by_label && watched.names_same_machine(ours))
    })
}
