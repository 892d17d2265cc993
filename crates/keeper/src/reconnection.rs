//! Clients of protocols other than NLM and NSM, which a program that embeds the keeper serves (B9.80).
//! The tracker keeps them across restarts. Each protocol has a recovery window of its own, from the first
//! call of any peer: who has not registered again by its end is marked as crashed. What that means is for
//! the program to decide; it notifies its clients itself.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::change::{Client, Protocol};
use crate::event::Event;
use crate::identity::ClientId;
use crate::keeper::Keeper;
use crate::request::{RegisterRequest, UnregisterRequest};
use crate::step::{Refusal, Reply};
use crate::time::Time;
use crate::timer::Timer;

/// The protocols whose clients may still come back, each with the end of its window; `None` before the
/// first call.
#[derive(Default)]
pub(crate) struct Reconnection {
    open: BTreeMap<Protocol, Option<Duration>>,
    begun: bool,
}

impl Keeper {
    pub(crate) fn decide_register(&mut self, request: RegisterRequest, now: Time) {
        let RegisterRequest { id, protocol, client, incarnation } = request;
        if !protocol.is_foreign() {
            return self.reply(id, Reply::Registered(Err(Refusal::OwnProtocol)));
        }
        self.begin_reconnection(now);
        if let Some(known) = self.clients.find_foreign(&protocol, &client) {
            if self.clients.incarnation(known) != incarnation {
                self.update_client(known, |row| row.incarnation = incarnation);
            }
            self.hear_client(known, now);
            return self.reply(id, Reply::Registered(Ok(known)));
        }
        if let Err(why) = self.make_room(&protocol, now) {
            self.event(Event::Refused { client: None, why });
            return self.reply(id, Reply::Registered(Err(why)));
        }
        let row = Client {
            id: ClientId(self.ids.take()),
            protocol,
            address: client.address(),
            name: client.name().clone(),
            incarnation,
            reboot: None,
            monitored: false,
            fenced: false,
            used: Vec::new(),
            registered_at_ms: now.wall_ms,
            epoch: self.epoch,
            registrant: None,
        };
        let client = self.insert_client(row, now);
        self.reply(id, Reply::Registered(Ok(client)));
    }

    pub(crate) fn decide_unregister(&mut self, request: UnregisterRequest, now: Time) {
        let known = self.clients.find_foreign(&request.protocol, &request.client);
        if let Some(client) = known {
            self.unregister(client, now);
        }
        self.reply(request.id, Reply::Unregistered(known.is_some()));
    }

    /// At a start: every protocol with recovered clients awaits them.
    pub(crate) fn await_reconnection(&mut self) {
        let rows = self.clients.iter().map(|tracked| &tracked.row);
        let foreign = rows.filter(|row| row.protocol.is_foreign());
        self.reconnection.open = foreign.map(|row| (row.protocol.clone(), None)).collect();
    }

    /// The first call has arrived: the windows run.
    pub(crate) fn begin_reconnection(&mut self, now: Time) {
        if std::mem::replace(&mut self.reconnection.begun, true) {
            return;
        }
        for (protocol, ends) in &mut self.reconnection.open {
            *ends = Some(now.mono + self.config.window(protocol));
        }
        self.set_reconnection_timer();
    }

    pub(crate) fn delay_reconnection(&mut self, lasted: Duration) {
        for ends in self.reconnection.open.values_mut().flatten() {
            *ends += lasted;
        }
        self.set_reconnection_timer();
    }

    /// Ends the windows that are due, and marks the clients that did not come back.
    pub(crate) fn end_reconnection(&mut self, now: Time) {
        let due = |ends: &Option<Duration>| ends.is_some_and(|ends| ends <= now.mono);
        let silent = self.clients.iter_mut().filter(|tracked| {
            tracked.last_seen.is_none()
                && self.reconnection.open.get(&tracked.row.protocol).is_some_and(due)
        });
        for tracked in silent {
            tracked.crashed = true;
            self.step.events.push(Event::NotReconnected { client: tracked.row.id });
        }
        self.reconnection.open.retain(|_, ends| !due(ends));
        self.set_reconnection_timer();
    }

    fn set_reconnection_timer(&mut self) {
        if let Some(next) = self.reconnection.open.values().flatten().min() {
            self.timers.set(Timer::Reconnection, *next);
        }
    }

    /// The rest of a protocol's recovery window: its whole length before the first call, `None` if its
    /// clients are not awaited (any more).
    pub fn awaits(&self, protocol: &Protocol, now: Time) -> Option<Duration> {
        let ends = self.reconnection.open.get(protocol)?;
        let whole = self.config.window(protocol);
        Some(ends.map_or(whole, |ends| ends.saturating_sub(now.mono)))
    }
}
