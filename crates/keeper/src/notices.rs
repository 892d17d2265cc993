//! Notices: whom we owe one, under which names, and when to try again (R2). After a restart every
//! monitored host and every registrant is told of our new state; after a host's reboot, those who
//! watch it are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::Client;
use crate::event::Event;
use crate::identity::{ClientId, Incarnation, NoticeId};
use crate::keeper::Keeper;
use crate::request::NoticeResult;
use crate::step::{Message, Notice, NoticeTarget};
use crate::time::Time;
use crate::timer::Timer;
use crate::view::NoticeView;

const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// After the window: every 2 minutes, for 15 minutes in all.
const RETRY_LATE: Duration = Duration::from_secs(120);
const GIVE_UP: Duration = Duration::from_secs(15 * 60);
/// An attempt has 5 s (R2.2); an attempt that nobody reports on is over after this.
const LOST: Duration = Duration::from_secs(30);

/// A notice that is not done.
struct Owed {
    client: ClientId,
    subject: Subject,
    state: u32,
    started: Duration,
    attempts: u32,
    /// Attempts since there was reason to hope for an answer: the pause doubles with each.
    backed_off: u32,
    /// The last attempt has not been reported on.
    in_flight: bool,
    answered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// We restarted.
    Us,
    /// A host that this registrant watches rebooted.
    Watched,
}

#[derive(Default)]
pub struct Notices {
    owed: BTreeMap<NoticeId, Owed>,
    by_client: BTreeMap<(ClientId, Subject), NoticeId>,
}

impl Keeper {
    /// After a restart: everybody who was known before, all at once (R2.1).
    pub(crate) fn owe_restart_notices(&mut self, now: Time) {
        let told = self.clients.iter().filter(|tracked| tracked.row.monitored);
        let told: Vec<ClientId> = told.map(|tracked| tracked.row.id).collect();
        for client in told {
            self.owe(client, Subject::Us, self.epoch.nsm_state(), now);
        }
    }

    /// R1.6: those who watch a host are told that it rebooted.
    pub(crate) fn relay_reboot(&mut self, host: ClientId, to: Incarnation, now: Time) {
        let Some(row) = self.clients.get(host).map(|tracked| tracked.row.clone()) else { return };
        let watchers = self.clients.registrants().filter(|tracked| watches(&tracked.row, &row));
        let watchers: Vec<ClientId> = watchers.map(|tracked| tracked.row.id).collect();
        for watcher in watchers {
            self.owe(watcher, Subject::Watched, to.0, now);
        }
    }

    /// Newer news replaces what the client has not been told yet, so that nobody can pile them up.
    fn owe(&mut self, client: ClientId, subject: Subject, state: u32, now: Time) {
        if let Some(id) = self.notices.by_client.get(&(client, subject)) {
            self.forget_notice(*id);
        }
        let id = NoticeId(self.ids.take());
        let started = now.mono;
        let owed = Owed {
            client,
            subject,
            state,
            started,
            attempts: 0,
            backed_off: 0,
            in_flight: false,
            answered: false,
        };
        self.notices.owed.insert(id, owed);
        self.notices.by_client.insert((client, subject), id);
        self.send_notice(id, now);
    }

    pub(crate) fn send_notice(&mut self, id: NoticeId, now: Time) {
        if self.is_told(id) {
            return self.forget_notice(id);
        }
        let Some(owed) = self.notices.owed.get_mut(&id) else { return };
        let client = owed.client;
        let Some(tracked) = self.clients.get(client) else { return self.forget_notice(id) };
        if now.mono >= owed.started + GIVE_UP && !self.recovery.expects(tracked, self.exactness) {
            self.forget_notice(id);
            return self.event(Event::NoticeGivenUp { notice: id, client });
        }
        owed.attempts += 1;
        owed.backed_off += 1;
        owed.in_flight = true;
        let attempt = owed.attempts;
        let notice = Notice {
            id,
            client,
            to: tracked.row.address,
            state: owed.state,
            target: target(&tracked.row, &self.config.names, &self.config.reverse_names),
            attempt,
        };
        self.timers.set(Timer::Notice(id), now.mono + LOST);
        self.step.messages.push(Message::Notice(notice));
        self.event(Event::NoticeSent { notice: id, client, attempt });
    }

