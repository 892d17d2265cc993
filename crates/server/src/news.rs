//! What happened to locks, told to people: one sentence each, with names. It goes to the log, and to
//! the chronicle that the event stream is read from.

use std::fmt;
use std::net::IpAddr;

use tracing::{debug, info, warn};

use keeper::Keeper;
use keeper::bytes::Name;
use keeper::event::{Doubt, Event, GraceEnd, Proof, Release, Taken};
use keeper::identity::ClientId;
use keeper::range::Range;
use keeper::request::Mode;
use keeper::step::Refusal;

use crate::rarely::Rarely;

static REFUSED: Rarely = Rarely::new();
static STRANGER: Rarely = Rarely::new();
static GHOST: Rarely = Rarely::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    pub level: Level,
    /// One word for programs.
    pub kind: &'static str,
    pub text: String,
    pub client: Option<Who>,
    /// The operator who did it.
    pub by: Option<Name>,
    /// How many locks it concerns.
    pub locks: Option<u64>,
}

/// A client by the name and address that people know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub id: ClientId,
    pub name: Name,
    pub address: IpAddr,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.address)
    }
}

impl News {
    fn new(level: Level, kind: &'static str, text: String) -> Self {
        Self { level, kind, text, client: None, by: None, locks: None }
    }

    /// What an operator did to the server itself.
    pub fn of_operator(kind: &'static str, text: String, by: Name) -> Self {
        Self { by: Some(by), ..Self::new(Level::Warn, kind, text) }
    }

    pub fn log(&self) {
        match self.level {
            Level::Debug => debug!("{}", self.text),
            Level::Info => info!("{}", self.text),
            Level::Warn => warn!("{}", self.text),
        }
    }
}

/// `None` for what peers could flood us with, when it was told a moment ago.
pub fn describe(keeper: &Keeper, event: &Event) -> Option<News> {
    let who = client_of(event).and_then(|id| look_up(keeper, id));
    let host = match (&who, client_of(event)) {
        (Some(who), _) => who.to_string(),
        (None, Some(id)) => format!("host {id}"),
        (None, None) => "a new host".into(),
    };
    let mut news = sentence(keeper, event, &host)?;
    news.client = match event {
        // It is gone from the list by now.
        Event::Forgotten { client, name, address, .. } => {
            Some(Who { id: *client, name: name.clone(), address: *address })
        }
        _ => who,
    };
    Some(news)
}

fn client_of(event: &Event) -> Option<ClientId> {
    match event {
        Event::Started { .. }
        | Event::GraceStarted { .. }
        | Event::GraceEnded { .. }
        | Event::Stopped
        | Event::NoticeUnknown { .. } => None,
        Event::Refused { client, .. } => *client,
        Event::Registered { client }
        | Event::Unregistered { client }
        | Event::Rebooted { client, .. }
        | Event::RebootPending { client, .. }
        | Event::Suspect { client, .. }
        | Event::Crashed { client }
        | Event::Released { client, .. }
        | Event::ReleasedByHand { client, .. }
        | Event::Ghost { client, .. }
        | Event::Reclaimed { client }
        | Event::ReclaimRefused { client }
        | Event::Deadlock { client }
        | Event::GrantUndone { client, .. }
        | Event::PassedOver { client }
        | Event::NoticeSent { client, .. }
        | Event::NoticeAnswered { client, .. }
        | Event::NoticeFailed { client, .. }
        | Event::NoticeGivenUp { client, .. }
        | Event::Fenced { client, .. }
        | Event::Unfenced { client, .. }
        | Event::Renotified { client, .. }
        | Event::Forgotten { client, .. } => Some(*client),
    }
}

fn look_up(keeper: &Keeper, id: ClientId) -> Option<Who> {
    let view = keeper.client(id)?;
    Some(Who { id, name: view.client.name.clone(), address: view.client.address })
}

