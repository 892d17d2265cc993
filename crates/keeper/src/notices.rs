//! Notices: who must be notified, under which names, and when to try again. After a restart
//! every monitored host and every registrant is notified of the server's new state; after a host's
//! reboot, the registrants that watch it are (`registrants.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::Name;
use crate::change::{Client, Exactness, Protocol};
use crate::config::Config;
use crate::event::Event;
use crate::identity::{ClientId, NoticeId};
use crate::keeper::Keeper;
use crate::namespaces::OwnAddresses;
use crate::registrants::our_name;
use crate::request::NoticeResult;
use crate::step::{Message, Notice, NoticeTarget};
use crate::time::Time;
use crate::timer::{RETRY_FIRST, Timer, back_off};
use crate::view::NoticeView;

/// Outside the window: every 2 minutes, for 15 minutes in all.
const RETRY_LATE: Duration = Duration::from_secs(120);
const GIVE_UP_AFTER: Duration = Duration::from_secs(15 * 60);
/// An attempt takes at most 5 s (B4.3); without a result it is over after this.
const REPORT_LOST_AFTER: Duration = Duration::from_secs(30);

/// A notice that is still being sent.
struct PendingNotice {
    recipient: Recipient,
    subject: NoticeSubject,
    state: u32,
    started: Duration,
    attempts: u32,
    /// Attempts since an answer last became likely; the pause doubles with each.
    backed_off: u32,
    /// The last attempt has no result yet.
    in_flight: bool,
    answered: bool,
    given_up: bool,
    /// An operator wants it sent, whatever the host has reclaimed.
    by_operator: bool,
}

enum Recipient {
    Client(ClientId),
    /// A host that no row has, and the addresses of the server that it may know.
    Address {
        address: IpAddr,
        ours: Vec<IpAddr>,
    },
}

