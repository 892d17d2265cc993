//! The keeper's events as text for operators: one sentence each, with the names of hosts. It goes to
//! the log and to the event log, from which the event stream is read.

use std::fmt;
use std::net::IpAddr;

use tracing::{debug, field, info, warn};

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::change::Exactness;
use keeper::event::{Event, GraceEnd, Proof, Rejection, Release, ReleasedItem};
use keeper::identity::ClientId;
use keeper::range::Range;
use keeper::request::Mode;
use keeper::step::Refusal;

use crate::log_rate_limit::LogRateLimit;

static REFUSED: LogRateLimit = LogRateLimit::new();
static UNKNOWN_NOTICE: LogRateLimit = LogRateLimit::new();
static AMBIGUOUS: LogRateLimit = LogRateLimit::new();
static STALE_REQUEST: LogRateLimit = LogRateLimit::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
}

/// An event as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventText {
    pub level: Level,
    /// A stable word for programs, see docs/operate.md.
    pub kind: &'static str,
    pub text: String,
    pub client: Option<ClientLabel>,
    /// The operator who did it.
    pub by: Option<Name>,
    /// How many locks it concerns.
    pub locks: Option<u64>,
}

/// A client with its name and address.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientLabel {
    pub id: ClientId,
    pub name: Name,
    pub address: IpAddr,
}

impl fmt::Display for ClientLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.address)
    }
}

impl EventText {
    fn new(level: Level, kind: &'static str, text: String) -> Self {
        Self { level, kind, text, client: None, by: None, locks: None }
    }

    /// An operator's command that did not go through the keeper.
    pub fn of_operator(kind: &'static str, text: String, by: Name) -> Self {
        Self { by: Some(by), ..Self::new(Level::Warn, kind, text) }
    }

    /// A refused call that did not go through [`describe`].
    pub(crate) fn refused(text: String) -> Self {
        Self::new(Level::Warn, "refused", text)
    }

    /// The sentence, and its parts as fields for programs: `event.kind` and so on.
    pub fn log(&self) {
        macro_rules! log {
            ($level:ident) => {
                $level!(
                    event.kind = self.kind,
                    event.client = self.client.as_ref().map(|client| field::display(&client.name)),
                    event.address =
                        self.client.as_ref().map(|client| field::display(client.address)),
                    event.operator = self.by.as_ref().map(field::display),
                    event.locks = self.locks,
                    "{}",
                    self.text
                )
            };
        }
        match self.level {
            Level::Debug => log!(debug),
            Level::Info => log!(info),
            Level::Warn => log!(warn),
        }
    }
}

/// `None` if the event is of a kind that peers can cause in any number, and one was described less
/// than ten seconds ago.
pub fn describe(keeper: &Keeper, event: &Event) -> Option<EventText> {
    let label = client_of(event).and_then(|id| look_up(keeper, id));
    let host = match (&label, client_of(event)) {
        (Some(label), _) => label.to_string(),
        (None, Some(id)) => format!("host {id}"),
        (None, None) => notified_address(event).unwrap_or_else(|| "a new host".into()),
    };
    let mut text = sentence(keeper, event, &host)?;
    text.client = match event {
        // The keeper does not have it any more.
        Event::Forgotten { client, name, address, .. } => {
            Some(ClientLabel { id: *client, name: name.clone(), address: *address })
        }
        _ => label,
    };
    Some(text)
}

fn client_of(event: &Event) -> Option<ClientId> {
    match event {
        Event::Started { .. }
        | Event::GraceStarted { .. }
        | Event::GraceEnded { .. }
        | Event::Stopped
        | Event::WatchedRebooted { .. }
        | Event::MonitorRefused { .. }
        | Event::FreeAllRefused { .. }
        | Event::NotificationEnded { .. }
        | Event::RosterCopyUsed { .. }
        | Event::AddressesNotified { .. }
        | Event::NoticeUnknown { .. } => None,
        Event::Refused { client, .. }
        | Event::NoticeSent { client, .. }
        | Event::NoticeAnswered { client, .. }
        | Event::NoticeFailed { client, .. }
        | Event::NoticeGivenUp { client, .. } => *client,
        Event::Registered { client }
        | Event::Unregistered { client }
        | Event::Rebooted { client, .. }
        | Event::RebootPending { client, .. }
        | Event::FreeAllPending { client, .. }
        | Event::Suspect { client, .. }
        | Event::StatesAlternate { client, .. }
        | Event::Crashed { client }
        | Event::NotReconnected { client }
        | Event::Released { client, .. }
        | Event::ReleasedByOperator { client, .. }
        | Event::StaleRequest { client, .. }
        | Event::Reclaimed { client }
        | Event::ReclaimRefused { client }
        | Event::ReclaimUnrecorded { client }
        | Event::Releasable { client, .. }
        | Event::Deadlock { client }
        | Event::CycleClosed { client }
        | Event::OwnersMoved { client, .. }
        | Event::OwnersAmbiguous { client, .. }
        | Event::GrantUndone { client, .. }
        | Event::PassedOver { client }
        | Event::Fenced { client, .. }
        | Event::FenceExtended { client }
        | Event::Unfenced { client, .. }
        | Event::Renotified { client, .. }
        | Event::Forgotten { client, .. } => Some(*client),
    }
}