fn sentence(keeper: &Keeper, event: &Event, host: &str) -> Option<News> {
    let debug = |kind, text| Some(News::new(Level::Debug, kind, text));
    let info = |kind, text| Some(News::new(Level::Info, kind, text));
    let warn = |kind, text| Some(News::new(Level::Warn, kind, text));
    // With thousands of hosts some lines would drown the others.
    let quiet = |kind, text| if few(keeper) { info(kind, text) } else { debug(kind, text) };
    let by = |news: Option<News>, by: &Name| Some(News { by: Some(by.clone()), ..news? });
    let locks = |news: Option<News>, locks: u64| Some(News { locks: Some(locks), ..news? });
    match event {
        Event::Started { epoch, clients, locks: found, exact } => {
            let trust = if *exact { "" } else { " (a roster: only who held locks is certain)" };
            let (held, hosts) = (count(*found, "lock"), count(*clients, "host"));
            let text = format!("epoch {}: {held} of {hosts} recovered{trust}", epoch.0);
            locks(info("started", text), *found)
        }
        Event::GraceStarted { hosts } => {
            let who = match hosts {
                1 => "1 host has its".into(),
                hosts => format!("{hosts} hosts have their"),
            };
            let text = format!("grace begins: new locks wait until {who} old ones back");
            info("grace-started", text)
        }
        Event::GraceEnded { why } => {
            let kind = "grace-ended";
            match why {
                GraceEnd::Complete => {
                    info(kind, "grace is over: everybody has their locks back".into())
                }
                GraceEnd::Deadline => info(kind, "grace is over: its time is up".into()),
                GraceEnd::Operator(who) => by(info(kind, format!("grace was ended by {who}")), who),
            }
        }
        Event::Stopped => debug("stopped", "the clean stop is in the store".into()),
        Event::Registered { .. } => debug("registered", format!("{host} is monitored")),
        Event::Unregistered { .. } => debug("unregistered", format!("{host} is forgotten")),
        Event::Rebooted { to, proof, released, .. } => {
            let (why, who) = match proof {
                Proof::NothingHeld => ("it held nothing".into(), None),
                Proof::Reset => ("its old connection was reset".into(), None),
                Proof::Notice => ("it said so, and nothing of its old kernel answers".into(), None),
                Proof::Stateless => ("a new connection of a stateless client".into(), None),
                Proof::Unreclaimed => ("it said so, and reclaimed nothing".into(), None),
                Proof::Operator(who) => (format!("confirmed by {who}"), Some(who.clone())),
            };
            let freed = count(*released, "lock");
            let text = format!("{host} rebooted (state {}, {why}): {freed} freed", to.0);
            let news = locks(info("rebooted", text), *released);
            Some(News { by: who, ..news? })
        }
        Event::RebootPending { to, why, .. } => {
            let why = match why {
                Doubt::Alive => "its old kernel still answers",
                Doubt::Unproven => "the notice came from elsewhere or is old",
                Doubt::Unreclaimed => "it may still reclaim what it held before our restart",
                Doubt::Unverified => "its status monitor does not confirm it",
            };
            let text = format!(
                "{host} is said to have rebooted (state {}), but {why}: its locks stay",
                to.0
            );
            warn("reboot-pending", text)
        }
        Event::NoticeUnknown { source, name } => STRANGER.due().then(|| {
            let text = format!("a notice from {source} about {name}, who holds nothing here");
            News::new(Level::Debug, "notice-unknown", text)
        }),
        Event::Suspect { was, is, .. } => warn(
            "suspect",
            format!(
                "{host} changed its state from {} to {} without proof of a reboot: its locks stay",
                was.0, is.0
            ),
        ),
        Event::Crashed { .. } => {
            warn("crashed", format!("{host} was not heard of in the recovery window"))
        }
        Event::Released { count: lost, why, .. } => {
            let (why, who) = match why {
                Release::FreeAll => ("it freed all it had".into(), None),
                Release::Unanswered => {
                    ("not reclaimed, wanted, and it does not answer".into(), None)
                }
                Release::Unreachable => ("it could not be notified".into(), None),
                Release::RosterEnd => ("not reclaimed in the grace period".into(), None),
                Release::OldKernel => ("the kernel that took them is gone".into(), None),
                Release::Unreclaimed => {
                    ("it reported a reboot, and reclaimed nothing".into(), None)
                }
                Release::Operator(who) => (format!("released by {who}"), Some(who.clone())),
            };
            let text = match lost {
                0 => format!("requests of {host} that waited have ended: {why}"),
                lost => format!("{} of {host} released: {why}", count(*lost, "lock")),
            };
            let news = locks(warn("released", text), *lost);
            Some(News { by: who, ..news? })
        }
        Event::ReleasedByHand { id, what, by: who, .. } => {
            let what = match what {
                Taken::Lock(range, mode) => {
                    format!("{} lock {id}, {},", called(*mode), written(*range))
                }
                Taken::Share => format!("share {id}"),
            };
            let text = format!("{what} of {host} was released by {who}");
            by(locks(warn("released", text), 1), who)
        }
        Event::Ghost { incarnation, .. } => GHOST.due().then(|| {
            let text = format!("a late request of {host} from state {} ignored", incarnation.0);
            News::new(Level::Info, "ghost", text)
        }),
        Event::Reclaimed { .. } => quiet("reclaimed", format!("{host} has all its locks back")),
        Event::ReclaimRefused { .. } => {
            warn("reclaim-refused", format!("a reclaim of {host} was refused"))
        }
        Event::Deadlock { .. } => info("deadlock", format!("a lock of {host} would deadlock")),
        Event::GrantUndone { .. } => {
            debug("grant-undone", format!("{host} no longer wanted a lock"))
        }
        Event::PassedOver { .. } => info(
            "passed-over",
            format!("{host} does not answer and was passed over; it keeps its place"),
        ),
        Event::NoticeSent { attempt, .. } => {
            debug("notice-sent", format!("notice {attempt} to {host}"))
        }
        Event::NoticeAnswered { .. } => quiet("notice-answered", format!("{host} was notified")),
        Event::NoticeFailed { .. } => {
            quiet("notice-failed", format!("{host} did not answer a notice"))
        }
        Event::NoticeGivenUp { .. } => warn(
            "notice-given-up",
            format!("{host} never answered a notice of our restart; given up"),
        ),
        Event::Refused { why, .. } => REFUSED.due().then(|| {
            let text = format!("a request of {host} was refused: {}", explain(*why));
            News::new(Level::Warn, "refused", text)
        }),
        Event::Fenced { by: who, .. } => {
            by(warn("fenced", format!("{host} was fenced by {who}")), who)
        }
        Event::Unfenced { by: who, .. } => {
            by(warn("unfenced", format!("{host} was let in again by {who}")), who)
        }
        Event::Renotified { by: who, .. } => {
            by(info("notify-asked", format!("{who} had {host} notified again")), who)
        }
        Event::Forgotten { name, address, by: who, .. } => {
            let text = format!("{name} ({address}) was taken off the list by {who}");
            by(info("forgotten", text), who)
        }
    }
}