impl PendingNotice {
    fn client(&self) -> Option<ClientId> {
        match self.recipient {
            Recipient::Client(client) => Some(client),
            Recipient::Address { .. } => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NoticeSubject {
    /// The server restarted.
    OurRestart,
    /// A host that this registrant watches rebooted.
    HostReboot,
}

#[derive(Default)]
pub(crate) struct Notices {
    pending: BTreeMap<NoticeId, PendingNotice>,
    by_client: BTreeMap<(ClientId, NoticeSubject), NoticeId>,
    by_address: BTreeMap<IpAddr, NoticeId>,
    /// The notification of this start, until the last of its clients is settled.
    notification: Option<Notification>,
}

/// Notices of the server's restart to all clients, as one undertaking.
struct Notification {
    began: Duration,
    told: u64,
    answered: u64,
    failed: u64,
    unsettled: BTreeSet<ClientId>,
}

impl Keeper {
    /// After a restart: every monitored client, all at once (B4.2).
    pub(crate) fn queue_restart_notices(&mut self, now: Time) {
        let told = self.clients.iter().filter(|tracked| tracked.row.monitored);
        let told: BTreeSet<ClientId> = told.map(|tracked| tracked.row.id).collect();
        for client in &told {
            self.queue_notice(*client, NoticeSubject::OurRestart, self.epoch.nsm_state(), now);
            self.resume_relay(*client, now);
        }
        self.notices.notification = (!told.is_empty()).then_some(Notification {
            began: now.mono,
            told: told.len() as u64,
            answered: 0,
            failed: 0,
            unsettled: told,
        });
    }

    /// A new notice replaces an unfinished one on the same subject, so notices cannot pile up.
    pub(crate) fn queue_notice(
        &mut self,
        client: ClientId,
        subject: NoticeSubject,
        state: u32,
        now: Time,
    ) {
        self.queue(Recipient::Client(client), subject, state, false, now);
    }

    /// Sends the notice of the server's restart to an address, as long as no more addresses than
    /// clients are told (I10).
    pub(crate) fn notify_address(
        &mut self,
        address: IpAddr,
        ours: Vec<IpAddr>,
        by_operator: bool,
        now: Time,
    ) {
        if self.notices.by_address.len() < self.config.limits.clients {
            let recipient = Recipient::Address { address, ours };
            let state = self.epoch.nsm_state();
            self.queue(recipient, NoticeSubject::OurRestart, state, by_operator, now);
        }
    }

    pub(crate) fn is_address_notified(&self, address: IpAddr) -> bool {
        self.notices.by_address.contains_key(&address)
    }

    fn queue(
        &mut self,
        recipient: Recipient,
        subject: NoticeSubject,
        state: u32,
        by_operator: bool,
        now: Time,
    ) {
        let id = NoticeId(self.ids.take());
        let before = match &recipient {
            Recipient::Client(client) => self.notices.by_client.insert((*client, subject), id),
            Recipient::Address { address, .. } => self.notices.by_address.insert(*address, id),
        };
        if let Some(before) = before {
            self.timers.stop(Timer::Notice(before));
            self.notices.pending.remove(&before);
        }
        let pending = PendingNotice {
            recipient,
            subject,
            state,
            started: now.mono,
            attempts: 0,
            backed_off: 0,
            in_flight: false,
            answered: false,
            given_up: false,
            by_operator,
        };
        self.notices.pending.insert(id, pending);
        self.send_notice(id, now);
    }

    pub(crate) fn send_notice(&mut self, id: NoticeId, now: Time) {
        if self.is_done(id) {
            return self.end_notice(id, now);
        }
        let Some(pending) = self.notices.pending.get(&id) else { return };
        let expected = self.is_expected(&pending.recipient);
        let Some(to) = self.destination(&pending.recipient) else { return };
        let Some(pending) = self.notices.pending.get_mut(&id) else { return };
        let client = pending.client();
        if now.mono >= pending.started + GIVE_UP_AFTER && !expected {
            pending.given_up = true;
            let subject = pending.subject;
            self.event(Event::NoticeGivenUp { notice: id, client, to });
            self.end_notice(id, now);
            return self.end_relay(client, subject);
        }
        let (config, addresses) = (&self.config, &self.addresses);
        let target = match &pending.recipient {
            Recipient::Client(client) => {
                let Some(tracked) = self.clients.get(*client) else { return };
                target(&tracked.row, pending.subject, config, addresses)
            }
            Recipient::Address { ours, .. } => host_target(to, ours, config, addresses),
        };
        pending.attempts += 1;
        pending.backed_off += 1;
        pending.in_flight = true;
        let attempt = pending.attempts;
        let notice = Notice { id, client, to, state: pending.state, target, attempt };
        self.timers.set(Timer::Notice(id), now.mono + REPORT_LOST_AFTER);
        self.step.messages.push(Message::Notice(notice));
        self.event(Event::NoticeSent { notice: id, client, to, attempt });
    }

    pub(crate) fn use_notice_result(&mut self, notice: NoticeId, result: NoticeResult, now: Time) {
        let in_window = self.is_notice_in_window(notice, now);
        let Some(pending) = self.notices.pending.get(&notice) else { return };
        let Some(to) = self.destination(&pending.recipient) else { return };
        let Some(pending) = self.notices.pending.get_mut(&notice) else { return };
        // A second result for one attempt matters only if it is an answer.
        let reported = !std::mem::replace(&mut pending.in_flight, false);
        if reported && result != NoticeResult::Answered {
            return;
        }
        let (client, subject) = (pending.client(), pending.subject);
        let mut next = if in_window || subject == NoticeSubject::HostReboot {
            back_off(pending.backed_off)
        } else {
            RETRY_LATE
        };
        match result {
            NoticeResult::Answered => {
                if !std::mem::replace(&mut pending.answered, true) {
                    self.event(Event::NoticeAnswered { notice, client, to });
                    let row = client.and_then(|client| self.clients.get(client));
                    if row.is_none_or(|tracked| tracked.row.is_host()) {
                        self.note_progress(now);
                    }
                }
                if let Some(client) = client {
                    self.hear_client(client, now);
                }
                self.hear_network();
            }
            NoticeResult::Failed => {
                self.event(Event::NoticeFailed { notice, client, to });
                if let Some(client) = client
                    && subject == NoticeSubject::OurRestart
                {
                    self.release_unreached(client, now);
                }
            }
            NoticeResult::Unsent => {
                pending.attempts -= 1;
                pending.backed_off = 0;
                next = RETRY_FIRST;
            }
        }
        if self.is_done(notice) {
            self.end_notice(notice, now);
            self.end_relay(client, subject);
        } else {
            let last =
                self.notices.pending.get(&notice).map(|pending| pending.started + GIVE_UP_AFTER);
            let next = now.mono + next;
            let next = last.filter(|last| *last > now.mono).map_or(next, |last| next.min(last));
            self.timers.set(Timer::Notice(notice), next);
        }
    }

    /// Whether the client is still in its recovery window. A registrant has nothing to reclaim: its
    /// window runs from the notice, and only decides how often that is repeated.
    fn is_notice_in_window(&self, notice: NoticeId, now: Time) -> bool {
        let Some(pending) = self.notices.pending.get(&notice) else { return false };
        match pending.client().and_then(|client| self.clients.get(client)) {
            Some(tracked) if tracked.row.registrant.is_some() => {
                now.mono < pending.started + self.config.window(&Protocol::NSM)
            }
            _ => self.in_window(),
        }
    }

    /// The network works: repeats every unanswered notice of the restart at once.
    pub(crate) fn resend_unanswered_notices(&mut self, now: Time) {
        let unanswered = self
            .notices
            .by_client
            .iter()
            .filter(|((_, about), _)| *about == NoticeSubject::OurRestart);
        let unanswered = unanswered.map(|(_, id)| id).chain(self.notices.by_address.values());
        let unanswered: Vec<NoticeId> = unanswered.copied().collect();
        for id in unanswered {
            self.resend_notice(id, now);
        }
    }

    /// The host is present: repeats its unanswered notice at once.
    pub(crate) fn resend_notice_to(&mut self, client: ClientId, now: Time) {
        if let Some(id) = self.notices.by_client.get(&(client, NoticeSubject::OurRestart)) {
            self.resend_notice(*id, now);
        }
    }

    fn resend_notice(&mut self, id: NoticeId, now: Time) {
        if let Some(pending) = self.notices.pending.get_mut(&id)
            && !pending.answered
        {
            pending.backed_off = 0;
            if !pending.in_flight {
                self.send_notice(id, now);
            }
        }
    }

    /// An answered notice need not have been understood (B4.5): while the window lasts, it repeats
    /// until the host has reclaimed everything. A host that has, knows of the restart (B4.80).
    fn is_done(&self, id: NoticeId) -> bool {
        let Some(pending) = self.notices.pending.get(&id) else { return true };
        let expected = self.is_expected(&pending.recipient);
        let Recipient::Client(client) = pending.recipient else {
            // What was heard in an open grace is told until that ends.
            return !expected && (pending.answered || !pending.by_operator);
        };
        let Some(tracked) = self.clients.get(client) else { return true };
        if pending.subject == NoticeSubject::HostReboot {
            return pending.answered;
        }
        // With a roster it is never known whether a host has everything back.
        let complete = self.exactness == Exactness::Exact && tracked.has_everything_back();
        (complete && !pending.by_operator) || (pending.answered && !expected)
    }

    fn destination(&self, recipient: &Recipient) -> Option<IpAddr> {
        match recipient {
            Recipient::Client(client) => Some(self.clients.get(*client)?.row.address),
            Recipient::Address { address, .. } => Some(*address),
        }
    }

    /// Whether the recipient may still have something to reclaim.
    fn is_expected(&self, recipient: &Recipient) -> bool {
        match recipient {
            Recipient::Client(client) => self
                .clients
                .get(*client)
                .is_some_and(|tracked| self.recovery.expects(tracked, self.exactness)),
            Recipient::Address { .. } => self.in_open_grace(),
        }
    }

    /// Ends the notices of the restart to hosts that have nothing left to reclaim.
    pub(crate) fn end_notices_of_reclaimers(&mut self, now: Time) {
        for client in std::mem::take(&mut self.recovery.reclaimers) {
            if let Some(id) = self.notices.by_client.get(&(client, NoticeSubject::OurRestart))
                && self.is_done(*id)
            {
                let id = *id;
                self.withhold_notice(id);
                self.end_notice(id, now);
            }
        }
    }

    /// Takes back an attempt of this step: the call that showed the host to be present, which
    /// repeats its notice, has itself made the notice superfluous.
    fn withhold_notice(&mut self, id: NoticeId) {
        if self.notices.pending.get(&id).is_some_and(|pending| pending.in_flight) {
            let sent =
                |message: &Message| matches!(message, Message::Notice(sent) if sent.id == id);
            self.step.messages.retain(|message| !sent(message));
            let told =
                |event: &Event| matches!(event, Event::NoticeSent { notice, .. } if *notice == id);
            self.step.events.retain(|event| !told(event));
        }
    }

    /// The window is over: ends the notices that were answered.
    pub(crate) fn end_answered_notices(&mut self, now: Time) {
        let pending: Vec<NoticeId> = self.notices.pending.keys().copied().collect();
        for id in pending {
            if self.is_done(id) {
                self.end_notice(id, now);
            }
        }
    }

    /// Starts the notice of the server's state afresh.
    pub(crate) fn renotify(&mut self, client: ClientId, now: Time) {
        let recipient = Recipient::Client(client);
        self.queue(recipient, NoticeSubject::OurRestart, self.epoch.nsm_state(), true, now);
    }

    pub(crate) fn forget_notices(&mut self, client: ClientId, now: Time) {
        for subject in [NoticeSubject::OurRestart, NoticeSubject::HostReboot] {
            if let Some(id) = self.notices.by_client.get(&(client, subject)) {
                self.end_notice(*id, now);
            }
        }
    }

    fn remove_notice(&mut self, id: NoticeId) -> Option<PendingNotice> {
        self.timers.stop(Timer::Notice(id));
        let pending = self.notices.pending.remove(&id)?;
        match &pending.recipient {
            Recipient::Client(client) => {
                self.notices.by_client.remove(&(*client, pending.subject));
            }
            Recipient::Address { address, .. } => {
                self.notices.by_address.remove(address);
            }
        }
        Some(pending)
    }

    /// Ends a notice; the last one of a restart ends the notification (B4.81).
    fn end_notice(&mut self, id: NoticeId, now: Time) {
        let Some(pending) = self.remove_notice(id) else { return };
        let Some(notification) = &mut self.notices.notification else { return };
        let of_restart = pending.subject == NoticeSubject::OurRestart;
        let client = pending.client().filter(|_| of_restart);
        if !client.is_some_and(|client| notification.unsettled.remove(&client)) {
            return;
        }
        notification.answered += u64::from(pending.answered);
        notification.failed += u64::from(pending.given_up);
        if notification.unsettled.is_empty() {
            let Notification { began, told, answered, failed, .. } = *notification;
            let took = now.mono.saturating_sub(began);
            self.notices.notification = None;
            self.event(Event::NotificationEnded { told, answered, failed, took });
        }
    }

    pub(crate) fn has_pending_notice(&self, client: ClientId) -> bool {
        let told = |subject| self.notices.by_client.contains_key(&(client, subject));
        told(NoticeSubject::OurRestart) || told(NoticeSubject::HostReboot)
    }

    /// The notices that are still being sent.
    pub fn notices(&self) -> impl Iterator<Item = NoticeView> {
        self.notices.pending.iter().map(|(id, pending)| self.view_notice(*id, pending))
    }

    /// The notice of the server's restart that is being sent to a client.
    pub fn notice_to(&self, client: ClientId) -> Option<NoticeView> {
        let id = self.notices.by_client.get(&(client, NoticeSubject::OurRestart))?;
        self.notices.pending.get(id).map(|pending| self.view_notice(*id, pending))
    }

    fn view_notice(&self, id: NoticeId, pending: &PendingNotice) -> NoticeView {
        NoticeView {
            id,
            client: pending.client(),
            to: self.destination(&pending.recipient).unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            attempts: pending.attempts,
            answered: pending.answered,
            next: self.timers.due(Timer::Notice(id)),
        }
    }
}

/// B3.4, B4.4: the destination, and the names under which the server may be known there.
fn target(
    row: &Client,
    subject: NoticeSubject,
    config: &Config,
    addresses: &OwnAddresses,
) -> NoticeTarget {
    if let Some(registrant) = &row.registrant {
        let name = match subject {
            NoticeSubject::OurRestart => our_name(row, &registrant.watched, config),
            NoticeSubject::HostReboot => registrant.watched.clone(),
        };
        let (callback, private) = (registrant.callback.clone(), registrant.private);
        return NoticeTarget::Registrant { callback, name, private };
    }
    host_target(row.address, &row.used, config, addresses)
}

/// A former address is still a name, but nothing can be sent from it.
fn host_target(
    to: IpAddr,
    used: &[IpAddr],
    config: &Config,
    addresses: &OwnAddresses,
) -> NoticeTarget {
    let mut bodies: Vec<(IpAddr, Name)> = Vec::new();
    for ours in used {
        let source = match to {
            _ if addresses.contains(*ours) => *ours,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let address = Name::from(ours.to_string().as_str());
        let address = Some(&address).filter(|_| !ours.is_unspecified());
        let reverse = config.reverse_names.get(ours);
        for name in address.into_iter().chain(&config.names).chain(reverse) {
            if !bodies.iter().any(|(from, known)| *from == source && known == name) {
                bodies.push((source, name.clone()));
            }
        }
    }
    if bodies.is_empty() {
        let any = match to {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        bodies.push((any, config.host_name.clone()));
    }
    NoticeTarget::Host(Arc::from(bodies))
}