/// The recipient of a notice of which the address alone is known.
fn notified_address(event: &Event) -> Option<String> {
    match event {
        Event::NoticeSent { to, .. }
        | Event::NoticeAnswered { to, .. }
        | Event::NoticeFailed { to, .. }
        | Event::NoticeGivenUp { to, .. } => Some(to.to_string()),
        _ => None,
    }
}

fn look_up(keeper: &Keeper, id: ClientId) -> Option<ClientLabel> {
    let view = keeper.client(id)?;
    Some(ClientLabel { id, name: view.client.name.clone(), address: view.client.address })
}

fn sentence(keeper: &Keeper, event: &Event, host: &str) -> Option<EventText> {
    let debug = |kind, text| Some(EventText::new(Level::Debug, kind, text));
    let info = |kind, text| Some(EventText::new(Level::Info, kind, text));
    let warn = |kind, text| Some(EventText::new(Level::Warn, kind, text));
    // With many hosts, these would crowd out the other log lines.
    let quiet =
        |kind, text| if has_few_clients(keeper) { info(kind, text) } else { debug(kind, text) };
    let by = |text: Option<EventText>, by: &Name| Some(EventText { by: Some(by.clone()), ..text? });
    let locks =
        |text: Option<EventText>, locks: u64| Some(EventText { locks: Some(locks), ..text? });
    match event {
        Event::Started { epoch, clients, locks: found, exactness } => {
            let trust = match exactness {
                Exactness::Exact => "",
                Exactness::Roster => " (roster only: locks are not certain)",
                Exactness::Open => " (open: hosts and locks may be missing)",
            };
            let (held, hosts) = (count(*found, "lock"), count(*clients, "host"));
            let text = format!("epoch {}: {held} of {hosts} recovered{trust}", epoch.0);
            locks(info("started", text), *found)
        }
        Event::GraceStarted { .. } if keeper.exactness() == Exactness::Open => {
            let text = "grace begins: new locks wait for reclaims, which any client may send";
            info("grace-started", text.into())
        }
        Event::GraceStarted { hosts } => {
            let hosts = count(*hosts, "host");
            info("grace-started", format!("grace begins: new locks wait for reclaims by {hosts}"))
        }
        Event::GraceEnded { why } => {
            let kind = "grace-ended";
            match why {
                GraceEnd::Complete => {
                    info(kind, "grace ended: all hosts have reclaimed their locks".into())
                }
                GraceEnd::Deadline => info(kind, "grace ended: its time is up".into()),
                GraceEnd::Operator(who) => by(info(kind, format!("grace ended by {who}")), who),
            }
        }
        Event::Stopped => debug("stopped", "clean stop committed".into()),
        Event::Registered { .. } => debug("registered", format!("{host} is monitored")),
        Event::Unregistered { .. } => debug("unregistered", format!("{host} is unregistered")),
        Event::Rebooted { to, proof, released, .. } => {
            let (why, who) = match proof {
                Proof::NothingHeld => ("it held nothing".into(), None),
                Proof::Reset => ("its old connection was reset".into(), None),
                Proof::Notice => ("it sent a notice, and no older connection answers".into(), None),
                Proof::Stateless => ("a new connection of a stateless client".into(), None),
                Proof::Unreclaimed => ("it sent a notice and reclaimed nothing".into(), None),
                Proof::Roamed(source) => {
                    (format!("its notice came from {source}, and its own address is silent"), None)
                }
                Proof::Operator(who) => (format!("confirmed by {who}"), Some(who.clone())),
            };
            let freed = count(*released, "lock");
            let text = format!("{host} rebooted (state {}, {why}): {freed} freed", to.0);
            let text = locks(info("rebooted", text), *released);
            Some(EventText { by: who, ..text? })
        }
        Event::RebootPending { to, why, .. } => {
            let why = rejection(*why);
            let text = format!(
                "{host} was reported to have rebooted (state {}), but {why}: its locks stay",
                to.0
            );
            warn("reboot-pending", text)
        }
        Event::WatchedRebooted { source, name, to, registrants } => {
            let told = count(*registrants, "registrant");
            let text = format!("{name} ({source}) rebooted (state {}): {told} notified", to.0);
            info("rebooted", text)
        }
        Event::FreeAllPending { source, why, .. } => {
            let why = rejection(*why);
            let text = format!("{source} sent FREE_ALL for {host}, but {why}: its locks stay");
            warn("free-all-pending", text)
        }
        Event::NoticeUnknown { source, name } => UNKNOWN_NOTICE.due().then(|| {
            let text = format!("notice from {source} about {name}, which holds nothing here");
            EventText::new(Level::Debug, "notice-unknown", text)
        }),
        Event::Suspect { was, is, .. } => warn(
            "suspect",
            format!(
                "{host} changed its NSM state from {} to {} without proof of a reboot: its locks stay",
                was.0, is.0
            ),
        ),
        Event::StatesAlternate { one, other, .. } => warn(
            "states-alternate",
            format!(
                "{host} alternates between the NSM states {} and {}: two machines with one name \
                 behind one address are one lock owner",
                one.0, other.0
            ),
        ),
        Event::Crashed { .. } => {
            warn("crashed", format!("{host} was not heard from in the recovery window"))
        }
        Event::NotReconnected { .. } => {
            warn("not-reconnected", format!("{host} did not come back in its recovery window"))
        }
        Event::Released { count: lost, why, .. } => {
            let (why, who) = match why {
                Release::FreeAll => ("it sent FREE_ALL".into(), None),
                Release::Unanswered => {
                    ("not reclaimed, wanted, and its host does not answer".into(), None)
                }
                Release::Unreachable => ("the notice of our restart was not answered".into(), None),
                Release::RosterEnd => ("not reclaimed in the grace period".into(), None),
                Release::OldKernel => ("taken before the host rebooted".into(), None),
                Release::Unreclaimed => {
                    ("the host reported a reboot and reclaimed nothing".into(), None)
                }
                Release::Operator(who) => (format!("released by {who}"), Some(who.clone())),
            };
            let text = match lost {
                0 => format!("waiting requests of {host} removed: {why}"),
                lost => format!("{} of {host} released: {why}", count(*lost, "lock")),
            };
            let text = locks(warn("released", text), *lost);
            Some(EventText { by: who, ..text? })
        }
        Event::ReleasedByOperator { id, what, by: who, .. } => {
            let what = match what {
                ReleasedItem::Lock(range, mode) => {
                    format!("{} lock {id}, {},", mode_text(*mode), range_text(*range))
                }
                ReleasedItem::Share => format!("share {id}"),
            };
            let text = format!("{what} of {host} was released by {who}");
            by(locks(warn("released", text), 1), who)
        }
        Event::StaleRequest { incarnation, .. } => STALE_REQUEST.due().then(|| {
            let text = format!("stale request of {host} from state {} ignored", incarnation.0);
            EventText::new(Level::Info, "ghost", text)
        }),
        Event::Reclaimed { .. } => quiet("reclaimed", format!("{host} reclaimed all its locks")),
        Event::ReclaimUnrecorded { .. } => warn(
            "reclaim-unrecorded",
            format!("{host} reclaimed a lock that the store does not have: the store may have lost it"),
        ),
        Event::RosterCopyUsed { hosts } => {
            let hosts = count(*hosts, "host");
            info("roster-copy-used", format!("{hosts} known only from the copy of the roster"))
        }
        Event::Releasable { count: kept, .. } => locks(
            info(
                "releasable",
                format!(
                    "{} of {host}, which was not heard from, can be released when they are wanted",
                    count(*kept, "lock")
                ),
            ),
            *kept,
        ),
        Event::AddressesNotified { count: told, by: who } => by(
            info("addresses-notified", format!("{who} has {told} addresses notified")),
            who,
        ),
        Event::ReclaimRefused { .. } => {
            warn("reclaim-refused", format!("reclaim by {host} refused"))
        }
        Event::OwnersMoved { from, to, count: moved, .. } => {
            let text = format!(
                "{} of {host}, taken through our address {from}, are now its locks through {to}",
                count(*moved, "lock")
            );
            locks(info("owners-moved", text), *moved)
        }
        Event::OwnersAmbiguous { at, .. } => AMBIGUOUS.due().then(|| {
            let text = format!(
                "{host} reclaims or unlocks through our address {at} what several of its owners took \
                 through former addresses: nothing was changed; `formerly` in [rpc] says which"
            );
            EventText::new(Level::Warn, "owners-ambiguous", text)
        }),
        Event::Deadlock { .. } => info("deadlock", format!("lock of {host} refused: deadlock")),
        Event::CycleClosed { .. } => info(
            "deadlock",
            format!(
                "a lock given to {host} closed a circle of waiting owners; the next of their requests \
                 that is repeated will be refused"
            ),
        ),
        Event::GrantUndone { .. } => {
            debug("grant-undone", format!("{host} no longer wants a granted lock"))
        }
        Event::PassedOver { .. } => info(
            "passed-over",
            format!("{host} does not answer and was passed over; it keeps its place"),
        ),
        Event::NoticeSent { attempt, .. } => {
            debug("notice-sent", format!("notice {attempt} sent to {host}"))
        }
        Event::NoticeAnswered { .. } => {
            quiet("notice-answered", format!("{host} answered the notice"))
        }
        Event::NoticeFailed { .. } => {
            quiet("notice-failed", format!("{host} did not answer the notice"))
        }
        Event::NoticeGivenUp { .. } => warn(
            "notice-given-up",
            format!("{host} never answered the notice of our restart; no more are sent"),
        ),
        Event::NotificationEnded { told, answered, failed, took } => {
            let (told, seconds) = (count(*told, "client"), took.as_secs());
            let text = format!(
                "notification ended after {seconds} s: {told} told, {answered} answered, {failed} \
                 failed"
            );
            info("notification-ended", text)
        }
        Event::Refused { why, .. } => REFUSED.due().then(|| {
            let text = format!("request of {host} refused: {}", explain(*why));
            EventText::new(Level::Warn, "refused", text)
        }),
        // Written by `Refusals`.
        Event::MonitorRefused { .. } | Event::FreeAllRefused { .. } => None,
        Event::Fenced { by: who, .. } => {
            by(warn("fenced", format!("{host} was fenced by {who}")), who)
        }
        Event::FenceExtended { .. } => warn(
            "fenced",
            format!("{host} is fenced as well: a fenced machine has this name"),
        ),
        Event::Unfenced { by: who, .. } => {
            by(warn("unfenced", format!("{host} was unfenced by {who}")), who)
        }
        Event::Renotified { by: who, .. } => {
            by(info("notify-asked", format!("notice to {host} requested by {who}")), who)
        }
        Event::Forgotten { name, address, by: who, .. } => {
            let text = format!("{name} ({address}) was removed by {who}");
            by(info("forgotten", text), who)
        }
    }
}