    /// What became of a `Message::Notice`.
    pub fn handle_noticed(&mut self, notice: NoticeId, result: NoticeResult, now: Time) {
        let in_window = self.in_window();
        let Some(owed) = self.notices.owed.get_mut(&notice) else { return };
        // A second report of one attempt says nothing new, except that somebody is there.
        let reported = !std::mem::replace(&mut owed.in_flight, false);
        if reported && result != NoticeResult::Answered {
            return;
        }
        let client = owed.client;
        let mut next = if in_window || owed.subject == Subject::Watched {
            RETRY_FIRST
                .saturating_mul(1 << owed.backed_off.saturating_sub(1).min(10))
                .min(RETRY_MAX)
        } else {
            RETRY_LATE
        };
        match result {
            NoticeResult::Answered => {
                if !std::mem::replace(&mut owed.answered, true) {
                    self.event(Event::NoticeAnswered { notice, client });
                    if self.clients.get(client).is_some_and(|t| t.row.registrant.is_none()) {
                        self.note_progress(now);
                    }
                }
                self.hear_client(client, now);
                self.hear_network();
            }
            NoticeResult::Failed => {
                let tells_of_us = owed.subject == Subject::Us;
                self.event(Event::NoticeFailed { notice, client });
                if tells_of_us {
                    self.release_unreached(client, now);
                }
            }
            NoticeResult::Unsent => {
                owed.attempts -= 1;
                owed.backed_off = 0;
                next = RETRY_FIRST;
            }
        }
        if self.is_told(notice) {
            self.forget_notice(notice);
        } else {
            let last = self.notices.owed.get(&notice).map(|owed| owed.started + GIVE_UP);
            let next = now.mono + next;
            let next = last.filter(|last| *last > now.mono).map_or(next, |last| next.min(last));
            self.timers.set(Timer::Notice(notice), next);
        }
    }

    /// The network works: every host that has not answered is told again at once.
    pub(crate) fn hurry_notices(&mut self, now: Time) {
        let unanswered =
            self.notices.by_client.iter().filter(|((_, about), _)| *about == Subject::Us);
        let unanswered: Vec<NoticeId> = unanswered.map(|(_, id)| *id).collect();
        for id in unanswered {
            self.hurry_notice(id, now);
        }
    }

    /// This host is there: it is told again at once.
    pub(crate) fn hurry_notice_to(&mut self, client: ClientId, now: Time) {
        if let Some(id) = self.notices.by_client.get(&(client, Subject::Us)) {
            self.hurry_notice(*id, now);
        }
    }

    fn hurry_notice(&mut self, id: NoticeId, now: Time) {
        if let Some(owed) = self.notices.owed.get_mut(&id)
            && !owed.answered
        {
            owed.backed_off = 0;
            if !owed.in_flight {
                self.send_notice(id, now);
            }
        }
    }

    /// Answered is not understood (R2.5): while the window lasts, a host is told again until it has
    /// reclaimed all that it held.
    fn is_told(&self, id: NoticeId) -> bool {
        let Some(owed) = self.notices.owed.get(&id) else { return true };
        let Some(tracked) = self.clients.get(owed.client) else { return true };
        if !owed.answered {
            return false;
        }
        owed.subject != Subject::Us || !self.recovery.expects(tracked, self.exactness)
    }

    /// Tells a client of our state once more, from the beginning.
    pub(crate) fn renotify(&mut self, client: ClientId, now: Time) {
        self.owe(client, Subject::Us, self.epoch.nsm_state(), now);
    }

    pub(crate) fn forget_notices(&mut self, client: ClientId) {
        for subject in [Subject::Us, Subject::Watched] {
            if let Some(id) = self.notices.by_client.get(&(client, subject)) {
                self.forget_notice(*id);
            }
        }
    }

    fn forget_notice(&mut self, id: NoticeId) {
        self.timers.stop(Timer::Notice(id));
        if let Some(owed) = self.notices.owed.remove(&id) {
            self.notices.by_client.remove(&(owed.client, owed.subject));
        }
    }

    pub(crate) fn owes(&self, client: ClientId) -> bool {
        let told = |subject| self.notices.by_client.contains_key(&(client, subject));
        told(Subject::Us) || told(Subject::Watched)
    }

    pub fn notices(&self) -> impl Iterator<Item = NoticeView> {
        self.notices.owed.iter().map(|(id, owed)| self.view_notice(*id, owed))
    }

    /// The notice of our restart that a client is being sent.
    pub fn notice_to(&self, client: ClientId) -> Option<NoticeView> {
        let id = self.notices.by_client.get(&(client, Subject::Us))?;
        self.notices.owed.get(id).map(|owed| self.view_notice(*id, owed))
    }

    fn view_notice(&self, id: NoticeId, owed: &Owed) -> NoticeView {
        NoticeView {
            id,
            client: owed.client,
            attempts: owed.attempts,
            answered: owed.answered,
            next: self.timers.due(Timer::Notice(id)),
        }
    }
}

/// R2.3, R2.4: to whom and under which names.
fn target(row: &Client, names: &[Name], reverse: &BTreeMap<IpAddr, Name>) -> NoticeTarget {
    if let Some(registrant) = &row.registrant {
        return NoticeTarget::Registrant {
            callback: registrant.callback.clone(),
            watched: registrant.watched.clone(),
            private: registrant.private,
        };
    }
    let mut bodies: Vec<(IpAddr, Name)> = Vec::new();
    for ours in &row.used {
        let address = Name::from(ours.to_string().as_str());
        for name in [&address].into_iter().chain(names).chain(reverse.get(ours)) {
            if !bodies.iter().any(|(from, known)| from == ours && known == name) {
                bodies.push((*ours, name.clone()));
            }
        }
    }
    NoticeTarget::Host(Arc::from(bodies))
}

fn watches(registrant: &Client, host: &Client) -> bool {
    let Some(watched) = registrant.registrant.as_ref().map(|registrant| &registrant.watched) else {
        return false;
    };
    watched.names_same_machine(&host.name) || watched.bytes() == host.address.to_string().as_bytes()
}