fn few(keeper: &Keeper) -> bool {
    keeper.counts().clients <= 100
}

fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

fn called(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "shared",
        Mode::Exclusive => "exclusive",
    }
}

fn written(range: Range) -> String {
    match (range.first(), range.last()) {
        (0, u64::MAX) => "all bytes".into(),
        (first, u64::MAX) => format!("bytes {first} to the end"),
        (first, last) if first == last => format!("byte {first}"),
        (first, last) => format!("bytes {first} to {last}"),
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
        Refusal::TooManyWaitersOnFile => {
            "too many wait for one file; allow more with `waiters_per_file` in [limits]"
        }
        Refusal::TooManyRegistrations => "too many SM_MON registrations of one address",
        Refusal::TooManyClients => "too many hosts; allow more with `clients` in [limits]",
        Refusal::TooManyParked => "too many requests are held back already",
        Refusal::Fenced => "it is fenced",
        Refusal::Withdrawn => "it was withdrawn meanwhile",
        Refusal::Ghost => "it is of a kernel that is gone",
    }
}

#[cfg(test)]
mod tests {
    use keeper::change::Snapshot;
    use keeper::config::Config;
    use keeper::identity::{Epoch, Incarnation, LockId};
    use keeper::time::Time;

    use super::*;

    fn told(event: Event) -> News {
        let now = Time { mono: std::time::Duration::ZERO, wall_ms: 0 };
        let keeper = Keeper::restore(Snapshot::default(), Epoch(1), Config::default(), now);
        describe(&keeper, &event).unwrap()
    }

    #[test]
    fn a_release_by_hand_says_what_went() {
        let released = |what| {
            let (client, by) = (ClientId(3), Name::from("root (uid 0)"));
            let news = told(Event::ReleasedByHand { client, id: LockId(1026), what, by });
            assert_eq!((news.kind, news.locks, news.level), ("released", Some(1), Level::Warn));
            assert_eq!(news.by, Some(Name::from("root (uid 0)")));
            news.text
        };
        let lock = |offset, length| Taken::Lock(Range::at(offset, length).unwrap(), Mode::Shared);
        assert_eq!(
            released(Taken::Lock(Range::at(0, 100).unwrap(), Mode::Exclusive)),
            "exclusive lock k102, bytes 0 to 99, of host c3 was released by root (uid 0)"
        );
        assert!(released(lock(7, 1)).starts_with("shared lock k102, byte 7, of"));
        assert!(released(lock(7, 0)).starts_with("shared lock k102, bytes 7 to the end, of"));
        assert!(released(lock(0, 0)).starts_with("shared lock k102, all bytes, of"));
        let share = "share k102 of host c3 was released by root (uid 0)";
        assert_eq!(released(Taken::Share), share);
    }

    #[test]
    fn one_is_not_many() {
        let of = |number| {
            let (client, to) = (ClientId(3), Incarnation(5));
            let why = Release::FreeAll;
            [
                Event::Started { epoch: Epoch(2), clients: number, locks: number, exact: true },
                Event::GraceStarted { hosts: number },
                Event::Rebooted { client, to, proof: Proof::Reset, released: number },
                Event::Released { client, count: number, why },
            ]
            .map(|event| told(event).text)
        };
        assert_eq!(
            of(1),
            [
                "epoch 2: 1 lock of 1 host recovered",
                "grace begins: new locks wait until 1 host has its old ones back",
                "host c3 rebooted (state 5, its old connection was reset): 1 lock freed",
                "1 lock of host c3 released: it freed all it had",
            ]
        );
        assert_eq!(
            of(2),
            [
                "epoch 2: 2 locks of 2 hosts recovered",
                "grace begins: new locks wait until 2 hosts have their old ones back",
                "host c3 rebooted (state 5, its old connection was reset): 2 locks freed",
                "2 locks of host c3 released: it freed all it had",
            ]
        );
    }
}