fn has_few_clients(keeper: &Keeper) -> bool {
    keeper.counts().clients <= 100
}

fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "shared",
        Mode::Exclusive => "exclusive",
    }
}

fn range_text(range: Range) -> String {
    match (range.first(), range.last()) {
        (0, u64::MAX) => "all bytes".into(),
        (first, u64::MAX) => format!("bytes {first} to the end"),
        (first, last) if first == last => format!("byte {first}"),
        (first, last) => format!("bytes {first} to {last}"),
    }
}

fn rejection(why: Rejection) -> &'static str {
    match why {
        Rejection::Alive => "its old kernel still answers",
        Rejection::Unproven => "the report came under another name or is old",
        Rejection::Elsewhere => "the report came from another address (see `roaming` in [nsm])",
        Rejection::Unreclaimed => "it may still reclaim what it held before our restart",
        Rejection::Unverified => "its status monitor does not confirm it",
    }
}

fn explain(why: Refusal) -> &'static str {
    match why {
        Refusal::TooManyLocks => "too many locks; allow more with `locks` in [limits]",
        Refusal::TooManyLocksOnFile => {
            "too many locks on one file; allow more with `locks_per_file` in [limits]"
        }
        Refusal::TooManyLocksOfHost => {
            "too many locks of one host; allow more with `locks_per_client` in [limits]"
        }
        Refusal::TooManyLocksOfAddress => {
            "too many locks of one address; allow more with `locks_per_address` in [limits]"
        }
        Refusal::TooManyClientsOfAddress => {
            "too many hosts at one address; allow more with `clients_per_address` in [limits]"
        }
        Refusal::TooManyParkedOfAddress => "too many requests of one address are held back",
        Refusal::TooManyWaitersOnFile => {
            "too many requests wait for one file; allow more with `waiters_per_file` in [limits]"
        }
        Refusal::TooManyRegistrations => "too many SM_MON registrations of one address",
        Refusal::TooManyClients => "too many hosts; allow more with `clients` in [limits]",
        Refusal::OwnProtocol => "the server itself registers clients of NLM and NSM",
        Refusal::TooManyParked => "too many requests are held back",
        Refusal::Fenced => "the host is fenced",
        Refusal::Withdrawn => "withdrawn by its client",
        Refusal::StaleRequest => "sent before the host rebooted",
    }
}

#[cfg(test)]
mod tests {
    use keeper::change::Snapshot;
    use keeper::config::Config;
    use keeper::identity::{Epoch, Incarnation, LockId};
    use keeper::time::Time;

    use super::*;

    fn described(event: Event) -> EventText {
        let now = Time { mono: std::time::Duration::ZERO, wall_ms: 0 };
        let keeper = Keeper::restore(Snapshot::default(), Epoch(1), Config::default(), now);
        describe(&keeper, &event).unwrap()
    }

    #[test]
    fn a_release_by_an_operator_says_what_was_released() {
        let released = |what| {
            let (client, by) = (ClientId(3), Name::from("root (uid 0)"));
            let text = described(Event::ReleasedByOperator { client, id: LockId(1026), what, by });
            assert_eq!((text.kind, text.locks, text.level), ("released", Some(1), Level::Warn));
            assert_eq!(text.by, Some(Name::from("root (uid 0)")));
            text.text
        };
        let lock =
            |offset, length| ReleasedItem::Lock(Range::at(offset, length).unwrap(), Mode::Shared);
        assert_eq!(
            released(ReleasedItem::Lock(Range::at(0, 100).unwrap(), Mode::Exclusive)),
            "exclusive lock k102, bytes 0 to 99, of host c3 was released by root (uid 0)"
        );
        assert!(released(lock(7, 1)).starts_with("shared lock k102, byte 7, of"));
        assert!(released(lock(7, 0)).starts_with("shared lock k102, bytes 7 to the end, of"));
        assert!(released(lock(0, 0)).starts_with("shared lock k102, all bytes, of"));
        let share = "share k102 of host c3 was released by root (uid 0)";
        assert_eq!(released(ReleasedItem::Share), share);
    }

    #[test]
    fn the_end_of_notification_is_one_line() {
        let took = std::time::Duration::from_millis(15_400);
        let text = described(Event::NotificationEnded { told: 3, answered: 1, failed: 2, took });
        assert_eq!((text.kind, text.level), ("notification-ended", Level::Info));
        let line = "notification ended after 15 s: 3 clients told, 1 answered, 2 failed";
        assert_eq!(text.text, line);
    }

    #[test]
    fn a_count_of_one_is_singular() {
        let of = |number| {
            let (client, to) = (ClientId(3), Incarnation(5));
            let why = Release::FreeAll;
            [
                Event::Started {
                    epoch: Epoch(2),
                    clients: number,
                    locks: number,
                    exactness: Exactness::Exact,
                },
                Event::GraceStarted { hosts: number },
                Event::Rebooted { client, to, proof: Proof::Reset, released: number },
                Event::Released { client, count: number, why },
            ]
            .map(|event| described(event).text)
        };
        assert_eq!(
            of(1),
            [
                "epoch 2: 1 lock of 1 host recovered",
                "grace begins: new locks wait for reclaims by 1 host",
                "host c3 rebooted (state 5, its old connection was reset): 1 lock freed",
                "1 lock of host c3 released: it sent FREE_ALL",
            ]
        );
        assert_eq!(
            of(2),
            [
                "epoch 2: 2 locks of 2 hosts recovered",
                "grace begins: new locks wait for reclaims by 2 hosts",
                "host c3 rebooted (state 5, its old connection was reset): 2 locks freed",
                "2 locks of host c3 released: it sent FREE_ALL",
            ]
        );
    }
}
